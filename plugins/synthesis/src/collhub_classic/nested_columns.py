"""Columns of programs that have the same shape on all ranks, and moves of units between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import COLUMN_DEFAULTS, COLUMN_DTYPES, Buffer, StepKind, StepTable

# Kind of a row that is absent on a rank.
_ABSENT = 255
_COLUMNS = ("kind", "peer", "count", "src_buffer", "src_offset", "dst_buffer", "dst_offset")


class StepColumns:
    """Columns of programs that have the same shape on all ranks, one row after another.

    `barrier`: positions of rows after which rows with a barrier start.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.ranks = np.arange(num_ranks)
        self.barrier: list[int] = []
        self._controls: list[tuple[int, int]] = []
        self._rows: list[dict[str, Int64Array | int]] = []
        self._edges: list[tuple[int, int]] = []

    def add(
        self,
        kind: StepKind | Int64Array,
        peer: Int64Array,
        count: int,
        parents: Sequence[int],
        buffers: Mapping[str, Buffer | Int64Array],
        offsets: Mapping[str, Int64Array],
    ) -> int:
        """Add one row, a step with the same form for every rank, and return its position from 0 on.

        `kind` and the values of `buffers` are one value for all ranks, or int64[ranks]; `peer` and
        the values of `offsets` are int64[ranks]. `count`: units. Keys of `buffers` and `offsets`
        are names of columns, such as `src_buffer`; absent columns get their default in `build`.
        `parents`: positions of earlier rows on whose data this row depends. Ranks with the kind
        `_ABSENT` do not get the row; then no row may depend on it (not checked).
        """
        position = len(self._rows)
        self._rows.append({"kind": kind, "peer": peer, "count": count, **buffers, **offsets})
        self._edges += [(parent, position) for parent in parents]
        return position

    def add_controls(self, parents: Sequence[int], position: int) -> None:
        """Make a row wait for other rows without using their data."""
        self._controls += [(parent, position) for parent in parents]

    def build(self) -> StepTable:
        """Build the step table of all ranks from the rows added so far.

        Every row gives one step per rank, except on ranks where its kind is `_ABSENT`. Ranks
        ascend; the steps of a rank are in the order in which the rows were added. A column that a
        row does not have gets its default (`COLUMN_DEFAULTS`, else 0). The data and control
        dependencies between rows are repeated within every rank. A dependency on or of an absent
        step is not detected and refers to other steps. Without rows the table is empty. The builder
        is not changed.
        """
        length = len(self._rows)
        table = {}
        for name in _COLUMNS:
            column = np.empty((self.num_ranks, length), COLUMN_DTYPES[name])
            for position, row in enumerate(self._rows):
                column[:, position] = row.get(name, COLUMN_DEFAULTS.get(name, 0))
            table[name] = column.ravel()
        table["rank"] = np.repeat(self.ranks, length)
        starts = self.ranks[:, None] * length
        data, control = (
            ((starts + pairs[:, 0]).ravel(), (starts + pairs[:, 1]).ravel())
            for pairs in (
                np.asarray(edges, np.int64).reshape(-1, 2)
                for edges in (self._edges, self._controls)
            )
        )
        is_present = table["kind"] != _ABSENT
        if not is_present.all():
            new_row = np.cumsum(is_present) - 1
            table = {name: column[is_present] for name, column in table.items()}
            data, control = ((new_row[parents], new_row[rows]) for parents, rows in (data, control))
        return StepTable.from_columns(self.num_ranks, table, data, control)


def add_moves_to_owners(columns: StepColumns, owned: Int64Array) -> list[int]:
    """Add rows that move every unit from the INPUT of its rank to the OUTPUT of its owner.

    The owner of a unit is the rank that starts a gather with it. `owned`: int64[streams, ranks],
    the unit of each owner in each stream; each unit occurs once (not checked). Unit u comes from
    the INPUT of rank u // streams, offset u % streams, and is written at offset u of OUTPUT.

    First, one row per offset is added: each rank sends its unit at this offset to the owner. Ranks
    that own the unit themselves do not have this step. Then one row per stream is added: each rank
    receives the unit that it owns in this stream, or copies it from its own INPUT. The rows have no
    dependencies. Returns the positions of the rows of the second kind, by stream.
    """
    for offset, owner in enumerate(_find_owners(owned)):
        kind = np.where(owner == columns.ranks, _ABSENT, StepKind.SEND)
        offsets = {"src_offset": np.full_like(owner, offset)}
        columns.add(kind, owner, 1, [], {"src_buffer": Buffer.INPUT}, offsets)
    rows = []
    for units in owned:
        source, offset = np.divmod(units, len(owned))
        is_own = source == columns.ranks
        kind = np.where(is_own, StepKind.COPY, StepKind.RECV)
        buffers: dict[str, Buffer | Int64Array] = {
            "src_buffer": np.where(is_own, Buffer.INPUT, Buffer.UNKNOWN),
            "dst_buffer": Buffer.OUTPUT,
        }
        offsets = {"src_offset": np.where(is_own, offset, 0), "dst_offset": units}
        rows.append(columns.add(kind, np.where(is_own, -1, source), 1, [], buffers, offsets))
    return rows


def add_moves_from_owners(columns: StepColumns, owned: Int64Array, writers: Sequence[int]) -> None:
    """Add rows that move every result from SCRATCH of its owner to OUTPUT of its target rank.

    `owned`: int64[streams, ranks], the unit of each owner in each stream; each unit occurs once
    (not checked). Unit u is at offset u of SCRATCH. Its target is OUTPUT of rank u // streams, at
    offset u % streams.

    First, one row per stream is added: each rank sends the unit that it owns in this stream to its
    target, or copies it if it is the target itself. The row depends on the row `writers[stream]`,
    which completes the results; there must be one per stream, otherwise `ValueError`. Then one row
    per offset is added: each rank receives its result at this offset; ranks that own it do not have
    this step.
    """
    for units, writer in zip(owned, writers, strict=True):
        target, offset = np.divmod(units, len(owned))
        is_own = target == columns.ranks
        kind = np.where(is_own, StepKind.COPY, StepKind.SEND)
        buffers: dict[str, Buffer | Int64Array] = {
            "src_buffer": Buffer.SCRATCH,
            "dst_buffer": np.where(is_own, Buffer.OUTPUT, Buffer.UNKNOWN),
        }
        offsets = {"src_offset": units, "dst_offset": np.where(is_own, offset, 0)}
        columns.add(kind, np.where(is_own, -1, target), 1, [writer], buffers, offsets)
    for offset, owner in enumerate(_find_owners(owned)):
        kind = np.where(owner == columns.ranks, _ABSENT, StepKind.RECV)
        offsets = {"dst_offset": np.full_like(owner, offset)}
        columns.add(kind, owner, 1, [], {"dst_buffer": Buffer.OUTPUT}, offsets)


def _find_owners(owned: Int64Array) -> Int64Array:
    """Return the rank that owns each unit: int64[streams, ranks].

    Entry [i, r] is the owner of unit r * streams + i, which is unit i of rank r. `owned` is the
    inverse: entry [s, r] is the unit that rank r owns in stream s. Every unit must occur once (not
    checked).
    """
    owner_of = np.empty(owned.size, np.int64)
    owner_of[owned] = np.arange(owned.shape[1])
    return owner_of.reshape(owned.shape[::-1]).T
