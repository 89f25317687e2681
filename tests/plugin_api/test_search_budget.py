"""Limits of a search: what is counted, when a limit ends it, and what is recorded."""

from __future__ import annotations

import pickle

import pytest

import hub_core
from hub_core import Collective, CollectiveKind, HubError
from hub_core.plugin_api import BudgetReached, SearchBudget, synthesis


def test_without_limits_nothing_is_cut() -> None:
    budget = SearchBudget()
    budget.spend(10**12)
    assert (budget.reason, budget.left_s, budget.left_work, budget.cuts) == ("", None, None, [])


def test_a_limit_of_work_is_raised_once() -> None:
    """The search then comes to its end with simulations that it needs for that."""
    budget = SearchBudget(10)
    budget.spend(9)
    with pytest.raises(BudgetReached):
        budget.spend(1)
    budget.check()
    assert budget.reason == "the work limit was reached (10 steps, -O work=)"


def test_a_part_has_no_more_work_than_is_left_of_the_whole() -> None:
    whole = SearchBudget(100)
    whole.count(70)
    assert whole.part().work == 30
    assert whole.part(10, "-O effort=").work == 10
    assert whole.part(50, "-O effort=").work == 30


def test_work_of_a_part_counts_for_the_whole() -> None:
    whole = SearchBudget(100)
    part = whole.part(60)
    part.count(40)
    part.cut("inner")
    assert (whole.done, whole.cuts) == (40, part.cuts)


def test_a_simulation_through_two_searches_is_counted_once() -> None:
    whole = SearchBudget()
    part = whole.part()
    part.simulated(100, lambda: whole.simulated(100, lambda: 1))
    assert whole.done == 100 + SearchBudget.STEPS_OF_A_SIMULATION


def test_the_time_limit_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(synthesis.time, "monotonic", lambda: seconds[0])
    part = SearchBudget(timeout_s=5.0).part(100)
    seconds[0] = 4.0
    assert part.left_s == 1.0
    seconds[0] = 6.0
    with pytest.raises(BudgetReached):
        part.check()
    assert part.reason == "the time limit was reached (5 s, --timeout)"


def test_another_process_gets_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(synthesis.time, "monotonic", lambda: seconds[0])
    budget = SearchBudget(timeout_s=5.0)
    seconds[0] = 2.0
    sent = pickle.dumps(budget)
    seconds[0] = 100.0
    assert pickle.loads(sent).left_s == 3.0


def test_the_answer_of_a_search_that_was_cut_lists_the_cut() -> None:
    """tacos ends after the seed, or the simulation, that reaches the limit."""
    pytest.importorskip("collhub_tacos")
    collective = Collective(CollectiveKind.ALL_GATHER, 16, 16, in_place=True)
    budget = SearchBudget(1)
    made = hub_core.synthesize(collective, "mesh:4x4", 1 << 20, name="tacos", budget=budget)
    (cut,) = made.cuts
    assert cut.name == "tacos"
    assert cut.work == budget.done
    assert hub_core.verify(made.algorithm).ok


def test_a_search_without_a_result_at_the_limit_is_an_error() -> None:
    pytest.importorskip("collhub_classic")
    collective = Collective(CollectiveKind.ALL_GATHER, 4, 4, in_place=True)
    budget = SearchBudget(timeout_s=1e-9)
    with pytest.raises(HubError, match=r"ring finished no algorithm .* time limit was reached"):
        hub_core.synthesize(collective, "ring:4", 1 << 20, name="ring", budget=budget)


@pytest.mark.needs_plugins
def test_a_time_limit_reads_seconds_with_and_without_a_unit(collhub) -> None:
    asked = ("synthesize", "ring", "--collective", "all-gather", "--topology", "ring:4")
    for text in ("600", "600s"):
        assert collhub(*asked, "--size", "1MiB", "--timeout", text).code == 0
    for text in ("0", "-1", "soon", "1e999"):
        run = collhub(*asked, "--size", "1MiB", "--timeout", text)
        assert (run.code, "is not a time above 0, for example 60 or 1.5s" in run.err) == (2, True)


@pytest.mark.needs_plugins
def test_the_old_option_names_the_new_one(collhub) -> None:
    asked = ("synthesize", "auto", "--collective", "all-gather", "--topology", "ring:4")
    run = collhub(*asked, "--size", "1MiB", "-O", "timeout=1s")
    assert (run.code, "--timeout SECONDS" in run.err) == (2, True)
