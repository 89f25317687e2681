"""Algorithms as nodes: durations, dependencies, tags, starts and ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from collhub_templates import template_of

from hub_core import Algorithm, InputError, StepKind, StepTableBuilder
from hub_core.model import Collective, CollectiveKind, NodeKind
from hub_core.testing import binomial_broadcast, check_examples, ring_all_gather, ring_all_reduce

README = Path(__file__).resolve().parents[2] / "docs" / "templates.md"


def algorithm_of(steps: StepTableBuilder, num_ranks: int = 2) -> Algorithm:
    collective = Collective(CollectiveKind.BROADCAST, num_ranks, 1, root=0)
    return Algorithm(collective, steps.build(), np.zeros(num_ranks, np.int64))


def test_a_receive_that_reduces_is_two_nodes() -> None:
    algorithm = ring_all_reduce(4)
    template = template_of(algorithm, range(4), 4096)
    reductions = int(algorithm.steps.is_kind(StepKind.RECV_REDUCE).sum())
    assert reductions == 12
    assert len(template) == len(algorithm.steps) + reductions


def test_messages_of_one_pair_have_numbers_of_their_own() -> None:
    template = template_of(ring_all_reduce(4), range(4), 4096)
    position = np.repeat(np.arange(4), np.diff(template.first))
    is_send = template.kind == NodeKind.SEND
    ends = np.where(is_send, position, template.peer), np.where(is_send, template.peer, position)
    for kind in (NodeKind.SEND, NodeKind.RECV):
        rows = np.flatnonzero(template.kind == kind)
        keys = np.stack([ends[0][rows], ends[1][rows], template.message[rows]])
        assert len(np.unique(keys, axis=1).T) == len(rows) == 24
    assert template.tags == 6


def test_a_collective_ends_with_what_is_received_not_with_what_is_sent() -> None:
    steps = StepTableBuilder(3)
    steps.add(0, StepKind.SEND, peer=1, src_buffer=0, count=1)
    got = steps.add(1, StepKind.RECV, peer=0, dst_buffer=1, count=1)
    steps.add(1, StepKind.SEND, peer=2, src_buffer=1, count=1, data=[got])
    steps.add(2, StepKind.RECV, peer=1, dst_buffer=1, count=1)
    template = template_of(algorithm_of(steps, 3), range(3), 64)
    indptr, ends = template.ends
    # Rank 0 only sends, rank 1 has it before it passes it on.
    assert (indptr.tolist(), ends.tolist()) == ([0, 1, 2, 3], [0, 1, 3])


def test_local_work_that_states_no_time_at_all_is_no_node() -> None:
    steps = StepTableBuilder(2)
    copied = steps.add(0, StepKind.COPY, src_buffer=0, dst_buffer=1, count=1, duration_ns=0)
    again = steps.add(
        0, StepKind.COPY, src_buffer=1, dst_buffer=2, count=1, duration_ns=0, data=[copied]
    )
    waited = steps.add(0, StepKind.COMPUTE, duration_ns=5)
    steps.add(0, StepKind.SEND, peer=1, src_buffer=2, count=1, data=[again, waited])
    arrived = steps.add(1, StepKind.RECV, peer=0, dst_buffer=1, count=1)
    steps.add(1, StepKind.COPY, src_buffer=1, dst_buffer=2, count=1, duration_ns=7, data=[arrived])
    template = template_of(algorithm_of(steps), range(2), 64)
    assert template.kind.tolist() == [
        *(NodeKind.COMPUTE, NodeKind.SEND),
        *(NodeKind.RECV, NodeKind.COMPUTE),
    ]
    assert template.duration_ns.tolist() == [5, -1, -1, 7]
    assert [side.tolist() for side in template.data] == [[0, 2], [1, 3]]


def test_messages_have_the_bytes_of_their_units() -> None:
    template = template_of(ring_all_gather(4), range(4), 1000)
    assert set(template.bytes[template.kind == NodeKind.SEND].tolist()) == {250}


def test_steps_outside_the_group_are_refused() -> None:
    with pytest.raises(InputError, match="steps on rank 3, which is not in the group"):
        template_of(ring_all_reduce(4), [0, 1, 2], 4096)


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(InputError, match="too few bytes"):
        template_of(binomial_broadcast(4), range(4), 0)


def test_the_example_runs() -> None:
    names = check_examples(README)
    assert len(names["template"]) == 60
