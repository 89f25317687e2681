"""Measure writing ring all-reduces as MSCCL-IR XML for each runtime, in CPU seconds."""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import numpy as np
from collhub_msccl.plugin import ReadOptions, WriteOptions
from collhub_msccl.reading.read_xml import read
from collhub_msccl.writing.write_xml import write

from hub_core import Algorithm, __version__
from hub_core.plugin_api import Source
from hub_core.testing import ring_all_reduce
from hub_core.verification import verify

_RUNTIMES = ("msccl", "executor", "rccl")
_BOUND_S, _BOUND_RANKS = 1.0, 128
_HEADS = ("ranks", "steps", "blocks", "MB", "CPU s", "of the bound")
_WIDTHS = (6, 8, 8, 7, 8, 14)


def main() -> None:
    """Print one row a runtime and number of ranks.

    What was written is read back and verified, outside the measured time.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, _BOUND_RANKS])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    versions = f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    print(f"{versions}, median of {arguments.runs} runs")
    _print_row("runtime", _HEADS)
    for ranks in arguments.ranks:
        algorithm = ring_all_reduce(ranks)
        for runtime in _RUNTIMES:
            content, median_s = _written(algorithm, runtime, arguments.runs)
            _check(content, runtime)
            _print_row(runtime, _facts(ranks, content, median_s))


def _written(algorithm: Algorithm, runtime: str, runs: int) -> tuple[bytes, float]:
    """The file, and the median of CPU seconds that it takes to write it."""
    times, content = [], b""
    for _ in range(runs):
        start = time.process_time()
        (artifact,) = write(algorithm, WriteOptions(runtime)).artifacts
        content = artifact.content()
        times.append(time.process_time() - start)
    return content, statistics.median(times)


def _check(content: bytes, runtime: str) -> None:
    """Stop where what was written is not correct."""
    algorithm = read(Source.of_bytes("ring.xml", content), ReadOptions())
    if not verify(algorithm).ok:
        raise SystemExit(f"what was written for {runtime} is wrong")


def _facts(ranks: int, content: bytes, median_s: float) -> tuple[str, ...]:
    """The columns of a row as texts."""
    steps, blocks = content.count(b"<step "), content.count(b"<tb ")
    of_bound = f"{median_s / _BOUND_S:.0%}" if ranks == _BOUND_RANKS else ""
    megabytes = f"{len(content) / 1e6:.1f}"
    return str(ranks), str(steps), str(blocks), megabytes, f"{median_s:.2f}", of_bound


def _print_row(name: str, texts: tuple[str, ...]) -> None:
    columns = [f"{text:>{width}}" for text, width in zip(texts, _WIDTHS, strict=True)]
    print(f"{name:<10}{''.join(columns)}".rstrip())


if __name__ == "__main__":
    main()
