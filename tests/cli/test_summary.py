"""What `collhub inspect` counts."""

from __future__ import annotations

import numpy as np
import pytest

from hub_core.cli.reports.summary import CriticalPath, count_kinds, critical_path, traffic
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.kinds import CollectiveKind, StepKind
from hub_core.model.steps import StepTableBuilder
from hub_core.testing.samples import ring_all_reduce


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_critical_path_of_a_ring_is_its_closed_form(num_ranks: int) -> None:
    # 2 (n - 1) messages one after the other, each a SEND and a receive: Patarasuk and Yuan, JPDC 2009.
    half_steps = 2 * (num_ranks - 1)
    assert critical_path(ring_all_reduce(num_ranks).steps) == CriticalPath(
        steps=2 * half_steps, messages=half_steps
    )


def test_steps_that_wait_for_each_other_have_no_critical_path() -> None:
    builder = StepTableBuilder(2)
    for rank in (0, 1):
        got = builder.add(rank, StepKind.RECV, peer=1 - rank, count=1)
        builder.add(rank, StepKind.SEND, peer=1 - rank, count=1, data=[got])
    assert critical_path(builder.build()) is None


def test_an_unmatched_receive_follows_nothing() -> None:
    builder = StepTableBuilder(2)
    builder.add(1, StepKind.RECV, peer=0, count=1)
    assert critical_path(builder.build()) == CriticalPath(steps=1, messages=0)


def test_no_steps_have_a_critical_path_of_nothing() -> None:
    assert critical_path(StepTableBuilder(1).build()) == CriticalPath(0, 0)


def test_kinds_without_steps_are_counted_as_zero() -> None:
    assert count_kinds(ring_all_reduce(3).steps) == {
        "send": 12, "recv": 6, "recv-reduce": 6, "copy": 0, "reduce": 0, "compute": 0,
    }  # fmt: skip


def test_traffic_sums_messages_of_all_channels_of_a_pair() -> None:
    builder = StepTableBuilder(3)
    for channel, peer in ((0, 2), (1, 1), (2, 2)):
        builder.add(0, StepKind.SEND, peer=peer, channel=channel, count=channel + 1)
    algorithm = Algorithm(
        Collective(CollectiveKind.BROADCAST, 3, 7, root=0), builder.build(), np.zeros(3, np.int64)
    )
    found = traffic(algorithm, 100)
    assert found.bytes is not None
    assert list(zip(found.source.tolist(), found.destination.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
    ]
    # Every message is rounded up by itself: ceil(100 / 7) + ceil(300 / 7).
    assert (found.messages.tolist(), found.units.tolist(), found.bytes.tolist()) == (
        [1, 2],
        [2, 4],
        [29, 15 + 43],
    )


def test_traffic_without_a_size_has_no_bytes() -> None:
    assert traffic(ring_all_reduce(2), None).bytes is None
