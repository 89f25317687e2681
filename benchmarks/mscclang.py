"""Measure the time from the source of an MSCCLang ring all-reduce to a verified algorithm and to XML, in CPU seconds."""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from collhub_msccl.programs.read_program import read
from collhub_msccl.writing.write_xml import write

from hub_core.model import Algorithm
from hub_core.plugin_api import Source
from hub_core.verification import verify
from hub_core.version import __version__

_PROGRAM = b"""\
import sys
from msccl.language import *
from msccl.language.collectives import AllReduce
from msccl.topologies import fully_connected

size, instances = map(int, sys.argv[1:])
with MSCCLProgram("ring", fully_connected(size), AllReduce(size, size, True), instances):
    for start in range(size):
        c = chunk(start, Buffer.input, start)
        for step in range(1, size):
            c = chunk((start + step) % size, Buffer.input, start).reduce(c)
        for step in range(size, 2 * size - 1):
            c = c.copy((start + step) % size, Buffer.input, start)
    XML()
"""
T = TypeVar("T")

# The public tool chain (microsoft/msccl-tools 030a750) on the same program, from source to XML: a figure of an earlier run
# on another machine, so the ratio tells the order of magnitude only.
_PEER_S = {128: 125.0}


def main() -> None:
    """Print one row a measurement: ranks, instances, steps, median CPU seconds of reading, verifying and writing XML."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 128, 256])
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    versions = f"numpy {np.__version__}, Python {platform.python_version()}"
    print(
        f"collhub {__version__}, {versions}, median of {arguments.runs} runs; CPU seconds, the program's process included"
    )
    print(
        f"{'ranks':>6}{'instances':>11}{'steps':>9}{'read':>8}{'verify':>8}{'write':>8}{'public tools':>14}"
    )
    for ranks in arguments.ranks:
        _measure(ranks, arguments.instances, arguments.runs)


def _measure(ranks: int, instances: int, runs: int) -> None:
    algorithm, read_s = _timed(lambda: _read(ranks, instances), runs)
    report, verify_s = _timed(lambda: verify(algorithm), runs)
    if not report.ok:
        sys.exit(f"the algorithm of {ranks} ranks is wrong: {report.diagnostics[0]}")
    _, write_s = _timed(lambda: _write(algorithm), runs)
    peer = _PEER_S.get(ranks) if instances == 1 else None
    print(
        f"{ranks:>6}{instances:>11}{len(algorithm.steps):>9}{read_s:>8.2f}{verify_s:>8.2f}{write_s:>8.2f}"
        f"{f'{peer:.0f} ({peer / (read_s + write_s):.0f}x)' if peer else '-':>14}"
    )


def _read(ranks: int, instances: int) -> Algorithm:
    options = {"arguments": f"{ranks} {instances}", "time_limit": 600, "memory_limit": 16 << 30}
    return read(Source.of_bytes("ring.py", _PROGRAM), options)


def _write(algorithm: Algorithm) -> int:
    return sum(len(artifact.content()) for artifact in write(algorithm, {}).artifacts)


def _timed(work: Callable[[], T], runs: int) -> tuple[T, float]:
    times = []
    for _ in range(runs):
        start = _cpu_s()
        result = work()
        times.append(_cpu_s() - start)
    return result, statistics.median(times)


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


if __name__ == "__main__":
    main()
