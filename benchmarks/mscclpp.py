"""Measure plans of MSCCL++, in CPU seconds: written, and read and checked over three launches.

Beside each the plain way, for which nothing is understood: the JSON text made or parsed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plugin import PlanWriteOptions
from collhub_mscclpp.reading.read_plan import parse_plan
from collhub_mscclpp.writing.write import write

from hub_core import Algorithm, __version__
from hub_core.testing import ring_all_gather, ring_all_reduce, ring_reduce_scatter

T = TypeVar("T")

_RINGS = (ring_all_gather, ring_reduce_scatter, ring_all_reduce)
_WAYS = {
    "Simple": PlanWriteOptions(),
    "pushed": PlanWriteOptions(pull=False),
    "slices": PlanWriteOptions(slices=1 << 16),
    "LL": PlanWriteOptions(protocol="LL"),
}
_HEADS = ("way", "ranks", "MB", "write s", "dumps s", "ratio", "check s", "loads s", "ratio")


def main() -> None:
    """Print one row an algorithm, way of writing and number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 128])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    versions = f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}"
    print(f"{versions}, median of {arguments.runs} runs")
    _print_row("algorithm", _HEADS)
    # Kernels compile once, and are not measured.
    _facts(ring_all_gather(2), "Simple", 1)
    for ranks in arguments.ranks:
        for ring in _RINGS:
            for way in _WAYS:
                _print_row(ring.__name__, _facts(ring(ranks), way, arguments.runs))


def _facts(algorithm: Algorithm, way: str, runs: int) -> tuple[str, ...]:
    """The columns of a row as texts. Stops where what was written is not right."""

    def written() -> bytes:
        (artifact,) = write(algorithm, _WAYS[way]).artifacts
        return artifact.content()

    write_s, content = _median(written, runs)
    check_s, report = _median(lambda: check_plan(parse_plan(content, "ring.json")), runs)
    if not report.ok:
        raise SystemExit(f"what was written as {way} is wrong")
    loads_s, document = _median(lambda: json.loads(content), runs)
    dumps_s, _ = _median(lambda: json.dumps(document), runs)
    times = (write_s, dumps_s, write_s / dumps_s, check_s, loads_s, check_s / loads_s)
    size = f"{len(content) / 1e6:.2f}"
    return way, str(algorithm.num_ranks), size, *(f"{one:.3f}" for one in times)


def _median(work: Callable[[], T], runs: int) -> tuple[float, T]:
    """CPU seconds of the middle run, and what it made."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        made = work()
        times.append(time.process_time() - start)
    return statistics.median(times), made


def _print_row(name: str, texts: tuple[str, ...]) -> None:
    print(f"{name:<20}{''.join(f'{text:>9}' for text in texts)}")


if __name__ == "__main__":
    main()
