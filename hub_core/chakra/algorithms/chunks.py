"""The steps of some consecutive ranks as decoded from their nodes, and how chunks are joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hub_core.chakra.algorithms.remember import RankNodes, describe_rank, tags_are_channels
from hub_core.chakra.codec.links import Edges
from hub_core.chakra.codec.wire import Column
from hub_core.model import Int64Array, JsonValue, StepTable, positions_in, row_pointer


@dataclass(frozen=True, slots=True)
class Chunk:
    """Steps of consecutive ranks in file order; edges by row of the chunk.

    `columns`: those of `StepTable`; `tag`, of every message, -1 for local steps; and what the
    reader of the dialect needs besides. `irregular`: nodes of ranks that must be remembered.
    """

    columns: Mapping[str, Column]
    data: Edges
    control: Edges
    irregular: Mapping[int, RankNodes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["tag"])


@dataclass(frozen=True, slots=True)
class Joined:
    """All chunks as one step table.

    `columns`: of the chunks, in file order; `row`: int64, the row in file order of each row of
    the table.
    """

    steps: StepTable
    columns: Mapping[str, Column]
    row: Int64Array
    irregular: Mapping[int, RankNodes]

    def numbering(self, file: str) -> dict[str, JsonValue]:
        """What `lower` needs to give the nodes of this trace again; empty for the plain form."""
        # What is plain is not remembered: most algorithms have no extension at all.
        found: dict[str, JsonValue] = {}
        tags = self.columns["tag"][self.row].astype(np.int32)
        if remembered := tags_are_channels(self.steps, tags, file):
            found["tags"] = remembered
        ranks: dict[str, JsonValue] = {}
        for rank, nodes in sorted(self.irregular.items()):
            if entry := describe_rank(nodes, self._positions(rank)):
                ranks[str(rank)] = entry
        return found | {"ranks": ranks} if ranks else found

    def _positions(self, rank: int) -> Int64Array:
        """Where each row of a rank stands in the table; one entry for a rank without steps."""
        start, stop = self.steps.rank_indptr[rank : rank + 2].tolist()
        if start == stop:
            return np.zeros(1, np.int64)
        return positions_in(self.row[start:stop] - start, stop - start)


def irregular_nodes(chunks: Sequence[Chunk]) -> dict[int, RankNodes]:
    """By rank, the nodes that must be remembered."""
    return {rank: nodes for chunk in chunks for rank, nodes in chunk.irregular.items()}


def join(chunks: Sequence[Chunk], num_ranks: int, file: str) -> Joined:
    """Join chunks that stand in order of ranks. Raises `InputError` for cyclic dependencies."""
    columns = {
        name: np.concatenate([chunk.columns[name] for chunk in chunks])
        for name in chunks[0].columns
    }
    for column in columns.values():
        # Read-only columns are not copied when the table is built.
        column.flags.writeable = False
    data = _joined_edges(chunks, "data")
    control = _joined_edges(chunks, "control")
    # Rows may change places: each carries its own in the column that no one reads meanwhile.
    places = np.arange(len(columns["tag"]), dtype=np.int32)
    carried = {**columns, "source_line": places}
    steps = StepTable.from_columns(num_ranks, carried, data, control, file)
    row = steps.source_line.astype(np.int64)
    lines = columns["source_line"][row].astype(np.int32)
    steps = dataclasses.replace(steps, source_line=lines)
    return Joined(steps, columns, row, irregular_nodes(chunks))


def _joined_edges(chunks: Sequence[Chunk], name: str) -> tuple[Int64Array, Int64Array]:
    """(parents, children) by row of all chunks together."""
    # The last entry is the number of all rows; no chunk begins there.
    shifts = row_pointer([len(chunk) for chunk in chunks])
    edges: list[Edges] = [getattr(chunk, name) for chunk in chunks]
    parents = [part.parents + shift for part, shift in zip(edges, shifts, strict=False)]
    children = [part.children + shift for part, shift in zip(edges, shifts, strict=False)]
    return np.concatenate(parents), np.concatenate(children)
