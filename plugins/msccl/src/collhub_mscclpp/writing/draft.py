"""A draft of a plan: thread blocks, their work and order, and all that operations refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_mscclpp.plugin import PACKETS, PlanWriteOptions
from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.landing import (
    Landing,
    choose_landing,
    choose_packet_landing,
    enlarge_scratch,
    find_pulled,
)
from collhub_mscclpp.writing.networks import PlanNetwork
from collhub_mscclpp.writing.segments import (
    PORT,
    RankTables,
    build_tables,
    choose_channel_types,
    find_containing_range,
    has_equal_scratch,
    has_port_offset,
    memory_layouts,
)
from collhub_mscclpp.writing.switch_stores import SwitchStores, place_switch_stores
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import Int64Array, labels, ordinals, run_starts, stable_order
from hub_core.model import StepKind, UsageError


@dataclass(slots=True)
class Semaphores:
    """Semaphores of a plan.

    `count`: number of semaphores of every rank. `released`, `acquired`: by row, the numbers of the
    semaphores that a step releases after it, or acquires before it.
    """

    count: list[int]
    released: dict[int, list[int]] = field(default_factory=dict)
    acquired: dict[int, list[int]] = field(default_factory=dict)

    def add_semaphore(self, rank: int) -> int:
        """Add a semaphore to a rank and return its number.

        Semaphores of a rank are numbered from 0 in the order of the calls.
        """
        self.count[rank] += 1
        return self.count[rank] - 1


def assign_semaphores(work: PlanWork, block: Int64Array) -> Semaphores:
    """Assign semaphores to the dependencies between different thread blocks of a rank.

    `block`: int64[rows], the block of each step within its rank. The parent step releases the
    semaphore; the child step acquires it before it starts. Dependencies are handled in execution
    order of the children; for one child, the parent that is executed last comes first.

    A dependency gets no semaphore if an earlier one already has one from the same block to the same
    block, with this parent or one executed later. Two waits over a third block are no reason to
    omit a semaphore.

    Semaphores are numbered per rank from 0 in this order. The result has the number of semaphores
    by rank, and per row the lists of released and of acquired ones, ascending. Rows without
    semaphores are omitted. The arguments are not changed.
    """
    steps, position = work.steps, work.position
    semaphores = Semaphores([0] * steps.num_ranks)
    parents, children = work.edges()
    crosses = block[parents] != block[children]
    parents, children = parents[crosses], children[crosses]
    # Later parents first: a wait for a step covers all earlier steps of its block.
    order = sorted(
        range(len(parents)), key=lambda edge: (position[children[edge]], -position[parents[edge]])
    )
    covered: dict[tuple[int, int, int], int] = {}
    for edge in order:
        parent, child = int(parents[edge]), int(children[edge])
        rank = int(steps.rank[child])
        pair = (rank, int(block[parent]), int(block[child]))
        if position[parent] <= covered.get(pair, -1):
            continue
        covered[pair] = int(position[parent])
        number = semaphores.add_semaphore(rank)
        semaphores.released.setdefault(parent, []).append(number)
        semaphores.acquired.setdefault(child, []).append(number)
    return semaphores


MAX_BLOCKS = 64
"""Maximum number of thread blocks of a rank, before division to fit the executor's tables."""


def assign_blocks(work: PlanWork) -> Int64Array:
    """Assign every step to a thread block of its rank, numbered from 0: int64[rows].

    Each of the following has a block of its own; the blocks of a rank are numbered in this order:

    1. each lane of the algorithm, ascending
    2. all steps without a lane that are neither messages nor copies or reductions with a data
       dependency
    3. the messages without a lane of one direction of a connection. Directions share a block if one
       adds to sums that the other receives, or if one forwards what the other receives
       (`_group_connections`).

    A copy or reduction without a lane is in the block of the last step whose data it needs. After
    block 63 (`MAX_BLOCKS` - 1), block numbers start again at 0.

    No assignment can deadlock, because all blocks execute their steps in one common order.
    """
    steps = work.steps
    rank = steps.rank.astype(np.int64)
    group = _group_steps(work)
    width = int(group.max(initial=0)) + 1
    number = labels(rank * width + group)
    _, first = np.unique(number, return_index=True)
    # Groups are numbered over all ranks, blocks from 0 in each rank.
    block_of_group = ordinals(rank[first])
    return np.asarray(block_of_group[number] % MAX_BLOCKS, np.int64)


def _group_steps(work: PlanWork) -> Int64Array:
    """Number the groups of steps that one thread block of a rank executes: int64[rows].

    Returns `work.lane` itself if every step has a lane (is 0 or above). Otherwise the first rule
    that applies to a step decides, where H is the highest lane of all ranks, -1 without lanes:

    - The step has a lane: the group is the lane.
    - It is a message: H + 2 plus the group that `_group_connections` gives to the receives or to
      the sends of its connection. Several of them can have one group.
    - It is a copy or a reduction with a data dependency: the group of the direct predecessor
      that is last in the order of execution.
    - Otherwise: H + 1.

    Groups of different ranks may have the same number. Numbers may have gaps.
    """
    steps = work.steps
    lane = work.lane
    if bool((lane >= 0).all()):
        return lane
    open_group = int(lane.max(initial=-1)) + 1
    of_connection = _group_connections(work)
    group = np.where(lane >= 0, lane, open_group)
    is_open = (lane < 0) & (work.connection >= 0)
    is_send = steps.sends.astype(np.int64)
    side = work.connection * 2 + is_send
    group[is_open] = open_group + 1 + of_connection[side[is_open]]
    # Local steps join the group of the last step that they depend on.
    is_local = steps.is_kind(StepKind.COPY, StepKind.REDUCE) & (work.lane < 0)
    rows = np.flatnonzero(is_local)
    in_order = rows[np.argsort(work.position[rows], kind="stable")]
    for row in in_order.tolist():
        first, last = steps.data_indptr[row], steps.data_indptr[row + 1]
        if last > first:
            parents = steps.data_indices[first:last]
            group[row] = group[parents[np.argmax(work.position[parents])]]
    return group


def _group_connections(work: PlanWork) -> Int64Array:
    """Choose which sides of connections are executed by one thread block; return their groups.

    The result is int64[2 * connections]: entry 2 c is for the receives of connection c, entry 2 c +
    1 for its sends. Sides with equal entries are one group. A dependency is used only if it is
    direct and neither of its two steps has a lane (a thread block that the algorithm assigns).

    1. Sums: the receives of two connections are joined, also transitively, if a reducing receive of
       one depends on a reducing receive of the other with the same destination and count.
    2. Forwarding: if a send of connection b depends on a receive of connection a, the sends of b
       join the group of the receives of a. The pairs (a, b) are visited by descending number of
       such dependencies, then ascending. A pair is skipped if rule 2 has joined one of its sides
       already; joins by rule 1 do not matter.

    Every other side is a separate group.
    """
    steps, connection = work.steps, work.connection
    group = np.arange(2 * len(work.source), dtype=np.int64)
    parents, children = work.edges()
    is_open = (work.lane[parents] < 0) & (work.lane[children] < 0)
    parents, children = parents[is_open], children[is_open]
    # Dependencies between received sums that have the same destination.
    receives_sum = steps.is_kind(StepKind.RECV_REDUCE)
    is_sum = receives_sum[parents] & receives_sum[children]
    for column in (steps.dst_buffer, steps.dst_offset, steps.count):
        is_sum &= column[parents] == column[children]
    terms = connection[np.stack([parents[is_sum], children[is_sum]], axis=1)]
    for earlier, later in np.unique(terms, axis=0).tolist():
        group[group == group[2 * later]] = group[2 * earlier]
    is_forward = steps.receives[parents] & steps.sends[children]
    received, sent = connection[parents[is_forward]], connection[children[is_forward]]
    pairs, count = np.unique(np.stack([received, sent], axis=1), axis=0, return_counts=True)
    is_taken = np.zeros(len(group), np.bool_)
    # Pairs with the largest number of steps first; every side gets at most one partner.
    for pair in np.argsort(-count, kind="stable").tolist():
        receive_side, send_side = 2 * pairs[pair, 0], 2 * pairs[pair, 1] + 1
        if not is_taken[receive_side] and not is_taken[send_side]:
            group[send_side] = group[receive_side]
            is_taken[[receive_side, send_side]] = True
    return group


_SEND = int(StepKind.SEND)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """All choices of a plan that its operations refer to.

    `block`: int64[rows], thread block of every step within its rank. `types`: channel type of every
    connection. `tables`: channels and remote buffers, by rank. `stores`: ranges of switch channels.
    """

    work: PlanWork
    landing: Landing
    block: Int64Array
    semaphores: Semaphores
    types: Sequence[str]
    tables: Sequence[RankTables]
    options: PlanWriteOptions
    stores: SwitchStores

    @classmethod
    def of(cls, work: PlanWork, network: PlanNetwork, options: PlanWriteOptions) -> Draft:
        """Choose the thread blocks, channels, message addresses and semaphores of a plan.

        - Channels: memory channels connect ranks of one memory domain of `network`, port channels
          all other pairs.
        - Blocks: those of `assign_blocks`. Each one is written as `options.tbg` blocks that share
          its work, each with its part of the semaphores and channels.
        - Pulled messages, i.e. those that the receiver reads from the sender's memory: only with
          `options.pull`, without packets (protocol LL), and where `find_pulled` permits it.
        - Switch operations: sums with a message that is not pulled are removed from
          `work.switches`, which is changed. Each remaining operation has a group of ranks; its
          number is added to the tables of these ranks.
        - SCRATCH is enlarged for packets, and for switch operations that write to new scratch.

        Raises `UsageError` for packets if any connection is a port channel.
        """
        # Channels are numbered by type, so the types are needed first.
        types = choose_channel_types(work, network.domain)
        is_packets = options.protocol == PACKETS
        if is_packets and PORT in types:
            # Proxies copy memory as it is; they cannot create packets.
            message = "packets do not travel between nodes"
            raise UsageError(message, cure="choose -O protocol=Simple for several nodes")
        tables = build_tables(work, types, options.tbg)
        block = assign_blocks(work)
        if is_packets:
            landing = choose_packet_landing(work)
        else:
            is_pulled = np.zeros(len(work.steps), np.bool_)
            if options.pull:
                is_pulled = find_pulled(work, block, types)
            landing = choose_landing(work, is_pulled)
        landing, stores = place_switch_stores(work, landing, is_packets=is_packets)
        if is_packets:
            landing = enlarge_scratch(work, landing)
        for number, (_, ranks) in enumerate(stores.groups):
            for rank in ranks:
                tables[rank].join(number)
        semaphores = assign_semaphores(work, block)
        counts = zip(tables, semaphores.count, strict=True)
        for table, count in counts:
            # Each part of a block waits for the same part of the other block.
            table.semaphores = count * options.tbg
        return cls(work, landing, block, semaphores, types, tables, options, stores)

    @property
    def parts(self) -> int:
        """Number of thread blocks that share the work of one."""
        return self.options.tbg

    def rows_of_blocks(self) -> list[list[int]]:
        """List the rows of every thread block in the order of execution.

        The blocks are sorted by rank, then by number. Blocks without rows are omitted, so positions
        in the list are not block numbers.
        """
        rank = self.work.steps.rank.astype(np.int64)
        order = self.work.order
        width = int(self.block.max(initial=0)) + 1
        # A stable sort preserves the execution order within a block.
        key = rank[order] * width + self.block[order]
        by_block = stable_order(key)
        groups = np.split(order[by_block], run_starts(key[by_block])[1:])
        return [group.tolist() for group in groups if len(group)]

    def channel(self, row: int, part: int) -> int:
        """Return the id of the channel of a message, on the rank of the step `row`.

        `row`: the send or the receive of the message; the two can have different ids, because an id
        counts the channels of one type on one rank, from 0. `part`: which of the `parts` thread
        blocks that share the work, from 0; each has a separate channel per connection. `part` is
        not checked. Raises `KeyError` for a step that is no message.
        """
        # Each part has a separate channel: a shared counter would mix up their signals.
        number = int(self.work.connection[row]) * self.parts + part
        return self.tables[int(self.work.steps.rank[row])].channels[number]

    def channel_type(self, row: int) -> str:
        """Return the channel type of a message (`memory` or `port`).

        `row`: its send or its receive; other rows are not checked.
        """
        connection = int(self.work.connection[row])
        return self.types[connection]

    def numbers(self, of_row: dict[int, list[int]], row: int, part: int) -> list[int]:
        """List the semaphores of a step for one part of its block."""
        return [number * self.parts + part for number in of_row.get(row, ())]

    def source(self, row: int) -> Range:
        """Return the range that a step reads, in chunks, on its rank.

        It is local; its buffer, index and size are those of the step's source. The step must have
        one.
        """
        steps, unit = self.work.steps, self.work.unit
        index, size = int(steps.src_offset[row]) // unit, int(steps.count[row]) // unit
        return Range(int(steps.src_buffer[row]), index, size)

    def port_source(self, row: int) -> Range:
        """Return the range that a send through a port reads, as the proxy addresses it, in chunks.

        A proxy reads from the start of an allocation. So if the algorithm supports only calls in
        place, and the buffer has an offset inside the larger one (input or output), the result is
        the equivalent range of the larger buffer. Otherwise it is that of `source`.
        """
        source, rank = self.source(row), int(self.work.steps.rank[row])
        buffer, index = find_containing_range(self.work, rank, source.buffer, source.index)
        return Range(buffer, index, source.size)

    def serves_in_place(self) -> bool:
        """Return whether the plan is correct for calls in place. The first rule that applies:

        1. The algorithm does not support calls in place: False.
        2. With packets: whether a chunk of scratch has the same number of bytes on all ranks,
           in every mode that the algorithm supports.
        3. The algorithm supports only calls in place: True.
        4. Both modes: False if a message is sent through a port from a buffer that has an
           offset in its allocation in place, otherwise True.
        """
        collective, steps = self.work.algorithm.collective, self.work.steps
        if not collective.in_place:
            return False
        if self.options.protocol == PACKETS:
            return all(map(has_equal_scratch, memory_layouts(self.work)))
        if not collective.out_of_place:
            return True
        sends = self.work.messages.send
        by_port = [row for row in sends.tolist() if self.channel_type(row) == PORT]
        sources = {(int(steps.rank[row]), int(steps.src_buffer[row])) for row in by_port}
        return not any(has_port_offset(self.work, *source) for source in sources)

    def target(self, row: int) -> Range:
        """Return the range that a step writes, in chunks, on its rank.

        It is local; its buffer, index and size are those of the step's destination. The step must
        have one.
        """
        steps, unit = self.work.steps, self.work.unit
        index, size = int(steps.dst_offset[row]) // unit, int(steps.count[row]) // unit
        return Range(int(steps.dst_buffer[row]), index, size)

    def landing_range(self, row: int) -> Range:
        """Return the range in which a message arrives, or from which it is pulled, in chunks.

        `row`: its send or its receive; the result depends on it:

        - Send: the range of the receiver's memory into which the data is written; if the message
          is pulled, the destination of the receive, which is not used.
        - Receive: the range of the rank's own memory where the data arrives (`rank` is -1).
        - Receive that pulls its data: the range of the sender's memory from which it reads.
        """
        steps, landing = self.work.steps, self.landing
        is_remote = int(steps.kind[row]) == _SEND or bool(landing.is_pulled[row])
        peer = int(steps.peer[row]) if is_remote else -1
        size = int(steps.count[row]) // self.work.unit
        return Range(int(landing.buffer[row]), int(landing.index[row]), size, peer)

    def group_range(self, group: int, index: int, row: int) -> Range:
        """Return a range of a switch group, from chunk `index` on, with the size of the step `row`.

        `group`: number of the group (buffer and ranks of a switch channel), which determines the
        buffer.
        """
        size = int(self.work.steps.count[row]) // self.work.unit
        return Range(self.stores.groups[group][0], index, size, group=group)

    def split_range(self, full_range: Range) -> list[Range]:
        """Return the chunks of a range as separate ranges if several thread blocks share the work.

        Otherwise returns a list with the range itself. If each block processes a part of every
        range, part k of a range is not the union of the parts k of its chunks, so all operations
        that share work use single chunks.
        """
        if self.parts == 1:
            return [full_range]
        return [
            replace(full_range, index=full_range.index + k, size=1) for k in range(full_range.size)
        ]

    def writer(self, rank: int, part: int) -> BlockWriter:
        """Create the writer of an empty thread block."""
        return BlockWriter(self.tables[rank], part, self.parts)
