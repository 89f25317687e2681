"""Measure how long it takes to write ring all-reduces as MSCCL-IR XML for each runtime, in CPU seconds."""

from __future__ import annotations

import argparse
import platform
import statistics
import time

import numpy as np
from collhub_msccl.reading.read_xml import read
from collhub_msccl.writing.write_xml import write

from hub_core.plugin_api import Source
from hub_core.testing.samples import ring_all_reduce
from hub_core.verification import verify
from hub_core.version import __version__

_RUNTIMES = ("msccl", "executor", "rccl")
_BOUND_S, _BOUND_RANKS = 1.0, 128


def main() -> None:
    """Print one row a runtime and number of ranks; what was written is read back and verified, outside the measured time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[32, _BOUND_RANKS])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(
        f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}, median of {arguments.runs} runs"
    )
    print(
        f"{'runtime':<10}{'ranks':>6}{'steps':>8}{'blocks':>8}{'MB':>7}{'CPU s':>8}{'of the bound':>14}"
    )
    for ranks in arguments.ranks:
        for runtime in _RUNTIMES:
            _measure(ranks, runtime, arguments.runs)


def _measure(ranks: int, runtime: str, runs: int) -> None:
    algorithm = ring_all_reduce(ranks)
    times, content = [], b""
    for _ in range(runs):
        start = time.process_time()
        (artifact,) = write(algorithm, {"runtime": runtime}).artifacts
        content = artifact.content()
        times.append(time.process_time() - start)
    if not verify(read(Source.of_bytes("ring.xml", content), {})).ok:
        raise SystemExit(f"what was written for {runtime} is wrong")
    median = statistics.median(times)
    bound = f"{median / _BOUND_S:>13.0%}" if ranks == _BOUND_RANKS else ""
    steps, blocks = content.count(b"<step "), content.count(b"<tb ")
    print(
        f"{runtime:<10}{ranks:>6}{steps:>8}{blocks:>8}{len(content) / 1e6:>7.1f}{median:>8.2f}{bound:>14}".rstrip()
    )


if __name__ == "__main__":
    main()
