"""`collhub pipeline`: time, search, check and write schedules of pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from collhub_pipeline.plugin import NAMES, SEARCHED, PipelineOptions
from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    UsageError,
    check_stdout,
    cut_fields,
    json_flag,
    option_pairs,
    timeout_option,
)
from hub_core.model import InputError
from hub_core.plugin_api import BudgetReached, SearchBudget, WorkloadGenerator

# Modules that need numpy are imported inside functions, so that the help is fast.
if TYPE_CHECKING:
    from collhub_pipeline.pipeline_record import PipelineReport
    from collhub_pipeline.shapes import PipelineShape
    from collhub_pipeline.timing import Schedule
    from hub_core.plugin_api import SearchCut

_FORMATS = ("compute_comms", "compute_only")


@click.command()
@click.argument("schedule", metavar="SCHEDULE", type=FILE)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="FILE",
    type=FILE,
    help="Write the schedule as CSV of torch.distributed.pipelining; `-` is stdout.",
)
@click.option(
    "--format",
    "csv_format",
    type=click.Choice(_FORMATS),
    default=_FORMATS[0],
    show_default=True,
    help="CSV with sends and receives, or passes alone.",
)
@timeout_option
@option_pairs
@json_flag
@click.pass_obj
def pipeline(
    context: CommandContext,
    schedule: str,
    out: str | None,
    csv_format: str,
    budget: SearchBudget,
    assignments: Assignments,
    as_json: bool,
) -> None:
    """Time the pipeline schedule SCHEDULE, and report its bubble, memory and proven bounds.

    SCHEDULE is a name (`search`, `1f1b`, `zbv`, ...) or a CSV file of PyTorch, whose path
    contains a `.` or `/`. Any other text is refused. The file is checked: all passes once and
    in order, messages, deadlock. With `search`, it is an error if the time is over before any
    schedule is found.

    The options are those of the generator `pipeline` (`collhub formats pipeline`): -O
    stages=8 -O micro_batches=16 -O memory=8. The numbers of stages and micro-batches of a
    file are those of the file; options that differ are refused.
    """
    from collhub_pipeline.job import schedule_from, shape_of
    from collhub_pipeline.schedule_csv import read_schedule_file, write_schedule

    if out is not None:
        check_stdout(out, as_json)
    options = context.bind_options(WorkloadGenerator, "pipeline", assignments)
    # The generator declares this record.
    assert isinstance(options, PipelineOptions)
    if schedule in NAMES:
        options = replace(options, schedule=schedule)
    elif "/" not in schedule and "." not in schedule:
        message = f"{schedule!r} is neither a schedule nor a CSV file"
        raise UsageError(message, cure=f"choose one of {', '.join(NAMES)}", code="schedule")
    else:
        file = read_schedule_file(schedule)
        micros = 1 + max(pass_.micro for order in file.orders for pass_ in order)
        options = replace(
            options,
            csv=schedule,
            stages=options.stages if "stages" in assignments else file.num_devices,
            micro_batches=options.micro_batches if "micro_batches" in assignments else micros,
        )
    shape = shape_of(options)
    with context.progress("scheduling"):
        try:
            result = schedule_from(options, shape, budget)
        except BudgetReached:
            message = f"the search found no schedule that fits: {budget.reason}"
            raise InputError(message, cure="allow more time", code="limit-reached") from None
    artifacts: list[str] = []
    written = None
    if out is not None:
        text = write_schedule(result, has_messages=csv_format == _FORMATS[0])
        written = context.write_file(out, text.encode())
        artifacts = [out]
    is_search = options.csv is None and options.schedule == SEARCHED
    report = create_report(result, shape, budget.cuts, artifacts, is_search=is_search)
    if as_json:
        context.print_report(report)
        return
    if out != "-":
        context.print_fields({**format_fields(report), **cut_fields(budget.cuts)})
        context.print_table(
            ("device", "stages", "work", "idle", "peak", "limit"),
            [
                (
                    str(at),
                    ",".join(map(str, device.stages)),
                    _format_time(device.work_ns),
                    _format_time(device.idle_ns),
                    f"{device.peak:g}",
                    "" if device.limit is None else f"{device.limit:g}",
                )
                for at, device in enumerate(report.devices)
            ],
            right=("work", "idle", "peak", "limit"),
        )
    if written is not None:
        context.say_written(written)


def create_report(
    schedule: Schedule,
    shape: PipelineShape,
    cuts: Sequence[SearchCut],
    artifacts: Sequence[str],
    *,
    is_search: bool,
) -> PipelineReport:
    """Create the report of a schedule: times in ns, bubble, bounds, and figures of each device.

    - Value (the objective): the time per step of many steps if `shape.is_steady`, otherwise the
      time of one step. Both times are in the report.
    - Bubble: 1 - (most work of a device) / value, at least 0.
    - `bounds`: three lower bounds of the placement, None if the schedule has two directions.
    - `search_bound_ns`: lower bound for all placements, None unless `is_search` (the schedule was
      searched, not named or read).
    - `is_optimal`: the value equals that bound, or without `is_search` the largest of `bounds`.
    - Each device, by number: its stages, its work in passes, the idle time between its first and
      last pass (0 without passes), its peak memory, and its limit or None.

    `cuts`: limits of the search that were reached; with any, the report is partial. `artifacts`:
    names of the written files. Raises `UsageError` for a deadlock, or if the number of several
    memory limits is not that of the devices.
    """
    from collhub_pipeline.pipeline_record import PipelineBounds, PipelineDevice, PipelineReport
    from collhub_pipeline.search import compute_search_bound
    from collhub_pipeline.timing import compute_period
    from hub_core.reports import list_cuts

    timing = shape.timed(schedule)
    period = compute_period(schedule, shape.times_in(schedule))
    value = period if shape.is_steady else timing.makespan
    bounds = None
    if len(schedule.device_of) == 1:
        bounds = shape.compute_bounds(schedule.device_of[0], schedule.recomputed)
    search_bound = compute_search_bound(shape) if is_search else None
    limits = shape.limits
    devices = []
    for device, (starts, ends, peak) in enumerate(
        zip(timing.starts, timing.ends, shape.peaks(schedule), strict=True)
    ):
        work = sum(end - start for start, end in zip(starts, ends, strict=True))
        stages = {
            stage
            for row in schedule.device_of
            for stage, place in enumerate(row)
            if place == device
        }
        devices.append(
            PipelineDevice(
                stages=sorted(stages),
                work_ns=float(work),
                idle_ns=float(ends[-1] - starts[0] - work) if ends else 0.0,
                peak=float(peak),
                limit=None if limits is None else float(limits[device]),
            )
        )
    most_work = max(device.work_ns for device in devices)
    return PipelineReport(
        schedule=schedule.name,
        placement=_name_placement(schedule),
        num_stages=len(schedule.device_of[0]),
        micro_batches=shape.micros,
        slices=schedule.slices,
        recomputed=sorted(schedule.recomputed),
        objective="steady" if shape.is_steady else "step",
        step_ns=float(timing.makespan),
        steady_ns=float(period),
        bubble=max(0.0, 1 - most_work / float(value)),
        bounds=None
        if bounds is None
        else PipelineBounds(
            critical_path_ns=float(bounds.critical_path),
            work_ns=float(bounds.work),
            memory_ns=float(bounds.memory),
        ),
        search_bound_ns=None if search_bound is None else float(search_bound),
        is_optimal=value in (search_bound, None if is_search or bounds is None else bounds.value),
        devices=devices,
        is_partial=bool(cuts),
        cut=list_cuts(cuts),
        artifacts=artifacts,
    )


def _name_placement(schedule: Schedule) -> str:
    """Return the kind of placement of stages on devices: `chunk`, `loops`, `waves` or `other`.

    The first kind that fits is returned:

    1. `other`: the schedule has two directions, or the number of stages is no multiple of the
       number of devices.
    2. `chunk`: stage i is on device i; there is one stage per device.
    3. `loops`: stage i is on device i modulo devices.
    4. `waves`: as loops, but every second round of the devices is in reverse order. 3 devices and 2
       rounds give (0, 1, 2, 2, 1, 0).
    5. `other`: any other placement.
    """
    from collhub_pipeline.orders_of_chunks import place_in_loops, place_in_waves

    row = schedule.device_of[0]
    chunks = len(row) // schedule.num_devices
    if len(schedule.device_of) > 1 or chunks * schedule.num_devices != len(row):
        return "other"
    if row == tuple(range(len(row))):
        return "chunk"
    kinds = {"loops": place_in_loops, "waves": place_in_waves}
    return next(
        (name for name, place in kinds.items() if place(schedule.num_devices, chunks) == row),
        "other",
    )


def format_fields(report: PipelineReport) -> dict[str, str]:
    """Format the report as text by label, in the order of the output.

    The labels are, in this order:

    - `schedule`: name, placement, and chunks per device (stages // devices) for loops and waves
    - `shape`: devices, stages, micro-batches, and slices if there are more than 1
    - `objective`: "time of one step" for `step`, otherwise "time per step of many"
    - `step` and `steady`: both times. `bubble`: percent of the objective
    - `recomputed`: numbers of the stages, only if some stage recomputes
    - `bounds`: critical path, work and memory, only if the report has bounds of the placement
    - `all orders`: only if the report has a bound of the search
    - `optimal`: only if the time equals a proven bound

    Times have a unit and, from 1 us on, two decimals: `1.50 us`. Nothing is given per device.
    """
    chunks = report.num_stages // len(report.devices)
    shapes = {
        "chunk": "one chunk a device",
        "loops": f"{chunks} chunks a device, in loops",
        "waves": f"{chunks} chunks a device, in waves",
        "other": "other placement",
    }
    sliced = f", {report.slices} token slices" if report.slices > 1 else ""
    fields = {
        "schedule": f"{report.schedule}: {shapes[report.placement]}",
        "shape": f"{len(report.devices)} devices, {report.num_stages} stages, "
        f"{report.micro_batches} micro-batches{sliced}",
        "objective": "time of one step" if report.objective == "step" else "time per step of many",
        "step": _format_time(report.step_ns),
        "steady": f"{_format_time(report.steady_ns)} per step without a flush",
        "bubble": f"{100 * report.bubble:.1f} % of the objective",
    }
    if report.recomputed:
        fields["recomputed"] = "stages " + ",".join(map(str, report.recomputed))
    if report.bounds is not None:
        bounds = report.bounds
        fields["bounds"] = (
            f"critical path {_format_time(bounds.critical_path_ns)}, "
            f"work {_format_time(bounds.work_ns)}, memory {_format_time(bounds.memory_ns)}"
        )
    if report.search_bound_ns is not None:
        fields["all orders"] = f"at least {_format_time(report.search_bound_ns)}"
    if report.is_optimal:
        fields["optimal"] = "equal to a proven bound"
    return fields


def _format_time(nanoseconds: float) -> str:
    from hub_core.model import format_time

    return format_time(nanoseconds)
