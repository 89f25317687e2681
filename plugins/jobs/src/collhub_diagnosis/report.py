"""Text and JSON of a verdict."""

from __future__ import annotations

from collhub_diagnosis.diagnosis_record import (
    DiagnoseReport,
    DiagnosisFinding,
    RankSizesItem,
    WaitItem,
)
from collhub_diagnosis.verdict import Finding, Verdict, format_ranks
from hub_core.plugin_api import WaitForGraph, WaitingRanks

MAX_LINES = 40

_MEANINGS = {
    "late": "ranks have not issued an operation in which others wait",
    "order": "ranks issue operations of several groups in different orders",
    "type": "ranks call different operations",
    "size": "ranks give different sizes",
    "dtype": "ranks give different dtypes",
    "all-to-all": "the sizes sent and received differ",
    "device": "a device does not start or complete an operation",
    "network": "all ranks are in the operation; the network or a dead peer blocks it",
    "undecided": "the evidence does not decide the cause",
    "skew": "no fault; the dumps were taken at different times",
    "none": "no fault found",
}


def create_report(verdict: Verdict) -> DiagnoseReport:
    """Create the JSON report of a verdict."""
    return DiagnoseReport(
        kind=verdict.kind,
        fault=verdict.has_fault,
        culprits=verdict.culprits,
        waiting=verdict.waiting,
        group=verdict.group,
        sequence=verdict.sequence,
        missing_dumps=verdict.missing_dumps,
        findings=[_create_finding(finding) for finding in verdict.findings],
        waits=[
            WaitItem(
                ranks=line.ranks,
                awaited=line.awaited,
                group=line.group,
                description=line.description,
                sequence=line.sequence,
                operation=line.operation,
                frames=line.frames,
            )
            for line in verdict.waits
        ],
        notes=verdict.notes,
        dumps=verdict.dumps,
        operations=verdict.operations,
    )


def create_picture(verdict: Verdict) -> WaitForGraph:
    """Return the wait-for graph of a verdict for a picture."""
    waits = [
        WaitingRanks(line.ranks, line.awaited, f"{line.operation} ({line.sequence})")
        for line in verdict.waits
    ]
    title = f"{verdict.kind}: {_MEANINGS[verdict.kind]}"
    return WaitForGraph(title, verdict.culprits, waits)


def verdict_fields(verdict: Verdict) -> dict[str, str]:
    """Return the summary of a verdict by label, in the order in which it is printed.

    `verdict` (kind and its meaning) and `read` (numbers of dumps and operations) are always there;
    `culprits`, `waiting`, `group` with the number of the operation, and `no dump` only if not
    empty.
    """
    fields = {"verdict": f"{verdict.kind}: {_MEANINGS[verdict.kind]}"}
    if verdict.culprits:
        fields["culprits"] = format_ranks(verdict.culprits)
    if verdict.waiting:
        fields["waiting"] = format_ranks(verdict.waiting)
    if verdict.group:
        number = "" if verdict.sequence is None else f", operation {verdict.sequence}"
        fields["group"] = f"{format_ranks(verdict.group)}{number}"
    if verdict.missing_dumps:
        fields["no dump"] = format_ranks(verdict.missing_dumps)
    fields["read"] = f"{verdict.dumps} dumps, {verdict.operations} operations"
    return fields


def finding_lines(verdict: Verdict) -> list[str]:
    """Return the findings with the frames of their operations, each after an empty line.

    At most 40 findings are listed; a last line counts the others.
    """
    lines: list[str] = []
    for finding in verdict.findings[:MAX_LINES]:
        lines += ["", f"{finding.kind}: {finding.text}"]
        lines += [f"  at {frame}" for frame in finding.frames]
    left = len(verdict.findings) - MAX_LINES
    return [*lines, "", f"{left} more findings: see --json"] if left > 0 else lines


def wait_table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the wait-for graph, one row per operation."""
    rows = [
        [
            format_ranks(line.ranks),
            line.operation,
            str(line.sequence),
            line.description,
            format_ranks(line.awaited),
            line.frames[0] if line.frames else "",
        ]
        for line in verdict.waits[:MAX_LINES]
    ]
    return ["waiting", "operation", "number", "group", "for", "issued at"], rows


def _create_finding(finding: Finding) -> DiagnosisFinding:
    return DiagnosisFinding(
        kind=finding.kind,
        text=finding.text,
        culprits=finding.culprits,
        group=finding.group,
        description=finding.description,
        sequence=finding.sequence,
        operation=finding.operation,
        frames=finding.frames,
        sizes=[
            RankSizesItem(
                ranks=rank_sizes.ranks,
                input=rank_sizes.input_shapes,
                output=rank_sizes.output_shapes,
            )
            for rank_sizes in finding.sizes
        ],
    )
