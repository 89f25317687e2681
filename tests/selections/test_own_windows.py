"""Windows of the algorithms that a runtime has, and the losses that name what it has not."""

from __future__ import annotations

from dataclasses import replace

from hub_core.model import CollectiveKind
from hub_core.plugin_api import SelectedWindow
from hub_core.selections import fill_gaps, first_of_kinds, iterate_candidates, own_windows
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


def test_candidates_are_the_selected_algorithm_then_the_others_by_slowdown() -> None:
    slowdowns = {"tree": 1.0, "ring": 1.5, "direct": 2.0}
    selected = replace(FIRST, slowdowns=lambda sizes: slowdowns)
    window = SelectedWindow(0, None, "ring", (8,))
    assert list(iterate_candidates(selected, window)) == ["ring", "tree", "direct"]


def test_gaps_between_windows_are_covered() -> None:
    windows = [SelectedWindow(8, 15, "ring", (8,)), SelectedWindow(32, 63, "tree", (32,))]
    ranges = [
        (first, last, window and window.algorithm) for first, last, window in fill_gaps(windows)
    ]
    assert ranges == [
        *((0, 7, None), (8, 15, "ring"), (16, 31, None)),
        *((32, 63, "tree"), (64, None, None)),
    ]
    is_open = SelectedWindow(0, None, "ring", (8,))
    assert list(fill_gaps([is_open])) == [(0, None, is_open)]


def test_sizes_that_only_another_algorithm_serves_are_a_loss() -> None:
    first, *_ = FIRST.windows(None)
    limited = replace(first, max_bytes=first.sizes[0], sizes=first.sizes[:1])

    def windows(names: object) -> tuple[SelectedWindow, ...]:
        return FIRST.windows(None) if names is None else (limited,)

    _, losses = own_windows(replace(FIRST, windows=windows), {first.algorithm: "x"}, "it")
    assert "no algorithm of it is certainly faster than its default, which stays" in str(losses)
