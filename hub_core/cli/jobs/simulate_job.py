"""`collhub simulate` for a workload: simulate it, and report where its time goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hub_core.cli.jobs.workloads import LISTED
from hub_core.cli.output import (
    folded_ranks,
    print_fields,
    print_line,
    print_note,
    print_table,
)
from hub_core.cli.reports.report_objects import change_lines
from hub_core.model import (
    Diagnostic,
    ExitCode,
    HubError,
    Location,
    UsageError,
    format_bytes,
    format_ranks,
    format_time,
)
from hub_core.plugin_api import (
    InteractivePage,
    JobTimeline,
    RunExcerpt,
    RunTimeline,
    WorkloadRequest,
    WorkloadTimes,
)

if TYPE_CHECKING:
    from hub_core.cli.command_context import Session
    from hub_core.cli.jobs.job_report import JobReport, SimulateWorkloadReport
    from hub_core.model import Workload

ALL_OF_RUN = RunExcerpt()
UNLIMITED = {"slots": "unlimited"}
_LISTED_SORTS = 8
_NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class SimulationOutputs:
    """Requested outputs of a simulation of the algorithm or workload `name`.

    `has_overlap`: simulate a workload also without limits on concurrent nodes of a rank.
    `steps_out`, `timeline_out`, `view_out`: paths of files with the times of steps or nodes, None
    for no file. `excerpt`: the part of the run that timeline and page show.
    """

    name: str
    as_json: bool
    has_overlap: bool
    steps_out: str | None
    timeline_out: str | None
    view_out: str | None = None
    excerpt: RunExcerpt = ALL_OF_RUN

    def draw(self, session: Session, timeline: RunTimeline | JobTimeline) -> None:
        """Write the timeline and the interactive page of a run to their files, if requested.

        Only the page is reported (`wrote FILE` on standard error). The title of the written
        timeline is its path. Raises `HubError` if no installed writer can write the file or the
        run, for example because it has no times of steps.
        """
        if self.timeline_out is not None:
            session.draw_report(replace(timeline, title=self.timeline_out), self.timeline_out)
        if self.view_out is not None:
            page = InteractivePage(timeline.title, (timeline,))
            session.say_written(session.draw_report(page, self.view_out))


def simulate_and_report(
    session: Session,
    request: WorkloadRequest,
    backend: str,
    options: Mapping[str, str],
    outputs: SimulationOutputs,
    warnings: Sequence[Diagnostic] = (),
) -> int:
    """Simulate a workload, write the requested outputs, and return the exit code.

    The exit code is DONE, or INVALID if `time_ns` of the result is None (a rank never finishes).
    The outputs are, in this order:

    1. on stderr, `warnings`: findings of checks, except those that the simulation reports with the
       same code and message. If the simulation fails, all are printed and its `HubError` is
       raised;
    2. with `outputs.has_overlap`, a second simulation with the option `slots=unlimited`, which
       shows the possible gain of overlap;
    3. the files for which `outputs` has a path: times of nodes, timeline, page;
    4. the JSON report with `as_json`. Otherwise times, communication, critical path and changes as
       text; communication and path are omitted if the simulator gives no times of nodes;
    5. on stderr, the source of the times and the findings of the simulation (`_merge_findings`).

    Raises `HubError` of the second simulation, and if a file cannot be written.
    """
    workload, name = request.workload, outputs.name
    # Imported here: the help of the command needs no numpy.
    from hub_core.cli.jobs.job_report import job_report
    from hub_core.pipeline.simulation import TimingSource

    try:
        times = session.simulate_workload(request, backend, options)
    except HubError:
        session.report(warnings)
        raise
    repeated = {(finding.code, finding.message) for finding in times.diagnostics}
    session.report(
        warning for warning in warnings if (warning.code, warning.message) not in repeated
    )
    unlimited = None
    if outputs.has_overlap:
        unlimited = session.simulate_workload(request, backend, {**options, **UNLIMITED})
    report = None
    if times.step_start_ns is not None and times.step_end_ns is not None:
        report = job_report(workload, times.step_start_ns, times.step_end_ns)
    if outputs.steps_out is not None:
        from hub_core.cli.reports.timing import write_step_times

        write_step_times(workload.nodes, times, outputs.steps_out)
    timeline = JobTimeline(
        name,
        workload,
        times.step_start_ns,
        times.step_end_ns,
        request.topology,
        times,
        outputs.excerpt,
        TimingSource(backend, machine=times.machine).note,
    )
    outputs.draw(session, timeline)
    if outputs.as_json:
        session.print_report(_create_report(name, backend, request, times, unlimited, report))
    else:
        _print_times(request, times, unlimited, report)
        if report is not None:
            _print_report(workload, report)
        for line in change_lines(times.changes):
            print_line(line)
    session.say(TimingSource(backend, machine=times.machine).note)
    session.report(_merge_findings(times.diagnostics))
    return ExitCode.DONE if times.time_ns is not None else ExitCode.INVALID


def _merge_findings(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Merge findings that differ only in rank and place within the file into the first one.

    Findings are merged if code, severity, message, cure and file are equal. The result is in the
    order of first appearance. The first finding keeps its place. The distinct ranks of the merged
    later findings are appended to its message in ascending order, as in ` (the same on rank
    1-3,5)`. A later finding without a rank adds none; without any rank the message is unchanged.
    """
    first: dict[Diagnostic, Diagnostic] = {}
    more_ranks: dict[Diagnostic, set[int]] = {}
    for finding in diagnostics:
        key = replace(finding, location=Location(finding.location.file))
        if key not in first:
            first[key], more_ranks[key] = finding, set()
        elif finding.location.rank is not None:
            more_ranks[key].add(finding.location.rank)
    folded = []
    for key, finding in first.items():
        ranks = format_ranks(sorted(more_ranks[key]))
        more = f" (the same on rank {ranks})" if ranks else ""
        folded.append(replace(finding, message=finding.message + more))
    return folded


def _create_report(
    name: str,
    backend: str,
    request: WorkloadRequest,
    times: WorkloadTimes,
    unlimited: WorkloadTimes | None,
    report: JobReport | None,
) -> SimulateWorkloadReport:
    """Create the JSON report of the simulation of a job; all its times are in ns.

    - `name`: name of the job, its `source`. `backend`: name of the simulator.
    - `request`: gives the topology (its name, None without one) and the workload.
    - `times`: the result; its findings are listed in their order, not merged.
    - `unlimited`: the result with unlimited slots; if it is None, the report lacks
      `unlimited_time_ns`.
    - `report`: computation per rank, communication, groups and critical path. If it is None,
      because the simulator gives no times of nodes, these members keep their defaults.
    """
    # Imported here: the help of the command needs no numpy.
    from msgspec import structs

    from hub_core.cli.jobs import job_report
    from hub_core.cli.jobs.job_report import SimulateWorkloadReport
    from hub_core.pipeline.simulation import TimingSource
    from hub_core.reports import UNSET, list_changes, list_findings

    source_of_times = TimingSource(backend, machine=times.machine)
    document = SimulateWorkloadReport(
        source=name,
        backend=backend,
        topology=None if request.topology is None else request.topology.name,
        time_ns=times.time_ns,
        rank_finish_ns=times.rank_finish_ns,
        rank_exposed_ns=times.rank_exposed_ns,
        slots=times.slots,
        timing=source_of_times.note,
        machine=source_of_times.machine_record(),
        changes=list_changes(times.changes),
        details=times.details,
        diagnostics=list_findings(times.diagnostics),
        unlimited_time_ns=UNSET if unlimited is None else unlimited.time_ns,
    )
    if report is None:
        return document
    return structs.replace(
        document,
        rank_compute_ns=report.rank_compute_ns,
        communication=[job_report.create_communication_item(spent) for spent in report.spent],
        groups=[job_report.create_group_item(name, spent) for name, spent in report.groups],
        critical_path=job_report.create_path_item(request.workload, report),
    )


def _print_times(
    request: WorkloadRequest,
    times: WorkloadTimes,
    unlimited: WorkloadTimes | None,
    report: JobReport | None,
) -> None:
    """Print the times of a workload as fields, then a table of its ranks, on standard output.

    Fields: ranks and nodes, topology (if there is one), slots, time, time with `unlimited` slots
    (if given), and the largest exposed time of a rank. Unknown slots and exposed times are `not
    stated`. The table has for each rank: finish (`never` for None), exposed time (`-` for None) and
    percentage of the finish time in which it computes, rounded. The latter is `-` without `report`
    (no times of nodes), and for a finish of None or 0. Equal rows are joined. At most `LISTED` rows
    are printed; a note on stderr counts the others.
    """
    workload, topology = request.workload, request.topology
    exposed = [value for value in times.rank_exposed_ns if value is not None]
    print_fields(
        {
            "workload": f"{workload.num_ranks} ranks, {len(workload.nodes)} nodes",
            **({} if topology is None else {"topology": topology.name}),
            "slots": times.slots or _NOT_STATED,
            "time": _format_time(times),
            **({} if unlimited is None else {"with unlimited slots": _format_time(unlimited)}),
            "exposed": f"{format_time(max(exposed))} of a rank at most" if exposed else _NOT_STATED,
        }
    )
    head = ("ranks", "finish", "exposed", "computes")
    finish = zip(times.rank_finish_ns, times.rank_exposed_ns, strict=True)
    columns = {}
    for rank, (end, rest) in enumerate(finish):
        computes = "-"
        if report is not None and end:
            computes = f"{100 * report.rank_compute_ns[rank] / end:.0f} %"
        finishes = "never" if end is None else f"{end} ns"
        columns[rank] = finishes, "-" if rest is None else f"{rest} ns", computes
    rows = folded_ranks(columns)
    print_table(head, rows[:LISTED], right=head[1:])
    if len(rows) > LISTED:
        print_note(f"{len(rows) - LISTED} more rows of ranks; --json lists all")


def _format_time(times: WorkloadTimes) -> str:
    if times.time_ns is None:
        return "some ranks never finish"
    return f"{format_time(times.time_ns)} ({times.time_ns} ns)"


def _print_report(workload: Workload, report: JobReport) -> None:
    """Print the kinds of communication as a table, then the critical path, on standard output.

    1. A line with the number of listed and of all kinds, then a table of the first 8
       (`_LISTED_SORTS`) entries of `report.spent`, which are ordered by exposed time, longest
       first. Columns: kind, ranks, size, calls, mean time and mean waiting of a call (in whole ns,
       rounded down), longest exposed time of a rank. Both are omitted if `report.spent` is empty.
    2. A line with the numbers of nodes and of ranks on the critical path, and the percentage
       (without decimals) of each kind of node in the summed durations, largest first. If the sum is
       0, all are 0 %.
    3. A table of the 8 longest nodes of the path: rank, name, kind, start and duration. Ties are in
       the order of the path.

    2 and 3 are omitted if the path is empty.
    """
    from hub_core.cli.jobs.job_report import node_name, node_sort, path_shares

    if report.spent:
        shown = min(_LISTED_SORTS, len(report.spent))
        print_line(f"{shown} of {len(report.spent)} sorts of communication, exposed most first:")
        head = ("communication", "ranks", "size", "calls", "a call", "waiting", "exposed a rank")
        rows = [
            (
                spent.kind,
                str(spent.ranks),
                format_bytes(spent.bytes),
                str(spent.calls),
                format_time(spent.time_ns // spent.calls),
                format_time(spent.waiting_ns // spent.calls),
                format_time(spent.most_ns),
            )
            for spent in report.spent[:shown]
        ]
        print_table(head, rows, right=head[1:])
    if not report.path:
        return
    shares = path_shares(workload, report.path)
    total_ns = sum(shares.values()) or 1
    listed = ", ".join(f"{100 * ns / total_ns:.0f} % {kind}" for kind, ns in shares.items())
    ranks = len({int(workload.nodes.rank[node.row]) for node in report.path})
    where = f"{len(report.path)} nodes on {ranks} {'rank' if ranks == 1 else 'ranks'}"
    print_line(f"critical path, {where}: {listed}; the longest:")
    longest = sorted(report.path, key=lambda node: -node.duration_ns)[:_LISTED_SORTS]
    print_table(
        ("rank", "node", "kind", "from", "takes"),
        [
            (
                str(workload.nodes.rank[node.row]),
                node_name(workload, node.row),
                node_sort(workload, node.row),
                format_time(node.start_ns),
                format_time(node.duration_ns),
            )
            for node in longest
        ],
        right=("rank", "from", "takes"),
    )


def refuse_overlap(declared: Sequence[str], options: Mapping[str, str], backend: str) -> None:
    """Raise `UsageError` if the simulator has no limits on concurrent nodes to remove.

    This is so if it declares no option `slots`, or if `slots` is `unlimited` already. `declared`:
    names of its options; `options`: their given values.
    """
    if "slots" not in declared or options.get("slots", "") == UNLIMITED["slots"]:
        message = f"--overlap has no meaning for {backend} here"
        raise UsageError(message, cure="leave it out, or leave out -O slots")
