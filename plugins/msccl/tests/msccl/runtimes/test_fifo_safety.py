"""The least transfer with which the buffers of connections cannot deadlock."""

from __future__ import annotations

import pytest
from collhub_msccl.runtimes import load_check as searching
from collhub_msccl.runtimes.load_check import FifoSafety, compute_fifo_safety

from hub_core import Buffer, StepKind
from hub_core.testing import CustomSteps, flooding_exchange, ring_all_reduce
from hub_core.verification import verify


@pytest.mark.parametrize(
    ("count", "capacity", "least"),
    [(8, 2, 4), (7, 2, 4), (9, 2, 5), (8, 8, 1), (9, 8, 2), (2, 2, 1)],
)
def test_fifo_safety_is_the_least_transfer_that_fits(count: int, capacity: int, least: int) -> None:
    assert compute_fifo_safety(flooding_exchange(1, count), capacity).min_units == least


def test_fifo_safety_says_when_every_size_deadlocks() -> None:
    assert compute_fifo_safety(flooding_exchange(3), 2).min_units is None


@pytest.mark.parametrize(("line", "least"), [(5, 2), (-1, 1)])
def test_fused_receive_and_send_forward_piece_by_piece(line: int, least: int) -> None:
    """Rank 0 sends 8 units to rank 1 before it takes them back, with room for 2 transfers each way.

    A fused rank 1 stops at its third forward, with 2 more transfers on the way: at most 5 pieces,
    so 2 units each.
    As two steps it takes in all pieces before it forwards the first one.
    """

    steps, of_rank_1 = CustomSteps(2, 8), {"lane": 0, "source_line": line}
    sent = steps.send(0, 1, count=8)
    steps.receive(0, 1, count=8, control=[sent])
    taken = steps.receive(1, 0, count=8, **of_rank_1)
    place = {"src_buffer": Buffer.OUTPUT, "count": 8}
    steps.add(1, StepKind.SEND, peer=0, **place, **of_rank_1, data=[taken])
    assert compute_fifo_safety(steps.algorithm(), 2).min_units == least


def test_fifo_safety_of_huge_counts_needs_no_huge_graph() -> None:
    assert compute_fifo_safety(flooding_exchange(1, 2**60), 2) == FifoSafety(2**59, 2)


def test_fifo_safety_that_was_not_examined_to_the_end_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searching, "MAX_TRANSFERS", 100)
    safety = compute_fifo_safety(ring_all_reduce(4), 2)
    assert safety == FifoSafety(1, 2)
    steps = CustomSteps(2, 99)
    steps.send(0, 1, count=99)
    steps.receive(1, 0, count=99)
    safety = compute_fifo_safety(steps.algorithm(), 2)
    # Transfers of 99, 50, 33, ... units, examined until their numbers 1 + 2 + 3 + ... exceed 100.
    splits = sorted({-(-99 // number) for number in range(1, 100)}, reverse=True)
    total, least = 0, 0
    for units in splits:
        total += -(-99 // units)
        if total > 100:
            break
        least = units
    assert safety.min_units == least
    assert not safety.is_exact
    assert safety.min_units is not None
    assert safety.min_units > 1


@pytest.mark.parametrize("counts", [(5, 8), (8, 5), (3, 7), (12, 5), (6, 6), (1, 9)])
@pytest.mark.parametrize("capacity", [2, 3, 4])
def test_fifo_safety_of_several_counts_equals_trying_every_size(
    counts: tuple[int, int], capacity: int
) -> None:
    steps = CustomSteps(2, 16)
    for rank in (0, 1):
        sent = None
        for count in counts:
            sent = steps.send(rank, 1 - rank, count=count, data=[] if sent is None else [sent])
        for count in counts:
            sent = steps.receive(rank, 1 - rank, count=count, data=[sent])
    algorithm = steps.algorithm()
    least = None
    for units in range(max(counts), 0, -1):
        report = verify(algorithm, fifo_capacity=capacity, fifo_units=units)
        if any(found.code == "fifo-deadlock" for found in report.diagnostics):
            break
        least = units
    assert compute_fifo_safety(algorithm, capacity).min_units == least
