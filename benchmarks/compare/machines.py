"""Which algorithm wins on which machine: the table of winners, their ratio to the bound, the time.

    python benchmarks/compare/machines.py [--topology T ...] [--collective C ...]
        [--size S|A..B ...] [--jobs N] [--cache FOLDER]

Runs `collhub compare` with all synthesizers that are installed, without its cache and then with
it, and prints one row a machine, collective and winner with the sizes that it wins. A synthesizer
of our own that is behind a classic one by more than 1 % is named in the last column. Questions are
answered in as many processes as there are cores, which load compiled kernels once; how many kernels
they had to compile is printed, and the CPU seconds of all processes together, since on a shared
machine the time says little. A folder that is named keeps results, so that a run goes on.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import groupby, product
from multiprocessing import get_context

from hub_core import parse_topology
from hub_core.cli.main import main as main_of_the_program

MACHINES = (
    *("dgx1v", "dgx-a100:2", "dgx-h100:4", "mi300x", "torus:8x8"),
    *("leaf-spine:8,8,8", "dragonfly:4,2,2", "leaf-spine:8,8,4"),
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
OWN = ("tacos", "blink", "flows")
BEHIND = 1.01


@dataclass(frozen=True)
class _Answer:
    """Report of `collhub compare --json`, what it took, and the kernels that were compiled."""

    report: dict
    cpu_s: float
    compiled: list[str]


def main() -> None:
    """Compare, print the tables, and how long the first and the second run took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", nargs="+", default=MACHINES)
    parser.add_argument("--collective", nargs="+", default=COLLECTIVES)
    parser.add_argument("--size", nargs="+", default=["1KiB..1GiB"])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cache", default="")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = asked.cache or folder
        questions = list(product(asked.topology, asked.collective, asked.size))
        start, before_s = time.perf_counter(), _cpu_s()
        with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
            # The longest first, so that all processes end together.
            running = {one: pool.submit(_answer, one) for one in sorted(questions, key=_by_size)}
            answers = [running[question].result() for question in questions]
        taken_s, cpu_s = time.perf_counter() - start, _cpu_s() - before_s
        reports = [answer.report for answer in answers]
        step = len(asked.size)
        _print_tables([_joined(reports[at : at + step]) for at in range(0, len(reports), step)])
        _print_costs(questions, answers)
        print(f"first run: {taken_s:.1f} s, {cpu_s:.1f} s of CPU")
        start = time.perf_counter()
        again = [_answer(question) for question in questions]
        print(f"from the cache: {time.perf_counter() - start:.1f} s")
    if [one.report for one in again] != reports:
        sys.exit("the second run answers otherwise than the first")


def _by_size(question: tuple[str, str, str]) -> tuple[int, bool]:
    """Large machines first, and of these the collectives with most algorithms."""
    topology, collective, _ = question
    return -parse_topology(topology).num_npus, collective != "all-reduce"


def _answer(question: tuple[str, str, str]) -> _Answer:
    # Imported here, as in the processes: numba takes a second.
    from collhub_packing.compiling import compilations

    before_s = _cpu_s()
    with compilations() as compiled:
        report = _compared(*question)
    return _Answer(report, _cpu_s() - before_s, [kernel.name for kernel in compiled])


def _cpu_s() -> float:
    """Seconds of CPU of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _compared(topology: str, collective: str, size: str) -> dict:
    asked = ["--collective", collective, "--topology", topology, "--size", size, "--jobs", "1"]
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()) as said:
        if main_of_the_program(["compare", "--json", *asked]):
            sys.exit(f"no algorithm fits {collective} on {topology}: {said.getvalue()}")
    return json.loads(printed.getvalue())


def _joined(reports: Sequence[dict]) -> dict:
    """Reports of one machine and collective at several sizes as one."""
    lists = ("sizes", "winners", "results")
    return reports[0] | {name: [one for each in reports for one in each[name]] for name in lists}


def _print_costs(questions: Sequence[tuple[str, str, str]], answers: Sequence[_Answer]) -> None:
    costs = [
        f"{topology} {collective} {size} {answer.cpu_s:.1f}"
        for (topology, collective, size), answer in zip(questions, answers, strict=True)
    ]
    print(f"CPU s by question: {', '.join(costs)}")
    compiled = [name for answer in answers for name in answer.compiled]
    print(f"compiled kernels: {len(compiled)} {' '.join(sorted(set(compiled)))}".rstrip())


def _print_tables(reports: Sequence[dict]) -> None:
    print(f"{'machine':18}{'collective':16}{'sizes':24}{'winner':22}{'to bound':>9}  own behind")
    for report in reports:
        times = {(one["algorithm"], one["size"]): one for one in report["results"]}
        rows = list(zip(report["sizes"], report["winners"], strict=True))
        for winner, group in groupby(rows, key=lambda row: row[1]):
            sizes = [size for size, _ in group]
            ratios = [times[winner, size]["ratio_to_bound"] for size in sizes if winner]
            worst = max((ratio for ratio in ratios if ratio), default=0.0)
            span = f"{_text(sizes[0])}..{_text(sizes[-1])}"
            print(
                f"{report['topology']:18}{report['collective']:16}{span:24}{winner or 'none':22}"
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
