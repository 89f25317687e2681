"""JSON report of `collhub diagnose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

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
