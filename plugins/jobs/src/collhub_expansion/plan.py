"""Match calls of collectives, and plan the blocks of nodes that replace the rows of a workload.

A block is a list of consecutive nodes, with dependencies between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from collhub_templates import Edges, Lists, Template, built

from hub_core import InputError
from hub_core.columns import (
    BoolArray,
    Int64Array,
    counted_positions,
    csr,
    expanded_ranges,
    group_pointer,
    inverse,
    ordinals,
    row_pointer,
)
from hub_core.model import NodeColumns, Workload

# With more starts or ends than this, a MARKER joins the dependencies.
_MAX_ENDS = 16


@dataclass(frozen=True, slots=True, eq=False)
class BlockContents:
    """Possible contents of blocks: a node of the workload, or the nodes of a template on one rank.

    Entry i of the first `nodes` is row i of the workload; entries of template t begin at
    `entry[t]`, one per position. Likewise, nodes of template t begin at `node[t]`. `first`,
    `length`: nodes of an entry. `starts`, `ends`: nodes by entry. `data`, `control`: dependencies
    within entries, (row pointer by entry, parents, children).
    """

    nodes: int
    entry: Int64Array
    node: Int64Array
    first: Int64Array
    length: Int64Array
    starts: Lists
    ends: Lists
    data: tuple[Int64Array, Int64Array, Int64Array]
    control: tuple[Int64Array, Int64Array, Int64Array]


def catalogue(nodes: int, templates: list[Template]) -> BlockContents:
    """Build the catalogue of entries that can replace a node: single nodes and templates.

    - Entries 0 to `nodes` - 1 are the nodes of the workload. Entry i has the single row i, which is
      its start and its end, and no dependencies.
    - The entries of the templates follow, in their order, one per position of the template's group.
      Such an entry has the rows of the template at this position. These rows are numbered from
      `nodes` on in the order of the templates; start rows, end rows and dependencies refer to the
      new numbers.

    `entry` and `node` of the result are the first entry and the first row of each template, int64.
    They have one more value at the end, the total number of entries and of rows.
    """
    positions = [len(template.first) - 1 for template in templates]
    node = nodes + row_pointer([len(template) for template in templates])
    firsts = [template.first[:-1] + at for template, at in zip(templates, node[:-1], strict=True)]
    lengths = [np.diff(template.first) for template in templates]
    job_nodes = np.arange(nodes)
    first = np.concatenate([job_nodes, *firsts])
    length = np.concatenate([np.ones(nodes, np.int64), *lengths])
    return BlockContents(
        nodes,
        nodes + row_pointer(positions),
        node,
        first,
        length,
        _all_lists(nodes, [template.starts for template in templates], node),
        _all_lists(nodes, [template.ends for template in templates], node),
        _all_edges(nodes, first, [template.data for template in templates], node),
        _all_edges(nodes, first, [template.control for template in templates], node),
    )


def _all_lists(nodes: int, parts: list[Lists], node: Int64Array) -> Lists:
    counts = [np.diff(indptr) for indptr, _ in parts]
    values = [rows + at for (_, rows), at in zip(parts, node[:-1], strict=True)]
    pointer = row_pointer(np.concatenate([np.ones(nodes, np.int64), *counts]))
    return pointer, np.concatenate([np.arange(nodes), *values])


def _all_edges(
    nodes: int, first: Int64Array, parts: list[Edges], node: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    none = np.zeros(0, np.int64)
    shifted = [(p + at, c + at) for (p, c), at in zip(parts, node[:-1], strict=True)]
    parents = np.concatenate([none, *(pair[0] for pair in shifted)])
    children = np.concatenate([none, *(pair[1] for pair in shifted)])
    # Children are ascending, and the nodes of an entry are consecutive.
    pointer = np.searchsorted(children, np.append(first, node[-1])).astype(np.int64)
    return pointer, parents, children


@dataclass(frozen=True, slots=True, eq=False)
class NodeBlocks:
    """Blocks in node order: int64 per block, the entry and the first new node."""

    catalogue: BlockContents
    entry: Int64Array
    first: Int64Array

    @classmethod
    def of(cls, entries: BlockContents, entry: Int64Array) -> NodeBlocks:
        """Create consecutive blocks of these entries."""
        return cls(entries, entry, row_pointer(entries.length[entry])[:-1])

    @property
    def shift(self) -> Int64Array:
        """Difference between new node numbers and numbers in the catalogue, int64[blocks]."""
        return self.first - self.catalogue.first[self.entry]

    def rows(self) -> tuple[Int64Array, Int64Array]:
        """Return the catalogue row and the block number of every new node, block by block.

        Both are int64[nodes]. A block is a copy of a catalogue entry, whose rows are consecutive
        and keep their order.
        """
        length = self.catalogue.length[self.entry]
        nodes = expanded_ranges(self.catalogue.first[self.entry], length)
        return nodes, np.repeat(np.arange(len(length)), length)

    def lists(self, listed: Lists) -> Lists:
        """Return for each block the new nodes at its start (or end), as (row pointer, nodes).

        A block is a copy of a catalogue entry. `listed`: (row pointer, rows), the start (or end)
        rows of each entry; they are shifted to the numbers of the new nodes.
        """
        pointer, values = listed
        counts = np.diff(pointer)[self.entry]
        taken = values[expanded_ranges(pointer[self.entry], counts)]
        return row_pointer(counts), taken + np.repeat(self.shift, counts)

    def inner(self, edges: tuple[Int64Array, Int64Array, Int64Array]) -> Edges:
        """Return the dependencies within all blocks as (parents, children), numbers of new nodes.

        A block is a copy of a catalogue entry. `edges`: row pointer by entry, parents and children
        as rows of the catalogue. The result is ordered by block.
        """
        pointer, parents, children = edges
        counts = np.diff(pointer)[self.entry]
        chosen = expanded_ranges(pointer[self.entry], counts)
        shift = np.repeat(self.shift, counts)
        return parents[chosen] + shift, children[chosen] + shift


def joined(edges: Edges, last_nodes: Lists, first_nodes: Lists) -> Edges:
    """Expand dependencies between entries to dependencies between their nodes.

    `edges`: (parents, children), numbers of entries. `last_nodes`, `first_nodes`: the last and
    the first nodes of all entries, as (row pointer, nodes). Return (parents, children) as
    nodes. They contain, edge by edge, every pair of a last node of the parent and a first node
    of the child, ordered by the last node. An edge has no pairs if the parent has no last nodes
    or the child has no first nodes.
    """
    parents, children = edges
    last_counts = np.diff(last_nodes[0])[parents]
    first_counts = np.diff(first_nodes[0])[children]
    pair = counted_positions(last_counts * first_counts)
    edge = np.repeat(np.arange(len(parents)), last_counts * first_counts)
    last_index, first_index = np.divmod(pair, first_counts[edge])
    return last_nodes[1][last_nodes[0][parents[edge]] + last_index], first_nodes[1][
        first_nodes[0][children[edge]] + first_index
    ]


def spread(template: Template, members: Sequence[int], stride: int) -> Template:
    """Return a template for all ranks, in which every group of ranks runs a copy of `template`.

    A template has the nodes of a collective by position of the rank in its group. P positions in
    `template` give the groups {l, l + `stride`, ..., l + (P - 1) * `stride`}: for P = 2 and stride
    2, these are (0, 2), (1, 3), (4, 6). Rank r has the position (r // `stride`) mod P.

    Position i of the result is for rank `members[i]`, with copies of the nodes and dependencies of
    its position in `template`. A peer in `template` is a position; its copy is the index in
    `members` of the rank with this position in the same group. A peer below 0 (none) becomes -1.
    `members` must be a permutation of 0 to its length - 1 with complete groups, which is not
    checked. Empty `members` give no positions.
    """
    positions = len(template.first) - 1
    rank = np.asarray(members, np.int64)
    member_index = inverse(rank)
    position = rank // stride % positions
    entries = catalogue(0, [template])
    blocks = NodeBlocks.of(entries, position)
    number, block = blocks.rows()
    peer = template.peer[number]
    lowest = (rank - position * stride)[block]
    # Local operations have no peer.
    met = np.where(peer < 0, 0, lowest + peer * stride)
    return built(
        template.kind[number],
        np.where(peer < 0, -1, member_index[met]),
        template.bytes[number],
        template.duration_ns[number],
        template.message[number],
        np.append(blocks.first, len(number)),
        blocks.inner(entries.data),
        blocks.inner(entries.control),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PlannedCalls:
    """Collectives, and the rows of the workload that call them.

    Per call, int64: `row`, `position` of its rank in the group, `instance`: number of the
    collective. Per collective, int64: `group`, `collective` (`JobCollective`), `bytes`, `root`: a
    position, -1 if unknown; `dimensions`: a mask, -1 for all; `counts`: index of
    `Workload.counts`, -1 for equal parts.
    """

    row: Int64Array
    position: Int64Array
    instance: Int64Array
    group: Int64Array
    collective: Int64Array
    bytes: Int64Array
    root: Int64Array
    dimensions: Int64Array
    counts: Int64Array


def match_calls(workload: Workload, rows: Int64Array) -> PlannedCalls:
    """Match the calls of collectives on different ranks: the k-th call of a group on each rank.

    `rows`: rows of the calls, in issue order for each rank. Columns by call are in this order.
    Collectives are numbered by group (-1, all ranks, first), then k. Without rows all are empty.

    A collective has the kind, bytes (negative: 0), dimensions and counts of its first call in
    `rows`. Its root is the position of that call's root in the group, -1 if missing or no member.

    Raises `InputError` (`collectives-differ`) at the first call in `rows` that violates the first
    violated condition:

    1. The rank is a member of the group of its call.
    2. Kind, then bytes, dimensions, counts equal those of the first call. Roots may differ.
    3. All ranks of the group have a k-th call.
    """
    nodes = workload.nodes
    rank, group = nodes.rank[rows].astype(np.int64), nodes.group[rows].astype(np.int64)
    ordinal = ordinals((group + 1) * nodes.num_ranks + rank)
    keys = (group + 1) * (len(nodes) + 1) + ordinal
    _, first, instance = np.unique(keys, return_index=True, return_inverse=True)
    model = rows[first]
    position = _positions(workload, rows, rank, group)
    columns = (nodes.collective, nodes.bytes, nodes.dimensions, nodes.counts)
    for column in columns:
        _check(workload, rows, column[rows] != column[model][instance], "is another one")
    sizes = np.array([len(workload.members(number)) for number in group[first].tolist()], np.int64)
    lacking = np.bincount(instance, minlength=len(first)) != sizes
    _check(workload, rows, lacking[instance], "is missing")
    root = np.full(len(model), -1, np.int64)
    for index in np.flatnonzero(nodes.root[model] >= 0).tolist():
        members = workload.members(int(group[first[index]]))
        root_rank = int(nodes.root[model[index]])
        if root_rank in members:
            root[index] = members.index(root_rank)
    size = np.maximum(nodes.bytes[model], 0)
    kinds = nodes.collective[model].astype(np.int64)
    masks = nodes.dimensions[model].astype(np.int64)
    counts = nodes.counts[model].astype(np.int64)
    return PlannedCalls(rows, position, instance, group[first], kinds, size, root, masks, counts)


def _check(
    workload: Workload, rows: Int64Array, is_wrong: npt.NDArray[np.bool_], difference: str
) -> None:
    if is_wrong.any():
        row = int(rows[np.argmax(is_wrong)])
        message = f"node {workload.nodes.identity[row]}: on a rank of its group this collective "
        cure = "all ranks of a group issue the same collectives in the same order"
        location = workload.nodes.location(row, workload.provenance.source_name or None)
        raise InputError(
            message + difference, location=location, cure=cure, code="collectives-differ"
        )


def _positions(
    workload: Workload, rows: Int64Array, rank: Int64Array, group: Int64Array
) -> Int64Array:
    """Return the position of every call's rank in the members of its group: int64[calls].

    `rows`: row of each call in the workload, for errors; `group`: number of the group by
    call, -1 for all ranks. Raise `InputError` (`collectives-differ`) at the first call
    whose rank is no member of its group.
    """
    position = np.zeros(len(rows), np.int64)
    for number in np.unique(group).tolist():
        position_of_rank = np.full(workload.num_ranks, -1, np.int64)
        members = workload.members(number)
        position_of_rank[list(members)] = np.arange(len(members))
        chosen = group == number
        position[chosen] = position_of_rank[rank[chosen]]
    _check(workload, rows, position < 0, "is none of this rank, which is no member")
    return position


_FRONT, _PIECE, _BACK = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class CollectivePieces:
    """Pieces of collectives: int64 per piece, ascending in `instance`, then in order.

    `template`: template number. `waits`: (earlier, later) pieces of one collective, ascending in
    collectives.
    """

    instance: Int64Array
    template: Int64Array
    waits: Edges


@dataclass(frozen=True, slots=True, eq=False)
class ExpansionPlan:
    """Blocks of all rows, in node order.

    Per block, int64: `row`, `entry` of the catalogue, `piece` (-1: none). `exits`, `entrances`:
    last and first blocks per row, which dependencies connect. `chains`: dependencies between blocks
    of one row.
    """

    row: Int64Array
    entry: Int64Array
    piece: Int64Array
    exits: Lists
    entrances: Lists
    chains: Edges


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Pieces of all calls, call by call: int64 per part.

    `call`: number of the call. `is_first`: no dependency on a part of its call; `is_last`: no part
    of its call depends on it. `waits`: (earlier, later) parts.
    """

    call: Int64Array
    piece: Int64Array
    entry: Int64Array
    is_first: BoolArray
    is_last: BoolArray
    waits: Edges


def plan_blocks(
    nodes: NodeColumns, calls: PlannedCalls, pieces: CollectivePieces, entries: BlockContents
) -> ExpansionPlan:
    """Plan the blocks of nodes that replace the nodes of a job.

    A piece is a part of a collective with a template of nodes. A first piece waits for no other
    piece of its collective; no piece waits for a last one. The blocks of a node:

    - A node that is no call in `calls` has one block: itself (entry = its row, piece -1).
    - A call has one block per piece: the template of the piece at the position of the call.
    - If the first pieces of a call together have more than 16 start nodes, a MARKER block (piece
      -1) precedes them. If its last pieces have more than 16 end nodes, a MARKER follows them.

    Blocks are ordered by rank, then by identity of the old node, then first MARKER, pieces, last
    MARKER. `entrances` lists, by old row, the first MARKER or without it the first pieces. `exits`
    lists the last MARKER or without it the last pieces. `chains` are (earlier, later) blocks of a
    call: waits between pieces, then first MARKER to first pieces, then last pieces to last MARKER.
    """
    called = np.zeros(len(nodes), np.bool_)
    called[calls.row] = True
    plain, parts = np.flatnonzero(~called), _parts(calls, pieces, entries)
    fronts = _find_calls_with_marker(parts, parts.is_first, entries.starts, len(calls.row))
    backs = _find_calls_with_marker(parts, parts.is_last, entries.ends, len(calls.row))
    groups = plain, calls.row[parts.call], calls.row[fronts], calls.row[backs]
    kinds = _PIECE, _PIECE, _FRONT, _BACK
    row = np.concatenate(groups)
    kind = np.repeat(kinds, [len(group) for group in groups])
    order = np.lexsort((kind, nodes.identity[row], nodes.rank[row]))
    markers = np.full(len(fronts) + len(backs), entries.entry[-2])
    entry = np.concatenate([plain, parts.entry, markers])
    piece = np.full(len(row), -1)
    piece[len(plain) : len(plain) + len(parts.piece)] = parts.piece
    cuts = np.cumsum([len(group) for group in groups])[:-1]
    plain_blocks, inner, front, back = np.split(inverse(order), cuts)
    doors = _Doors(len(nodes), plain, plain_blocks, calls.row, parts, inner)
    return ExpansionPlan(
        row[order],
        entry[order],
        piece[order],
        doors.lists(parts.is_last, backs, back),
        doors.lists(parts.is_first, fronts, front),
        concatenate_edges(
            (inner[parts.waits[0]], inner[parts.waits[1]]),
            doors.between(parts.is_first, fronts, front),
            doors.between(parts.is_last, backs, back)[::-1],
        ),
    )


def _parts(calls: PlannedCalls, pieces: CollectivePieces, entries: BlockContents) -> _Parts:
    pointer = group_pointer(pieces.instance, len(calls.group))
    counts = np.diff(pointer)[calls.instance]
    call = np.repeat(np.arange(len(calls.row)), counts)
    piece = expanded_ranges(pointer[calls.instance], counts)
    entry = entries.entry[pieces.template[piece]] + calls.position[call]
    earlier, later = pieces.waits
    size = len(pieces.instance)
    is_first = np.bincount(later, minlength=size) == 0
    is_last = np.bincount(earlier, minlength=size) == 0
    # Every call of a collective has the dependencies of its pieces.
    edges = np.bincount(pieces.instance[earlier], minlength=len(calls.group))
    times = edges[calls.instance]
    edge = expanded_ranges(row_pointer(edges)[calls.instance], times)
    shift = np.repeat(row_pointer(counts)[:-1] - pointer[calls.instance], times)
    waits = earlier[edge] + shift, later[edge] + shift
    return _Parts(call, piece, entry, is_first[piece], is_last[piece], waits)


def _find_calls_with_marker(
    parts: _Parts, is_outer: BoolArray, listed: Lists, calls: int
) -> Int64Array:
    """Return the calls that need a MARKER before (or after) their first (or last) nodes.

    A call is a node that is replaced by an algorithm, in parts of several nodes each. A call needs
    a MARKER if its first (or last) parts have more than `_MAX_ENDS` first (or last) nodes in total.
    The result has the numbers of these calls, ascending, as int64.

    `is_outer`: bool per part, whether it is a first (or last) part of its call. `listed`: first (or
    last) nodes of every catalogue entry, as (row pointer, nodes); `parts.entry` is the entry of a
    part. `calls`: number of calls.
    """
    counts = np.diff(listed[0])[parts.entry[is_outer]]
    return np.flatnonzero(np.bincount(parts.call[is_outer], counts, calls) > _MAX_ENDS)


def concatenate_edges(*edges: Edges) -> Edges:
    """Return the (parents, children) of all `edges`, at least one, in their order."""
    parents, children = (np.concatenate(side) for side in zip(*edges, strict=True))
    return parents, children


@dataclass(frozen=True, slots=True, eq=False)
class _Doors:
    """First and last blocks of rows.

    `plain_blocks`: blocks of the `plain` rows; `inner`: blocks of the parts of calls in rows
    `row_of`.
    """

    nodes: int
    plain: Int64Array
    plain_blocks: Int64Array
    row_of: Int64Array
    parts: _Parts
    inner: Int64Array

    def lists(self, is_outer: BoolArray, marked: Int64Array, marker: Int64Array) -> Lists:
        """Return the first (or last) blocks by node of the old workload: (row pointer, blocks).

        A block is a list of consecutive nodes of the new workload, given by its number. Calls are
        the nodes that an algorithm replaces. A piece is one of the blocks that replace a call.
        A marker is one extra block before (or after) the pieces of a call with many first (or
        last) nodes.

        - A node that is no call has its single block.
        - A call with a marker has only the block of the marker.
        - Any other call has its first (or last) pieces, in order; without pieces it has none.

        `is_outer`: bool by piece, whether it is a first (or last) piece of its call. `marked`:
        numbers of the calls with a marker. `marker`: blocks of these markers, in the same order.
        """
        has_marker = np.zeros(len(self.row_of), np.bool_)
        has_marker[marked] = True
        chosen = is_outer & ~has_marker[self.parts.call]
        rows = self.plain, self.row_of[self.parts.call[chosen]], self.row_of[marked]
        blocks = self.plain_blocks, self.inner[chosen], marker
        return csr(np.concatenate(rows), np.concatenate(blocks), self.nodes)

    def between(self, is_outer: BoolArray, marked: Int64Array, marker: Int64Array) -> Edges:
        """Return (markers, pieces): the dependencies between the markers and pieces of calls.

        Both are columns of block numbers, in the order of the pieces. The markers come before
        the pieces; for markers at the end the caller swaps the columns. Calls without a marker
        have no entry. `is_outer`: bool by piece, whether it is at this side of its call;
        `marked`: calls with a marker at this side; `marker`: their blocks.
        """
        marker_of_call = np.full(len(self.row_of), -1, np.int64)
        marker_of_call[marked] = marker
        chosen = is_outer & (marker_of_call[self.parts.call] >= 0)
        return marker_of_call[self.parts.call[chosen]], self.inner[chosen]
