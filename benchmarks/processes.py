"""What whole processes take, interpreter start included: for benchmarks of the program."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import BinaryIO

# What the installed script does, by the interpreter and the sources of the benchmark itself.
PROGRAM = (sys.executable, "-c", "import sys, hub_core.cli.main as p; sys.exit(p.main())")


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """Seconds of one process (user and system, and on the clock), and its peak memory in bytes.

    The peak is at least that of the process that started it: Linux lets a child begin with it.
    """

    cpu_s: float
    wall_s: float
    peak_bytes: int


def process_cost(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    output: BinaryIO | None = None,
) -> ProcessCost:
    """Run a command and return its cost. Ends the benchmark with its errors where it fails.

    `environment`: variables beside those of the benchmark. `output`: file for the standard output
    of the command; it is discarded if it is None.
    """
    variables = {**os.environ, **(environment or {})}
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        stdout = subprocess.DEVNULL if output is None else output
        process = subprocess.Popen(command, stdout=stdout, stderr=errors, env=variables)
        # Not `getrusage`: the peak that it tells is that of the largest child so far.
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{errors.read().decode()}")
    # Linux counts memory in KiB.
    return ProcessCost(usage.ru_utime + usage.ru_stime, wall_s, usage.ru_maxrss << 10)


def median_costs(commands: Mapping[str, Sequence[str]], runs: int) -> dict[str, ProcessCost]:
    """Median cost of each command over some runs."""
    costs: dict[str, list[ProcessCost]] = {name: [] for name in commands}
    # In turn, so that a slow minute of the machine falls on all of them.
    for _ in range(runs):
        for name, command in commands.items():
            costs[name].append(process_cost(command))
    return {name: median_cost(of_command) for name, of_command in costs.items()}


def median_cost(costs: Sequence[ProcessCost]) -> ProcessCost:
    """Median of each part of the costs."""
    return ProcessCost(
        median(cost.cpu_s for cost in costs),
        median(cost.wall_s for cost in costs),
        int(median(cost.peak_bytes for cost in costs)),
    )
