"""JSON report of `collhub compose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from hub_core.reports import Artifacts, Losses, Meta, Record, Report


class ComposedSource(Record, frozen=True, kw_only=True):
    """Part of the composition and the format of its file."""

    source: str
    source_format: str = msgspec.field(name="from")


class ComposeReport(Report, tag="collhub/report-compose-1", frozen=True, kw_only=True):
    """Report of `collhub compose --json`."""

    sources: Annotated[Sequence[ComposedSource], Meta(description="The parts in order.")]
    target_format: str = msgspec.field(name="to")
    collective: Annotated[
        str,
        Meta(
            description="Collective of the composed algorithm; custom if none of the standard "
            "collectives has its effect."
        ),
    ]
    root: int | None
    num_ranks: int
    unit_count: int
    in_place: bool
    out_of_place: bool
    steps: int
    artifacts: Artifacts
    losses: Losses
