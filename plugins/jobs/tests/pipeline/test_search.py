"""The search: all placements, uneven stages, recomputation, token slices, steady state, bounds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from random import Random

import pytest
from collhub_pipeline.named_schedules import NAMED
from collhub_pipeline.passes import Pass, PassTimes, attention_slices, split_work
from collhub_pipeline.search import (
    PipelineShape,
    compute_search_bound,
    fastest,
    generate_spaces,
    schedule_of,
)
from collhub_pipeline.shapes import find_defect, format_memory
from collhub_pipeline.timing import Schedule
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import UsageError


def check(shape: PipelineShape, schedule: Schedule) -> None:
    """A schedule is valid, in its memory, and not below the bounds."""
    assert find_defect(schedule, shape.micros) == ""
    assert shape.fits(schedule)
    bounds = shape.compute_bounds(schedule.device_of[0], schedule.recomputed)
    assert shape.measure(schedule) >= bounds.value >= compute_search_bound(shape)


def test_the_search_reaches_the_bound_of_eight_devices() -> None:
    shape = PipelineShape(8, 16, PassTimes(2, 2, 1), memory=8)
    schedule = fastest(shape)
    check(shape, schedule)
    assert shape.measure(schedule) == compute_search_bound(shape) == 87


@pytest.mark.once
def test_the_search_is_not_worse_than_v_half_in_its_memory() -> None:
    shape = PipelineShape(4, 8, PassTimes(2, 2, 1), memory=3)
    schedule = fastest(shape)
    check(shape, schedule)
    named = schedule_of("v-half", shape)
    assert shape.fits(named)
    assert shape.measure(schedule) <= shape.measure(named) == Fraction(95, 2)


@pytest.mark.once
@pytest.mark.parametrize(
    ("times", "span"),
    [
        (PassTimes(1, 1, 1), Fraction(53, 2)),
        (PassTimes(1, 2, 2), 45),
    ],
)
def test_the_search_reaches_v_half_in_its_memory(times: PassTimes, span: Fraction) -> None:
    """Spans in the memory of 3 micro-batches (Qi et al., arXiv 2405.15362)."""
    shape = PipelineShape(4, 8, times, memory=3, is_steady=True)
    schedule = fastest(shape)
    check(shape, schedule)
    assert shape.measure(schedule) <= span == shape.measure(schedule_of("v-half", shape))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_no_named_schedule_is_faster_in_the_memory_of_the_search(seed: int) -> None:
    """Random devices, micro-batches, times and memory; named schedules, their memory included."""
    draw = Random(seed)
    devices = draw.randint(2, 8)
    forward, input_gradient, weight_gradient = (draw.randint(1, 6) for _ in range(3))
    times = PassTimes(forward, input_gradient, weight_gradient, draw.choice([0, 0, 1]))
    shape = PipelineShape(
        devices, devices * draw.randint(1, 3), times, is_steady=draw.random() < 0.3
    )
    named = []
    for name in NAMED:
        try:
            named.append(schedule_of(name, shape))
        except UsageError:
            continue
    for limit in {max(shape.peaks(schedule)) for schedule in draw.sample(named, 4)}:
        limited = replace(shape, memory=limit)
        best = fastest(limited)
        check(limited, best)
        fitting = [schedule for schedule in named if limited.fits(schedule)]
        assert fitting
        assert all(limited.measure(best) <= limited.measure(schedule) for schedule in fitting)


SHAPES = st.builds(
    PipelineShape,
    st.integers(1, 3),
    st.integers(1, 4),
    st.builds(PassTimes, *[st.integers(1, 4)] * 3, st.integers(0, 2)),
    parts=st.lists(st.builds(PassTimes, *[st.integers(1, 4)] * 3), max_size=3).map(tuple),
    sizes=st.lists(st.integers(1, 3), max_size=3).map(tuple),
    embedding=st.none() | st.just(PassTimes(1, 0, 1)),
    head=st.none() | st.just(PassTimes(2, 2, 1)),
    slices=st.integers(1, 2),
    attention=st.sampled_from([Fraction(0), Fraction(1, 2)]),
    recompute=st.sampled_from(["none", "all", "auto"]),
    kept=st.sampled_from([Fraction(0), Fraction(1, 4)]),
    is_steady=st.booleans(),
)


@pytest.mark.once
@settings(max_examples=8, deadline=None)
@given(SHAPES, st.integers(0, 3))
def test_the_search_fits_and_is_never_behind_a_named_schedule(
    shape: PipelineShape, more: int
) -> None:
    least = min(
        shape.minimum_memory(space.device_of, space.recomputed) for space in generate_spaces(shape)
    )
    limited = replace(shape, memory=least + Fraction(more, 2))
    schedule = fastest(limited)
    check(limited, schedule)
    for name in NAMED:
        try:
            named = schedule_of(name, limited)
        except UsageError:
            continue
        check(limited, named)
        assert limited.measure(schedule) <= limited.measure(named)


@settings(max_examples=25, deadline=None)
@given(SHAPES)
def test_a_limit_below_the_minimum_is_refused_with_the_minimum(shape: PipelineShape) -> None:
    least = min(
        shape.minimum_memory(space.device_of, space.recomputed) for space in generate_spaces(shape)
    )
    too_small = replace(shape, memory=least - Fraction(1, 1000))
    with pytest.raises(UsageError, match="the possible minimum is"):
        fastest(too_small)


def test_the_minimum_is_stated_for_the_device_that_is_short() -> None:
    shape = PipelineShape(2, 4, PassTimes(1, 1, 1), memory=(2, Fraction(1, 2)))
    with pytest.raises(UsageError, match=r"at most 0.5 .* on device 1: the possible minimum is 1;"):
        fastest(shape)


@pytest.mark.once
def test_limits_per_device_hold() -> None:
    shape = PipelineShape(4, 8, PassTimes(2, 2, 1), memory=(4, 3, 2, 2))
    schedule = fastest(shape)
    check(shape, schedule)
    assert all(a <= b for a, b in zip(shape.peaks(schedule), (4, 3, 2, 2), strict=True))


def test_recomputation_takes_a_forward_pass_and_stores_less() -> None:
    shape = PipelineShape(2, 4, PassTimes(3, 4, 2), recompute="all")
    schedule = schedule_of("1f1b", shape)
    plain = replace(shape, recompute="none")
    assert shape.peaks(schedule) == [1, 1]
    assert plain.peaks(schedule_of("1f1b", plain)) == [2, 1]
    # Every backward pass is longer by the forward pass.
    longer = PipelineShape(2, 4, PassTimes(3, 7, 2))
    assert shape.measure(schedule) == longer.measure(schedule_of("1f1b", longer))


@pytest.mark.once
def test_recomputation_is_chosen_only_where_memory_is_short() -> None:
    shape = PipelineShape(4, 8, PassTimes(2, 2, 1), recompute="auto", chunks=1)
    assert not fastest(replace(shape, memory=8)).recomputed
    short = replace(shape, memory=Fraction(3, 2))
    schedule = fastest(short)
    check(short, schedule)
    assert schedule.recomputed
    assert short.measure(schedule) < short.measure(fastest(replace(short, recompute="none")))


def test_token_slices_fill_the_pipeline_with_few_micro_batches() -> None:
    whole = PipelineShape(4, 2, PassTimes(4, 4, 4), chunks=1)
    sliced = replace(whole, slices=4)
    schedule = fastest(sliced)
    check(sliced, schedule)
    assert sliced.measure(schedule) < whole.measure(fastest(whole))
    assert schedule_of("1f1b", sliced).slices == 4
    for order in schedule.orders:
        forward = [pass_.micro for pass_ in order if pass_.kind is Pass.FORWARD]
        backward = [pass_.micro for pass_ in order if pass_.kind.is_backward]
        assert forward == sorted(forward)
        assert backward == [3, 2, 1, 0, 7, 6, 5, 4]


def test_attention_of_later_slices_is_longer() -> None:
    assert attention_slices(2, Fraction(0)) == (Fraction(1, 2), Fraction(1, 2))
    assert attention_slices(2, Fraction(1)) == (Fraction(1, 4), Fraction(3, 4))
    assert sum(attention_slices(5, Fraction(1, 3))) == 1


def test_work_is_divided_at_any_number_of_stages() -> None:
    parts = [PassTimes(2, 2, 2), PassTimes(4, 4, 4)]
    assert [stage.forward for stage in split_work(parts, 4)] == [1, 1, 2, 2]
    assert [stage.forward for stage in split_work(parts, 3)] == [Fraction(4, 3), 2, Fraction(8, 3)]


def test_embedding_and_head_are_on_the_first_and_the_last_stage() -> None:
    shape = PipelineShape(
        2, 2, PassTimes(2, 2, 2), embedding=PassTimes(1, 0, 1), head=PassTimes(3, 3, 0)
    )
    stages = [times.parts for times in shape.stage_times(4).stages]
    assert stages == [(2, 1, 2), (1, 1, 1), (1, 1, 1), (4, 4, 1)]


def test_the_steady_state_has_less_bubble_than_one_step() -> None:
    shape = PipelineShape(4, 8, PassTimes(1, 1, 1), memory=4, is_steady=True)
    schedule = fastest(shape)
    check(shape, schedule)
    # ZB-V has no bubble between steps (Qi et al., table 2).
    assert shape.measure(schedule) == shape.compute_bounds(schedule.device_of[0]).work == 24


def test_memory_in_texts_has_all_digits_and_is_rounded_up() -> None:
    memories = 4, Fraction(1, 3), 1_234_567, Fraction(12_345_678, 1000), Fraction(5, 2)
    texts = ["4", "0.334", "1234567", "12345.678", "2.5"]
    assert [format_memory(memory) for memory in memories] == texts
