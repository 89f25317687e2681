"""Lanes: channels that share no memory run beside each other, no others do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_execution import RecordKind
from emitted import link, run, tables

from hub_core.columns import Int64Array
from hub_core.model import Algorithm, Buffer, StepKind
from hub_core.testing import samples

pytestmark = pytest.mark.once


def with_channels(algorithm: Algorithm, channel: Int64Array) -> Algorithm:
    steps = replace(algorithm.steps, channel=channel.astype(np.int32))
    return replace(algorithm, steps=steps)


def ring_by_block(num_ranks: int) -> Algorithm:
    """A ring all-reduce in which the way of every block is a channel."""
    algorithm = samples.ring_all_reduce(num_ranks)
    steps = algorithm.steps
    is_send = steps.kind == StepKind.SEND
    return with_channels(algorithm, np.where(is_send, steps.src_offset, steps.dst_offset))


def ring_by_hop(num_ranks: int) -> Algorithm:
    """A ring all-reduce that changes between two channels at every hop."""
    algorithm = samples.ring_all_reduce(num_ranks)
    steps = algorithm.steps
    channel = np.zeros(len(steps), np.int64)
    for rank in range(num_ranks):
        for is_kind in (steps.kind == StepKind.SEND, steps.kind != StepKind.SEND):
            rows = np.flatnonzero(is_kind & (steps.rank == rank))
            channel[rows] = np.arange(len(rows)) % 2
    return with_channels(algorithm, channel)


def test_channels_on_parts_of_their_own_are_lanes() -> None:
    stated = tables(ring_by_block(4), lanes=16)
    assert stated.num_lanes == 4
    lane, blocks = stated.records[:, -1], stated.records[:, 5]
    sends = stated.records[:, 0] == 0
    for number in range(4):
        assert len(set(blocks[sends & (lane == number)].tolist())) == 1


def test_more_channels_than_lanes_share_them() -> None:
    stated = tables(ring_by_block(4), lanes=3)
    assert np.bincount(stated.records[:, -1]).tolist() == [30, 15, 15]


def test_channels_that_touch_the_same_memory_are_one_lane() -> None:
    assert tables(ring_by_hop(4), lanes=16).num_lanes == 1


def test_what_comes_before_all_messages_joins_no_channels() -> None:
    # The root copies its whole input to its output, from where two trees send their parts.
    stated = tables(samples.weighted_broadcast(4), in_place=False, lanes=16)
    assert stated.num_lanes == 2
    assert set(stated.records[stated.records[:, 3] == 0, -1].tolist()) == {0}


def test_lanes_have_slots_of_their_own_for_what_is_received() -> None:
    one, many = tables(ring_by_block(4)), tables(ring_by_block(4), lanes=16)
    assert one.scratch.tolist() == [1] * 4
    # Of four blocks that travel, a rank adds its own to three.
    assert many.scratch.tolist() == [3] * 4
    lands = (many.records[:, 0] == RecordKind.RECV) & (many.records[:, 2] == Buffer.SCRATCH)
    for rank in range(4):
        own = lands & (many.program.rank == rank)
        slots = set(map(tuple, many.records[own][:, [6, 8]].tolist()))
        assert len(slots) == len({offset for offset, _ in slots}) == 3


def test_one_lane_has_the_records_of_the_program() -> None:
    one = tables(ring_by_block(4))
    assert one.num_lanes == 1
    np.testing.assert_array_equal(one.records[:, 3], one.program.level)


@pytest.mark.once
def test_program_with_many_lanes_gets_what_the_collective_defines(folder: Path) -> None:
    link(folder, tables(ring_by_block(4), lanes=16))
    found = run(folder, "--size", "6400", COLLHUB_DOUBLE_ASYNC="1")
    assert found.status == 0, found.errors
    assert found.report is not None
    assert found.report["matches_definition"] is True
