"""Very large algorithms are checked completely by ranges of units, with the same verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hub_core import Algorithm, verify
from hub_core.model import COLUMN_DTYPES, Buffer, Collective, CollectiveKind, Provenance, StepTable
from hub_core.testing import (
    binomial_broadcast,
    binomial_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from hub_core.testing.sample_builders import SampleDraft
from hub_core.verification import VerifyReport, verifier


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


def find_correct_modes(report: VerifyReport) -> set[str]:
    return {name for name, mode in report.modes.items() if mode.verdict == "ok"}
