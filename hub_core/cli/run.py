"""`collhub run`: an algorithm on real data, its result compared with the definition of the collective."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from hub_core.cli.loading import read_opened, source_options
from hub_core.cli.output import (
    diagnostic_object,
    print_diagnostic,
    print_fields,
    print_json,
    progress,
)
from hub_core.cli.session import Session, with_path
from hub_core.model.diagnostics import Diagnostic, ExitCode, Severity, UsageError
from hub_core.model.quantities import format_bandwidth, format_bytes, format_time, parse_size
from hub_core.pipeline.inputs import open_source
from hub_core.plugin_api.command_line import (
    Assignments,
    assign,
    from_option,
    json_flag,
    option_pairs,
    source_argument,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.execution.judgement import Judgement
    from hub_core.execution.program import LevelledProgram
    from hub_core.model.algorithm import Algorithm, JsonValue
    from hub_core.model.kinds import ReduceOp
    from hub_core.plugin_api.executor import ExecutionResult


# The executor whose order of reduction is the schedule's own.
_REFERENCE = "numpy"
_DATA_HELP = (
    "exact: whole numbers, compared bitwise; random: compared within the bound on rounding errors."
)
_DTYPE_HELP = "float16, bfloat16, float32, float64, int32 or int64."
_SECONDS = click.FloatRange(min=0.1)


class _Wish(TypedDict):
    """What the command line asks for, apart from IN."""

    executor: str
    size_text: str | None
    dtype: str
    op_text: str | None
    in_place: bool
    data: str
    repeats: int
    warmups: int
    timeout_s: float
    timeline_out: str | None


@dataclass(frozen=True, slots=True)
class _Trial:
    """One execution, and what is to be said of it.

    `order_kept`: whether the bits are those of the schedule's own order of reduction, None where
    that was not asked.
    """

    algorithm: Algorithm
    program: LevelledProgram
    collective_bytes: int
    dtype: str
    op: ReduceOp
    result: ExecutionResult
    judgement: Judgement
    order_kept: bool | None

    @property
    def ok(self) -> bool:
        """Whether every rank holds what the collective promises."""
        return self.judgement.is_right

    @property
    def time_s(self) -> float:
        """Median of the repeats."""
        return median(self.result.repeat_times_s)

    @property
    def native_time_s(self) -> float | None:
        """Median of the library's own collective."""
        return median(self.result.native_times_s) if self.result.native_times_s else None

    @property
    def bus_bandwidth(self) -> float | None:
        """As nccl-tests defines it."""
        from hub_core.execution.bandwidth import bus_bandwidth

        return bus_bandwidth(self.algorithm.collective, self.collective_bytes, self.time_s)


@click.command()
@source_argument
@click.option(
    "--executor",
    metavar="NAME",
    default="numpy",
    show_default=True,
    help="What runs it; collhub formats lists all.",
)
@click.option(
    "--size",
    "size_text",
    metavar="S",
    help="Size of the full buffer, 1MiB (default: the size that IN states).",
)
@click.option("--dtype", metavar="TYPE", default="float32", show_default=True, help=_DTYPE_HELP)
@click.option(
    "--op",
    "op_text",
    metavar="OP",
    help="sum, prod, min, max or avg (default: that of the collective).",
)
@click.option(
    "--in-place",
    is_flag=True,
    help="Let INPUT and OUTPUT share memory (default where IN is for that alone).",
)
@click.option(
    "--data",
    type=click.Choice(["exact", "random"]),
    default="exact",
    show_default=True,
    help=_DATA_HELP,
)
@click.option(
    "--repeats", type=click.IntRange(1, 10000), default=5, show_default=True, help="Timed runs."
)
@click.option(
    "--warmups",
    type=click.IntRange(0, 10000),
    default=1,
    show_default=True,
    help="Runs before them.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=_SECONDS,
    default=60.0,
    show_default=True,
    help="Seconds to give up after.",
)
@click.option(
    "--timeline", "timeline_out", metavar="FILE", help="Also write a Chrome trace of one more run."
)
@from_option
@option_pairs
@json_flag
@click.pass_obj
def run(
    session: Session,
    source: str,
    source_format: str | None,
    assignments: Assignments,
    as_json: bool,
    **wish: Unpack[_Wish],
) -> int:
    """Run the algorithm in IN on real data and check the result of every rank.

    Exit 0 where all ranks hold what the collective promises, else 1 with the first wrong elements.
    """
    from hub_core.plugin_api.executor import Executor

    offer = session.registry().find(Executor, wish["executor"]).offer
    opened = open_source(session, source, source_format)
    given = assign(assignments, {"reader": opened.reader.offer.options, "executor": offer.options})
    algorithm = read_opened(opened, source_options(session, opened, given["reader"]))
    size = _size(opened.name, algorithm, wish["size_text"])
    trial = _trial(session, algorithm, size, wish, given["executor"])
    if wish["timeline_out"] is not None:
        from hub_core.cli.timeline_file import write_timeline

        write_timeline(algorithm, size, trial.result, wish["timeline_out"])
    findings = [*_remarks(trial), *trial.result.diagnostics, *trial.judgement.diagnostics]
    if as_json:
        print_json(_document(opened.name, wish["executor"], trial, findings))
    else:
        print_fields(_fields(wish["executor"], trial))
    for found in with_path(findings, algorithm, opened.name):
        print_diagnostic(found)
    return ExitCode.DONE if trial.ok else ExitCode.INVALID


def _size(name: str, algorithm: Algorithm, text: str | None) -> int:
    size = algorithm.collective_bytes if text is None else parse_size(text)
    if size is None:
        raise UsageError(
            f"{name} states no size", cure="give one, for example --size 1MiB", code="no-size"
        )
    return size


def _op(algorithm: Algorithm, text: str | None) -> ReduceOp:
    from hub_core.model.kinds import ReduceOp

    if text is None:
        return algorithm.collective.reduce_op
    if text.lower() not in set(ReduceOp):
        raise UsageError(
            f"there is no reduction {text!r}",
            cure=f"use one of {', '.join(ReduceOp)}",
            code="unknown-op",
        )
    return ReduceOp(text.lower())


def _trial(
    session: Session, algorithm: Algorithm, size: int, wish: _Wish, options: Assignments
) -> _Trial:
    from hub_core.execution import data
    from hub_core.execution.judgement import judge
    from hub_core.execution.levels import levelled_program

    dtype, op = data.element_type(wish["dtype"]), _op(algorithm, wish["op_text"])
    with progress("levelling"):
        program = levelled_program(
            algorithm, wish["in_place"] or not algorithm.collective.out_of_place
        )
    elements = data.block_elements(program, size, dtype)
    make = data.exact_inputs if wish["data"] == "exact" else data.random_inputs
    inputs = make(program, elements, dtype, op)
    execute = partial(
        pipeline.execute,
        algorithm,
        inputs,
        program=program,
        reduce_op=op,
        registry=session.registry(),
    )
    with progress(f"running {format_bytes(size)} on {wish['executor']}"):
        result = execute(
            name=wish["executor"],
            repeats=wish["repeats"],
            warmups=wish["warmups"],
            timeout_s=wish["timeout_s"],
            wants_step_times=wish["timeline_out"] is not None,
            options=options,
        )
    with progress("checking"):
        is_exact = wish["data"] == "exact" and data.is_exact(program.num_ranks, dtype, op)
        judgement = judge(algorithm.collective, inputs, result.outputs, op, is_exact)
        is_rounded = judgement.comparison == "bound" and wish["executor"] != _REFERENCE
        order_kept = _same_outputs(result, execute(name=_REFERENCE)) if is_rounded else None
    return _Trial(algorithm, program, size, dtype.name, op, result, judgement, order_kept)


def _same_outputs(one: ExecutionResult, other: ExecutionResult) -> bool:
    from hub_core.execution.judgement import same_bits

    return all(same_bits(*pair) for pair in zip(one.outputs, other.outputs, strict=True))


def _remarks(trial: _Trial) -> list[Diagnostic]:
    """What the user should know besides errors."""
    collective, mode = trial.algorithm.collective, trial.program.in_place
    found = []
    if not (collective.in_place if mode else collective.out_of_place):
        message = f"the algorithm does not claim to work {'in' if mode else 'out of'} place"
        found.append(Diagnostic("mode-not-claimed", message, Severity.WARNING))
    if trial.judgement.comparison == "none":
        message = "the custom collective states no result, so that nothing was compared"
        found.append(Diagnostic("contents-not-judged", message, Severity.NOTE))
    if trial.order_kept is False:
        message = f"the bits are not those of the schedule's own order of reduction, as the executor {_REFERENCE} gives them"
        found.append(Diagnostic("order-changed", message, Severity.WARNING))
    return found


def _document(
    source: str, executor: str, trial: _Trial, findings: Sequence[Diagnostic]
) -> dict[str, JsonValue]:
    from hub_core.execution.bandwidth import algorithm_bandwidth

    judgement, result = trial.judgement, trial.result
    return {
        "schema": "collhub/report-run-1",
        "source": source,
        "executor": executor,
        "collective": str(trial.algorithm.collective.kind),
        "num_ranks": trial.algorithm.num_ranks,
        "collective_bytes": trial.collective_bytes,
        "dtype": trial.dtype,
        "reduce_op": str(trial.op),
        "in_place": trial.program.in_place,
        "levels": max(trial.program.num_levels - 1, 0),
        "messages": trial.program.num_messages,
        "ok": trial.ok,
        "comparison": str(judgement.comparison),
        "max_abs_error": judgement.max_abs_error,
        "error_bound": judgement.max_bound,
        "ranks_agree_bitwise": judgement.ranks_agree,
        "order_kept": trial.order_kept,
        "time_s": trial.time_s,
        "repeat_times_s": list(result.repeat_times_s),
        "algorithm_bandwidth_bytes_per_s": algorithm_bandwidth(
            trial.collective_bytes, trial.time_s
        ),
        "bus_bandwidth_bytes_per_s": trial.bus_bandwidth,
        "native_time_s": trial.native_time_s,
        "native_repeat_times_s": list(result.native_times_s),
        "diagnostics": [diagnostic_object(found) for found in findings],
    }


def _fields(executor: str, trial: _Trial) -> dict[str, str]:
    from hub_core.execution.bandwidth import algorithm_bandwidth

    collective, program, judgement = trial.algorithm.collective, trial.program, trial.judgement
    mode = "in place" if program.in_place else "out of place"
    bandwidth = format_bandwidth(algorithm_bandwidth(trial.collective_bytes, trial.time_s))
    bus = "" if trial.bus_bandwidth is None else f", bus {format_bandwidth(trial.bus_bandwidth)}"
    fields = {
        "algorithm": f"{collective.kind}, {collective.num_ranks} ranks, {mode}",
        "program": f"{program.num_messages} messages in {max(program.num_levels - 1, 0)} levels",
        "executor": executor,
        "data": f"{format_bytes(trial.collective_bytes)} of {trial.dtype}"
        + (f", {trial.op}" if collective.reduces else ""),
        "result": _verdict(judgement),
        "ranks": {None: "", True: "all hold the same bits", False: "do not hold the same bits"}[
            judgement.ranks_agree
        ],
        "time": f"{format_time(1e9 * trial.time_s)}, median of {len(trial.result.repeat_times_s)}",
        "bandwidth": f"algorithm {bandwidth}{bus}",
    }
    if trial.native_time_s is not None:
        ratio = trial.time_s / trial.native_time_s
        fields["native"] = (
            f"{format_time(1e9 * trial.native_time_s)} for the library's own collective: ratio {ratio:.2f}"
        )
    return {name: value for name, value in fields.items() if value}


def _verdict(judgement: Judgement) -> str:
    if judgement.comparison == "none":
        return "not compared"
    error = judgement.max_abs_error
    off = "holds what is no number" if error is None else f"off by up to {error:.3g}"
    if judgement.comparison == "bitwise":
        return "right, bit by bit" if judgement.is_right else f"wrong, {off}"
    return f"{'right' if judgement.is_right else 'wrong'}, {off} where rounding allows {judgement.max_bound:.3g}"
