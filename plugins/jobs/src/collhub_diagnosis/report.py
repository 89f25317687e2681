"""Text and JSON of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from collhub_diagnosis.verdict import JobVerdict, VerdictFinding, format_ranks
from hub_core.plugin_api import WaitForGraph, WaitingRanks
from hub_core.reports import Count, Meta, Record, Report

_KINDS = (
    *("late", "order", "type", "size", "dtype", "all-to-all", "device", "network", "skew"),
    *("undecided", "none"),
)
Kind = Annotated[str, Meta(extra_json_schema={"enum": [*_KINDS]})]
Ranks = Annotated[Sequence[Count], Meta(description="Sorted ranks of the job.")]
Shapes = Annotated[Sequence[Sequence[Count]], Meta(description="One shape per tensor.")]
Frames = Annotated[
    Sequence[str],
    Meta(
        description="Stack where the operation was issued, innermost frame first, without frames "
        "of PyTorch."
    ),
]


class RankSizesItem(Record, frozen=True, kw_only=True):
    """Sizes that some ranks gave."""

    ranks: Ranks
    input: Shapes
    output: Shapes


class DiagnosisFinding(Record, frozen=True, kw_only=True):
    """Cause of a hang, or reason why a question is undecided."""

    kind: Kind
    text: str
    culprits: Ranks
    group: Ranks
    description: str
    sequence: int | None
    operation: str
    frames: Frames
    sizes: Annotated[
        Sequence[RankSizesItem],
        Meta(description="Different sizes of a size mismatch, the most frequent one last."),
    ]


class WaitItem(Record, frozen=True, kw_only=True):
    """Ranks that wait in one operation, and the ranks that they wait for."""

    ranks: Ranks
    awaited: Ranks = msgspec.field(name="for")
    group: Ranks
    description: str
    sequence: int
    operation: str
    frames: Frames


class DiagnoseReport(Report, tag="collhub/report-diagnose-1", frozen=True, kw_only=True):
    """Report of `collhub diagnose --json`."""

    kind: Kind
    fault: Annotated[
        bool,
        Meta(description="A fault was found, or ranks hang for an undecided reason: exit code 1."),
    ]
    culprits: Annotated[
        Sequence[Count],
        Meta(description="Sorted ranks that are responsible for any fault of the findings."),
    ]
    waiting: Ranks
    group: Ranks
    sequence: Annotated[
        int | None,
        Meta(description="Number of the operation in its group: collective_seq_id or p2p_seq_id."),
    ]
    missing_dumps: Ranks
    findings: Annotated[Sequence[DiagnosisFinding], Meta(description="The causes come first.")]
    waits: Annotated[Sequence[WaitItem], Meta(description="The wait-for graph.")]
    notes: Sequence[str]
    dumps: int
    operations: int


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


def create_report(verdict: JobVerdict) -> DiagnoseReport:
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


def create_picture(verdict: JobVerdict) -> WaitForGraph:
    """Return the data of a picture that shows which ranks wait for which: a wait-for graph.

    - Title: the kind of the verdict, a colon, and the meaning of this kind.
    - Culprits: those of the verdict.
    - Edges: one per entry of `verdict.waits`, in order and without a limit, from its waiting
      ranks to the ranks for which they wait. The label is `OPERATION (NUMBER)`, where NUMBER
      is the sequence number of the operation in its group.

    Without waits there are no edges. The picture is not drawn here.
    """
    waits = [
        WaitingRanks(line.ranks, line.awaited, f"{line.operation} ({line.sequence})")
        for line in verdict.waits
    ]
    title = f"{verdict.kind}: {_MEANINGS[verdict.kind]}"
    return WaitForGraph(title, verdict.culprits, waits)


def verdict_fields(verdict: JobVerdict) -> dict[str, str]:
    """Return the summary of a verdict as text by label, in printing order.

    Lists of ranks are texts such as `ranks 0-3, 7` with at most ten ranges (`format_ranks`).
    Labels whose list is empty are left out:

    - `verdict`: kind and meaning, such as `late: ranks have not issued an operation in which
      others wait`; always present
    - `culprits`, `waiting`: ranks
    - `group`: ranks of the group, followed by `, operation N` if the number N of the operation
      is known
    - `no dump`: ranks without a dump
    - `read`: such as `8 dumps, 120 operations`; always present
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


def finding_lines(verdict: JobVerdict) -> list[str]:
    """Format the findings as lines `KIND: TEXT`, each after an empty line.

    The stack frames of a finding follow it, as lines `  at FRAME`. At most `MAX_LINES` (40)
    findings are listed; if there are more, an empty line and the number of the remaining
    ones follow. Without findings the result is [].
    """
    lines: list[str] = []
    for finding in verdict.findings[:MAX_LINES]:
        lines += ["", f"{finding.kind}: {finding.text}"]
        lines += [f"  at {frame}" for frame in finding.frames]
    left = len(verdict.findings) - MAX_LINES
    return [*lines, "", f"{left} more findings: see --json"] if left > 0 else lines


def wait_table(verdict: JobVerdict) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of the wait-for graph as texts: one row per entry of `verdict.waits`.

    The columns are: waiting ranks, operation, number of the operation, description of the
    group, awaited ranks, and innermost stack frame that issued the operation ("" if unknown).
    Rows keep the order of the verdict. Only the first 40 (`MAX_LINES`) are returned, without a
    note on the remaining ones. Without waits there are no rows, and the header is still
    returned.
    """
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


def _create_finding(finding: VerdictFinding) -> DiagnosisFinding:
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
