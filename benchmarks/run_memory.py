"""Measure the memory of `collhub run` against the data that it runs on.

    python benchmarks/run_memory.py [--size BYTES] [EXECUTOR ...]

A line is a ring all-reduce of float32 among 8 ranks in place. The data are INPUT and OUTPUT of all
ranks, counted once where they share memory. The peak is that of all processes of the run together,
looked at every 50 ms; what several of them share counts once (Pss of /proc, Linux alone).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from processes import PROGRAM

import hub_core
from hub_core.testing import ring_all_reduce

RANKS = 8
POLL_S = 0.05


def resident_bytes(root: int) -> int:
    """Memory of a process and of all that descend from it."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may hold blanks; the parent is the second word behind it.
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return sum(_own_bytes(process) for process in parents if _descends(process, root, parents))


def _descends(process: int, root: int, parents: dict[int, int]) -> bool:
    while process != root and process in parents:
        process = parents[process]
    return process == root


def _own_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def peak_bytes(command: list[str]) -> int:
    """The most memory that a command and its descendants have at once."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident_bytes(process.pid))
            time.sleep(POLL_S)
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(command)} failed:\n{errors.read().decode()}")
    return peak


def main() -> None:
    """Print one line an executor."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=256 << 20, help="bytes of a rank")
    parser.add_argument("executors", nargs="*", metavar="EXECUTOR")
    arguments = parser.parse_args()
    executors = arguments.executors or ["numpy", "shared-memory"]
    data = RANKS * arguments.size
    print(f"numpy {np.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{'executor':16}{'data':>12}{'peak':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as folder:
        hub_core.write(ring_all_reduce(RANKS), Path(folder) / "ring", format="chakra")
        for executor in executors:
            words = ["run", f"{folder}/ring", "--executor", executor, "--timeout", "600"]
            size = ["--size", f"{arguments.size}B", "--repeats", "1"]
            peak = peak_bytes([*PROGRAM, *words, *size])
            cells = f"{executor:16}{data >> 20:>8} MiB{peak >> 20:>8} MiB{peak / data:8.2f}"
            print(cells, flush=True)


if __name__ == "__main__":
    main()
