"""Commands on workloads: reports, warnings, and the rules `--collective KIND=ALGORITHM`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hub_core.cli.output import (
    print_diagnostic,
    print_fields,
    print_json,
    print_line,
    print_table,
    progress,
)
from hub_core.model import JobCollective, NodeKind, Severity, format_bytes, format_time

if TYPE_CHECKING:
    from hub_core.cli.command_context import CommandContext, Session
    from hub_core.cli.reports.inspection_records import CollectiveCalls, InspectWorkloadReport
    from hub_core.model import Algorithm, Diagnostic, Workload
    from hub_core.network import Topology
    from hub_core.plugin_api import CheckReport
    from hub_core.reports import Record

LISTED = 20
_NOT_STATED = "not stated"


@dataclass(frozen=True, slots=True)
class WorkloadVerdict:
    """Reports of all checks of workloads on one workload, by name of the check."""

    source: str
    workload: Workload
    reports: Mapping[str, CheckReport]

    @property
    def ok(self) -> bool:
        """Whether the workload passes every check; True if there are no checks."""
        return all(report.ok for report in self.reports.values())

    @property
    def diagnostics(self) -> list[Diagnostic]:
        """Findings of all checks."""
        return [finding for report in self.reports.values() for finding in report.diagnostics]

    def record(self) -> Record:
        """Return the verdict as an item of `VerdictsReport`.

        It has the input, the verdict, the numbers of ranks and nodes, the report of each check by
        name, and all findings.
        """
        from hub_core.cli.reports.algorithm_records import VerifiedInput, WorkloadSize
        from hub_core.reports import describe_check, list_findings

        workload = self.workload
        return VerifiedInput(
            source=self.source,
            ok=self.ok,
            workload=WorkloadSize(num_ranks=workload.num_ranks, nodes=len(workload.nodes)),
            checks={name: describe_check(report) for name, report in self.reports.items()},
            diagnostics=list_findings(self.diagnostics),
        )

    def show(self, *, is_alone: bool) -> None:
        """Print one line with the input, its ranks and nodes, and the verdict; then each finding.

        The verdict is `wrong` if a check failed, `nothing wrong found` if all passed, and a
        remark if no installed plugin checks workloads. `is_alone` has no effect.
        """
        size = f"{self.workload.num_ranks} ranks, {len(self.workload.nodes)} nodes"
        outcome = "nothing wrong found" if self.reports else "no installed plugin checks workloads"
        print_line(f"{self.source}: workload, {size}: {outcome if self.ok else 'wrong'}")
        for finding in self.diagnostics:
            print_diagnostic(finding)


def judge_workload(session: Session, workload: Workload, source: str) -> WorkloadVerdict:
    """Run all installed checks of workloads in thorough mode and return the verdict.

    In thorough mode a check may simulate the workload. The verdict has the report of each
    check by name (empty without installed checks), with its findings; findings raise no
    exception. `source`: name of the input in messages. Progress is shown on a terminal.
    Raises `HubError` if a check cannot be run.
    """
    from hub_core.pipeline.checks import check_workload

    with progress(f"verifying {source}"):
        reports = check_workload(workload, source, session.registry(), is_thorough=True)
    return WorkloadVerdict(source, workload, reports)


def collect_workload_warnings(
    session: Session, workload: Workload, source: str
) -> list[Diagnostic]:
    """Run the installed checks of workloads; return all their findings as warnings.

    Thorough checks are not run. `source`: name of the workload in messages. With `--verify
    off` no check runs and the list is empty. Progress is shown. Raise the `HubError` of a
    check that fails to run.
    """
    from hub_core.pipeline.checks import find_workload_defects

    if session.verify_policy == "off":
        return []
    with progress(f"verifying {source}"):
        findings = find_workload_defects(workload, source, session.registry())
    return [replace(finding, severity=Severity.WARNING) for finding in findings]


def print_workload(
    name: str, format_name: str, workload: Workload, lines: Sequence[str], as_json: bool
) -> None:
    """Print the description of a workload on standard output: text, or JSON with `as_json`.

    The text has one field per line: the file `name` with its format, ranks and nodes, nodes by
    kind (only kinds that occur), data and control dependencies, and the number of process
    groups with their different sizes. The last fields are the sum of declared compute times
    (undeclared ones count as 0) and the name of the origin, if known. A table of at most 20
    kinds of collective follows, by total bytes (size times calls), largest first; a size is
    `unknown` if no node has it. The table is omitted without collectives. Then `lines`, given
    by the reader, are printed.

    The JSON has the same facts, with all kinds of nodes and of collectives; unknown sizes are 0.
    It also has the ranks of each process group by name (of equal names the last), sorted names
    of extensions, and `lines`.
    """
    from hub_core.reports import to_json

    rows = _count_collectives(workload)
    if as_json:
        calls = [row for row, _ in rows]
        print_json(to_json(_create_report(name, format_name, workload, calls, lines)))
        return
    nodes = workload.nodes
    kinds = ", ".join(f"{count} {kind}" for kind, count in _count_kinds(workload).items() if count)
    provenance = workload.provenance
    sizes = sorted({len(group.ranks) for group in workload.groups})
    listed = ", ".join(map(str, sizes))
    print_fields(
        {
            "file": f"{name} ({format_name})",
            "workload": f"{workload.num_ranks} ranks, {len(nodes)} nodes",
            "nodes": kinds or "none",
            "dependencies": f"{len(nodes.data_indices)} data, {len(nodes.control_indices)} control",
            "process groups": f"{len(workload.groups)} of {listed} ranks" if sizes else "none",
            "stated compute": format_time(int(nodes.duration_ns.clip(0).sum())),
            "made from": provenance.source_name or _NOT_STATED,
        }
    )
    if rows:
        print_line(f"{min(LISTED, len(rows))} of {len(rows)} kinds of collective:")
        table = [
            (
                row.collective,
                str(row.ranks),
                format_bytes(row.bytes) if is_stated else "unknown",
                str(row.groups),
                str(row.calls),
            )
            for row, is_stated in rows[:LISTED]
        ]
        head = ("collective", "ranks", "size", "groups", "calls")
        print_table(head, table, right=head[1:])
    for line in lines:
        print_line(line)


def _count_collectives(workload: Workload) -> list[tuple[CollectiveCalls, bool]]:
    """Count the collectives of a job: one row per kind, number of ranks, bytes, and evenness.

    Returns pairs of a row and whether its bytes are known. Unknown bytes (negative) are reported as
    0; the bytes of a barrier always count as known.

    Uneven collectives (with counts) have `-v` after the kind; unknown kinds are called `unknown`.
    `groups` is the number of distinct groups. `calls` is the number of nodes, so that a call of n
    ranks counts n times. Nodes without a group run on all ranks of the job and count as one group.

    Rows are sorted by bytes times calls, highest first. Ties are sorted by the code of the kind,
    then ranks, then bytes, then even before uneven. Without collectives the list is empty.
    """
    # Imported here, and below: the help of the commands needs no numpy.
    import numpy as np

    from hub_core.cli.reports.inspection_records import CollectiveCalls
    from hub_core.columns import distinct

    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    named = distinct(nodes.group[rows]).tolist()
    sizes = {group: len(workload.members(group)) for group in named}
    ranks = np.asarray([sizes[group] for group in nodes.group[rows].tolist()], np.int64)
    is_uneven = nodes.counts[rows] >= 0
    columns = (nodes.collective[rows].astype(np.int64), ranks, nodes.bytes[rows], is_uneven)
    keys = np.stack(columns)
    kinds, which, calls = np.unique(keys, axis=1, return_inverse=True, return_counts=True)
    rows_by_kind = []
    for index, (code, count, size, has_counts) in enumerate(kinds.T.tolist()):
        groups = len(distinct(nodes.group[rows[which == index]]))
        row = CollectiveCalls(
            collective=JobCollective(code).label + ("-v" if has_counts else ""),
            ranks=count,
            bytes=max(size, 0),
            groups=groups,
            calls=int(calls[index]),
        )
        rows_by_kind.append((row, size >= 0 or code == JobCollective.BARRIER))
    return sorted(rows_by_kind, key=lambda one: -one[0].bytes * one[0].calls)


def _count_kinds(workload: Workload) -> dict[str, int]:
    import numpy as np

    counts = np.bincount(workload.nodes.kind, minlength=len(NodeKind)).tolist()
    return {kind.name.lower(): counts[kind] for kind in NodeKind}


def _create_report(
    name: str,
    format_name: str,
    workload: Workload,
    rows: Sequence[CollectiveCalls],
    lines: Sequence[str],
) -> InspectWorkloadReport:
    from hub_core.cli.reports.inspection_records import (
        DependencyCounts,
        InspectWorkloadReport,
        describe_origin,
    )

    nodes = workload.nodes
    return InspectWorkloadReport(
        source=name,
        format=format_name,
        num_ranks=workload.num_ranks,
        nodes=len(nodes),
        nodes_by_kind=_count_kinds(workload),
        dependencies=DependencyCounts(
            data=len(nodes.data_indices), control=len(nodes.control_indices)
        ),
        process_groups={group.name: group.ranks for group in workload.groups},
        stated_compute_ns=int(nodes.duration_ns.clip(0).sum()),
        collectives=rows,
        provenance=describe_origin(workload.provenance),
        extensions=sorted(workload.extensions),
        lines=lines,
    )


def apply_rules(
    context: CommandContext, workload: Workload, rules: Sequence[str], topology: Topology
) -> Workload:
    """Assign algorithms to the collectives of a job by rules; return the new job.

    A rule is `KIND[@SIZE][/GROUP]=ALGORITHM`; `parse_rule` describes kinds (`*` for all), sizes and
    groups. ALGORITHM is the name of a synthesizer, which runs on `topology`, or a file, or
    `native`. For each collective, the last matching rule applies.

    Collectives keep their algorithm if no rule matches, if the rule has `native`, on the host, or
    with a single rank. All algorithms of the job remain, and new ones are appended. Each file is
    read once. Algorithms are verified as `--verify` requires. Progress is shown. `workload` is not
    changed.

    Raises `UsageError` for an invalid rule, and then `HubError` for an algorithm that cannot be
    read, synthesized or verified. Last, raises `UsageError` (`no-match`) for the first rule that is
    not the last matching one of any collective.
    """
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.job_algorithms import parse_rule, with_algorithms
    from hub_core.plugin_api import Synthesizer

    registry = context.registry()
    known = [provided.name for provided in registry.all(Synthesizer)]
    parsed = [parse_rule(text, known) for text in rules]

    def read(name: str) -> Algorithm:
        return context.read_input(context.open_input(name), {})

    with context.progress("making algorithms"):
        return with_algorithms(workload, parsed, topology, registry, read=read, admit=context.admit)
