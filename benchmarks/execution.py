"""Time the executors of this machine beside bare copies and adds, and beside the peers' all-reduce.

    python benchmarks/execution.py [--large] [--without-torch] [--without-mpi]

A line is one all-reduce of float32: the executor, the ranks, the size, the median of its repeats,
and the same for what it is held against, both measured in this run. `bare`: numpy copies and adds
of the ring, hand-written, on arrays made before. `gloo`: torch.distributed's own all_reduce with
the backend gloo, one process a rank on this machine. `own`: the all-reduce of the library that
carries the executor's messages, in the same processes on the same data. Times move with what else
the machine does; CPU seconds are those of this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from typing import Any

import numpy as np
from collhub_execution import block_counts, block_elements, exact_inputs, judge

import hub_core
from hub_core.model import Algorithm, ReduceOp
from hub_core.plugin_api import ExecutionResult
from hub_core.testing import (
    all_pairs_all_reduce,
    halving_doubling_all_reduce,
    ring_all_reduce,
)

MIB = 1 << 20
REPEATS = 7
FLOAT32 = np.dtype(np.float32)
REGISTRY = hub_core.discover()


@dataclass(frozen=True, slots=True)
class BenchmarkLine:
    """One row: what was timed, seconds of each repeat, and of what it is held against."""

    what: str
    ranks: int
    size: int
    times_s: Sequence[float]
    against: str
    against_s: Sequence[float]
    cpu_s: float


def executed(algorithm: Algorithm, size: int, name: str, repeats: int) -> Sequence[float]:
    """Times of the repeats; the result is checked."""
    return checked_result(algorithm, size, name, repeats).repeat_times_s


def checked_result(algorithm: Algorithm, size: int, name: str, repeats: int) -> ExecutionResult:
    """The outcome of an executor, which is right."""
    blocks = block_counts(algorithm)
    elements = block_elements(blocks, size, FLOAT32)
    inputs = exact_inputs(blocks, elements, FLOAT32, ReduceOp.SUM)
    result = hub_core.execute(
        algorithm,
        inputs,
        name=name,
        in_place=True,
        repeats=repeats,
        warmups=1,
        timeout_s=600,
        registry=REGISTRY,
    )
    assert judge(algorithm.collective, inputs, result.outputs, ReduceOp.SUM, True).is_right
    return result


def bare_ring(num_ranks: int, size: int) -> Callable[[], float]:
    """Copies and adds of a ring all-reduce: a chunk to a slot and an add, then chunks around."""
    elements = size // 4 // num_ranks
    vectors = [np.full((num_ranks, elements), rank, np.float32) for rank in range(num_ranks)]
    slots = [np.empty(elements, np.float32) for _ in range(num_ranks)]
    ranks = range(num_ranks)

    def run() -> float:
        start = time.perf_counter()
        for turn in range(num_ranks - 1):
            for rank in ranks:
                np.copyto(slots[rank], vectors[rank - 1][(rank - 1 - turn) % num_ranks])
            for rank in ranks:
                chunk = vectors[rank][(rank - 1 - turn) % num_ranks]
                np.add(chunk, slots[rank], out=chunk)
        for turn in range(num_ranks - 1):
            for rank in ranks:
                np.copyto(
                    vectors[rank][(rank - turn) % num_ranks],
                    vectors[rank - 1][(rank - turn) % num_ranks],
                )
        return time.perf_counter() - start

    return run


def against_bare(num_ranks: int, size: int) -> BenchmarkLine:
    """`numpy` and the bare ring, in turn."""
    start, bare, ours, theirs = time.process_time(), bare_ring(num_ranks, size), [], []
    bare()
    for _ in range(REPEATS):
        ours += executed(ring_all_reduce(num_ranks), size, "numpy", 1)
        theirs.append(bare())
    return BenchmarkLine(
        "numpy ring", num_ranks, size, ours, "bare", theirs, time.process_time() - start
    )


def gloo_times(num_ranks: int, size: int, repeats: int) -> Sequence[float]:
    """Times of torch's own all_reduce: from the first rank's start to the last rank's end."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        results = context.SimpleQueue()
        arguments = (num_ranks, size, repeats, os.path.join(folder, "meet"), results)
        processes = [
            context.Process(target=gloo_rank, args=(rank, *arguments)) for rank in range(num_ranks)
        ]
        for process in processes:
            process.start()
        spans = [results.get() for _ in processes]
        for process in processes:
            process.join()
    return [
        max(end for _, end in run) - min(start for start, _ in run)
        for run in zip(*spans, strict=True)
    ]


def gloo_rank(
    rank: int, num_ranks: int, size: int, repeats: int, meeting: str, results: SimpleQueue[Any]
) -> None:
    """One rank of `gloo_times`."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks
    )
    tensor, spans = torch.ones(size // 4), []
    for _ in range(repeats + 1):
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(tensor)
        spans.append((start, time.perf_counter()))
    results.put(spans[1:])
    distributed.destroy_process_group()


def shared(size: int, has_torch: bool) -> BenchmarkLine:
    """`shared-memory` beside gloo, or beside `numpy` where torch is not installed."""
    start = time.process_time()
    ours = executed(ring_all_reduce(8), size, "shared-memory", REPEATS)
    theirs = (
        gloo_times(8, size, REPEATS)
        if has_torch
        else executed(ring_all_reduce(8), size, "numpy", REPEATS)
    )
    return BenchmarkLine(
        "shared-memory ring",
        8,
        size,
        ours,
        "gloo" if has_torch else "numpy",
        theirs,
        time.process_time() - start,
    )


def other(name: str, algorithm: Algorithm, size: int) -> BenchmarkLine:
    """`numpy` beside `shared-memory` on another algorithm."""
    start = time.process_time()
    ours, theirs = (
        executed(algorithm, size, executor, REPEATS) for executor in ("numpy", "shared-memory")
    )
    return BenchmarkLine(
        f"numpy {name}",
        algorithm.num_ranks,
        size,
        ours,
        "shared-memory",
        theirs,
        time.process_time() - start,
    )


def beside_own(name: str, algorithm_name: str, algorithm: Algorithm, size: int) -> BenchmarkLine:
    """An executor on a message library beside that library's own all-reduce."""
    start = time.process_time()
    result = checked_result(algorithm, size, name, 3 * REPEATS)
    return BenchmarkLine(
        f"{name} {algorithm_name}",
        algorithm.num_ranks,
        size,
        result.repeat_times_s,
        "own",
        result.native_times_s,
        time.process_time() - start,
    )


def print_line(line: BenchmarkLine) -> None:
    ours, theirs = statistics.median(line.times_s), statistics.median(line.against_s)
    size = f"{line.size // MIB} MiB" if line.size >= MIB else f"{line.size // 1024} KiB"
    cells = (
        f"{line.what:24}{line.ranks:6}{size:>9}{1e3 * ours:12.2f} ms",
        f"{line.against:>14}{1e3 * theirs:12.2f} ms",
    )
    print(
        *cells,
        f"{ours / theirs:8.2f}{min(line.times_s) * 1e3:12.2f} ms{line.cpu_s:8.1f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--large", action="store_true", help="also 64 ranks of 64 MiB")
    parser.add_argument(
        "--without-torch", action="store_true", help="leave out torch's own all-reduce"
    )
    parser.add_argument("--without-mpi", action="store_true", help="leave out MPI's")
    arguments = parser.parse_args()
    has_torch = importlib.util.find_spec("torch") is not None and not arguments.without_torch
    has_mpi = importlib.util.find_spec("mpi4py") is not None and not arguments.without_mpi
    versions = f"Python {platform.python_version()}, numpy {np.__version__}"
    print(f"{versions}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    ours = f"{'executor':24}{'ranks':>6}{'size':>9}{'median':>15}"
    print(f"{ours} {'against':>14}{'median':>15}{'ratio':>9}{'best':>15}{'CPU s':>8}")
    sizes = [(8, MIB), (8, 64 * MIB), (64, MIB), *([(64, 64 * MIB)] if arguments.large else [])]
    for num_ranks, size in sizes:
        print_line(against_bare(num_ranks, size))
    for size in (1024, MIB, 64 * MIB):
        print_line(shared(size, has_torch))
    peers = [name for name, is_there in (("torch", has_torch), ("mpi", has_mpi)) if is_there]
    for name in peers:
        # Of few bytes the number of levels is what counts: 6 instead of 14.
        print_line(beside_own(name, "halving-doubling", halving_doubling_all_reduce(8), 1024))
        for size in (1024, 64 << 10, MIB, 64 * MIB):
            print_line(beside_own(name, "ring", ring_all_reduce(8), size))
    for name, algorithm in (
        ("halving-doubling", halving_doubling_all_reduce(8)),
        ("all pairs", all_pairs_all_reduce(8)),
    ):
        for size in (MIB, 64 * MIB):
            print_line(other(name, algorithm, size))


if __name__ == "__main__":
    main()
