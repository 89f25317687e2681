"""Replication, relabelling, embedding and finer units: same meaning in other places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collhub_compose import embed, pipeline, relabel, replicate, rescale, sequential
from hypothesis import given, settings
from hypothesis import strategies as st

import hub_core
from hub_core.model import UnitCounts
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.diagnostics import HubError, InputError, UsageError
from hub_core.model.kinds import Buffer, CollectiveKind, StepKind
from hub_core.model.steps import StepTableBuilder
from hub_core.schedules.message_ends import separate_phases
from hub_core.testing.samples import (
    all_samples,
    binomial_broadcast,
    direct_all_to_all,
    halving_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    shift_to_next,
)
from hub_core.testing.strategies import algorithms
from hub_core.verification import verify

pytestmark = pytest.mark.once

SAMPLES = {num_ranks: all_samples(num_ranks) for num_ranks in (2, 3, 4, 5)}
samples = st.sampled_from([sample for group in SAMPLES.values() for sample in group.values()])


def assert_correct(algorithm: Algorithm) -> None:
    report = verify(algorithm)
    assert report.ok, report.diagnostics
    assert report.method != "none"


def doubling_all_gather(is_staged: bool = False) -> Algorithm:
    """Four ranks, in place: the second exchange moves two shares in one message.

    From SCRATCH where `is_staged`.
    """
    draft = StepTableBuilder(4)
    out = {"dst_buffer": Buffer.OUTPUT}
    for rank in range(4):
        near, far = rank ^ 1, rank ^ 2
        pair = {"src_buffer": Buffer.OUTPUT, "src_offset": rank & 2, "count": 2}
        draft.add(
            rank, StepKind.SEND, peer=near, src_buffer=Buffer.OUTPUT, src_offset=rank, count=1
        )
        waits = draft.add(rank, StepKind.RECV, peer=near, **out, dst_offset=near, count=1)
        if is_staged:
            waits = draft.add(
                rank,
                StepKind.COPY,
                data=[waits],
                dst_buffer=Buffer.SCRATCH,
                duration_ns=101,
                **pair,
            )
            pair |= {"src_buffer": Buffer.SCRATCH, "src_offset": 0}
        draft.add(rank, StepKind.SEND, data=[waits], peer=far, channel=1, **pair)
        draft.add(rank, StepKind.RECV, peer=far, channel=1, **out, dst_offset=far & 2, count=2)
    collective = Collective(CollectiveKind.ALL_GATHER, 4, 4, in_place=True, out_of_place=False)
    return Algorithm(collective, draft.build(), np.full(4, 2 if is_staged else 0))


@settings(max_examples=40)
@given(samples, st.integers(2, 4), st.booleans())
def test_copies_side_by_side_do_what_the_original_does(
    sample: Algorithm, instances: int, interleaved: bool
) -> None:
    copies = replicate(sample, instances, interleaved)
    assert copies.collective.kind is sample.collective.kind
    assert copies.collective.unit_count == instances * sample.collective.unit_count
    assert (copies.collective.in_place, copies.collective.out_of_place) == (
        sample.collective.in_place,
        sample.collective.out_of_place,
    )
    assert_correct(copies)


def test_one_instance_is_the_algorithm_itself() -> None:
    ring = ring_all_reduce(4)
    assert replicate(ring, 1) is ring


def test_copies_have_channels_and_lanes_of_their_own() -> None:
    steps = replicate(ring_all_reduce(4), 3).steps
    assert np.unique(steps.channel).tolist() == [0, 1, 2]
    assert np.array_equal(steps.lane, steps.channel)


@settings(max_examples=50)
@given(samples, st.integers(2, 4))
def test_pieces_one_after_another_do_what_the_original_does(sample: Algorithm, pieces: int) -> None:
    pipelined = pipeline(sample, pieces)
    assert pipelined.collective.kind is sample.collective.kind
    assert pipelined.collective.unit_count == pieces * sample.collective.unit_count
    # Lanes of the producer remain.
    assert np.unique(pipelined.steps.lane).tolist() == np.unique(sample.steps.lane).tolist()
    assert_correct(pipelined)


def test_pieces_share_channels_and_phases_do_not() -> None:
    ring = ring_all_reduce(4)
    without_lanes = replace(ring, steps=replace(ring.steps, lane=np.full(len(ring.steps), -1)))
    # A ring of 4 has 6 messages on each connection, each of which depends on the one before.
    steps = pipeline(without_lanes, 3).steps
    assert np.unique(steps.channel[steps.sends]).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.bincount(steps.channel[steps.sends]).tolist() == [3 * 4] * 6
    assert separate_phases(ring) is ring
    assert pipeline(ring, 1) is ring
    exchange = direct_all_to_all(4)
    free = replace(exchange, steps=replace(exchange.steps, lane=np.full(len(exchange.steps), -1)))
    assert separate_phases(free) is free
    with pytest.raises(UsageError, match="0 pieces"):
        pipeline(ring, 0)


def test_copies_take_parts_of_a_share_or_units_in_turn() -> None:
    ring = rescale(ring_all_gather(2), 2)
    halves, turns = replicate(ring, 2), replicate(rescale(ring, 1), 2, interleaved=True)
    first = [
        steps.dst_offset[steps.is_kind(StepKind.COPY) & (steps.rank == 1)].tolist()
        for steps in (halves.steps, turns.steps)
    ]
    assert first == [[4, 6], [4, 6]]
    fine = replicate(binomial_broadcast(2), 2)
    assert sorted(fine.steps.src_offset[fine.steps.sends].tolist()) == [0, 2]


def test_message_of_several_shares_is_cut_where_copies_deal_with_parts_of_each() -> None:
    gather = doubling_all_gather()
    assert_correct(gather)
    copies = replicate(gather, 2)
    assert set(copies.steps.count.tolist()) == {1}
    assert len(copies.steps) == 2 * 4 * 6
    assert_correct(copies)


def test_both_ends_of_a_message_are_cut_where_one_has_to_be() -> None:
    gather = doubling_all_gather(is_staged=True)
    assert_correct(gather)
    for moved in (replicate(gather, 2), relabel(gather, [0, 2, 1, 3])):
        assert set(moved.steps.count.tolist()) == {1}
        assert_correct(moved)


def test_duration_of_a_step_that_is_cut_is_that_of_its_pieces() -> None:
    steps = relabel(doubling_all_gather(is_staged=True), [0, 2, 1, 3]).steps
    assert steps.duration_ns[steps.is_kind(StepKind.COPY)].tolist() == [51] * 8


def test_whole_vector_is_not_cut() -> None:
    halving = halving_doubling_all_reduce(4)
    assert len(replicate(halving, 2).steps) == 2 * len(halving.steps)


def test_durations_are_divided_among_the_copies() -> None:
    ring = ring_all_gather(2)
    stated = replace(
        ring,
        steps=replace(ring.steps, duration_ns=np.where(ring.steps.is_kind(StepKind.COPY), 101, -1)),
    )
    assert set(replicate(stated, 2).steps.duration_ns.tolist()) == {51, -1}


def test_no_instance_is_refused() -> None:
    with pytest.raises(UsageError, match="0 instances"):
        replicate(ring_all_reduce(2), 0)


def test_more_instances_than_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="use fewer instances"):
        replicate(ring_all_reduce(2), 10**9)


@given(samples, st.randoms(use_true_random=False))
def test_relabelled_algorithm_keeps_its_promise(sample: Algorithm, random) -> None:
    places = random.sample(range(sample.num_ranks), sample.num_ranks)
    moved = relabel(sample, places)
    assert moved.collective.kind is sample.collective.kind
    assert_correct(moved)


@given(samples, st.randoms(use_true_random=False))
def test_relabelling_there_and_back_is_the_identity(sample: Algorithm, random) -> None:
    places = random.sample(range(sample.num_ranks), sample.num_ranks)
    assert relabel(relabel(sample, places), np.argsort(places).tolist()).differences(sample) == [
        "provenance"
    ]


def test_root_and_scratch_move_with_their_ranks() -> None:
    sample = replace(binomial_broadcast(3, root=1), scratch_units=np.asarray([1, 2, 3]))
    moved = relabel(sample, [2, 0, 1])
    assert (moved.collective.root, moved.scratch_units.tolist()) == (0, [2, 3, 1])


def test_message_of_several_shares_is_cut_where_they_part() -> None:
    gather = doubling_all_gather()
    assert len(relabel(gather, [2, 3, 0, 1]).steps) == len(gather.steps)
    assert len(relabel(gather, [0, 2, 1, 3]).steps) == 4 * 6
    assert_correct(relabel(gather, [0, 2, 1, 3]))


@pytest.mark.parametrize(
    ("ranks", "reason"),
    [
        ([0, 1], "2 ranks are given, the algorithm has 3"),
        ([0, 1, 3], r"rank 3 is not in 0\.\.2"),
        ([0, 1, 1], "more than once"),
    ],
)
def test_what_is_no_permutation_is_refused(ranks: list[int], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        relabel(ring_all_reduce(3), ranks)


@given(samples, st.randoms(use_true_random=False))
def test_embedded_algorithm_keeps_its_promise_and_the_others_rest(
    sample: Algorithm, random
) -> None:
    ranks = random.sample(range(8), sample.num_ranks)
    wide = embed(sample, ranks, 8)
    assert (wide.collective.kind, wide.num_ranks) == (CollectiveKind.CUSTOM, 8)
    assert set(wide.steps.rank.tolist()) <= set(ranks)
    assert int(wide.collective.output_units()[np.setdiff1d(np.arange(8), ranks)].sum()) == 0
    assert len(wide.steps) == len(sample.steps)
    assert_correct(wide)


def test_embedding_in_as_many_ranks_is_the_same_collective() -> None:
    for name, sample in SAMPLES[4].items():
        same = embed(sample, range(4), 4)
        assert same.collective.kind is sample.collective.kind, name
        assert same.steps.differences(sample.steps) == []


def test_in_place_is_claimed_where_it_means_one_buffer() -> None:
    assert embed(ring_all_reduce(4), [4, 5, 6, 7], 8).collective.in_place
    gather = embed(ring_all_gather(4), [4, 5, 6, 7], 8).collective
    assert (gather.in_place, gather.out_of_place) == (False, True)


def test_algorithm_on_shares_in_place_gets_copies_when_embedded() -> None:
    wide = embed(doubling_all_gather(), [1, 2, 3, 4], 6)
    assert int(wide.steps.is_kind(StepKind.COPY).sum()) == 4
    assert wide.collective.out_of_place
    assert_correct(wide)


def test_embedded_parts_still_follow_each_other() -> None:
    ranks = [5, 1, 3]
    pair = sequential(
        [embed(binomial_broadcast(3), ranks, 6), embed(direct_all_to_all(3), ranks, 6)]
    )
    assert_correct(pair)


def test_sizes_of_embedded_algorithms_stay() -> None:
    stated = replace(ring_all_gather(4), collective_bytes=4096)
    assert embed(stated, range(4), 8).collective_bytes == 4096


@pytest.mark.parametrize("num_ranks", [2, 0, -1, 1 << 40])
def test_too_few_or_too_many_ranks_are_refused(num_ranks: int) -> None:
    with pytest.raises(UsageError):
        embed(ring_all_reduce(3), [0, 1, 2], num_ranks)


@given(samples, st.integers(1, 4))
def test_finer_units_change_nothing_else(sample: Algorithm, factor: int) -> None:
    finer = rescale(sample, factor)
    assert finer.collective.unit_count == factor * sample.collective.unit_count
    assert len(finer.steps) == len(sample.steps)
    assert_correct(finer)


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        (CollectiveKind.ALL_TO_ALL_V, [[1, 0, 2], [0, 3, 1], [2, 1, 0]]),
        (CollectiveKind.ALL_GATHER_V, [1, 0, 2]),
    ],
)
def test_finer_units_multiply_the_counts(kind: CollectiveKind, counts: Any) -> None:
    table = UnitCounts.from_table(counts, kind.traits.has_counts_per_pair)
    collective = Collective(kind, 3, table.total, counts=table)
    network = hub_core.parse_topology("ring:3")
    coarse = hub_core.synthesize(collective, network, 1024 * table.total, name="auto").algorithm
    finer = rescale(coarse, 3)
    assert coarse.collective.counts is not None
    assert finer.collective.counts == coarse.collective.counts.multiplied(3)
    assert_correct(finer)


def test_units_cannot_be_cut_in_nothing() -> None:
    with pytest.raises(UsageError, match="cannot be divided into 0 parts"):
        rescale(shift_to_next(2), 0)


@pytest.mark.parametrize("unit", [1, -1])
def test_a_contract_with_units_that_no_buffer_has_is_refused(unit: int) -> None:
    zero, one = np.zeros(1, np.int64), np.ones(4, np.int64)
    expected = Contributions(zero, zero, zero - 1, np.full(1, unit))
    contract = CustomContract(one, one, np.zeros(4, np.bool_), expected)
    algorithm = Algorithm(
        Collective(CollectiveKind.CUSTOM, 4, 4, contract=contract),
        StepTableBuilder(4).build(),
        np.zeros(4, np.int64),
    )
    with pytest.raises(InputError, match=f"unit {unit} of a buffer of 1 units"):
        replicate(algorithm, 2)


@settings(max_examples=40)
@given(algorithms(), st.sampled_from(["replicate", "interleave", "relabel", "embed", "rescale"]))
def test_arbitrary_algorithms_are_changed_or_refused(given_: Algorithm, operation: str) -> None:
    ranks = list(range(given_.num_ranks))[::-1]
    operations = {
        "replicate": lambda: replicate(given_, 2),
        "interleave": lambda: replicate(given_, 2, interleaved=True),
        "relabel": lambda: relabel(given_, ranks),
        "embed": lambda: embed(given_, ranks, 6),
        "rescale": lambda: rescale(given_, 3),
    }
    try:
        changed = operations[operation]()
    except HubError:
        return
    assert changed.num_ranks >= given_.num_ranks
