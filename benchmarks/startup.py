"""Measure how long the program takes to start, as whole processes, beside the import of numpy.

    python benchmarks/startup.py [--runs 15]

A line is a command: the medians of its CPU seconds and of its seconds on the clock, and both by
those of numpy's import, all measured in turn in this run.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from processes import PROGRAM, ProcessCost, median_costs

from hub_core import __version__

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ring_all_reduce_8.xml"
NUMPY = "python -c 'import numpy'"
VERSION = "collhub --version"
VERIFY = "collhub verify"
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    NUMPY: (sys.executable, "-c", "import numpy"),
    VERSION: (*PROGRAM, "--version"),
    "collhub --help": (*PROGRAM, "--help"),
    VERIFY: (*PROGRAM, "verify", str(EXAMPLE)),
}


@dataclass(frozen=True, slots=True)
class StartupBar:
    """What a command may take at most: CPU seconds, or times the CPU seconds of numpy's import."""

    most: float
    unit: str


BARS = {VERSION: StartupBar(0.08, "s"), VERIFY: StartupBar(2.0, "x")}


def main() -> None:
    """Print a line a command, with its bar where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    print(f"collhub {__version__}, {versions}, load {os.getloadavg()[0]:.1f}, median of {runs}")
    print(f"{'command':<26}{'CPU s':>8}{'wall s':>8}{'CPU/numpy':>11}{'wall/numpy':>12}  bar")
    costs = median_costs(COMMANDS, runs)
    for name, cost in costs.items():
        print(_line(name, cost, costs[NUMPY]))


def _line(name: str, cost: ProcessCost, numpy: ProcessCost) -> str:
    cpu_ratio = cost.cpu_s / numpy.cpu_s
    wall_ratio = cost.wall_s / numpy.wall_s
    seconds = f"{cost.cpu_s:>8.3f}{cost.wall_s:>8.3f}"
    ratios = f"{cpu_ratio:>11.2f}{wall_ratio:>12.2f}"
    return f"{name:<26}{seconds}{ratios}  {_verdict(name, cost.cpu_s, cpu_ratio)}".rstrip()


def _verdict(name: str, cpu_s: float, cpu_ratio: float) -> str:
    bar = BARS.get(name)
    if bar is None:
        return ""
    found = cpu_s if bar.unit == "s" else cpu_ratio
    kept = "kept" if found <= bar.most else "MISSED"
    return f"{kept}: at most {bar.most:g} {bar.unit} of CPU"


if __name__ == "__main__":
    main()
