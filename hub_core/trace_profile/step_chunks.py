"""Steps of consecutive ranks as decoded from their nodes, and their concatenation.

Irregular ids, order and tags of a foreign trace are recorded in the form of `numbering`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hub_core.chakra import Column, DecodedNodes, Edges, ResolvedLinks, UInt64Array
from hub_core.columns import Int64Array, first_positions, inverse, run_mask, run_starts
from hub_core.model import InputError, JsonValue, Location, StepTable
from hub_core.trace_profile.lowering import CHANNEL_TAGS, message_tags


@dataclass(frozen=True, slots=True)
class NodeSteps:
    """Nodes of one rank in file order: their ids, and the step of each.

    `row`: counted from the first step of the rank. `data`, `control`: positions in the file.
    `file`: name of the file; `byte`: start of each node in it.
    """

    ids: UInt64Array
    row: Int64Array
    data: Edges
    control: Edges
    file: str
    byte: Int64Array


@dataclass(frozen=True, slots=True)
class StepChunk:
    """Steps of consecutive ranks in file order; edges by row of the chunk.

    `columns`: those of `StepTable`; `tag` of every message, -1 for local steps; and further columns
    of the dialect. `irregular`: nodes of ranks whose numbering must be recorded.
    """

    columns: Mapping[str, Column]
    data: Edges
    control: Edges
    irregular: Mapping[int, NodeSteps] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["tag"])


@dataclass(frozen=True, slots=True)
class Joined:
    """All chunks as one step table.

    `columns`: columns of the chunks in file order. `row`: int64, row in file order of each row of
    the table.
    """

    steps: StepTable
    columns: Mapping[str, Column]
    row: Int64Array
    irregular: Mapping[int, NodeSteps]

    def numbering(self, file: str) -> dict[str, JsonValue]:
        """Return the data from which `chakra_nodes` restores ids, order and tags of this trace.

        It is the content of `Algorithm.extensions["chakra"]`, {} for a trace in the form of profile
        v1. Other traces have these keys:

        - `tags`: `"channel"` if the tag of every message is its channel. Absent if the tags are
          those of profile v1, and if they only pair the same messages; such tags are not restored.
        - `ranks`: by rank as text, ascending, the entry of `_create_rank_entry`. Only ranks whose
          file has other ids, order or dependency lists than profile v1. Absent without such a rank.

        `file` is named in errors. Raises `InputError` (`tag-mismatch`) for tags that pair other
        sends and receives than channel and order do.
        """
        # Only irregular data is recorded: most algorithms have no extension.
        extension: dict[str, JsonValue] = {}
        tags = self.columns["tag"][self.row].astype(np.int32)
        if remembered := _record_tags(self.steps, tags, file):
            extension["tags"] = remembered
        ranks: dict[str, JsonValue] = {}
        for rank, nodes in sorted(self.irregular.items()):
            start, stop = self.steps.rank_indptr[rank : rank + 2].tolist()
            # Counted within the rank on both sides; the placeholder of a rank without steps is row
            # 0.
            rows = self.row[start:stop] - start if stop > start else np.zeros(1, np.int64)
            if entry := _create_rank_entry(nodes, inverse(rows)):
                ranks[str(rank)] = entry
        return extension | {"ranks": ranks} if ranks else extension


def join(chunks: Sequence[StepChunk], num_ranks: int, file: str) -> Joined:
    """Concatenate chunks, which are in the order of ranks, and build the step table of all ranks.

    At least one chunk is required; all have the same columns. In a rank with a dependency on a
    later row, the rows are put in topological order; among ready rows the first in the file is
    next. All other ranks keep the order of the chunks.

    In the result, `row[i]` is the position in the concatenated chunks of row i of the table.
    `columns` are the concatenated columns in the order of the chunks, read-only. `irregular` has
    the ranks of all chunks. The chunks are not changed.

    Raises `InputError` (`cyclic-dependencies`), located at a node of the cycle, for cyclic
    dependencies. Raises the other errors of `StepTable.from_columns`, such as values out of range,
    located at `file`.
    """
    columns = {
        name: np.concatenate([chunk.columns[name] for chunk in chunks])
        for name in chunks[0].columns
    }
    for column in columns.values():
        # Read-only columns are not copied when the table is built.
        column.flags.writeable = False
    irregular = {rank: nodes for chunk in chunks for rank, nodes in chunk.irregular.items()}
    # The order of rows may change: each row carries its position in a column that is unused
    # meanwhile.
    positions = np.arange(len(columns["tag"]), dtype=np.int32)
    carried = {**columns, "source_line": positions}
    edges = _join_edges(chunks, "data"), _join_edges(chunks, "control")
    try:
        steps = StepTable.from_columns(num_ranks, carried, *edges, file)
    except InputError as error:
        raise _relate_to_node(error, irregular) from None
    row = steps.source_line.astype(np.int64)
    lines = columns["source_line"][row].astype(np.int32)
    return Joined(dataclasses.replace(steps, source_line=lines), columns, row, irregular)


def _relate_to_node(error: InputError, irregular: Mapping[int, NodeSteps]) -> InputError:
    """Return an error about a step in a cycle as an error about the first node of this step.

    The new error has the id of the node in its message, the node's file, byte and rank as
    its location, and the old code and cure. `irregular`: nodes by rank, which must contain
    the rank of the error. An error with another code than `cyclic-dependencies`, or without
    rank or step, is returned unchanged.
    """
    finding = error.diagnostics[0]
    location = finding.location
    if finding.code != "cyclic-dependencies" or location.rank is None or location.step is None:
        return error
    nodes = irregular[location.rank]
    node = int(np.argmax(nodes.row == location.step))
    node_location = Location(nodes.file, byte=int(nodes.byte[node]), rank=location.rank)
    message = f"node {nodes.ids[node]} can never run: the dependencies form a cycle"
    return InputError(message, location=node_location, code=finding.code, cure=finding.cure)


def _join_edges(chunks: Sequence[StepChunk], name: str) -> tuple[Int64Array, Int64Array]:
    """Return the "data" or "control" dependencies (`name`) of all chunks: parents, children.

    Both are int64 row numbers in the concatenation of the chunks. Chunks and the edges in a
    chunk keep their order. At least one chunk is required.
    """
    shifts = first_positions([len(chunk) for chunk in chunks])
    edges: list[Edges] = [getattr(chunk, name) for chunk in chunks]
    parents = [part.parents + shift for part, shift in zip(edges, shifts, strict=True)]
    children = [part.children + shift for part, shift in zip(edges, shifts, strict=True)]
    return np.concatenate(parents), np.concatenate(children)


def irregular_ranks(
    nodes: DecodedNodes, links: ResolvedLinks, row_of_node: Int64Array
) -> dict[int, NodeSteps]:
    """Return the nodes of the ranks whose file has irregular ids, order or lists of dependencies.

    `links.irregular` marks these files. The result has one entry per marked file, by rank, in the
    order of the files; it is empty if no file is marked. An entry has, by node of the file:

    - its id, its first byte in the file, and the name of the file
    - its row: its step minus the step of the file's first node. `row_of_node` gives the step of
      every node of the batch, -1 for the placeholder of a rank without steps. Its row is 0.
    - its edges: parents and children as positions in the file, from 0
    """
    nodes_by_rank = {}
    for file in np.flatnonzero(links.irregular).tolist():
        start, stop = nodes.batch.file_indptr[file : file + 2].tolist()
        # The row of a placeholder, -1, becomes 0: it is the only node of its rank.
        rows = row_of_node[start:stop] - row_of_node[start]
        data = _select_edges(links.data, start, stop)
        control = _select_edges(links.control, start, stop)
        name_and_starts = nodes.batch.bytes_of(file)
        ids = nodes.id[start:stop]
        nodes_by_rank[nodes.batch.ranks[file]] = NodeSteps(
            ids, rows, data, control, *name_and_starts
        )
    return nodes_by_rank


def _select_edges(edges: Edges, start: int, stop: int) -> Edges:
    """Return the edges whose children are the nodes `start` to `stop - 1`, in their order.

    `start` is subtracted from all node numbers, so parents before `start` become negative.
    Edges must be sorted by child.
    """
    low, high = np.searchsorted(edges.children, [start, stop])
    return Edges(edges.parents[low:high] - start, edges.children[low:high] - start)


def _create_rank_entry(nodes: NodeSteps, position_of_row: Int64Array) -> dict[str, JsonValue]:
    """Return the entry of one rank in the extension; {} if it has the form of profile v1.

    `position_of_row`: position of every row of the rank in the step table, int64. In profile v1 the
    nodes are in the order of these positions; both nodes of a receive-reduce have one row, and keep
    their order. Only values that differ from profile v1 are in the entry, in this order:

    - `ids`: the ids of all nodes in file order, unless they are 0, 1, ...
    - `order`: for each node in file order its position in profile v1, unless they are 0, 1, ...
    - `data`, `control`: pairs [node, parents] of the nodes whose parents are not listed in
      ascending order of positions in profile v1. Node and parents are positions in the file; a
      repeated parent counts once. Absent without such nodes.
    """
    file_order = np.arange(len(nodes.ids))
    # Both nodes of a receive-reduce have the same row, and keep their order.
    plain = inverse(np.argsort(position_of_row[nodes.row], kind="stable"))
    entry: dict[str, JsonValue] = {}
    if not np.array_equal(nodes.ids, file_order.astype(np.uint64)):
        entry["ids"] = nodes.ids.tolist()
    if not np.array_equal(plain, file_order):
        entry["order"] = plain.tolist()
    for name, edges in (("data", nodes.data), ("control", nodes.control)):
        if lists := _find_unusual_lists(edges, plain):
            entry[name] = lists
    return entry


def _find_unusual_lists(edges: Edges, plain: Int64Array) -> list[JsonValue]:
    """Return the nodes that list their parents in another order than profile v1 does.

    An entry is [node, parents], both positions in the file. The entries are ascending by
    node; the parents are in the order of the file, without repetitions. In profile v1, the
    nodes of a rank are in the order of their steps, and every node lists its parents in
    this order. `plain[i]` is the position of node i in that order. A node that only repeats
    parents is not listed. The result is [] if all lists are as in profile v1.
    """
    unusual: list[JsonValue] = []
    cuts = run_starts(edges.children)
    for low, high in zip(cuts.tolist(), [*cuts[1:].tolist(), len(edges.children)], strict=False):
        # The model has no repeated dependencies, so they are not recorded.
        listed = list(dict.fromkeys(edges.parents[low:high].tolist()))
        if listed != sorted(listed, key=plain.__getitem__):
            parents: list[JsonValue] = [*listed]
            unusual.append([int(edges.children[low]), parents])
    return unusual


def _record_tags(steps: StepTable, tags: npt.NDArray[np.int32], file: str) -> str | None:
    """Return `CHANNEL_TAGS` if the tags of all messages are their channels, otherwise None.

    `tags`: int32, tag per row of `steps`; -1 for steps that are no messages. The first case that
    applies decides:

    1. Tags equal to those of `message_tags`, or no messages: None.
    2. Tags equal to the channels: `CHANNEL_TAGS`.
    3. Tags that pair other sends and receives than channel and order do: raises `InputError`
       (`tag-mismatch`, in `file`) at the first message, by source, destination, tag and receives
       first, whose other tag differs from that of its predecessor with the same tag.
    4. All other tags pair the same sends and receives: None, so that these tags are lost.
    """
    expected = message_tags(steps)
    if np.array_equal(expected, tags):
        return None
    is_message = expected >= 0
    if np.array_equal(tags[is_message], steps.channel[is_message]):
        return CHANNEL_TAGS
    rows = np.flatnonzero(is_message)
    is_send = steps.sends[rows]
    source, target = steps.ends(rows)
    # Messages with equal tags of one sort must have equal tags of the other: grouped first by the
    # tags of channels and order, then by those of the trace.
    for key, second_key in ((expected[rows], tags[rows]), (tags[rows], expected[rows])):
        order = np.lexsort((is_send, key, target, source))
        starts_group = run_mask(source[order], target[order], key[order])
        wrong = np.flatnonzero(run_mask(second_key[order]) & ~starts_group)
        if len(wrong):
            row = int(rows[order[wrong[0]]])
            conflict = "with another one than its channel and order do"
            message = f"the tag {tags[row]} pairs this message {conflict}"
            raise InputError(message, location=steps.location(row, file), code="tag-mismatch")
    return None
