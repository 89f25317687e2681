"""The lines that `collhub inspect` adds for profiles: the tables of `collhub profile`."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pytorch.analysis import has_times
from collhub_pytorch.findings import findings_of
from collhub_pytorch.report import Table, blocks
from hub_core.model import Workload


def lines(workload: Workload) -> list[str]:
    """The report without the replay; empty where the profile has no times of collectives."""
    if not has_times(workload):
        return []
    found: list[str] = []
    for block in blocks(findings_of(workload)):
        found += _table_lines(block) if isinstance(block, Table) else block
    return found


def _table_lines(table: Table) -> Sequence[str]:
    """Aligned columns, two spaces apart."""
    rows = [table.header, *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [str.rjust if name in table.right else str.ljust for name in table.header]
    return [
        "  ".join(
            align(cell, width) for align, cell, width in zip(aligned, row, widths, strict=True)
        )
        for row in rows
    ]
