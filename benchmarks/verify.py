"""Measure verification of ring all-reduces against a plain interpreter of the same steps, in CPU seconds."""

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

from hub_core.model import Algorithm, Buffer, StepKind
from hub_core.testing.samples import ring_all_reduce
from hub_core.verification import verify
from hub_core.version import __version__

_INTERPRETED_RANKS = 128


def main() -> None:
    """Print one row a measurement: what, ranks, steps, median CPU seconds, microseconds a step, ratio to ours."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    print(
        f"collhub {__version__}, numpy {np.__version__}, Python {platform.python_version()}, median of {arguments.runs} runs"
    )
    print(f"{'what':<34}{'ranks':>7}{'steps':>10}{'CPU s':>9}{'us/step':>9}")
    for ranks in sorted({_INTERPRETED_RANKS, *arguments.ranks}):
        algorithm = ring_all_reduce(ranks)
        ours = _measure("verify, both modes, all checks", algorithm, _verify, arguments.runs)
        if ranks == _INTERPRETED_RANKS:
            plain = _measure("plain interpreter, one mode", algorithm, _interpret, arguments.runs)
            print(
                f"the interpreter, which finds no races and judges one mode, takes {plain / ours:.1f} times as long"
            )
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB, the step tables included"
    )


def _measure(what: str, algorithm: Algorithm, run: Callable[[Algorithm], bool], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.process_time()
        is_right = run(algorithm)
        times.append(time.process_time() - start)
        if not is_right:
            raise SystemExit(f"{what} found the ring wrong")
    median, steps = statistics.median(times), len(algorithm.steps)
    print(
        f"{what:<34}{algorithm.num_ranks:>7}{steps:>10}{median:>9.3f}{median / steps * 1e6:>9.2f}"
    )
    return median


def _verify(algorithm: Algorithm) -> bool:
    return verify(algorithm).ok


def _interpret(algorithm: Algorithm) -> bool:
    """The textbook interpreter: ranks take turns, each runs its steps in order until a message is missing."""
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
    done = all(position[rank] == len(programs[rank]) for rank in range(n)) and not any(
        queues.values()
    )
    wanted = [Counter({(rank, unit): 1 for rank in range(n)}) for unit in range(n)]
    return done and all(cells == wanted for cells in memory)


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
    """(kind, peer, channel, unit) of every step, rank by rank; the ring's steps touch one unit of OUTPUT each."""
    steps = algorithm.steps
    if not bool(np.all(np.minimum(steps.src_buffer, steps.dst_buffer) == Buffer.OUTPUT)):
        raise SystemExit("this interpreter knows OUTPUT only")
    unit = np.where(steps.sends, steps.src_offset, steps.dst_offset)
    rows = list(
        zip(
            steps.kind.tolist(),
            steps.peer.tolist(),
            steps.channel.tolist(),
            unit.tolist(),
            strict=True,
        )
    )
    borders = steps.rank_indptr.tolist()
    return [rows[start:stop] for start, stop in pairwise(borders)]


if __name__ == "__main__":
    main()
