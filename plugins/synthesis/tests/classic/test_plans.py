"""Laws of plans: read backwards twice, renamed, and carried out beside one another."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_classic.exchanges import (
    find_second_tree_parents,
    find_tree_parents,
    plan_ring_all_gather,
)
from collhub_classic.logarithmic import (
    plan_bruck_all_gather,
    plan_pat_all_gather,
    plan_sparbit_all_gather,
    plan_swing_all_gather,
)
from collhub_classic.message_plan import MessagePlan, combine_in_parallel

PLANS = [
    plan_ring_all_gather(7),
    plan_bruck_all_gather(6),
    plan_pat_all_gather(9, 2),
    plan_swing_all_gather(8),
]


def messages(plan: MessagePlan) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """(round, source, destination, blocks) of all messages, sorted."""
    ends = zip(plan.indptr[:-1].tolist(), plan.indptr[1:].tolist(), strict=True)
    blocks = [tuple(sorted(plan.blocks[start:stop].tolist())) for start, stop in ends]
    columns = (plan.round.tolist(), plan.source.tolist(), plan.destination.tolist(), blocks)
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize("plan", PLANS)
def test_backwards_twice_is_the_same_plan(plan: MessagePlan) -> None:
    twice = plan.backwards(reduces=True).backwards(reduces=False)
    assert messages(twice) == messages(plan)


@pytest.mark.parametrize("plan", PLANS)
def test_an_all_gather_brings_every_block_to_every_rank_once(plan: MessagePlan) -> None:
    held = [{rank} for rank in range(plan.num_ranks)]
    before = [set(blocks) for blocks in held]
    last = 0
    for round_, source, destination, blocks in messages(plan):
        if round_ != last:
            before, last = [set(blocks) for blocks in held], round_
        # All messages of a round are sent from the state before it.
        assert set(blocks) <= before[source]
        assert not set(blocks) & held[destination]
        held[destination] |= set(blocks)
    assert all(blocks == set(range(plan.num_blocks)) for blocks in held)


def test_plans_beside_one_another_touch_no_common_block() -> None:
    plan = combine_in_parallel([plan_ring_all_gather(4), plan_ring_all_gather(4, -1)])
    assert plan.num_blocks == 8
    assert set(plan.blocks[plan.channel[np.repeat(np.arange(len(plan)), plan.counts)] == 1]) == {
        1,
        3,
        5,
        7,
    }


def test_sparbit_is_bruck_with_far_messages_first() -> None:
    sizes = plan_sparbit_all_gather(8).counts.reshape(3, 8)
    assert sizes.tolist() == [[1] * 8, [2] * 8, [4] * 8]
    distance = plan_sparbit_all_gather(8)
    steps = (distance.destination - distance.source) % 8
    assert steps.reshape(3, 8)[:, 0].tolist() == [4, 2, 1]


@pytest.mark.parametrize("ranks", range(2, 40))
def test_both_trees_span_all_ranks_and_are_shallow(ranks: int) -> None:
    for parent in (find_tree_parents(ranks), find_second_tree_parents(ranks)):
        assert int((parent < 0).sum()) == 1
        for rank in range(ranks):
            hops = 0
            while parent[rank] >= 0:
                rank, hops = int(parent[rank]), hops + 1
            assert hops <= (ranks - 1).bit_length()


@pytest.mark.parametrize("ranks", range(2, 40, 2))
def test_no_rank_is_inner_in_both_trees_of_an_even_number(ranks: int) -> None:
    inner = [
        set(parent[parent >= 0])
        for parent in (find_tree_parents(ranks), find_second_tree_parents(ranks))
    ]
    assert not inner[0] & inner[1]
