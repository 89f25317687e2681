"""`collhub run`: run an algorithm on real data, check its result, and report it as JSON or text.

The result is compared with the definition of the collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from collhub_execution import run_options, run_options_of

from hub_core import (
    FILE,
    Assignments,
    CommandContext,
    assign,
    excerpt_options,
    json_flag,
    offer_option,
    option_pairs,
    source_argument,
    verify_option,
    view_option,
)
from hub_core.model import (
    Diagnostic,
    ExitCode,
    Severity,
    format_bandwidth,
    format_bytes,
    format_time,
)
from hub_core.plugin_api import Executor, InteractivePage, RunExcerpt, RunTimeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from collhub_execution import Array, OutputJudgement, RunOutcome, RunSetup

    from collhub_local.run_record import RunReport
    from hub_core.model import JsonValue
    from hub_core.plugin_api import ExecutionResult


# The executor that reduces in the order of the schedule.
# numpy is imported where it is needed, so that the help of the command is fast.

REFERENCE = "numpy"


_AGREEMENT = {
    None: "",
    True: "all have the same bits",
    False: "do not have the same bits",
}


@dataclass(frozen=True, slots=True)
class LocalRun:
    """One execution.

    `order_kept`: whether the bits are those of the schedule's order of reduction, None if not
    checked.
    """

    executor: str
    outcome: RunOutcome
    result: ExecutionResult
    order_kept: bool | None

    @property
    def setup(self) -> RunSetup:
        """The parameters of the run."""
        return self.outcome.setup

    def findings(self) -> list[Diagnostic]:
        """Return all findings for the user, in the order of output.

        First come the notes of the setup, then the remarks below about the run, diagnostics of the
        executor, and at last those of the judgement, which contain the errors.

        - `mode-not-claimed` (warning): the algorithm does not support the mode (in or out of
          place).
        - `contents-not-judged` (note): a custom collective defines no result, so that outputs were
          not compared.
        - `order-changed` (warning): the bits differ from those of the executor `REFERENCE`, which
          keeps the schedule's order of reduction.
        """
        findings = [*self.setup.notes()]
        if not self.setup.claims_mode:
            mode = "in" if self.setup.in_place else "out of"
            message = f"the algorithm does not claim to work {mode} place"
            findings.append(Diagnostic("mode-not-claimed", message, Severity.WARNING))
        if self.outcome.judgement.comparison == "none":
            message = "the custom collective defines no result, so the outputs were not compared"
            findings.append(Diagnostic("contents-not-judged", message, Severity.NOTE))
        if self.order_kept is False:
            message = (
                "the bits differ from those of the schedule's order of reduction, "
                f"which the executor {REFERENCE} uses"
            )
            findings.append(Diagnostic("order-changed", message, Severity.WARNING))
        return [*findings, *self.result.diagnostics, *self.outcome.judgement.diagnostics]


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
@view_option
@excerpt_options
@option_pairs
@verify_option
@json_flag
@click.pass_obj
def run(
    context: CommandContext,
    /,
    source: str,
    executor: str,
    timeline_out: str | None,
    view_out: str | None,
    source_format: str | None,
    excerpt: RunExcerpt,
    assignments: Assignments,
    as_json: bool,
    **values: Any,
) -> int:
    """Run the algorithm or flat job in IN on real data and check the result of every rank.

    For a job, all messages are run, each with separate data. Exit 0 if the outputs of all ranks are
    as the collective defines them, else 1 with the first wrong elements.
    """
    from collhub_execution import RunSetup

    from collhub_local.job_messages import algorithm_of_job

    executor_options = context.options_of(Executor, executor)
    opened = context.open_input(source, source_format)
    options = assign(assignments, {"reader": opened.options, "executor": executor_options})
    if opened.holds_workload:
        algorithm = algorithm_of_job(context.read_workload(opened, options["reader"]))
        context.admit(algorithm, opened.name)
    else:
        algorithm = context.read_input(opened, options["reader"])
    setup = RunSetup.of(algorithm, run_options_of(values), opened.name)
    # Step times need one more run, which only timelines and pages use.
    wants_step_times = timeline_out is not None or view_out is not None
    done = _run(context, setup, executor, options["executor"], wants_step_times)
    # The steps of the last run; a writer refuses runs without step times.
    timeline = RunTimeline(
        opened.name,
        done.setup.algorithm,
        done.setup.collective_bytes,
        done.result.step_start_ns,
        done.result.step_end_ns,
        excerpt=excerpt,
        timing=f"measured with the executor {executor}",
    )
    if timeline_out is not None:
        context.draw_report(timeline, timeline_out)
    if view_out is not None:
        page = InteractivePage(opened.name, (timeline,))
        context.say_written(context.draw_report(page, view_out))
    if as_json:
        context.print_report(create_run_report(opened.name, done))
    else:
        context.print_fields(run_fields(done))
    context.report(done.findings(), opened, algorithm)
    return ExitCode.DONE if done.outcome.ok else ExitCode.INVALID


def create_run_report(source: str, done: LocalRun) -> RunReport:
    """Create the JSON report of a run; `source`: the input as named by the user.

    Sizes are in bytes, times in seconds, bandwidths in bytes/s. Times are medians of the repeats;
    `repeat_times_s` has all repeats. The bus bandwidth is None for custom collectives. The native
    times are None and empty if the library's collective was not run. `levels` and `messages` are
    statistics of the executor, 0 if it reports no integers. The diagnostics are those of
    `LocalRun.findings`.
    """
    from collhub_local.run_record import RunReport
    from hub_core.reports import list_findings

    outcome, statistics = done.outcome, done.result.statistics
    setup, judgement = outcome.setup, outcome.judgement
    return RunReport(
        source=source,
        executor=done.executor,
        ok=outcome.ok,
        collective=str(setup.algorithm.collective.kind),
        num_ranks=setup.algorithm.num_ranks,
        collective_bytes=setup.collective_bytes,
        dtype=setup.dtype.name,
        reduce_op=str(setup.op),
        in_place=setup.in_place,
        comparison=str(judgement.comparison),
        max_abs_error=judgement.max_abs_error,
        ranks_agree_bitwise=judgement.ranks_agree,
        time_s=outcome.time_s,
        algorithm_bandwidth_bytes_per_s=outcome.algorithm_bandwidth,
        bus_bandwidth_bytes_per_s=outcome.bus_bandwidth,
        native_time_s=outcome.native_time_s,
        levels=_get_count(statistics, "levels"),
        messages=_get_count(statistics, "messages"),
        error_bound=judgement.max_bound,
        order_kept=done.order_kept,
        repeat_times_s=outcome.repeat_times_s,
        native_repeat_times_s=outcome.native_times_s,
        diagnostics=list_findings(done.findings()),
    )


def _get_count(statistics: Mapping[str, JsonValue], name: str) -> int:
    """Return an integer statistic of the executor by name.

    0 if the executor does not report it, or reports another type.
    """
    value = statistics.get(name)
    return value if isinstance(value, int) else 0


def run_fields(done: LocalRun) -> dict[str, str]:
    """Return the lines of the text output as (name, text), in their order; empty ones are left out.

    1. `algorithm`: collective, ranks and mode, such as `all-reduce, 8 ranks, in place`
    2. `program`: `112 messages in 14 levels`; only if the executor reports messages
    3. `executor`: its name
    4. `data`: `64 MiB of float32, sum`; the operator only for collectives that reduce
    5. `result`: the verdict and the error, `not compared` without a definition
    6. `ranks`: whether all ranks have the same bits; only if their outputs should be equal
    7. `time`: the median of the repeats and their number
    8. `bandwidth`: of the algorithm and, except for custom collectives, of the bus
    9. `native`: only if the library's collective was run; its median, and the ratio of the time to
       it
    """
    outcome = done.outcome
    judgement = outcome.judgement
    time_ns = 1e9 * outcome.time_s
    collective = done.setup.algorithm.collective
    mode = "in place" if done.setup.in_place else "out of place"
    # For example `64 MiB of float32, sum`.
    setup = done.setup
    # Collectives that only move data have an operator without effect.
    text = f"{format_bytes(setup.collective_bytes)} of {setup.dtype.name}"
    statistics = done.result.statistics
    program = ""
    if "messages" in statistics:
        program = f"{statistics['messages']} messages in {statistics['levels']} levels"
    bandwidths = f"algorithm {format_bandwidth(outcome.algorithm_bandwidth)}"
    if outcome.bus_bandwidth is not None:
        bandwidths = f"{bandwidths}, bus {format_bandwidth(outcome.bus_bandwidth)}"
    native = ""
    if outcome.native_time_s is not None:
        ratio = outcome.time_s / outcome.native_time_s
        native_time = format_time(1e9 * outcome.native_time_s)
        native = f"{native_time} for the library's own collective: ratio {ratio:.2f}"
    fields = {
        "algorithm": f"{collective.kind}, {collective.num_ranks} ranks, {mode}",
        "program": program,
        "executor": done.executor,
        "data": f"{text}, {setup.op}" if setup.algorithm.collective.reduces else text,
        "result": _describe_verdict(judgement),
        "ranks": _AGREEMENT[judgement.ranks_agree],
        "time": f"{format_time(time_ns)}, median of {len(outcome.repeat_times_s)}",
        "bandwidth": bandwidths,
        "native": native,
    }
    return {name: value for name, value in fields.items() if value}


def _run(
    context: CommandContext,
    setup: RunSetup,
    executor: str,
    options: Mapping[str, str],
    wants_step_times: bool,
) -> LocalRun:
    """Run the executor on the inputs of the setup, judge its outputs, and return all as one record.

    The reference executor (`REFERENCE`) runs too if outputs are compared within an error bound, and
    if `executor` is another one. `order_kept` then records whether all bits are equal, which means
    that the order of reduction is that of the schedule. Otherwise `order_kept` is None.

    With `wants_step_times`, the executor makes one more run with times of steps. Wrong outputs
    raise no error; the judgement of the result has them. Raises the errors of `hub_core.execute`,
    such as `InputError` for algorithms that cannot run, also for the reference. Progress is shown
    to the user.
    """
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
    """Return whether the outputs of all ranks are bitwise equal to those of the reference executor.

    Outputs of another dtype or shape are not equal; 0.0 differs from -0.0, and a NaN equals one
    with the same bits. The executor `REFERENCE` runs once with the same inputs, operator and mode,
    within 60 s. Raises the errors of `hub_core.execute`.
    """
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


def _describe_verdict(judgement: OutputJudgement) -> str:
    """Return one text: whether the result of a run is right, and its largest absolute error.

    By `judgement.comparison`:

    - none: `not compared`
    - bitwise: `right, bit by bit`, or for example `wrong, off by up to 0.5`
    - bound: for example `right, off by up to 1e-07 where rounding allows 3e-07`, or the
      same with `wrong`

    Numbers have 3 digits. If the error is None (not finite), `contains NaN or infinity`
    replaces `off by up to ...`.
    """
    if judgement.comparison == "none":
        return "not compared"
    # None means NaN or infinity.
    error = judgement.max_abs_error
    difference = "contains NaN or infinity" if error is None else f"off by up to {error:.3g}"
    if judgement.comparison == "bitwise":
        return "right, bit by bit" if judgement.is_right else f"wrong, {difference}"
    verdict = "right" if judgement.is_right else "wrong"
    return f"{verdict}, {difference} where rounding allows {judgement.max_bound:.3g}"
