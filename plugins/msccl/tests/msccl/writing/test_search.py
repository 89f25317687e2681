"""The search for a program: no attempt is made in vain or twice, and kernels have one result."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from collhub_msccl.plugin import WriteOptions, fit_msccl
from collhub_msccl.writing import attempts, choose, write_xml
from collhub_msccl.writing.assemble import BlockAssignment, assemble
from collhub_msccl.writing.execution_times import compute_begin_times, compute_link_times
from collhub_msccl.writing.list_kernels import compile_at_once, run
from collhub_msccl.writing.time_kernels import order_rows
from collhub_msccl.writing.waits import find_waits

from hub_core import parse_topology
from hub_core.columns import Int64Array, csr
from hub_core.model import Algorithm, Buffer, StepKind
from hub_core.plugin_api import LimitError, RuntimeLimits
from hub_core.testing import CustomSteps, direct_all_to_all, ring_all_reduce


def _digests(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, options: WriteOptions
) -> list[bytes]:
    """Measure an algorithm; return the digests of the attempts that were made."""
    digests: list[bytes] = []

    def count(attempt: BlockAssignment, *arguments: object) -> object:
        digests.append(attempt.compute_digest())
        return assemble(attempt, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(choose, "assemble", count)
    write_xml.measure_fit(algorithm, options)
    return digests


def _unordered(algorithm: Algorithm) -> Algorithm:
    """The algorithm without the thread blocks of its producer."""
    steps = algorithm.steps
    return replace(algorithm, steps=replace(steps, lane=np.full_like(steps.lane, -1)))


@pytest.mark.parametrize("build", [ring_all_reduce, direct_all_to_all], ids=["ring", "direct"])
def test_equal_attempts_are_made_once(
    build: Callable[[int], Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variants often assign the steps to the same thread blocks in the same order."""
    digests = _digests(_unordered(build(4)), monkeypatch, WriteOptions("msccl"))
    assert digests
    assert len(set(digests)) == len(digests)


def test_a_safe_program_that_is_enough_needs_no_link_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resources of the first safe program do not depend on the times of other programs."""
    monkeypatch.setattr(choose, "compute_link_times", None)
    algorithm = _unordered(ring_all_reduce(4))
    fit = fit_msccl(algorithm, 1 << 12, parse_topology("switch:4"), RuntimeLimits(), is_quick=True)
    assert fit.blocks > 0


def test_too_many_elements_are_found_before_list_scheduling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank of 4200 sends is more than the runtime reads; the message has the exact number."""
    steps = CustomSteps(2, 4200)
    for unit in range(4200):
        steps.send(0, 1, unit)
        steps.receive(1, 0, unit)
    monkeypatch.setattr(attempts, "iterate_placed_steps", None)
    # Elements of the file, of 2 ranks, of a thread block before it is cut, and of 4200 steps.
    with pytest.raises(LimitError, match="rank 0 needs 4204 XML elements"):
        write_xml.measure_fit(steps.algorithm(), WriteOptions("msccl"))


def test_a_thread_block_can_serve_two_channels_of_the_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Channels are numbered again, so a rank that receives on one and sends on another needs one
    thread block.
    """
    steps = CustomSteps(3, 1)
    steps.send(0, 1, channel=0)
    received = steps.receive(1, 0, channel=0)
    steps.add(
        1, StepKind.SEND, peer=2, data=[received], src_buffer=Buffer.OUTPUT, count=1, channel=1
    )
    steps.receive(2, 1, channel=1)
    limits = RuntimeLimits(max_blocks=1)
    fit = fit_msccl(steps.algorithm(), 1 << 12, parse_topology("switch:3"), limits, is_quick=True)
    assert fit.blocks == 1


def test_too_many_peers_are_refused_before_any_attempt_of_a_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A write of many ranks took minutes before it was refused."""
    monkeypatch.setattr(choose, "build_free_draft", None)
    monkeypatch.setattr(choose, "assemble", None)
    expected = "ROCm/rccl: rank 0 needs at least 69 thread blocks, more than the 64 that it accepts"
    with pytest.raises(LimitError, match=expected) as caught:
        write_xml.write(direct_all_to_all(70), WriteOptions("rccl"))
    assert caught.value.resource == "blocks"


def _random_program(seed: int) -> Iterator[Int64Array]:
    """Yield block, ordinal and time of 60 steps of 2 ranks with 4 blocks each, then pairs."""
    random = np.random.default_rng(seed)
    block = np.sort(random.integers(0, 8, 60))
    ordinal = np.arange(60) - np.searchsorted(block, block)
    time = np.empty(60, np.int64)
    # Within a block, time ascends.
    for one in range(8):
        rows = np.flatnonzero(block == one)
        time[rows] = np.sort(random.permutation(1000)[: len(rows)]) * 8 + one
    first, second = random.integers(0, 60, (2, 300))
    is_earlier = (time[first] < time[second]) & (block[first] // 4 == block[second] // 4)
    yield from (block, ordinal, time, first[is_earlier], second[is_earlier])


def _finished(block: Int64Array, first: Int64Array, second: Int64Array) -> np.ndarray:
    """For every pair of steps, whether the first finishes before the second: a matrix."""
    size = len(block)
    reach = np.zeros((size, size), np.bool_)
    reach[first, second] = True
    for step in range(1, size):
        reach[step - 1, step] |= block[step - 1] == block[step]
    for middle in range(size):
        reach |= np.outer(reach[:, middle], reach[middle])
    return reach


@pytest.mark.parametrize("seed", range(4))
def test_waits_imply_exactly_the_required_order(seed: int) -> None:
    """No required order is lost, and every wait is necessary for it."""
    block, ordinal, time, first, second = _random_program(seed)
    rank_of_block = np.repeat([0, 1], 4)
    knowledge = find_waits(block, ordinal, time, np.arange(60), (first, second), rank_of_block)
    waits = knowledge.parents, knowledge.children
    required = _finished(block, first, second)
    assert np.array_equal(_finished(block, *waits), required)
    for left_out in range(len(waits[0])):
        fewer = (np.delete(column, left_out) for column in waits)
        assert not np.array_equal(_finished(block, *fewer), required)
    for step in range(60):
        for other in np.flatnonzero(block[step] // 4 == block // 4).tolist():
            place = int(block[other]), int(ordinal[other]), int(block[step]), int(ordinal[step])
            assert knowledge.is_before(*place) == required[other, step]


@pytest.mark.once
@pytest.mark.parametrize("build", [ring_all_reduce, direct_all_to_all], ids=["ring", "direct"])
def test_machine_code_and_plain_python_have_the_same_times_and_waits(
    build: Callable[[int], Algorithm],
) -> None:
    """Small programs are interpreted and large ones compiled: a file must not depend on that."""
    algorithm = build(5)
    parents, children = algorithm.steps.edges()
    size = len(algorithm.steps)
    random = np.random.default_rng(1)
    block, ordinal, time, first, second = _random_program(1)

    def compute() -> list[object]:
        nothing = np.zeros(0, np.int64)
        begins = compute_begin_times(
            random.integers(1, 2, size), (parents, children), (nothing, nothing)
        )
        knowledge = find_waits(
            block, ordinal, time, np.arange(60), (first, second), np.repeat([0, 1], 4)
        )
        waits = np.bincount(children, minlength=size)
        table = csr(parents, children, size)
        order = run(order_rows, 0, waits, *table, np.zeros(size, np.int64))
        pairs = [knowledge.parents.tolist(), knowledge.children.tolist()]
        return [compute_link_times(algorithm), begins.tolist(), pairs, list(order)]

    interpreted = compute()
    with compile_at_once():
        assert compute() == interpreted


def test_of_the_ready_rows_the_lowest_one_is_next() -> None:
    """As in step tables, which sort the rows of large programs in plain Python."""
    random = np.random.default_rng(3)
    rank = random.permutation(200)
    first, second = random.integers(0, 200, (2, 400))
    is_pair = rank[first] < rank[second]
    first, second = first[is_pair], second[is_pair]
    waits = np.bincount(second, minlength=200)
    table = csr(first, second, 200)
    order = run(order_rows, 0, waits, *table, np.zeros(200, np.int64))
    missing, expected = waits.tolist(), []
    ready = np.flatnonzero(waits == 0).tolist()
    while ready:
        row = heapq.heappop(ready)
        expected.append(row)
        for child in second[first == row].tolist():
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, child)
    assert order == expected
