"""Schedules with several chunks per device, against PyTorch's figures and its own generators."""

from __future__ import annotations

from fractions import Fraction

import pytest
from collhub_pipeline.passes import Pass, PassTimes, PipelinePass
from collhub_pipeline.schedule_csv import read_schedule, write_schedule
from collhub_pipeline.search import schedule_of
from collhub_pipeline.shapes import PipelineShape, find_defect
from collhub_pipeline.timing import Schedule, compute_period, timed
from hypothesis import given, settings
from hypothesis import strategies as st

ONES = PassTimes(1, 1, 1)
UNEVEN = PassTimes(1, Fraction(6, 5), Fraction(4, 5))
LONG = PassTimes(1, 2, 2)


def longest_path(schedule: Schedule, times: dict[Pass, Fraction]) -> Fraction:
    """The makespan by relaxing all constraints until nothing changes, independent of `timed`."""
    end: dict[PipelinePass, Fraction] = {}
    before: dict[PipelinePass, list[PipelinePass]] = {}
    all_passes = {operation for order in schedule.orders for operation in order}
    for order in schedule.orders:
        for at, (kind, direction, stage, micro) in enumerate(order):
            needs = [order[at - 1]] if at else []
            backwards = [Pass.BACKWARD, Pass.INPUT_GRADIENT]
            if kind is Pass.WEIGHT_GRADIENT:
                needs.append(PipelinePass(Pass.INPUT_GRADIENT, direction, stage, micro))
            elif kind is Pass.FORWARD:
                needs.append(PipelinePass(kind, direction, stage - 1, micro))
            else:
                needs.append(PipelinePass(Pass.FORWARD, direction, stage, micro))
                needs += [PipelinePass(other, direction, stage + 1, micro) for other in backwards]
            before[order[at]] = [need for need in needs if need in all_passes]
    while len(end) < len(all_passes):
        for operation, needs in before.items():
            if operation not in end and all(need in end for need in needs):
                start = max((end[need] for need in needs), default=Fraction(0))
                end[operation] = start + times[operation.kind]
    return max(end.values())


@pytest.mark.parametrize(
    ("name", "devices", "micros", "makespans", "peak"),
    [
        # Measured with PyTorch 2.14.1's orders, in times of a whole device.
        ("looped-bfs", 4, 8, (28.5, 28.5, 47.5), 8),
        ("interleaved", 4, 8, (28.5, 28.5, 47.5), 5.5),
        ("interleaved-zb", 4, 8, (25.5, 26.1, 43), 4),
        ("zbv", 4, 8, (25.5, 25.8, 43), 4),
        ("dualpipe-v", 4, 8, (25.5, 26.1, 42.5), 4.5),
        ("zbv", 8, 16, (51.5, 52.2, 87), 8),
        ("dualpipe-v", 8, 16, (51.5, 53.1, 86.5), 8.5),
        ("interleaved", 8, 16, (58.5, 58.5, 97.5), 11.5),
    ],
)
def test_schedules_have_the_figures_of_pytorch(name, devices, micros, makespans, peak) -> None:
    for times, makespan in zip((ONES, UNEVEN, LONG), makespans, strict=True):
        shape = PipelineShape(devices, micros, times, chunks=2)
        schedule = schedule_of(name, shape)
        assert float(shape.timed(schedule).makespan) == makespan
        assert max(shape.peaks(schedule)) == peak


def test_one_chunk_interleaved_zero_bubble_has_the_figures_of_pytorch() -> None:
    spans = [
        float(shape.timed(schedule_of("interleaved-zb", shape)).makespan)
        for shape in (PipelineShape(4, 8, times) for times in (ONES, UNEVEN, LONG))
    ]
    assert spans == [27, 28.2, 46]


@pytest.mark.parametrize(("name", "peak"), [("v-half", 3), ("v-min", 2)])
def test_v_half_and_v_min_hold_less_than_one_forward_one_backward(name: str, peak: int) -> None:
    shape = PipelineShape(4, 8, PassTimes(1, 1, 1))
    assert shape.peaks(schedule_of(name, shape)) == [peak] * 4


@pytest.mark.parametrize(
    ("name", "spans"), [("v-half", (26.5, 27.9, 45)), ("v-min", (29.5, 34.4, 55))]
)
def test_v_half_and_v_min_have_the_spans_of_their_authors(
    name: str, spans: tuple[float, ...]
) -> None:
    """Spans of a device in the scheduler of Qi et al. (sail-sg), including the reordering."""
    for times, span in zip((ONES, UNEVEN, LONG), spans, strict=True):
        shape = PipelineShape(4, 8, times, is_steady=True)
        assert float(shape.measure(schedule_of(name, shape))) == span


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["v-half", "v-min"]), st.integers(1, 9), st.integers(1, 24))
def test_reordering_keeps_the_largest_memory_of_the_building_block(name, devices, micros) -> None:
    """All numbers of micro-batches are valid; p/2 + 1 and p/3 + 2 are the papers' bounds."""
    shape = PipelineShape(devices, micros, ONES)
    schedule = schedule_of(name, shape)
    assert find_defect(schedule, micros) == ""
    limit = devices / 2 + 1 if name == "v-half" else devices / 3 + 2
    assert max(shape.peaks(schedule)) <= limit
    assert shape.timed(schedule).makespan >= 3 * micros


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(["looped-bfs", "interleaved", "interleaved-zb", "zbv", "dualpipe-v", "v-half",
                     "v-min", "hanayo"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.tuples(*[st.integers(1, 5)] * 3),
)  # fmt: skip
@pytest.mark.once
def test_every_schedule_is_valid_and_above_its_bounds(name, devices, factor, times) -> None:
    shape = PipelineShape(devices, 2 * devices * factor, PassTimes(*times), chunks=2)
    schedule = schedule_of(name, shape)
    assert find_defect(schedule, shape.micros) == ""
    makespan = shape.timed(schedule).makespan
    durations = {kind: Fraction(PassTimes(*times).of(kind), 2) for kind in Pass}
    assert makespan == longest_path(schedule, durations)
    assert makespan >= shape.compute_bounds(schedule.device_of[0]).value
    period = compute_period(schedule, shape.times_in(schedule))
    assert shape.micros * sum(times) <= period <= makespan
    for has_messages in (False, True):
        text = write_schedule(schedule, has_messages=has_messages)
        written = read_schedule(text, name)
        assert (written.orders, written.device_of) == (schedule.orders, schedule.device_of)
        assert written.overlapped == schedule.overlapped


@pytest.mark.parametrize("name", ["1f1b", "zb-h2", "zbv"])
def test_the_period_is_the_time_between_many_steps(name: str) -> None:
    times = PassTimes(3, 4, 2, 1)
    one = schedule_of(name, PipelineShape(3, 6, times))
    ends = []
    for steps in (20, 26):
        orders = tuple(
            tuple(
                pass_._replace(micro=pass_.micro + 6 * at) for at in range(steps) for pass_ in order
            )
            for order in one.orders
        )
        ends.append(timed(Schedule("steps", one.device_of, orders), times).makespan)
    assert compute_period(one, times) == Fraction(ends[1] - ends[0], 6)


def pytorch_rows(class_name: str, devices: int, chunks: int, micros: int) -> str:
    """The CSV of a generator of PyTorch, without processes."""
    reason = "PyTorch is not installed: its generators are the reference"
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason=reason)
    generator = object.__new__(getattr(schedules, class_name))
    generator.pp_group_size, generator.n_local_stages = devices, chunks
    generator._n_microbatches, generator._stages = micros, [None] * chunks
    generator.number_of_rounds = max(1, micros // devices)
    generator.microbatches_per_round = micros // generator.number_of_rounds
    generator.num_stages = generator._num_stages = devices * chunks
    rows = []
    for rank in range(devices):
        generator.rank = rank
        cells = generator._calculate_single_rank_operations(rank)
        rows.append(",".join("" if cell is None else str(cell) for cell in cells))
    return "\r\n".join(rows) + "\r\n"


@pytest.mark.parametrize(
    ("class_name", "name", "chunks"),
    [
        ("ScheduleLoopedBFS", "looped-bfs", 2),
        ("ScheduleInterleaved1F1B", "interleaved", 3),
        ("ScheduleInterleavedZeroBubble", "interleaved-zb", 2),
        ("ScheduleZBVZeroBubble", "zbv", 2),
        ("ScheduleDualPipeV", "dualpipe-v", 2),
    ],
)
def test_generators_of_pytorch_are_equal_and_timed_to_the_unit(class_name, name, chunks) -> None:
    for devices, micros in ((2, 4), (3, 6), (4, 8), (4, 12)):
        schedule = read_schedule(pytorch_rows(class_name, devices, chunks, micros), class_name)
        same = schedule_of(name, PipelineShape(devices, micros, PassTimes(1, 1, 1), chunks=chunks))
        assert schedule.orders == same.orders
        assert schedule.overlapped == same.overlapped
        for times in ((1, 1, 1), (2, 2, 1), (7, 11, 5)):
            durations = {kind: Fraction(PassTimes(*times).of(kind)) for kind in Pass}
            makespan = timed(schedule, PassTimes(*times)).makespan
            assert makespan == longest_path(schedule, durations)
