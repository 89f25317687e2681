"""JSON report of `collhub expand`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hub_core.reports import Artifacts, Count, Losses, Meta, Record, Report


class RuleUse(Record, frozen=True, kw_only=True):
    """Rule with the collectives that it expanded."""

    rule: Annotated[
        str,
        Meta(description="As given; `*=native` applies to collectives that match no other rule."),
    ]
    algorithms: Sequence[str]
    collectives: Count
    bytes: Annotated[int, Meta(ge=0, description="As the workload states them.")]
    nodes: Annotated[int, Meta(ge=0, description="Nodes of all ranks after the expansion.")]


class UsedAlgorithm(Record, frozen=True, kw_only=True):
    """Algorithm that was used for collectives of one kind and size."""

    algorithm: str
    collective: str
    num_ranks: Count
    bytes: Annotated[
        int, Meta(ge=0, description="Of one collective, or of one piece of it, as stated.")
    ]
    steps: Count


class ExpandReport(Report, tag="collhub/report-expand-1", frozen=True, kw_only=True):
    """Report of `collhub expand --json`."""

    source: str
    source_format: str = msgspec.field(name="from")
    target_format: str = msgspec.field(name="to")
    topology: str
    slots: Annotated[
        str,
        Meta(
            extra_json_schema={"enum": ["free", "frozen"]},
            description="frozen: the order in ASTRA-sim's slots was kept as dependencies.",
        ),
    ]
    split: Annotated[
        int | None, Meta(description="Pieces of every collective; null if not requested.")
    ]
    num_ranks: Count
    nodes: Annotated[int, Meta(ge=0, description="Nodes of the flat workload.")]
    rules: Sequence[RuleUse]
    algorithms: Annotated[
        Sequence[UsedAlgorithm], Meta(description="Each one once, in the order of first use.")
    ]
    artifacts: Artifacts
    losses: Losses
