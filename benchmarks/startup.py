"""Measure how long the program takes to start, as whole processes, beside the import of numpy.

    python benchmarks/startup.py [--runs 15] [--cold-runs 1]

A line of the first table is a command: the medians of its CPU seconds and of its seconds on the
clock, and both divided by those of numpy's import, all measured in turn in this run. The job has 8
nodes, in a folder for ASTRA-sim; its bar also holds where PYTHONDONTWRITEBYTECODE keeps Python from
storing bytecode, so that every module is compiled in every run.

A line of the second table is a command after installation: cold, where neither bytecode nor
compiled kernels are on disk; warm, where its own first run has left them there; and after
`collhub doctor --warm` in their place, which stands in the table itself.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from processes import PROGRAM, ProcessCost, median_cost, median_costs, process_cost

from hub_core import __version__, write
from hub_core.testing import training_step

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "ring_all_reduce_8.xml"
NUMPY = "python -c 'import numpy'"
VERSION = "collhub --version"
VERIFY = "collhub verify"
SIMULATE_JOB = "collhub simulate JOB"
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    NUMPY: (sys.executable, "-c", "import numpy"),
    VERSION: (*PROGRAM, "--version"),
    "collhub --help": (*PROGRAM, "--help"),
    VERIFY: (*PROGRAM, "verify", str(EXAMPLE)),
}
WARM = "collhub doctor --warm"
_SIZE = ("--size", "1MiB")
_ALL_GATHER = ("--collective", "all-gather", "--topology", "mesh:4x4", *_SIZE)
AFTER_INSTALLATION = {
    VERSION: COMMANDS[VERSION],
    VERIFY: COMMANDS[VERIFY],
    "collhub doctor": (*PROGRAM, "doctor"),
    WARM: (*PROGRAM, "doctor", "--warm"),
    "collhub simulate": (*PROGRAM, "simulate", str(EXAMPLE), "--topology", "ring:8", *_SIZE),
    "collhub synthesize tacos": (*PROGRAM, "synthesize", "tacos", *_ALL_GATHER),
}


@dataclass(frozen=True, slots=True)
class StartupBar:
    """What a command may take at most: CPU seconds, or times the CPU seconds of numpy's import."""

    most: float
    unit: str


BARS = {
    VERSION: StartupBar(0.08, "s"),
    VERIFY: StartupBar(2.0, "x"),
    SIMULATE_JOB: StartupBar(0.5, "s"),
}


def main() -> None:
    """Print a line a command, with its bar where there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--cold-runs", type=int, default=1)
    arguments = parser.parse_args()
    runs: int = arguments.runs
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    print(f"collhub {__version__}, {versions}, load {os.getloadavg()[0]:.1f}, median of {runs}")
    print(f"{'command':<26}{'CPU s':>8}{'wall s':>8}{'CPU/numpy':>11}{'wall/numpy':>12}  bar")
    with tempfile.TemporaryDirectory() as folder:
        job = f"{folder}/job"
        write(training_step(num_ranks=2), job, format="astra-sim")
        commands = {**COMMANDS, SIMULATE_JOB: (*PROGRAM, "simulate", job)}
        costs = median_costs(commands, runs)
    for name, cost in costs.items():
        print(_line(name, cost, costs[NUMPY]))
    if arguments.cold_runs:
        _print_cold_and_warm(arguments.cold_runs)


def _print_cold_and_warm(runs: int) -> None:
    """Print a line a command, medians of `runs`, each with an empty cache of its own."""
    print(f"\nafter installation, CPU s and wall s, median of {runs}")
    print(f"{'command':<26}{'cold':>16}{'warm':>16}{'after doctor --warm':>22}")
    with tempfile.TemporaryDirectory() as folder:
        warmed = _caches(folder)
        process_cost(AFTER_INSTALLATION[WARM], warmed)
        for name, command in AFTER_INSTALLATION.items():
            columns = [_cold_and_warm(command, warmed) for _ in range(runs)]
            medians = [median_cost(column) for column in zip(*columns, strict=True)]
            cells = (f"{cost.cpu_s:.2f} {cost.wall_s:.2f}" for cost in medians)
            print(f"{name:<26}" + "".join(map("{:>{}}".format, cells, (16, 16, 22))))


def _cold_and_warm(command: Sequence[str], warmed: Mapping[str, str]) -> tuple[ProcessCost, ...]:
    """Cost of a first run, of a second one, and of one with the caches `warmed`."""
    with tempfile.TemporaryDirectory() as folder:
        own = _caches(folder)
        return tuple(process_cost(command, caches) for caches in (own, own, warmed))


def _caches(folder: str) -> dict[str, str]:
    """Variables that let Python and numba keep what they compile in a folder."""
    return {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": f"{folder}/bytecode",
        "NUMBA_CACHE_DIR": f"{folder}/kernels",
    }


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
