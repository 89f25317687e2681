"""Measure verification of ring all-reduces beside a plain interpreter of the same steps.

    python benchmarks/verify.py [--ranks 128 1024] [--runs 3]

A line is a measurement: what, ranks, steps, median CPU seconds, microseconds a step.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from hub_core import Algorithm, Buffer, StepKind, __version__, verify
from hub_core.testing import ring_all_reduce

_INTERPRETED_RANKS = 128


def main() -> None:
    """Print one row a measurement, and how much longer the interpreter takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    versions = f"numpy {np.__version__}, Python {platform.python_version()}"
    print(f"collhub {__version__}, {versions}, median of {arguments.runs} runs")
    print(f"{'what':<34}{'ranks':>7}{'steps':>10}{'CPU s':>9}{'us/step':>9}")
    for ranks in sorted({_INTERPRETED_RANKS, *arguments.ranks}):
        algorithm = ring_all_reduce(ranks)
        ours = _measure("verify, both modes, all checks", algorithm, _verify, arguments.runs)
        if ranks == _INTERPRETED_RANKS:
            plain = _measure("plain interpreter, one mode", algorithm, _interpret, arguments.runs)
            # It does less: it finds no races, and judges one mode.
            print(f"the interpreter takes {plain / ours:.1f} times as long")
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"peak memory {peak_gb:.2f} GB, the step tables included")


def _measure(what: str, algorithm: Algorithm, run: Callable[[Algorithm], bool], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        is_right = run(algorithm)
        times.append(time.process_time() - start)
        if not is_right:
            raise SystemExit(f"{what} found the ring wrong")
    median = statistics.median(times)
    steps = len(algorithm.steps)
    each_us = median / steps * 1e6
    print(f"{what:<34}{algorithm.num_ranks:>7}{steps:>10}{median:>9.3f}{each_us:>9.2f}")
    return median


def _verify(algorithm: Algorithm) -> bool:
    return verify(algorithm).ok


def _interpret(algorithm: Algorithm) -> bool:
    """The textbook interpreter: ranks take turns.

    Each runs its steps in order until a message is missing.
    """
    programs = _programs(algorithm)
    n = algorithm.num_ranks
    memory = [[Counter({(rank, unit): 1}) for unit in range(n)] for rank in range(n)]
    queues: dict[tuple[int, int, int], deque[Counter[tuple[int, int]]]] = {}
    position = [0] * n
    is_moving = True
    while is_moving:
        is_moving = False
        for rank in range(n):
            before = position[rank]
            position[rank] = _run_rank(rank, programs[rank], before, memory[rank], queues)
            is_moving |= position[rank] > before
    is_through = all(position[rank] == len(programs[rank]) for rank in range(n))
    is_done = is_through and not any(queues.values())
    wanted = [Counter({(rank, unit): 1 for rank in range(n)}) for unit in range(n)]
    return is_done and all(cells == wanted for cells in memory)


def _run_rank(
    rank: int,
    program: list[tuple[int, int, int, int]],
    position: int,
    cells: list[Counter[tuple[int, int]]],
    queues: dict[tuple[int, int, int], deque[Counter[tuple[int, int]]]],
) -> int:
    """Run one rank from `position` on as far as messages allow; return where it stopped."""
    while position < len(program):
        kind, peer, channel, unit = program[position]
        if kind == StepKind.SEND:
            queues.setdefault((rank, peer, channel), deque()).append(cells[unit])
        else:
            queue = queues.get((peer, rank, channel))
            if not queue:
                return position
            received = queue.popleft()
            cells[unit] = received + cells[unit] if kind == StepKind.RECV_REDUCE else received
        position += 1
    return position


def _programs(algorithm: Algorithm) -> list[list[tuple[int, int, int, int]]]:
    """(kind, peer, channel, unit) of every step, rank by rank.

    Each step of the ring touches one unit of OUTPUT.
    """
    steps = algorithm.steps
    if not bool(np.all(np.minimum(steps.src_buffer, steps.dst_buffer) == Buffer.OUTPUT)):
        raise SystemExit("this interpreter knows OUTPUT only")
    unit = np.where(steps.sends, steps.src_offset, steps.dst_offset)
    columns = (steps.kind, steps.peer, steps.channel, unit)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    borders = steps.rank_indptr.tolist()
    return [rows[start:stop] for start, stop in pairwise(borders)]


if __name__ == "__main__":
    main()
