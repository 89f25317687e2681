"""The report of `collhub synthesize`: the request, the algorithm, its time and its bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.cli.output import print_diagnostic, print_fields, print_json
from hub_core.cli.reports.report_objects import cut_fields
from hub_core.model import format_bytes, format_time
from hub_core.plugin_api import IDEAL, ONE_SIZE

if TYPE_CHECKING:
    from hub_core.cli.reports.timing_records import SynthesizeReport
    from hub_core.network import Topology
    from hub_core.pipeline.outputs import Written
    from hub_core.pipeline.simulation import TimingSource
    from hub_core.plugin_api import SynthesisResult
    from hub_core.verification import VerifyReport


@dataclass(frozen=True, slots=True)
class SynthesisArguments:
    """Synthesis request as parsed from the command line.

    `npus`: NPUs that take part, None for all. `relays`: other NPUs may forward data. `wanted`: NPUs
    whose steps are needed, None for all. `runtime`: the one that will execute the algorithm.
    """

    collective: str
    topology_text: str
    size: int
    root: int | None
    reduce_op: str
    npus: tuple[int, ...] | None
    relays: bool
    wanted: tuple[int, ...] | None
    occupancy: str
    backend: str
    machine: str | None = None
    counts: str | None = None
    runtime: str = IDEAL


@dataclass(slots=True)
class SynthesizedAlgorithm:
    """Result of a synthesis, completed while the command runs.

    `timing`: what its time describes. `report`: None if the algorithm was not verified. `written`:
    None if the user gave no output.
    """

    result: SynthesisResult
    topology: Topology
    wall_s: float
    cpu_s: float
    timing: TimingSource
    report: VerifyReport | None = None
    written: Written | None = None


def print_synthesis(
    synthesis: SynthesizedAlgorithm,
    name: str,
    request: SynthesisArguments,
    as_json: bool,
    is_stdout_taken: bool,
) -> None:
    """Print the report on a synthesis as text or, with `as_json`, as one JSON document.

    As text, the findings are printed on standard error and the fields on standard output.
    The fields are omitted with `is_stdout_taken`, because standard output then contains the
    algorithm. The JSON document includes the findings; it is printed on standard output in
    any case.
    """
    if as_json:
        from hub_core.reports import to_json

        print_json(to_json(_create_report(synthesis, name, request)))
        return
    for finding in synthesis.result.diagnostics:
        print_diagnostic(finding)
    if not is_stdout_taken:
        print_fields(_collect_fields(synthesis, name, request))


def _collect_fields(
    synthesis: SynthesizedAlgorithm, name: str, request: SynthesisArguments
) -> dict[str, str]:
    """Return the lines of the text report by name, in this order.

    - `algorithm`: `COLLECTIVE by NAME, N ranks, N steps`; of a partial result also ` of N ranks`,
      the number of distinct requested ranks
    - `topology`: name, numbers of NPUs and links, link occupancy; `size`: as by `format_bytes`
    - one line per statistic of the synthesizer; floats with 4 significant digits. A later line of
      the same name replaces its text.
    - `not tried` (number of skipped variants, names by reason in order of first appearance), `cut`
      (parts that a limit ended): only if there are any
    - `time`: as by `format_time`, then the integer ns in parentheses
    - `bandwidth`: bytes / ns (GB/s) with 2 decimals; a time of 0 counts as 1 ns
    - `bounds`: all bounds and the ratio to the largest one; `none known` without bounds
    - `synthesis`: elapsed and CPU time in s with 2 decimals
    - `verification`: one phrase such as `correct`, `wrong` or `not asked for`
    """
    result, topology = synthesis.result, synthesis.topology
    algorithm = result.algorithm
    part = f" of {len(set(request.wanted or ()))} ranks" if result.is_partial else ""
    title = f"{request.collective} by {name}"
    network = f"{topology.num_npus} NPUs, {topology.num_links} links, {request.occupancy}"
    not_tried = {}
    if result.not_tried:
        names: dict[str, list[str]] = {}
        for variant, reason in result.not_tried.items():
            names.setdefault(reason, []).append(variant)
        causes = "; ".join(f"{', '.join(those)}: {reason}" for reason, those in names.items())
        number = len(result.not_tried)
        not_tried["not tried"] = f"{number}, so the answer is partial: {causes}"
    return {
        "algorithm": f"{title}, {algorithm.num_ranks} ranks, {len(algorithm.steps)} steps{part}",
        "topology": f"{topology.name}: {network}",
        "size": format_bytes(request.size),
        **{
            key: f"{value:.4g}" if isinstance(value, float) else str(value)
            for key, value in result.statistics.items()
        },
        **not_tried,
        **cut_fields(result.cuts),
        "time": f"{format_time(result.time_ns)} ({result.time_ns} ns)",
        "bandwidth": f"{request.size / max(result.time_ns, 1):.2f} GB/s",
        "bounds": _format_bounds(result) or "none known",
        "synthesis": f"{synthesis.wall_s:.2f} s, {synthesis.cpu_s:.2f} s of CPU",
        "verification": _describe_verdict(result, synthesis.report),
    }


def _format_bounds(result: SynthesisResult) -> str:
    """List all lower bounds in one line, in their order: `NAME TIME, NAME TIME`; "" without bounds.

    If the result has a `ratio_to_bound`, it follows after `; ` with three decimals: the time
    divided by the largest bound. This ratio ignores bounds that hold only for messages of one
    size. If there are such bounds, the text explains that the largest one holds for any size.
    """
    bounds = ", ".join(f"{name} {format_time(value)}" for name, value in result.bounds_ns.items())
    ratio = result.ratio_to_bound
    if ratio is None:
        return bounds
    largest = "largest"
    if any(name.endswith(ONE_SIZE) for name in result.bounds_ns):
        largest += " that holds for messages of any size"
    return f"{bounds}; time is {ratio:.3f} times the {largest}"


def _describe_verdict(result: SynthesisResult, report: VerifyReport | None) -> str:
    if result.is_replayed and result.is_partial:
        return "replayed by the synthesizer as a whole"
    if result.is_partial:
        return "not possible for only some ranks"
    if report is None:
        return "not asked for"
    if not report.ok:
        return "wrong"
    return "correct" if report.method != "none" else "contents unknown"


def _create_report(
    synthesis: SynthesizedAlgorithm, name: str, request: SynthesisArguments
) -> SynthesizeReport:
    # Imported here: the help of the command needs no numpy.
    from hub_core.cli.reports.timing_records import SynthesizeReport, UntriedVariant
    from hub_core.reports import UNSET, list_cuts, list_findings, list_losses

    result, report, written = synthesis.result, synthesis.report, synthesis.written
    findings = (*result.diagnostics, *(report.diagnostics if report is not None else ()))
    return SynthesizeReport(
        synthesizer=name,
        collective=request.collective,
        collective_bytes=request.size,
        num_ranks=result.algorithm.num_ranks,
        topology=synthesis.topology.name,
        occupancy=request.occupancy,
        timing=synthesis.timing.note,
        machine=synthesis.timing.machine_record(),
        time_ns=result.time_ns,
        bounds_ns=result.bounds_ns,
        bound_ns=result.bound_ns,
        ratio_to_bound=result.ratio_to_bound,
        algorithm_bandwidth_bytes_per_s=request.size / max(result.time_ns, 1) * 1e9,
        synthesis_s=synthesis.wall_s,
        synthesis_cpu_s=synthesis.cpu_s,
        statistics=result.statistics,
        is_partial=result.is_partial or bool(result.not_tried or result.cuts),
        not_tried=[
            UntriedVariant(name=variant, reason=reason)
            for variant, reason in result.not_tried.items()
        ],
        cut=list_cuts(result.cuts),
        is_replayed=result.is_replayed,
        is_verified=report is not None and report.ok,
        diagnostics=list_findings(findings),
        artifacts=[str(path) for path in written.paths] if written is not None else (),
        losses=list_losses(written.losses) if written is not None else (),
        runtime=UNSET if request.runtime == IDEAL else request.runtime,
    )
