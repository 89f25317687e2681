"""Which algorithm wins on which machine: the table of winners, their ratio to the bound, the time.

    python benchmarks/compare/machines.py [--topology T ...] [--collective C ...] [--size A..B]

Runs `collhub compare` with all synthesizers that are installed, without its cache and then with
it, and prints one row a machine, collective and winner with the sizes that it wins. A synthesizer
of our own that is behind a classic one by more than 1 % is named in the last column.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import groupby

from hub_core.cli.main import main as main_of_the_program

MACHINES = (
    *("dgx1v", "dgx-a100:2", "dgx-h100:4", "mi300x", "torus:8x8"),
    *("leaf-spine:8,8,8", "dragonfly:4,2,2", "leaf-spine:8,8,4"),
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
OWN = ("tacos", "blink")
BEHIND = 1.01


def main() -> None:
    """Compare, print the tables, and how long the first and the second run took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", nargs="+", default=MACHINES)
    parser.add_argument("--collective", nargs="+", default=COLLECTIVES)
    parser.add_argument("--size", default="1KiB..1GiB")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        for run in ("first run", "from the cache"):
            start = time.perf_counter()
            reports = [
                _compared(topology, collective, asked.size, cache)
                for topology in asked.topology
                for collective in asked.collective
            ]
            taken = time.perf_counter() - start
            if run == "first run":
                _print_tables(reports)
            print(f"{run}: {taken:.1f} s")


def _compared(topology: str, collective: str, size: str, cache: str) -> dict:
    os.environ["XDG_CACHE_HOME"] = cache
    asked = ["--collective", collective, "--topology", topology, "--size", size]
    printed = io.StringIO()
    with redirect_stdout(printed):
        if main_of_the_program(["compare", "--json", *asked]):
            sys.exit(f"no algorithm fits {collective} on {topology}")
    return json.loads(printed.getvalue())


def _print_tables(reports: Sequence[dict]) -> None:
    print(f"{'machine':16}{'collective':16}{'sizes':24}{'winner':22}{'to bound':>9}  own behind")
    for report in reports:
        times = {(one["algorithm"], one["size"]): one for one in report["results"]}
        rows = list(zip(report["sizes"], report["winners"], strict=True))
        for winner, group in groupby(rows, key=lambda row: row[1]):
            sizes = [size for size, _ in group]
            ratios = [times[winner, size]["ratio_to_bound"] for size in sizes if winner]
            worst = max((ratio for ratio in ratios if ratio), default=0.0)
            span = f"{_text(sizes[0])}..{_text(sizes[-1])}"
            print(
                f"{report['topology']:16}{report['collective']:16}{span:24}{winner or 'none':22}"
                f"{worst:9.3f}  {_behind(times, winner, sizes)}"
            )


def _behind(times: dict, winner: str | None, sizes: Sequence[int]) -> str:
    """By how much our best is behind a classic winner at most."""
    if winner is None or winner in OWN:
        return ""
    worst = 0.0
    for size in sizes:
        best = times[winner, size]["time_ns"]
        own = [times[name, size]["time_ns"] for name in OWN if (name, size) in times]
        least = min((found for found in own if found), default=None)
        if least is not None:
            worst = max(worst, least / best)
    return f"{100 * (worst - 1):.0f} %" if worst > BEHIND else ""


def _text(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit}{name}"
    return f"{size}B"


if __name__ == "__main__":
    main()
