"""Exact times of schedules: the golden tables of the specification, closed forms, and bounds.

Golden numbers: resharding specification, sections 8 and 12, computed there in exact fractions.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from collhub_pipeline.bounds import closed_form, compute_lower_bound
from collhub_pipeline.named_schedules import (
    build_named,
    eager_warmups,
    gpipe_warmups,
    in_turns,
    one_forward_one_backward_warmups,
    with_delays,
)
from collhub_pipeline.orders_of_chunks import interleaved
from collhub_pipeline.shapes import PipelineShape
from collhub_pipeline.timing import Pass, PassTimes, PipelinePass, in_a_row, timed
from hypothesis import given
from hypothesis import strategies as st

from hub_core import UsageError

WARMUPS = {
    "gpipe": gpipe_warmups,
    "1f1b": one_forward_one_backward_warmups,
    "eager-1f1b": eager_warmups,
}
# Blocking, asynchronous, and with delayed weights.
VARIANTS = ((True, False), (False, False), (False, True))
SECTION_8 = """
2 8 0.25: 31 27.5 26.5 29.25 29 26.5 29.25 27.5 26.5
2 8 0.5: 35 28 27 31.5 31 27 31.5 28 27
2 8 1: 43 29 28 36 35 31 36 29 28
2 32 1: 163 101 100 132 131 115 132 101 100
4 8 0: 33 33 30 33 33 30 33 33 30
4 8 0.25: 38 34.5 31.5 37.75 37 31.5 36.25 34.5 31.5
4 8 0.5: 43 36 33 42.5 41 33 40 36 33
4 8 1: 53 39 36 52 49 41 49 39 36
4 32 0.25: 122 106.5 103.5 121.75 118 103.5 119.5 106.5 103.5
4 32 0.5: 139 108 105 138.5 131 105 136 108 105
4 32 1: 173 111 108 172 157 131 169 111 108
8 8 1: 73 59 52 72 71 58 69 59 52
8 32 0.25: 136 120.5 113.5 135.75 134 113.5 133.5 120.5 113.5
8 32 1: 193 131 124 192 185 151 189 131 124
8 64 1: 353 227 220 352 337 275 349 227 220
"""
ROWS = [line.split(": ") for line in SECTION_8.strip().splitlines()]
RATIONALS = st.fractions(Fraction(1, 4), 4, max_denominator=4)


@pytest.mark.parametrize(("shape", "row"), ROWS, ids=[shape for shape, _ in ROWS])
def test_makespans_are_those_of_the_table(shape: str, row: str) -> None:
    stages, micros, transfer = (Fraction(text) for text in shape.split())
    found = [
        timed(
            in_turns(name, warmups(int(stages), int(micros)), int(micros), delayed=delayed),
            PassTimes(1, 1, 1, transfer, is_blocking),
        ).makespan
        for name, warmups in WARMUPS.items()
        for is_blocking, delayed in VARIANTS
    ]
    assert found == [Fraction(text) for text in row.split()]


@given(
    st.sampled_from(sorted(WARMUPS)),
    st.sampled_from(VARIANTS),
    st.integers(1, 6),
    st.integers(1, 12),
    st.tuples(RATIONALS, RATIONALS, RATIONALS, RATIONALS),
)
def test_closed_forms_hold_in_their_range_and_bounds_everywhere(
    name, variant, stages, micros, times
) -> None:
    is_blocking, delayed = variant
    passes = PassTimes(*times, is_blocking)
    schedule = in_turns(name, WARMUPS[name](stages, micros), micros, delayed=delayed)
    makespan = timed(schedule, passes).makespan
    stated = closed_form(name, stages, micros, passes, delayed=delayed)
    assert stated in (None, makespan)
    assert makespan >= compute_lower_bound(stages, micros, passes, floating=False, delayed=delayed)


@pytest.mark.parametrize(
    ("devices", "chunks", "micros", "makespan", "bubble", "peaks"),
    [
        (4, 2, 8, 28.5, 4.5, [11, 9, 7, 5]),
        (4, 2, 16, 52.5, 4.5, [11, 9, 7, 5]),
        (4, 4, 16, 50.25, 2.25, [19, 17, 15, 13]),
        (8, 2, 32, 106.5, 10.5, [*range(23, 8, -2)]),
        (8, 4, 64, 197.25, 5.25, [*range(39, 24, -2)]),
    ],
)
def test_interleaving_divides_the_bubble(devices, chunks, micros, makespan, bubble, peaks) -> None:
    schedule = interleaved(devices, micros, chunks)
    timing = timed(schedule, PassTimes(Fraction(1, chunks), Fraction(2, chunks), 0))
    assert (timing.makespan, timing.bubble(), schedule.peaks()) == (makespan, bubble, peaks)


@pytest.mark.parametrize("micros", [2, 4])
@pytest.mark.parametrize("stages", [4, 8])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 1), (3, 4, 2)])
def test_zero_bubble_orders_have_the_bubbles_and_peaks_of_the_table(times, stages, micros) -> None:
    forward, inputs, weights = times
    passes, count = PassTimes(*times), micros * stages
    warmups = one_forward_one_backward_warmups(stages, count)
    shape = PipelineShape(stages, count, passes)
    zb_h1, zb_h2 = build_named("zb-h1", shape), build_named("zb-h2", shape)
    expected = {
        in_turns("whole", warmups, count, delayed=False): forward + inputs + weights,
        with_delays("split", warmups, [0] * stages, count): forward + inputs,
        zb_h1: forward + inputs - weights,
        zb_h2: forward + inputs - 2 * weights,
    }
    for schedule, rate in expected.items():
        assert timed(schedule, passes).bubble() == (stages - 1) * rate, schedule.name
    assert zb_h1.peaks() == [stages] * stages
    assert zb_h2.peaks() == [2 * stages - 1] * stages


def test_orders_that_wait_for_each_other_are_refused() -> None:
    backward_first = [PipelinePass(Pass.BACKWARD, 0, 0, 0), PipelinePass(Pass.FORWARD, 0, 0, 0)]
    with pytest.raises(
        UsageError,
        match=r"the passes of wrong wait for one another: 0B0 on device 0 waits for 0F0;",
    ):
        timed(in_a_row("wrong", [backward_first]), PassTimes(1, 1, 1))
