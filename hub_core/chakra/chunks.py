"""The steps of some consecutive ranks as decoded from their nodes, and how chunks become one step table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.chakra.links import Edges, Links
from hub_core.chakra.numbering import RankNodes
from hub_core.chakra.records import NodeColumns
from hub_core.model.steps import StepTable

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Steps of consecutive ranks in file order; edges by row of the chunk.

    `columns`: those of `StepTable`. `tag`: int32, the tag of every message, -1 for local steps. `extra`: further
    columns that the reader of the dialect needs. `irregular`: the nodes of ranks that numbering must remember.
    """

    columns: Mapping[str, npt.NDArray[np.generic]]
    tag: npt.NDArray[np.int32]
    data: Edges
    control: Edges
    extra: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    irregular: Mapping[int, RankNodes] = field(default_factory=dict)


def irregular_ranks(
    nodes: NodeColumns, links: Links, row_of_node: Int64Array
) -> dict[int, RankNodes]:
    """What must be remembered of ranks whose ids, order or lists of dependencies are not the plain ones."""
    found = {}
    for file in np.flatnonzero(links.irregular).tolist():
        start, stop = nodes.batch.file_indptr[file : file + 2].tolist()
        found[nodes.batch.ranks[file]] = RankNodes(
            nodes.id[start:stop],
            row_of_node[start:stop] - row_of_node[start],
            _local(links.data, start, stop),
            _local(links.control, start, stop),
            *nodes.batch.bytes_of(file),
        )
    return found


def _local(edges: Edges, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
    low, high = np.searchsorted(edges.children, [start, stop])
    return edges.parents[low:high] - start, edges.children[low:high] - start


@dataclass(frozen=True, slots=True)
class Joined:
    """All chunks as one step table. `row`: int64, the row in file order of each row of the table."""

    steps: StepTable
    tag: npt.NDArray[np.int32]
    row: Int64Array
    irregular: Mapping[int, RankNodes]


def join(chunks: Sequence[Chunk], num_ranks: int, file: str) -> Joined:
    """Join chunks that stand in order of ranks. Raises `InputError` for a cycle of dependencies."""
    columns = {
        name: np.concatenate([chunk.columns[name] for chunk in chunks])
        for name in chunks[0].columns
    }
    for column in columns.values():
        column.flags.writeable = False
    shifts = np.cumsum([0, *(len(chunk.tag) for chunk in chunks)])
    data = _joined_edges([chunk.data for chunk in chunks], shifts)
    control = _joined_edges([chunk.control for chunk in chunks], shifts)
    tag = np.concatenate([chunk.tag for chunk in chunks])
    irregular = {rank: nodes for chunk in chunks for rank, nodes in chunk.irregular.items()}
    if not any(bool((parents >= children).any()) for parents, children in (data, control)):
        return Joined(
            StepTable.from_columns(num_ranks, columns, data, control, file),
            tag,
            np.arange(len(tag)),
            irregular,
        )
    # Rows will change places: let each carry its place in the file in the column that no one reads meanwhile.
    carried = {**columns, "source_line": np.arange(len(tag), dtype=np.int32)}
    steps = StepTable.from_columns(num_ranks, carried, data, control, file)
    row = steps.source_line.astype(np.int64)
    lines = columns["source_line"][row].astype(np.int32)
    return Joined(dataclasses.replace(steps, source_line=lines), tag[row], row, irregular)


def _joined_edges(edges: Sequence[Edges], shifts: Int64Array) -> tuple[Int64Array, Int64Array]:
    parents = [part.parents + shift for part, shift in zip(edges, shifts, strict=False)]
    children = [part.children + shift for part, shift in zip(edges, shifts, strict=False)]
    return np.concatenate(parents), np.concatenate(children)
