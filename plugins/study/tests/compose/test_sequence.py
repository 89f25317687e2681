"""Sequences: what the pair promises, where it may be called, what waits, what does not fit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from collhub_compose import sequential
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.diagnostics import HubError, InputError, UsageError
from hub_core.model.kinds import Buffer, CollectiveKind, ReduceOp, StepKind
from hub_core.model.steps import StepTable, StepTableBuilder
from hub_core.testing import custom_collective, samples
from hub_core.testing.strategies import algorithms
from hub_core.verification import verify

pytestmark = pytest.mark.once

SAMPLES = {num_ranks: samples.all_samples(num_ranks) for num_ranks in (2, 3, 4)}
PAIRS = [
    (n, *pair) for n, samples in SAMPLES.items() for pair in itertools.product(samples, repeat=2)
]
FROM_ROOT = {"binomial-broadcast", "direct-scatter", "weighted-broadcast"}


def fits(first: str, second: str) -> bool:
    """What leaves a result at the root alone is followed by what starts there.

    A shift leaves rank 0 without one.
    """
    if first in {"binomial-reduce", "direct-gather"}:
        return second in FROM_ROOT
    return first != "shift-to-next"


@pytest.mark.parametrize(
    ("num_ranks", "first", "second"), [pair for pair in PAIRS if fits(*pair[1:])]
)
def test_every_pair_of_samples_that_fits_verifies_as_claimed(
    num_ranks: int, first: str, second: str
) -> None:
    report = verify(sequential([SAMPLES[num_ranks][first], SAMPLES[num_ranks][second]]))
    assert report.ok, report.diagnostics
    assert report.method != "none"


@pytest.mark.parametrize(
    ("num_ranks", "first", "second"), [pair for pair in PAIRS if not fits(*pair[1:])]
)
def test_every_pair_of_samples_that_does_not_fit_names_the_rank(
    num_ranks: int, first: str, second: str
) -> None:
    with pytest.raises(UsageError) as caught:
        sequential([SAMPLES[num_ranks][first], SAMPLES[num_ranks][second]])
    assert caught.value.diagnostics[0].code == "seam"
    assert caught.value.diagnostics[0].location.rank is not None


@pytest.mark.parametrize(
    ("first", "second", "kind", "root"),
    [
        (samples.ring_reduce_scatter, samples.ring_all_gather, CollectiveKind.ALL_REDUCE, None),
        (samples.binomial_reduce, samples.binomial_broadcast, CollectiveKind.ALL_REDUCE, None),
        (samples.direct_scatter, samples.ring_all_gather, CollectiveKind.BROADCAST, 0),
        (samples.direct_gather, samples.binomial_broadcast, CollectiveKind.ALL_GATHER, None),
        (samples.binomial_reduce, samples.direct_scatter, CollectiveKind.REDUCE_SCATTER, None),
        (samples.ring_reduce_scatter, samples.direct_gather, CollectiveKind.REDUCE, 0),
        (samples.binomial_broadcast, samples.direct_scatter, CollectiveKind.SCATTER, 0),
        (samples.ring_all_reduce, samples.binomial_broadcast, CollectiveKind.ALL_REDUCE, None),
        (samples.direct_gather, samples.direct_scatter, CollectiveKind.CUSTOM, None),
        (samples.direct_all_to_all, samples.direct_all_to_all, CollectiveKind.CUSTOM, None),
    ],
)
def test_two_collectives_make_the_collective_with_their_joint_contract(
    first, second, kind, root
) -> None:
    collective = sequential([first(4), second(4)]).collective
    assert (collective.kind, collective.root) == (kind, root)


def test_root_of_the_result_is_that_of_the_parts() -> None:
    broadcast = sequential([samples.direct_scatter(4, root=2), samples.ring_all_gather(4)])
    assert (broadcast.collective.kind, broadcast.collective.root) == (CollectiveKind.BROADCAST, 2)
    assert verify(broadcast).ok


def test_all_gather_of_reduce_scatter_needs_no_memory_of_its_own() -> None:
    scatter = samples.ring_reduce_scatter(4)
    pair = sequential([scatter, samples.ring_all_gather(4)])
    assert (pair.collective.in_place, pair.collective.out_of_place) == (True, True)
    assert np.array_equal(pair.scratch_units, scatter.scratch_units)


def test_reducing_twice_promises_every_contribution_once_for_every_rank() -> None:
    contract = sequential(
        [samples.all_pairs_all_reduce(3), samples.all_pairs_all_reduce(3)]
    ).collective.contract
    assert contract is not None
    assert contract.expected is not None
    assert len(contract.expected) == 3 * 3 * 3
    assert set(contract.expected.source_rank.tolist()) == {-1}


def test_there_and_back_by_all_to_all_is_the_identity() -> None:
    contract = sequential(
        [samples.direct_all_to_all(4), samples.direct_all_to_all(4)]
    ).collective.contract
    assert contract is not None
    assert contract.expected is not None
    assert np.array_equal(contract.expected.rank, contract.expected.source_rank)
    assert np.array_equal(contract.expected.offset, contract.expected.source_unit)


def test_two_algorithms_in_place_stay_in_place_without_copies() -> None:
    pair = sequential([samples.ring_all_reduce(4), samples.halving_doubling_all_reduce(4)])
    assert (pair.collective.in_place, pair.collective.out_of_place) == (True, False)
    assert not pair.steps.is_kind(StepKind.COPY).any()


def test_copies_join_what_works_in_place_only_to_what_works_out_of_place_only() -> None:
    pair = sequential([samples.ring_all_reduce(4), samples.direct_all_to_all(4)])
    assert (pair.collective.in_place, pair.collective.out_of_place) == (True, True)
    assert int(pair.steps.is_kind(StepKind.COPY).sum()) == 4 * 4 + 4
    assert verify(pair).ok


def test_part_that_works_in_place_on_a_share_of_its_input_gets_scratch() -> None:
    scatter = samples.ring_reduce_scatter(4)
    only_in_place = replace(scatter, collective=replace(scatter.collective, out_of_place=False))
    assert verify(sequential([samples.direct_all_to_all(4), only_in_place])).ok
    assert verify(sequential([only_in_place, samples.direct_all_to_all(4)])).ok


def test_units_are_cut_to_a_common_size() -> None:
    pair = sequential([samples.binomial_broadcast(3), samples.all_pairs_all_reduce(3)])
    assert pair.collective.unit_count == 6
    assert verify(pair).ok


def test_scratch_is_shared() -> None:
    both = sequential(
        [samples.all_pairs_all_reduce(4), samples.ring_all_gather(4), samples.binomial_reduce(4)]
    )
    apart = sum(
        part.scratch_units for part in (samples.all_pairs_all_reduce(4), samples.binomial_reduce(4))
    )
    assert both.scratch_units[0] < int(apart[0]) * 4


def test_messages_and_lanes_of_the_parts_stay_apart() -> None:
    ring = samples.ring_all_reduce(4)
    steps = sequential([ring, ring, ring]).steps
    messages = steps.sends | steps.receives
    assert np.unique(steps.channel[messages]).tolist() == [0, 1, 2]
    assert np.array_equal(steps.lane, steps.channel)


def test_no_opinion_on_lanes_stays_none() -> None:
    assert set(
        sequential([samples.ring_reduce_scatter(4), samples.ring_all_gather(4)]).steps.lane.tolist()
    ) == {-1}


def test_next_part_waits_for_nothing_but_steps_on_the_same_units() -> None:
    reduce_scatter, all_gather = samples.ring_reduce_scatter(4), samples.ring_all_gather(4)
    steps = sequential([reduce_scatter, all_gather]).steps
    parents, children = steps.edges()
    crossing = (steps.channel[parents] == 0) & (steps.channel[children] == 1)
    crossing &= ~steps.is_kind(StepKind.COPY)[children]
    overlaps = [
        {
            (int(steps.dst_offset[parent]), int(steps.dst_buffer[parent])),
            (int(steps.src_offset[parent]), int(steps.src_buffer[parent])),
        }
        for parent in parents[crossing].tolist()
    ]
    # In place, unit k of INPUT and of OUTPUT are one: all parents are about the units that their
    # children touch.
    for units, child in zip(overlaps, children[crossing].tolist(), strict=True):
        touched = (
            {int(steps.src_offset[child])}
            if steps.kind[child] == StepKind.SEND
            else {int(steps.dst_offset[child])}
        )
        assert touched & {offset for offset, buffer in units if buffer != Buffer.SCRATCH}


def test_next_part_starts_on_a_rank_when_its_own_data_are_there() -> None:
    steps = sequential([samples.direct_scatter(4), samples.ring_all_gather(4)]).steps
    parents, children = steps.edges()
    for rank in range(1, 4):
        received = int(np.flatnonzero(steps.is_kind(StepKind.RECV) & (steps.rank == rank))[0])
        first = int(np.flatnonzero(steps.is_kind(StepKind.COPY) & (steps.rank == rank))[0])
        assert parents[children == first].tolist() == [received]


def test_order_by_messages_counts_where_rows_stand_otherwise() -> None:
    # The receive of rank 0 stands first but happens last: only its answer to rank 1 lets it happen.
    draft = StepTableBuilder(2)
    out = {"dst_buffer": Buffer.OUTPUT, "count": 1}
    draft.add(0, StepKind.RECV, peer=1, **out)
    copy = draft.add(0, StepKind.COPY, src_buffer=Buffer.INPUT, **out)
    draft.add(0, StepKind.SEND, data=[copy], peer=1, src_buffer=Buffer.OUTPUT, count=1)
    receive = draft.add(1, StepKind.RECV, peer=0, dst_buffer=Buffer.SCRATCH, count=1)
    draft.add(1, StepKind.SEND, data=[receive], peer=0, src_buffer=Buffer.INPUT, count=1)
    ones = np.ones(2, np.int64)
    expected = Contributions(*(np.asarray([value]) for value in (0, 0, 1, 0)))
    contract = CustomContract(ones, np.asarray([1, 0]), np.ones(2, np.bool_), expected)
    first = Algorithm(
        Collective(CollectiveKind.CUSTOM, 2, 1, contract=contract), draft.build(), ones
    )
    assert verify(first).ok
    pair = sequential([first, samples.binomial_broadcast(2)])
    report = verify(pair)
    assert report.ok, report.diagnostics


def test_one_algorithm_alone_is_itself() -> None:
    ring = samples.ring_all_reduce(4)
    assert sequential([ring]) is ring


def test_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to compose"):
        sequential([])


def test_other_numbers_of_ranks_are_refused() -> None:
    with pytest.raises(
        UsageError, match=r"1 \(all-reduce\) has 4 ranks, algorithm 2 \(all-gather\) has 3"
    ):
        sequential([samples.ring_all_reduce(4), samples.ring_all_gather(3)])


def test_unit_that_is_not_produced_is_named_with_its_rank() -> None:
    with pytest.raises(
        UsageError,
        match=r"^rank 1: broadcast needs INPUT\[0\], but reduce leaves nothing in OUTPUT\[0\]",
    ):
        sequential([samples.binomial_reduce(4, root=0), samples.binomial_broadcast(4, root=1)])


def test_buffers_of_different_sizes_are_refused() -> None:
    with pytest.raises(
        UsageError,
        match="rank 1: gather leaves 0 units in OUTPUT and all-gather expects 4 in INPUT",
    ):
        sequential([samples.direct_gather(4), samples.ring_all_gather(4)])


def test_timing_only_traces_are_refused() -> None:
    table = StepTable.from_columns(
        2, {"rank": [0, 1], "kind": [StepKind.SEND, StepKind.RECV], "peer": [1, 0], "count": [8, 8]}
    )
    trace = Algorithm(custom_collective(2, 8), table, np.zeros(2, np.int64))
    with pytest.raises(InputError, match="which units they touch"):
        sequential([trace, samples.ring_all_reduce(2)])


def test_message_without_partner_is_refused() -> None:
    ring = samples.ring_all_gather(2)
    table = StepTable.from_columns(
        2, {"rank": [0], "kind": [StepKind.SEND], "peer": [1], "src_buffer": [0], "count": [1]}
    )
    with pytest.raises(InputError, match="nothing at rank 1 on channel 0 matches"):
        sequential([ring, replace(ring, steps=table)])


@pytest.mark.parametrize(
    ("offset", "source_rank", "reason"),
    [
        (2, 0, "a unit outside its buffer"),
        (2, -1, "a unit outside its buffer"),
        (0, 2, r"outside 0\.\.1"),
    ],
)
def test_contract_beyond_ranks_and_buffers_is_refused(
    offset: int, source_rank: int, reason: str
) -> None:
    rows = Contributions(*(np.asarray([value]) for value in (0, offset, source_rank, 0)))
    kept = out_of_place_copy(2, 2)
    assert kept.collective.contract is not None
    stray = replace(
        kept,
        collective=replace(
            kept.collective, contract=replace(kept.collective.contract, expected=rows)
        ),
    )
    with pytest.raises(InputError, match=reason):
        sequential([kept, stray])


def test_contract_that_is_too_large_is_refused() -> None:
    ring = samples.ring_all_reduce(2)
    huge = replace(ring, collective=replace(ring.collective, unit_count=2**40))
    with pytest.raises(InputError, match="too large to compose"):
        sequential([huge, huge])


def test_steps_outside_their_buffers_are_refused() -> None:
    ring = samples.ring_all_gather(2)
    far = replace(ring, steps=replace(ring.steps, src_offset=ring.steps.src_offset + 7))
    with pytest.raises(InputError, match=r"reads .*\[7\], but that buffer has 1 units"):
        sequential([ring, far])


def test_different_operators_are_refused() -> None:
    ring = samples.ring_all_reduce(4)
    other = replace(ring, collective=replace(ring.collective, reduce_op=ReduceOp.MAX))
    with pytest.raises(
        UsageError,
        match=r"all-reduce \(sum\) and all-reduce \(max\) reduce with different operators",
    ):
        sequential([ring, other])


def test_average_of_averages_is_refused() -> None:
    ring = samples.ring_all_reduce(4)
    mean = replace(ring, collective=replace(ring.collective, reduce_op=ReduceOp.AVG))
    with pytest.raises(UsageError, match="both average"):
        sequential([mean, mean])
    gather = samples.ring_all_gather(4)
    assert sequential([mean, gather]).collective.reduce_op is ReduceOp.AVG


def in_place_pick(expected: Contributions | None) -> Algorithm:
    """Two ranks, in place: INPUT of two units, of which rank 0 gets the second one of rank 1.

    It gets it in its OUTPUT[1].
    """
    draft = StepTableBuilder(2)
    place = {"count": 1, "src_offset": 1, "src_buffer": Buffer.INPUT}
    draft.add(1, StepKind.SEND, peer=0, **place)
    draft.add(0, StepKind.RECV, peer=1, count=1, dst_buffer=Buffer.OUTPUT, dst_offset=1)
    contract = CustomContract(
        np.asarray([3, 3]), np.asarray([2, 0]), np.ones(2, np.bool_), expected
    )
    collective = Collective(
        CollectiveKind.CUSTOM, 2, 3, in_place=True, out_of_place=False, contract=contract
    )
    return Algorithm(collective, draft.build(), np.zeros(2, np.int64))


def out_of_place_copy(num_ranks: int, units: int) -> Algorithm:
    """Every rank keeps its data, out of place."""
    rank, unit = np.repeat(np.arange(num_ranks), units), np.tile(np.arange(units), num_ranks)
    columns = {"rank": rank, "kind": np.full_like(rank, StepKind.COPY), "count": np.ones_like(rank)}
    columns |= {
        "src_buffer": np.zeros_like(rank),
        "src_offset": unit,
        "dst_buffer": np.ones_like(rank),
        "dst_offset": unit,
    }
    collective = custom_collective(num_ranks, units, Contributions(rank, unit, rank, unit))
    return Algorithm(
        collective, StepTable.from_columns(num_ranks, columns), np.zeros(num_ranks, np.int64)
    )


def test_copies_out_move_results_alone() -> None:
    only = Contributions(*(np.asarray([value]) for value in (0, 1, 1, 1)))
    pair = sequential([out_of_place_copy(2, 3), in_place_pick(only)])
    assert verify(pair).ok, verify(pair).diagnostics


def test_copies_out_need_a_stated_result() -> None:
    with pytest.raises(UsageError, match="works only in place and declares no result"):
        sequential([out_of_place_copy(2, 3), in_place_pick(None)])


def test_operator_is_that_of_the_part_that_reduces() -> None:
    scatter = samples.ring_reduce_scatter(4)
    largest = replace(scatter, collective=replace(scatter.collective, reduce_op=ReduceOp.MAX))
    assert sequential([largest, samples.ring_all_gather(4)]).collective.reduce_op is ReduceOp.MAX


def test_stated_sizes_must_agree_at_the_seam() -> None:
    scatter, gather = (
        replace(samples.ring_reduce_scatter(4), collective_bytes=1024),
        replace(samples.ring_all_gather(4), collective_bytes=1024),
    )
    assert sequential([scatter, gather]).collective_bytes == 1024
    assert sequential([scatter, samples.ring_all_gather(4)]).collective_bytes == 1024
    with pytest.raises(UsageError, match="leaves 256 bytes, all-gather takes 512"):
        sequential([scatter, replace(gather, collective_bytes=2048)])


def test_contract_without_result_makes_one_without_result() -> None:
    shift = samples.shift_to_next(3)
    assert shift.collective.contract is not None
    silent = replace(
        shift,
        collective=replace(
            shift.collective, contract=replace(shift.collective.contract, expected=None)
        ),
    )
    pair = sequential([samples.binomial_broadcast(3), silent])
    assert pair.collective.contract is not None
    assert pair.collective.contract.expected is None


def test_provenance_says_what_was_composed() -> None:
    provenance = sequential([samples.ring_reduce_scatter(4), samples.ring_all_gather(4)]).provenance
    assert provenance.options == {"composition": "sequential(reduce-scatter, all-gather)"}


def test_source_lines_are_kept_only_where_they_mean_one_file() -> None:
    ring = samples.ring_all_reduce(4)
    lines = replace(ring.steps, source_line=np.arange(len(ring.steps), dtype=np.int32))
    one, other = (
        replace(ring, steps=lines, provenance=replace(ring.provenance, source_name=name))
        for name in ("one.xml", "other.xml")
    )
    assert set(sequential([one, other]).steps.source_line.tolist()) == {-1}
    assert sequential([one, other]).provenance.source_name == "one.xml + other.xml"
    assert set(sequential([one, one]).steps.source_line.tolist()) == set(range(len(lines)))


@settings(max_examples=40)
@given(st.data())
def test_sequence_is_associative_on_contract_and_verdict(data: st.DataObject) -> None:
    samples = SAMPLES[data.draw(st.sampled_from(sorted(SAMPLES)))]
    one, two, three = (samples[data.draw(st.sampled_from(sorted(samples)))] for _ in range(3))
    try:
        left, right = (
            sequential([sequential([one, two]), three]),
            sequential([one, sequential([two, three])]),
        )
    except UsageError:
        assume(False)
    # Where data lie in between, and so in which modes the whole may be called, does depend on the
    # grouping.
    promised = replace(
        right.collective,
        in_place=left.collective.in_place,
        out_of_place=left.collective.out_of_place,
    )
    assert replace(left, collective=promised).differences(left) == []
    assert verify(left).ok
    assert verify(right).ok


@settings(max_examples=40)
@given(algorithms(), algorithms())
def test_arbitrary_algorithms_compose_or_are_refused(one: Algorithm, other: Algorithm) -> None:
    try:
        pair = sequential([one, other])
    except HubError:
        return
    assert pair.num_ranks == one.num_ranks
