"""The record of one run, and the output of `collhub run`: JSON report and text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core import diagnostic_object
from hub_core.model import Diagnostic, Severity, format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from collhub_execution import OutputJudgement, RunOutcome, RunSetup

    from hub_core.model import JsonValue
    from hub_core.plugin_api import ExecutionResult

_AGREEMENT = {
    None: "",
    True: "all have the same bits",
    False: "do not have the same bits",
}


def run_document(source: str, done: LocalRun) -> dict[str, JsonValue]:
    """Return the report in the schema `report-run-1`; `source`: the input as named by the user."""
    outcome = done.outcome
    return {
        "schema": "collhub/report-run-1",
        "source": source,
        "executor": done.executor,
        **outcome.fields(),
        "levels": done.result.statistics.get("levels", 0),
        "messages": done.result.statistics.get("messages", 0),
        "error_bound": outcome.judgement.max_bound,
        "order_kept": done.order_kept,
        "repeat_times_s": list(outcome.repeat_times_s),
        "native_repeat_times_s": list(outcome.native_times_s),
        "diagnostics": [diagnostic_object(finding) for finding in done.findings()],
    }


def run_fields(done: LocalRun) -> dict[str, str]:
    """Return the lines of the text output by name; empty ones are omitted."""
    judgement = done.outcome.judgement
    fields = {
        "algorithm": _describe_algorithm(done),
        "program": _describe_program(done),
        "executor": done.executor,
        "data": _describe_data(done),
        "result": _describe_verdict(judgement),
        "ranks": _AGREEMENT[judgement.ranks_agree],
        "time": _format_run_time(done),
        "bandwidth": _format_bandwidths(done),
        "native": _format_native(done),
    }
    return {name: value for name, value in fields.items() if value}


def _describe_algorithm(done: LocalRun) -> str:
    """Return `all-reduce, 8 ranks, in place`."""
    collective = done.setup.algorithm.collective
    mode = "in place" if done.setup.in_place else "out of place"
    return f"{collective.kind}, {collective.num_ranks} ranks, {mode}"


def _describe_program(done: LocalRun) -> str:
    """Return `112 messages in 14 levels`, empty if the executor does not report it."""
    statistics = done.result.statistics
    if "messages" not in statistics:
        return ""
    return f"{statistics['messages']} messages in {statistics['levels']} levels"


def _describe_data(done: LocalRun) -> str:
    """Return `64 MiB of float32, sum`."""
    setup = done.setup
    # Collectives that only move data have an operator without effect.
    text = f"{format_bytes(setup.collective_bytes)} of {setup.dtype.name}"
    return f"{text}, {setup.op}" if setup.algorithm.collective.reduces else text


def _format_run_time(done: LocalRun) -> str:
    """Return `1.2 ms, median of 5`."""
    time_ns = 1e9 * done.outcome.time_s
    return f"{format_time(time_ns)}, median of {len(done.outcome.repeat_times_s)}"


def _format_bandwidths(done: LocalRun) -> str:
    """Return `algorithm 1 GB/s, bus 2 GB/s`; custom collectives have no bus bandwidth."""
    outcome = done.outcome
    text = f"algorithm {format_bandwidth(outcome.algorithm_bandwidth)}"
    if outcome.bus_bandwidth is None:
        return text
    return f"{text}, bus {format_bandwidth(outcome.bus_bandwidth)}"


def _format_native(done: LocalRun) -> str:
    """Return the time of the library's collective and the ratio to it, empty if there is none."""
    native_s = done.outcome.native_time_s
    if native_s is None:
        return ""
    ratio = done.outcome.time_s / native_s
    label = "for the library's own collective"
    return f"{format_time(1e9 * native_s)} {label}: ratio {ratio:.2f}"


def _describe_verdict(judgement: OutputJudgement) -> str:
    """Return whether the result is right, and the largest error."""
    if judgement.comparison == "none":
        return "not compared"
    # None means NaN or infinity.
    error = judgement.max_abs_error
    difference = "contains NaN or infinity" if error is None else f"off by up to {error:.3g}"
    if judgement.comparison == "bitwise":
        return "right, bit by bit" if judgement.is_right else f"wrong, {difference}"
    verdict = "right" if judgement.is_right else "wrong"
    return f"{verdict}, {difference} where rounding allows {judgement.max_bound:.3g}"


# The executor that reduces in the order of the schedule.
REFERENCE = "numpy"


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
        """Return all findings for the user, errors last."""
        return [
            *self.setup.notes(),
            *self._collect_remarks(),
            *self.result.diagnostics,
            *self.outcome.judgement.diagnostics,
        ]

    def _collect_remarks(self) -> list[Diagnostic]:
        """Return notes and warnings about the run.

        The mode is not claimed, the outputs were not compared, or the order of reduction differs
        from the schedule.
        """
        remarks = []
        if not self.setup.claims_mode:
            mode = "in" if self.setup.in_place else "out of"
            message = f"the algorithm does not claim to work {mode} place"
            remarks.append(Diagnostic("mode-not-claimed", message, Severity.WARNING))
        if self.outcome.judgement.comparison == "none":
            message = "the custom collective defines no result, so the outputs were not compared"
            remarks.append(Diagnostic("contents-not-judged", message, Severity.NOTE))
        if self.order_kept is False:
            message = (
                "the bits differ from those of the schedule's order of reduction, "
                f"which the executor {REFERENCE} uses"
            )
            remarks.append(Diagnostic("order-changed", message, Severity.WARNING))
        return remarks
