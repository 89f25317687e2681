"""The levelled program: sends, receives, copies and reductions of all ranks, as columns, by level.

Buffers are measured in blocks, the largest units that divide all regions of the algorithm. Every
message has the same level at both ends, so that ranks never wait in a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntEnum
from itertools import pairwise

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int32Array,
    Int64Array,
    Order,
    UInt8Array,
    csr,
    group_of_entry,
    topological_levels,
)
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    MemoryLayout,
    Messages,
    StepTable,
)
from hub_core.verification import HappensBefore, common_unit

Edges = tuple[Int64Array, Int64Array]


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Sizes of buffers in blocks, the largest units that divide all regions.

    `full_buffer`: blocks of the full buffer of the collective. `inputs`: int64[num_ranks], blocks
    of every rank's INPUT.
    """

    full_buffer: int
    inputs: Int64Array

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.inputs)


def find_units_per_block(algorithm: Algorithm) -> int:
    """Return the number of units per block; executors move complete blocks.

    It is the largest number that divides the offsets and counts of all steps, the sizes of
    all buffers and the parts of the collective (`common_unit`). It is 1 for a custom
    collective, because its contract refers to single units.
    """
    if algorithm.collective.kind is CollectiveKind.CUSTOM:
        # Its contract refers to single units, which must remain addressable.
        return 1
    return common_unit(algorithm)


def convert_to_blocks(collective: Collective, block_units: int) -> Collective:
    """Return the collective with blocks as its units."""
    return replace(collective, unit_count=collective.unit_count // block_units)


def block_counts(algorithm: Algorithm) -> BlockCounts:
    """Return the number of blocks of the full buffer and of the INPUT of every rank.

    A block is the largest number of units that divides all regions
    (`find_units_per_block`). The time is linear in the number of steps.
    """
    block_units = find_units_per_block(algorithm)
    collective = convert_to_blocks(algorithm.collective, block_units)
    return BlockCounts(collective.unit_count, collective.input_units())


class RecordKind(IntEnum):
    """The operation of a record. REDUCE: destination := destination op source."""

    SEND = 0
    RECV = 1
    COPY = 2
    REDUCE = 3


@dataclass(frozen=True, slots=True, eq=False)
class LevelledProgram(ColumnTable):
    """Records of all ranks, read-only columns of equal length, grouped by rank.

    Within a rank records are sorted by (level, message), the local ones of a level last, in the
    order of execution. A rank runs its levels in sequence: it posts all messages of a level at
    once, waits for them, then runs the local records one after the other. Messages of one level
    have no conflicting accesses, at either end. A message has the same level at both ends, so the
    program never deadlocks, even if a send completes only when it is received: among all incomplete
    levels consider the smallest; every rank has completed all previous levels, so both ends of each
    of its messages are posted, and it completes.

    `kind` uint8 (`RecordKind`); `level` int32, messages from 1, local records from 0 (before all
    messages); `peer` int32 and `message` int64: the other rank and the number of the message, equal
    at both ends, -1 in local records; `src_buffer`, `src_offset` (SEND, COPY, REDUCE) and
    `dst_buffer`, `dst_offset` (RECV, COPY, REDUCE): uint8 (`Buffer`) and int64, (UNKNOWN, 0) on the
    unused side; `count` int64; `row` int64: the row of the step table that the record implements.
    Messages of one (source, destination) pair have the same order at both ends, so no tags are
    needed.

    Offsets and counts are in blocks of `block_units` units of the algorithm; `unit_count` is the
    full buffer in blocks. `rank_indptr` int64[num_ranks + 1]: records of rank r are
    `rank_indptr[r]:rank_indptr[r + 1]`. `layout`: buffers of all ranks in one flat memory of
    blocks, INPUT and OUTPUT aliased if `in_place`; its sizes of SCRATCH include the slots added by
    levelling.
    """

    kind: UInt8Array
    level: Int32Array
    peer: Int32Array
    message: Int64Array
    src_buffer: UInt8Array
    src_offset: Int64Array
    dst_buffer: UInt8Array
    dst_offset: Int64Array
    count: Int64Array
    row: Int64Array
    rank_indptr: Int64Array
    unit_count: int
    block_units: int
    in_place: bool
    layout: MemoryLayout

    def __post_init__(self) -> None:
        # Read-only, because executors share programs among processes and threads.
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @property
    def num_ranks(self) -> int:
        """Number of ranks, including those without records."""
        return len(self.rank_indptr) - 1

    @property
    def num_messages(self) -> int:
        """Return the number of messages between ranks.

        It is the number of records of kind SEND of all ranks.
        """
        sends = self.kind == RecordKind.SEND
        return int(np.count_nonzero(sends))

    @property
    def num_levels(self) -> int:
        """Return the number of levels; a rank executes the records of one level at once.

        It is one more than the highest level of a record, so levels without records count too;
        0 without records.
        """
        last = self.level.max(initial=-1)
        return int(last) + 1

    @property
    def num_rounds(self) -> int:
        """Number of levels with messages."""
        return max(self.num_levels - 1, 0)

    @property
    def blocks(self) -> BlockCounts:
        """Block counts that inputs must fit."""
        return BlockCounts(self.unit_count, self.layout.size[:, Buffer.INPUT])

    @property
    def rank(self) -> Int64Array:
        """The rank of every record."""
        return group_of_entry(self.rank_indptr)

    @property
    def is_local(self) -> BoolArray:
        """Return which records need no other rank: bool[records].

        True for COPY and REDUCE, False for SEND and RECV.
        """
        local: BoolArray = self.kind >= RecordKind.COPY
        return local

    def addresses(self) -> tuple[Int64Array, Int64Array]:
        """Return (source, destination): the first block that each record reads and writes.

        Addresses are those of the flat memory of all ranks (`layout`). A side that a record does
        not use is -1.
        """
        source = self._compute_addresses(self.src_buffer, self.src_offset)
        destination = self._compute_addresses(self.dst_buffer, self.dst_offset)
        return source, destination

    def _compute_addresses(self, buffer: UInt8Array, offset: Int64Array) -> Int64Array:
        """Return the first block of one side of every record in memory of `layout`: int64[records].

        `buffer`, `offset`: of this side, by record. An unused side gives -1.
        """
        is_used = buffer <= Buffer.SCRATCH
        # Any known buffer works for an unused side, whose address is discarded.
        known = np.where(is_used, buffer, Buffer.SCRATCH)
        address = self.layout.base[self.rank, known] + offset
        return np.where(is_used, address, -1)

    def rank_memory(self, rank: int) -> slice:
        """Return the range of blocks in the flat memory of all ranks that contains a rank's
        buffers.

        It is a slice; input and output may overlap in it.
        """
        # In place, buffers alias, and their order depends on the collective.
        base, size = self.layout.base[rank], self.layout.size[rank]
        return slice(int(base.min()), int((base + size).max()))

    def message_ends(self) -> tuple[Int64Array, Int64Array]:
        """Return (send, receive): the two records of every message, by message number."""
        return self._find_ends(RecordKind.SEND), self._find_ends(RecordKind.RECV)

    def _find_ends(self, kind: RecordKind) -> Int64Array:
        """Return the indices of all records of one kind (SEND or RECV), sorted by message number.

        If every message has both ends, entry i of both kinds belongs to the same message.
        """
        records = np.flatnonzero(self.kind == kind)
        order = np.argsort(self.message[records], kind="stable")
        return records[order]


@dataclass(frozen=True, slots=True)
class StepLevels:
    """The levels of steps; one entry per row of the step table.

    `level`: int64; for a RECV* the level in which it completes, for a local step the level after
    whose messages it runs, for a SEND the level of its message. `message_level`: int64, the level
    of the message of a SEND or RECV*, -1 for local steps; the `level` of a staged RECV* may be
    later. `position`: int64, index in a linear extension of all orders, which orders the local
    steps of one level. `is_staged`: RECV* whose message is stored in scratch first, because it must
    not wait for the predecessors of the RECV*.
    """

    level: Int64Array
    message_level: Int64Array
    position: Int64Array
    is_staged: BoolArray


def assign_levels(
    steps: StepTable, messages: Messages, relation: HappensBefore, conflicts: Edges
) -> StepLevels:
    """Assign each step to a level, so that messages without buffers cannot deadlock.

    A step waits for its dependencies (`relation`) and for the earlier step of its
    `conflicts`. For a SEND, it waits until the message was received. The level of a message
    is 1 plus the highest level of all steps that it waits for, of both the SEND and the
    receive. The level of a local step is the highest level that it waits for (0 without any).

    If steps wait in a cycle, this is done until the cycles are gone:

    1. In cycles, a dependency on a SEND no longer waits for the receive. Conflicts still do.
    2. Messages whose receive still waits in a cycle are staged: SCRATCH gets the data when
       the sender is ready, and the receive becomes a local step.
    """
    graph = _RendezvousGraph(steps, messages, relation, conflicts)
    order = graph.sort()
    if not order.is_complete:
        graph.relax(_find_core(order, *graph.edges()))
        order = graph.sort()
    if not order.is_complete:
        graph.stage(_find_core(order, *graph.edges()))
        order = graph.sort()
    return graph.levels(order)


class _RendezvousGraph:
    """Rows, plus one node for the arrival of every staged message, ordered under rendezvous."""

    def __init__(
        self, steps: StepTable, messages: Messages, relation: HappensBefore, conflicts: Edges
    ) -> None:
        """Build the graph of steps that wait for one another; its nodes are the rows of `steps`.

        A row waits for the rows on which it depends in `relation`, and for the earlier row of
        each of its pairs in `conflicts` (earlier, later). Instead of a SEND it waits for the
        receive of the message, because a SEND ends with it. No dependency is relaxed and no
        message is staged yet (`relax`, `stage`).
        """
        self._rows = len(steps)
        self._messages = messages
        self._receives = steps.receives
        count = relation.num_dependencies
        self._dependencies = relation.parents[:count], relation.children[:count]
        self._conflicts = conflicts
        # Per row: the node whose completion allows the successors of the row to proceed.
        self._end = np.arange(self._rows)
        self._end[messages.send] = messages.receive
        self._arrival = np.full(self._rows, -1, np.int64)
        self._is_relaxed = np.zeros(count, np.bool_)

    @property
    def _nodes(self) -> int:
        """Number of rows and arrivals."""
        return self._rows + int(np.count_nonzero(self._arrival >= 0))

    def edges(self) -> Edges:
        """Return all edges of the graph as (parent nodes, child nodes), int64.

        Nodes 0 to rows - 1 are the steps. The arrivals of staged messages follow, in the order of
        their receives. The end of a SEND is the receive of its message, or its arrival if the
        message is staged; the end of any other step is the step itself. The edges are, in this
        order:

        - dependencies of `relation`: from the end of a step to the waiting step. A relaxed one
          (`relax`) starts at the step itself, also if it is a SEND.
        - conflicts: from the end of the earlier step to the later step
        - messages: from the SEND to its end
        - for each staged message: from its arrival to its receive
        """
        before, after = self._dependencies
        first, second = self._conflicts
        send, receive = self._messages.send, self._messages.receive
        arrival = self._arrival[receive]
        is_staged = arrival >= 0
        parents = [
            np.where(self._is_relaxed, before, self._end[before]),
            self._end[first],
            send,
            arrival[is_staged],
        ]
        children = [
            after,
            second,
            np.where(is_staged, arrival, receive),
            receive[is_staged],
        ]
        return np.concatenate(parents), np.concatenate(children)

    def sort(self) -> Order:
        """Sort nodes by longest path; nodes on or after a cycle are missing."""
        return topological_levels(self._nodes, *self.edges())

    def relax(self, in_core: BoolArray) -> None:
        """Let dependencies on a SEND start at the SEND instead of at the receive of its message.

        This replaces any earlier relaxation, and breaks cycles. Relaxed are the dependencies of
        which both the waiting step and the receive are in `in_core`, the mask of nodes on or
        between cycles (`_find_core`). Conflicts (pairs of accesses whose order matters) are not
        relaxed: one on a SEND still waits for the receive.
        """
        before, after = self._dependencies
        waits_for_send = self._end[before] != before
        self._is_relaxed = waits_for_send & in_core[self._end[before]] & in_core[after]

    def stage(self, in_core: BoolArray) -> None:
        """Stage the messages that keep cycles closed: they arrive in a slot before their receive.

        `in_core`: mask of the nodes on or between cycles of the current graph. A message is staged
        if its receive is in this core and has an edge from a core node, not counting the edge of
        the message itself. Its arrival becomes a new node; these are numbered after the steps, in
        the order of the receives. The receive then only moves the data. Successors of the SEND wait
        for the arrival instead of the receive, so that the sender does not wait for earlier work of
        the receiver. Without such messages nothing changes. Changes the graph; call this once,
        after `relax`.
        """
        before, after = self.edges()
        is_message = np.zeros(len(before), np.bool_)
        # No message is staged yet, so the last edges are those of the messages.
        is_message[len(before) - len(self._messages.send) :] = True
        waits = after[in_core[before] & in_core[after] & ~is_message]
        # A RECV* may wait through several edges.
        staged = np.unique(waits[self._receives[waits]])
        self._arrival[staged] = self._rows + np.arange(len(staged))
        # Successors of the SEND now wait only for the arrival.
        receive = self._messages.receive
        arrival = self._arrival[receive]
        self._end[self._messages.send] = np.where(arrival >= 0, arrival, receive)

    def levels(self, order: Order) -> StepLevels:
        """Return the levels and the order of the steps.

        `order`: complete order of the nodes of the graph. A staged message first arrives in
        scratch; its arrival is a separate node before its receive. The result has, for each
        step:

        - Level of a receive or local step: the highest number of messages on a path of `edges`
          to it. A message counts at its receive, or at its arrival if it is staged; the step
          itself is included. So a first receive has level 1, and a local step without
          predecessors level 0.
        - Level of a SEND: the level of its message.
        - Level of its message: that of the receive, or of the arrival if it is staged. It is -1
          for a local step.
        - Its position in `order`.
        - Whether it is a staged receive.
        """
        # A message counts at its RECV*, or at the arrival that precedes a staged RECV*.
        is_staged = self._arrival >= 0
        is_message = np.ones(self._nodes, np.int64)
        is_message[: self._rows] = self._receives & ~is_staged
        level = _compute_longest_paths(order, *self.edges(), is_message)
        lands_at = np.where(is_staged, self._arrival, np.arange(self._rows))
        send, receive = self._messages.send, self._messages.receive
        message_level = np.full(self._rows, -1, np.int64)
        message_level[receive] = level[lands_at[receive]]
        message_level[send] = message_level[receive]
        row_level = level[: self._rows]
        # A SEND counts no message; its level is that in which it completes.
        row_level[send] = message_level[send]
        return StepLevels(row_level, message_level, order.position[: self._rows], is_staged)


def _find_core(order: Order, parents: Int64Array, children: Int64Array) -> BoolArray:
    """Return the mask of the nodes that are on a cycle or on a path between two cycles.

    `order`: forward topological order of the graph, in which nodes on or after cycles have a
    negative position. All False for a graph without cycles.
    """
    nodes = len(order.position)
    # Nodes after a cycle remain when sorting forwards, nodes before one when sorting backwards.
    is_left = order.position < 0
    is_inside = is_left[parents] & is_left[children]
    backwards = topological_levels(nodes, children[is_inside], parents[is_inside])
    in_core: BoolArray = is_left & (backwards.position < 0)
    return in_core


def _compute_longest_paths(
    order: Order, parents: Int64Array, children: Int64Array, weight: Int64Array
) -> Int64Array:
    """Return for each node the largest sum of weights on a path that ends there: int64[nodes].

    Edge i goes from node `parents[i]` to node `children[i]`. `weight`: int64 by node, at least 0.
    A path may begin at any node; its sum includes the weights of both ends. Not checked: `order`
    is a complete order of the nodes with levels, so the graph has no cycle. Every node after the
    first level has a parent.
    """
    # Nodes are renumbered by position, so that the parents of a level precede it.
    position = order.position
    indptr, before = csr(position[children], position[parents], len(position))
    # Each sum begins with the node's weight.
    sums = weight[order.nodes]
    borders = order.level_indptr.tolist()
    for low, high in pairwise(borders[1:]):
        # After the first level every node has a parent, so no group is empty.
        first, last = indptr[low], indptr[high]
        groups = indptr[low:high] - first
        sums[low:high] += np.maximum.reduceat(sums[before[first:last]], groups)
    path_weights = np.empty_like(sums)
    path_weights[order.nodes] = sums
    return path_weights
