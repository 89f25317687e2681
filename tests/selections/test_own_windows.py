"""Windows of the algorithms that a runtime has, and the losses that name what it has not."""

from __future__ import annotations

from hub_core.model import CollectiveKind
from hub_core.selections import first_of_kinds, own_windows
from hub_core.testing import sample_selection

SELECTION = sample_selection()
FIRST = SELECTION.collectives[0]
NAMES = {window.algorithm for window in FIRST.windows(None)}


def test_all_algorithms_of_its_own_lose_nothing() -> None:
    windows, losses = own_windows(FIRST, dict.fromkeys(NAMES, "x"), "it")
    assert [window.algorithm for window in windows] == [w.algorithm for w in FIRST.windows(None)]
    assert losses == []


def test_without_a_fitting_one_the_runtime_chooses() -> None:
    windows, losses = own_windows(FIRST, {}, "it")
    assert not windows
    assert [str(loss.feature) for loss in losses] == ["collective"]


def test_what_it_has_not_is_a_loss_that_names_both() -> None:
    own = sorted(NAMES)[:1]
    _, losses = own_windows(FIRST, dict.fromkeys(own, "x"), "it")
    others = NAMES - set(own)
    assert bool(losses) == bool(others)
    assert all(f"it has no {name}" in str(losses) for name in others)


def test_one_collective_is_written_once() -> None:
    twice = [*SELECTION.collectives, *SELECTION.collectives]
    selection = type(SELECTION)(
        SELECTION.topology, SELECTION.num_ranks, SELECTION.num_nodes, tuple(twice)
    )
    kept, losses = first_of_kinds(selection)
    kinds = {CollectiveKind(one.collective.kind) for one in twice}
    assert {one.collective.kind for one in kept} == kinds
    assert len(kept) + len(losses) == len(twice)
