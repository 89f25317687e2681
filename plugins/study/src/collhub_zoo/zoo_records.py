"""JSON reports of `collhub zoo list`, `show` and `get`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from collhub_zoo.cards import Card
from hub_core.reports import Artifacts, Losses, Meta, Record, Report


class EntryItem(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entry of a catalogue."""

    card: Card
    files: Annotated[Sequence[str], Meta(description="Files next to the card.")]


class ZooListReport(
    Report, tag="collhub/report-zoo-list-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Report of `collhub zoo list --json` and `zoo show --json`."""

    entries: Sequence[EntryItem]


class ZooGetReport(
    Report, tag="collhub/report-zoo-get-1", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Report of `collhub zoo get --json`."""

    entry: str
    collective: str
    topology: Annotated[str, Meta(description="Network for which the algorithm was created.")]
    artifacts: Artifacts
    losses: Losses
