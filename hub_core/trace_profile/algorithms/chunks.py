"""The steps of some consecutive ranks as decoded from their nodes, and how chunks are joined.

What is not plain in a foreign trace (ids, order, tags) is remembered in the form of `numbering`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.chakra import Column, Edges, NodeColumns, ResolvedLinks, UInt64Array
from hub_core.columns import Int64Array, first_positions, inverse, run_mask, run_starts
from hub_core.model import InputError, JsonValue, Location, StepTable
from hub_core.trace_profile.algorithms.lowering import message_tags
from hub_core.trace_profile.algorithms.numbering import CHANNEL_TAGS


@dataclass(frozen=True, slots=True)
class RankNodes:
    """The nodes of one rank in file order: their ids, and the step that each belongs to.

    `row`: counted from the first step of the rank. `data`, `control`: positions in the file.
    `file`: name of the file; `byte`: where each node starts in it.
    """

    ids: UInt64Array
    row: Int64Array
    data: Edges
    control: Edges
    file: str
    byte: Int64Array


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
        if remembered := _remembered_tags(self.steps, tags, file):
            found["tags"] = remembered
        ranks: dict[str, JsonValue] = {}
        for rank, nodes in sorted(self.irregular.items()):
            start, stop = self.steps.rank_indptr[rank : rank + 2].tolist()
            # Counted within the rank, on both sides; the stand-in of a rank without steps is row 0.
            rows = self.row[start:stop] - start if stop > start else np.zeros(1, np.int64)
            if entry := _rank_entry(nodes, inverse(rows)):
                ranks[str(rank)] = entry
        return found | {"ranks": ranks} if ranks else found


def join(chunks: Sequence[Chunk], num_ranks: int, file: str) -> Joined:
    """Join chunks that stand in order of ranks. Raises `InputError` for cyclic dependencies."""
    columns = {
        name: np.concatenate([chunk.columns[name] for chunk in chunks])
        for name in chunks[0].columns
    }
    for column in columns.values():
        # Read-only columns are not copied when the table is built.
        column.flags.writeable = False
    irregular = {rank: nodes for chunk in chunks for rank, nodes in chunk.irregular.items()}
    # Rows may change places: each carries its own in the column that no one reads meanwhile.
    places = np.arange(len(columns["tag"]), dtype=np.int32)
    carried = {**columns, "source_line": places}
    edges = _joined_edges(chunks, "data"), _joined_edges(chunks, "control")
    try:
        steps = StepTable.from_columns(num_ranks, carried, *edges, file)
    except InputError as error:
        raise _of_node(error, irregular) from None
    row = steps.source_line.astype(np.int64)
    lines = columns["source_line"][row].astype(np.int32)
    return Joined(dataclasses.replace(steps, source_line=lines), columns, row, irregular)


def _of_node(error: InputError, irregular: Mapping[int, RankNodes]) -> InputError:
    """The complaint about a step that can never run as one about its node."""
    found = error.diagnostics[0]
    place = found.location
    if found.code != "cyclic-dependencies" or place.rank is None or place.step is None:
        return error
    nodes = irregular[place.rank]
    node = int(np.argmax(nodes.row == place.step))
    where = Location(nodes.file, byte=int(nodes.byte[node]), rank=place.rank)
    message = f"node {nodes.ids[node]} can never run: the dependencies form a cycle"
    return InputError(message, location=where, code=found.code, cure=found.cure)


def _joined_edges(chunks: Sequence[Chunk], name: str) -> tuple[Int64Array, Int64Array]:
    """(parents, children) by row of all chunks together."""
    shifts = first_positions([len(chunk) for chunk in chunks])
    edges: list[Edges] = [getattr(chunk, name) for chunk in chunks]
    parents = [part.parents + shift for part, shift in zip(edges, shifts, strict=True)]
    children = [part.children + shift for part, shift in zip(edges, shifts, strict=True)]
    return np.concatenate(parents), np.concatenate(children)


def irregular_ranks(
    nodes: NodeColumns, links: ResolvedLinks, row_of_node: Int64Array
) -> dict[int, RankNodes]:
    """The nodes of ranks whose ids, order or lists of dependencies are not the plain ones."""
    found = {}
    for file in np.flatnonzero(links.irregular).tolist():
        start, stop = nodes.batch.file_indptr[file : file + 2].tolist()
        # The row of a stand-in, -1, becomes 0: the only node of its rank.
        rows = row_of_node[start:stop] - row_of_node[start]
        data = _within(links.data, start, stop)
        control = _within(links.control, start, stop)
        place = nodes.batch.bytes_of(file)
        ids = nodes.id[start:stop]
        found[nodes.batch.ranks[file]] = RankNodes(ids, rows, data, control, *place)
    return found


def _within(edges: Edges, start: int, stop: int) -> Edges:
    """The edges of the nodes `start..stop - 1`, counted from there."""
    low, high = np.searchsorted(edges.children, [start, stop])
    return Edges(edges.parents[low:high] - start, edges.children[low:high] - start)


def _rank_entry(nodes: RankNodes, position_of_row: Int64Array) -> dict[str, JsonValue]:
    """The entry of one rank, empty in the plain form; `position_of_row`: in the step table."""
    file_order = np.arange(len(nodes.ids))
    # Both nodes of a receive-reduce have one row, and keep their order.
    plain = inverse(np.argsort(position_of_row[nodes.row], kind="stable"))
    entry: dict[str, JsonValue] = {}
    if not np.array_equal(nodes.ids, file_order.astype(np.uint64)):
        entry["ids"] = nodes.ids.tolist()
    if not np.array_equal(plain, file_order):
        entry["order"] = plain.tolist()
    for name, edges in (("data", nodes.data), ("control", nodes.control)):
        if lists := _unusual_lists(edges, plain):
            entry[name] = lists
    return entry


def _unusual_lists(edges: Edges, plain: Int64Array) -> list[JsonValue]:
    """Lists of parents that are not in ascending plain order, without repetitions."""
    unusual: list[JsonValue] = []
    cuts = run_starts(edges.children)
    for low, high in zip(cuts.tolist(), [*cuts[1:].tolist(), len(edges.children)], strict=False):
        # The model keeps no dependency twice, so that repetitions are not remembered.
        listed = list(dict.fromkeys(edges.parents[low:high].tolist()))
        if listed != sorted(listed, key=plain.__getitem__):
            parents: list[JsonValue] = [*listed]
            unusual.append([int(edges.children[low]), parents])
    return unusual


def _remembered_tags(steps: StepTable, tags: npt.NDArray[np.int32], file: str) -> str | None:
    """How the tags of a trace are remembered; None for those that `lower` gives by itself.

    Raises `InputError` where they pair other messages than channels and order do.
    """
    expected = message_tags(steps)
    if np.array_equal(expected, tags):
        return None
    is_message = expected >= 0
    if np.array_equal(tags[is_message], steps.channel[is_message]):
        return CHANNEL_TAGS
    _check_pairs(steps, expected, tags, file)
    return None


def _check_pairs(
    steps: StepTable, expected: npt.NDArray[np.int32], tags: npt.NDArray[np.int32], file: str
) -> None:
    """Tags of another scheme must still pair the messages that channels and order pair.

    Between two ranks, messages of one expected tag must have one tag, and the other way round.
    """
    rows = np.flatnonzero(expected >= 0)
    is_send = steps.sends[rows]
    source, target = steps.ends(rows)
    # First as channels and order pair, then as the tags do.
    for key, other in ((expected[rows], tags[rows]), (tags[rows], expected[rows])):
        order = np.lexsort((is_send, key, target, source))
        starts_group = run_mask(source[order], target[order], key[order])
        wrong = np.flatnonzero(run_mask(other[order]) & ~starts_group)
        if len(wrong):
            row = int(rows[order[wrong[0]]])
            others = "with another one than its channel and order do"
            message = f"the tag {tags[row]} pairs this message {others}"
            raise InputError(message, location=steps.location(row, file), code="tag-mismatch")
