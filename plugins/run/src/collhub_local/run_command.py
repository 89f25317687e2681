"""`collhub run`: run an algorithm on real data and check its result.

The result is compared with the definition of the collective.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from collhub_execution import run_options, run_options_of

from collhub_local.run_report import REFERENCE, LocalRun, run_document, run_fields
from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    OpenedInput,
    assign,
    input_options,
    offer_option,
    source_argument,
)
from hub_core.model import ExitCode, format_bytes
from hub_core.plugin_api import Executor

# numpy is imported where it is needed, so that the help of the command is fast.
if TYPE_CHECKING:
    from collections.abc import Mapping

    from collhub_execution import Array, RunSetup

    from hub_core import Algorithm
    from hub_core.plugin_api import ExecutionResult


@click.command()
@source_argument
@offer_option("--executor", Executor, "Executor; collhub formats lists all.", REFERENCE)
@run_options
@click.option(
    "--timeline",
    "timeline_out",
    metavar="FILE",
    type=FILE,
    help="Also write a Chrome trace of one more run.",
)
@input_options
@click.pass_obj
def run(
    context: CommandContext,
    /,
    source: str,
    executor: str,
    timeline_out: str | None,
    source_format: str | None,
    assignments: Assignments,
    as_json: bool,
    **values: Any,
) -> int:
    """Run the algorithm or flat job in IN on real data and check the result of every rank.

    For a job, all messages are run, each with separate data. Exit 0 if the outputs of all ranks are
    as the collective defines them, else 1 with the first wrong elements.
    """
    from collhub_execution import RunSetup

    executor_options = context.options_of(Executor, executor)
    opened = context.open_input(source, source_format)
    options = assign(assignments, {"reader": opened.options, "executor": executor_options})
    algorithm = _read_algorithm(context, opened, options["reader"])
    setup = RunSetup.of(algorithm, run_options_of(values), opened.name)
    # Step times need one more run, which only the timeline uses.
    wants_step_times = timeline_out is not None
    done = _run(context, setup, executor, options["executor"], wants_step_times)
    if timeline_out is not None:
        _write_timeline(context, done, timeline_out)
    if as_json:
        context.print_json(run_document(opened.name, done))
    else:
        context.print_fields(run_fields(done))
    context.report(done.findings(), opened, algorithm)
    return ExitCode.DONE if done.outcome.ok else ExitCode.INVALID


def _read_algorithm(
    context: CommandContext, opened: OpenedInput, options: Mapping[str, str]
) -> Algorithm:
    """Read the algorithm in IN; for a flat job, its messages as an algorithm."""
    from collhub_local.job_messages import algorithm_of_job

    if not opened.holds_workload:
        return context.read_input(opened, options)
    algorithm = algorithm_of_job(context.read_workload(opened, options))
    context.admit(algorithm, opened.name)
    return algorithm


def _run(
    context: CommandContext,
    setup: RunSetup,
    executor: str,
    options: Mapping[str, str],
    wants_step_times: bool,
) -> LocalRun:
    """Run and compare; if results are rounded, also run the reference, to compare the bits."""
    from collhub_execution import RunOutcome

    import hub_core

    inputs = setup.inputs()
    with context.progress(f"running {format_bytes(setup.collective_bytes)} on {executor}"):
        result = hub_core.execute(
            setup.algorithm,
            inputs,
            name=executor,
            in_place=setup.in_place,
            reduce_op=setup.op,
            repeats=setup.options.repeats,
            warmups=setup.options.warmups,
            timeout_s=setup.options.timeout,
            wants_step_times=wants_step_times,
            options=options,
            registry=context.registry(),
        )
    with context.progress("checking"):
        judgement = setup.judge(inputs, result.outputs)
        # Without rounding, right outputs equal the reference's outputs.
        is_rounded = judgement.comparison == "bound" and executor != REFERENCE
        order_kept = _has_reference_bits(context, setup, inputs, result) if is_rounded else None
    outcome = RunOutcome(setup, judgement, result.repeat_times_s, result.native_times_s)
    return LocalRun(executor, outcome, result, order_kept)


def _has_reference_bits(
    context: CommandContext,
    setup: RunSetup,
    inputs: tuple[Array, ...],
    result: ExecutionResult,
) -> bool:
    """Return whether outputs are bitwise equal to those of the reference for the same inputs."""
    from collhub_execution import same_bits

    import hub_core

    reference = hub_core.execute(
        setup.algorithm,
        inputs,
        name=REFERENCE,
        in_place=setup.in_place,
        reduce_op=setup.op,
        registry=context.registry(),
    )
    pairs = zip(result.outputs, reference.outputs, strict=True)
    return all(same_bits(output, expected) for output, expected in pairs)


def _write_timeline(context: CommandContext, done: LocalRun, out: str) -> None:
    """Write the steps of the last run; a writer refuses runs without step times."""
    from hub_core.plugin_api import RunTimeline

    setup, result = done.setup, done.result
    timeline = RunTimeline(
        out, setup.algorithm, setup.collective_bytes, result.step_start_ns, result.step_end_ns
    )
    context.draw_report(timeline, out)
