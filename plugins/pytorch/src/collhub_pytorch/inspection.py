"""What `collhub inspect` says of profiles: how long collectives transfer, wait, and are hidden."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pytorch.findings import findings_of
from collhub_pytorch.report import CALLS_HEADER, RANKS_HEADER, calls_rows, kind_lines, ranks_rows
from hub_core.model import Workload


def lines(workload: Workload) -> list[str]:
    """The tables of `collhub profile` for the measured times: by collective, by kind, by rank."""
    findings = findings_of(workload)
    return [
        *_table(CALLS_HEADER, calls_rows(findings)),
        *kind_lines(findings),
        *_table(RANKS_HEADER, ranks_rows(findings)),
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned columns, two spaces apart."""
    table = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    # Numbers stand to the right, as in the report of the command.
    return ["  ".join(map(str.rjust, row, widths)) for row in table]
