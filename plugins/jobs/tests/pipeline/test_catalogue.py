"""Schedules by name, and the search within a memory limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from collhub_pipeline.bounds import bound
from collhub_pipeline.plugin import NAMES
from collhub_pipeline.search import fastest, schedule_of
from collhub_pipeline.shapes import PipelineShape
from collhub_pipeline.timing import Pass, PassTimes, Schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import UsageError
from hub_core.plugin_api import SearchBudget

SHAPE = PipelineShape(4, 8, PassTimes(2, 2, 1, 1))


def passes(schedule: Schedule) -> dict[tuple[int, int, int], set[Pass]]:
    """The passes of every (way, stage, micro-batch)."""
    found: dict[tuple[int, int, int], set[Pass]] = {}
    for order in schedule.orders:
        for kind, *place in order:
            kinds = found.setdefault(tuple(place), set())  # type: ignore[arg-type]
            assert kind not in kinds
            kinds.add(kind)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_micro_batch_goes_through_every_stage_once_each_way(name: str) -> None:
    schedule = schedule_of(name, SHAPE)
    found = passes(schedule)
    ways = len(schedule.device_of)
    assert len(found) == len(schedule.device_of[0]) * SHAPE.micros
    whole = ({Pass.FORWARD, Pass.BACKWARD}, set(Pass) - {Pass.BACKWARD})
    assert all(kinds in whole for kinds in found.values())
    assert {way for way, _, _ in found} == set(range(ways))
    assert SHAPE.timed(schedule).makespan > 0


@pytest.mark.once
@settings(max_examples=20, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 8),
    st.tuples(*[st.integers(1, 4)] * 3, st.integers(0, 3)),
    st.integers(1, 9),
)
def test_the_search_is_never_behind_what_fits_nor_ahead_of_the_bound(
    devices, micros, times, memory
) -> None:
    shape = PipelineShape(devices, micros, PassTimes(*times), chunks=1, memory=memory)
    found = fastest(shape)
    taken = shape.timed(found).makespan
    assert shape.fits(found)
    assert taken >= bound(shape, "search")
    for name in ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2"):
        for delayed in (False, True):
            named = schedule_of(name, replace(shape, memory=None, delayed=delayed))
            assert not shape.fits(named) or taken <= shape.timed(named).makespan


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("interleaved", {"micros": 9}, "9 micro-batches are no multiple of 2 rounds of 4 stages"),
        ("zbv", {"chunks": 4}, "zbv has 2 chunks a device, not 4"),
        ("hanayo", {"chunks": 3}, "hanayo has an even number of chunks a device, not 3"),
        ("dualpipe-v", {"micros": 7}, "dualpipe-v needs at least 8 micro-batches, not 7"),
        ("zbv", {"slices": 2}, "zbv has no order for token slices"),
        ("1f1b", {"chunks": 2}, "1f1b has one chunk a stage, not 2"),
        ("two-directions", {"micros": 5}, "5 micro-batches cannot be split in two directions"),
        ("gpipe", {"memory": 4}, "gpipe holds 8 micro-batches, the memory is for 4"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(name, change, message) -> None:
    with pytest.raises(UsageError, match=message):
        schedule_of(name, replace(SHAPE, **change))


def test_a_search_uses_more_chunks_where_that_is_faster() -> None:
    shape = PipelineShape(4, 8, PassTimes(4, 4, 4), chunks=4, memory=8)
    found = fastest(shape)
    assert len(found.device_of[0]) == 16
    taken = shape.timed(found).makespan
    assert taken < shape.timed(fastest(replace(shape, chunks=1))).makespan
    assert taken <= shape.timed(schedule_of("interleaved", shape)).makespan


def test_stated_warmups_take_the_place_of_those_of_the_name() -> None:
    assert schedule_of("1f1b", replace(SHAPE, warmups=(6, 4, 3, 1))).peaks() == [6, 4, 3, 1]
    with pytest.raises(UsageError, match="2 warm-ups do not state one, 1 or more, for each stage"):
        schedule_of("1f1b", replace(SHAPE, warmups=(2, 1)))


def test_a_memory_below_the_minimum_is_refused_with_the_minimum() -> None:
    with pytest.raises(UsageError, match=r"at most 0 .*: the possible minimum is 1;"):
        fastest(replace(SHAPE, memory=0))


def test_at_a_limit_the_search_returns_the_fastest_so_far() -> None:
    budget = SearchBudget(1)
    found = fastest(SHAPE, budget)
    assert found.name == "gpipe"
    (cut,) = budget.cuts
    assert (cut.name, cut.not_tried) == ("search of schedules", "those after the first 1")


def test_a_limit_that_cuts_nothing_changes_nothing() -> None:
    budget = SearchBudget(timeout_s=1e6)
    shape = replace(SHAPE, chunks=1, micros=4)
    assert fastest(shape, budget).orders == fastest(shape).orders
    assert not budget.cuts
