"""Measure the way from the source of an MSCCLang ring all-reduce to XML, in CPU seconds."""

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
from collhub_msccl.plugin import LanguageOptions, WriteOptions
from collhub_msccl.read_program import read
from collhub_msccl.writing.write_xml import write

from hub_core import Algorithm, __version__
from hub_core.plugin_api import Source
from hub_core.verification import verify

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

# The public tool chain (microsoft/msccl-tools 030a750) on the same program, from source to XML: a
# figure of an earlier run on another machine, so the ratio tells the order of magnitude only.
_PEER_S = {128: 125.0}
_HEADS = ("ranks", "instances", "steps", "read", "verify", "write", "public tools")
_WIDTHS = (6, 11, 9, 8, 8, 8, 14)


def main() -> None:
    """Print one row a measurement, with the medians of reading, verifying and writing XML."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 128, 256])
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    versions = f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    runs = f"median of {arguments.runs} runs"
    print(f"{versions}, {runs}; CPU seconds, the program's process included")
    _print_row(_HEADS)
    for ranks in arguments.ranks:
        _measure(ranks, arguments.instances, arguments.runs)


def _measure(ranks: int, instances: int, runs: int) -> None:
    algorithm, read_s = _timed(lambda: _read(ranks, instances), runs)
    report, verify_s = _timed(lambda: verify(algorithm), runs)
    if not report.ok:
        sys.exit(f"the algorithm of {ranks} ranks is wrong: {report.diagnostics[0]}")
    _, write_s = _timed(lambda: _write(algorithm), runs)
    times = [f"{seconds:.2f}" for seconds in (read_s, verify_s, write_s)]
    peer = _compared(ranks, instances, read_s + write_s)
    _print_row((str(ranks), str(instances), str(len(algorithm.steps)), *times, peer))


def _compared(ranks: int, instances: int, seconds: float) -> str:
    """The time of the public tools, and how many times ours it is."""
    peer = _PEER_S.get(ranks)
    if peer is None or instances != 1:
        return "-"
    return f"{peer:.0f} ({peer / seconds:.0f}x)"


def _read(ranks: int, instances: int) -> Algorithm:
    options = LanguageOptions(f"{ranks} {instances}", time_limit=600, memory_limit=16 << 30)
    return read(Source.of_bytes("ring.py", _PROGRAM), options)


def _write(algorithm: Algorithm) -> int:
    artifacts = write(algorithm, WriteOptions()).artifacts
    return sum(len(artifact.content()) for artifact in artifacts)


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


def _print_row(texts: tuple[str, ...]) -> None:
    columns = [f"{text:>{width}}" for text, width in zip(texts, _WIDTHS, strict=True)]
    print("".join(columns))


if __name__ == "__main__":
    main()
