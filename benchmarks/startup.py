"""Measure how long the program takes to start, in CPU seconds of whole processes, beside a bare interpreter and numpy."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

PROGRAM = [sys.executable, "-m", "hub_core.cli.main"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
    "collhub --version": [*PROGRAM, "--version"],
    "collhub --help": [*PROGRAM, "--help"],
}
RUNS = 15


def main() -> None:
    """Print the median of every command, and its ratio to the bare interpreter."""
    bare = None
    for name, command in COMMANDS.items():
        median = statistics.median(cpu_seconds(command) for _ in range(RUNS))
        bare = bare or median
        print(f"{name:26}{median:8.3f} s{median / bare:8.1f} x")


def cpu_seconds(command: list[str]) -> float:
    """User and system time of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
