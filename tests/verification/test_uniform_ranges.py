"""Very large algorithms are checked completely by ranges of units, with the same verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hub_core import Algorithm, verify
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    COLUMN_DTYPES,
    Buffer,
    Collective,
    CollectiveKind,
    Provenance,
    StepKind,
    StepTable,
    StepTableBuilder,
)
from hub_core.model.messages import Messages
from hub_core.testing import (
    binomial_broadcast,
    binomial_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from hub_core.testing.sample_builders import SampleDraft
from hub_core.verification import VerifyReport, atoms, verifier
from hub_core.verification.atoms import Accesses


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every algorithm is too large to be checked at once, and has too many blocks of units."""
    monkeypatch.setattr(verifier, "MAX_CELLS", 1)
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 1)
    monkeypatch.setattr(verifier, "MAX_BLOCKS", 1)


def halving_all_reduce(units: int) -> Algorithm:
    """All-reduce of 4 ranks by recursive halving and doubling, in OUTPUT; ranges shrink and grow.

    A rank sends the parts that it does not reduce, and receives the sums over them.
    """
    draft = SampleDraft(4)
    half, quarter = units // 2, units // 4
    for rank in range(4):
        draft.copy(rank, (Buffer.INPUT, 0), (Buffer.OUTPUT, 0), count=units)
    for distance, size in ((2, half), (1, quarter)):
        _exchange(draft, distance, size, is_sum=True)
    for distance, size in ((1, quarter), (2, half)):
        _exchange(draft, distance, size, is_sum=False)
    collective = Collective(CollectiveKind.ALL_REDUCE, 4, units, in_place=True, out_of_place=True)
    return draft.algorithm(collective, Provenance("test"))


def _exchange(draft: SampleDraft, distance: int, size: int, *, is_sum: bool) -> None:
    """Exchange with the rank at a distance: its range in a reduction, the own one in a gather."""
    sent = []
    for rank in range(4):
        peer = rank ^ distance
        owner = peer if is_sum else rank
        begin = (owner & ~(distance - 1)) * (size // distance)
        sent.append((rank, peer, (Buffer.OUTPUT, begin)))
    for rank, peer, place in sent:
        draft.send(rank, place, peer, size)
    for rank, peer, place in sent:
        draft.receive(peer, rank, place, size, add=place if is_sum else None)


CORRECT = [
    lambda: halving_all_reduce(8),
    lambda: ring_all_reduce(6),
    lambda: ring_all_gather(6),
    lambda: ring_reduce_scatter(6),
    lambda: binomial_broadcast(8),
    lambda: binomial_reduce(8),
]


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("build", [CORRECT[index] for index in (0, 1, 2, 4, 5)])
def test_a_correct_algorithm_is_proven_by_ranges(build: Callable[[], Algorithm]) -> None:
    report = verify(build())
    assert report.ok
    assert {note.code for note in report.diagnostics} == {"checked-by-ranges"}


def test_many_units_within_the_limits_are_first_checked_by_ranges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verifier, "_MIN_CELLS_OF_RANGES", 1)
    report = verify(halving_all_reduce(8))
    assert report.ok
    assert {note.code for note in report.diagnostics} == {"checked-by-ranges"}


def test_units_within_the_limits_without_a_proof_are_checked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The overwritten sums have no order by edges or data, so that the race is found by units."""
    algorithm = without_edges(halving_all_reduce(8), lambda *_: True)
    expected = verify(algorithm)
    assert not expected.ok
    monkeypatch.setattr(verifier, "_MIN_CELLS_OF_RANGES", 1)
    assert verify(algorithm).diagnostics == expected.diagnostics


def test_an_order_by_data_is_proven_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank overwrites the parts that it sent with the sums, which depend on these parts."""
    monkeypatch.setattr(verifier, "MAX_CELLS", 1)
    monkeypatch.setattr("hub_core.verification.uniform_ranges._MAX_SEARCHED", 0)
    algorithm = without_edges(halving_all_reduce(8), waits_of_overwrites)
    codes = {note.code for note in verify(algorithm).diagnostics}
    assert codes == {"checked-by-ranges"}


def waits_of_overwrites(steps: StepTable, before: int, after: int) -> bool:
    """Whether a RECV waits for a SEND of the units that it overwrites."""
    return bool(steps.sends[before]) and bool(steps.receives[after])


def without_edges(
    algorithm: Algorithm, is_removed: Callable[[StepTable, int, int], bool]
) -> Algorithm:
    steps = algorithm.steps
    columns = {each: getattr(steps, each) for each in COLUMN_DTYPES}
    parents, children = steps.edges()
    pairs = zip(parents.tolist(), children.tolist(), strict=True)
    kept = np.asarray([not is_removed(steps, *edge) for edge in pairs])
    edges = (parents[kept], children[kept])
    return replace(algorithm, steps=StepTable.from_columns(steps.num_ranks, columns, edges))


@pytest.mark.parametrize("index", range(len(CORRECT)))
@pytest.mark.parametrize("seed", range(6))
def test_verdicts_without_a_dependency_are_those_of_a_check_at_once(
    index: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some algorithms without one dependency have a race, others are ordered by messages."""
    algorithm = CORRECT[index]()
    parents, children = algorithm.steps.edges()
    edge = int(np.random.default_rng(seed).integers(len(parents)))
    removed = int(parents[edge]), int(children[edge])
    changed = without_edges(algorithm, lambda _steps, *pair: pair == removed)
    at_once = verify(changed)
    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    by_ranges = verify(changed)
    assert find_correct_modes(by_ranges) == find_correct_modes(at_once)


@pytest.mark.parametrize("index", [0, 5])
@pytest.mark.parametrize("max_followed", [0, 8])
def test_ways_of_data_that_are_cut_off_prove_nothing(
    index: int, max_followed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A way that is cut off has no last access, which must not pass for access -1."""
    proven = set()

    def record(
        accesses: Accesses, steps: StepTable, messages: Messages, *pairs: Int64Array
    ) -> BoolArray:
        monkeypatch.setattr(atoms, "_MAX_FOLLOWED", 1 << 29)
        complete = atoms.are_ordered_by_data(accesses, steps, messages, *pairs)
        monkeypatch.setattr(atoms, "_MAX_FOLLOWED", max_followed)
        partial = atoms.are_ordered_by_data(accesses, steps, messages, *pairs)
        proven.add(bool((partial <= complete).all()))
        return partial

    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    monkeypatch.setattr("hub_core.verification.uniform_ranges.are_ordered_by_data", record)
    verify(without_edges(CORRECT[index](), lambda *_: True))
    assert proven == {True}


def find_correct_modes(report: VerifyReport) -> set[str]:
    return {name for name, mode in report.modes.items() if mode.verdict == "ok"}


def test_a_race_after_the_first_wrong_block_is_found_in_the_other_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unit 0 is wrong in place, without a race. Unit 1 has a race, which in place is not reached."""
    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    builder = StepTableBuilder(2)

    def send(rank: int, unit: int, after: Sequence[int] = ()) -> None:
        place = {"src_buffer": Buffer.INPUT, "src_offset": unit}
        builder.add(rank, StepKind.SEND, peer=1 - rank, count=1, data=after, **place)

    def add_received(rank: int, unit: int, source: Buffer, after: Sequence[int] = ()) -> int:
        place = {"dst_buffer": Buffer.OUTPUT, "dst_offset": unit, "src_offset": unit}
        place["src_buffer"] = source
        return builder.add(rank, StepKind.RECV_REDUCE, peer=1 - rank, count=1, data=after, **place)

    send(1, 0)
    send(0, 0, after=[add_received(0, 0, Buffer.INPUT)])
    add_received(1, 0, Buffer.INPUT)
    send(0, 1)
    send(1, 1)
    add_received(1, 1, Buffer.INPUT)
    place = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT}
    builder.add(0, StepKind.COPY, src_offset=1, dst_offset=1, count=1, **place)
    add_received(0, 1, Buffer.OUTPUT)
    collective = Collective(CollectiveKind.ALL_REDUCE, 2, 2, out_of_place=True)
    report = verify(Algorithm(collective, builder.build(), np.zeros(2, np.int64)))
    assert find_correct_modes(report) == set()
    assert "wrong-output" in {finding.code for finding in report.modes["in_place"].diagnostics}
    assert "race" in {finding.code for finding in report.modes["out_of_place"].diagnostics}


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("is_send", [False, True])
def test_a_message_outside_its_buffer_is_reported(is_send: bool) -> None:
    """Both ends have the same position in the full buffer, but one is outside of its part."""
    builder = StepTableBuilder(2)
    kind = CollectiveKind.ALL_GATHER if is_send else CollectiveKind.REDUCE_SCATTER
    buffer = Buffer.INPUT if is_send else Buffer.OUTPUT
    # Rank 1 has unit 1 in its part, at offset 0; unit 0 would be at -1.
    whole = {"src_buffer": Buffer.OUTPUT if is_send else Buffer.INPUT, "src_offset": 0}
    if is_send:
        builder.add(1, StepKind.SEND, peer=0, src_buffer=buffer, src_offset=-1, count=1)
        builder.add(0, StepKind.RECV, peer=1, dst_buffer=Buffer.OUTPUT, dst_offset=0, count=1)
    else:
        builder.add(0, StepKind.SEND, peer=1, **whole, count=1)
        builder.add(
            1, StepKind.RECV_REDUCE, peer=0, **whole, dst_buffer=buffer, dst_offset=-1, count=1
        )
    # Two writes that nothing orders, so that the order by data is examined.
    for _ in range(2):
        place = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT}
        builder.add(0, StepKind.COPY, src_offset=0, dst_offset=0, count=1, **place)
    collective = Collective(kind, 2, 2, out_of_place=True)
    report = verify(Algorithm(collective, builder.build(), np.zeros(2, np.int64)))
    assert "out-of-bounds" in {finding.code for finding in report.diagnostics}


def test_too_many_accesses_are_checked_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    monkeypatch.setattr("hub_core.verification.uniform_ranges._MAX_ACCESSES", 0)
    report = verify(ring_all_reduce(4))
    assert report.ok
    assert {note.code for note in report.diagnostics} == {"checked-in-blocks"}
