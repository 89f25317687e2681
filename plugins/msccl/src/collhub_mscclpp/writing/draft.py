"""A draft of a plan: thread blocks, their work and order, and all that operations refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from collhub_mscclpp.options import PACKETS, PlanWriteOptions
from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.landing import (
    Landing,
    landing_of,
    packet_landing_of,
    pulled_of,
    with_equal_scratch,
)
from collhub_mscclpp.writing.networks import PlanNetwork
from collhub_mscclpp.writing.segments import (
    PORT,
    RankTables,
    channel_types,
    containing_range,
    has_equal_scratch,
    has_port_offset,
    memory_layouts,
    tables_of,
)
from collhub_mscclpp.writing.switch_stores import SwitchStores, place_switch_stores
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import BoolArray, Int64Array, labels, ordinals
from hub_core.model import StepKind, StepTable, UsageError


@dataclass(slots=True)
class Semaphores:
    """`count`: semaphores of every rank. `released`, `acquired`: their numbers by row of steps."""

    count: list[int]
    released: dict[int, list[int]] = field(default_factory=dict)
    acquired: dict[int, list[int]] = field(default_factory=dict)

    def another(self, rank: int) -> int:
        """The number of a further semaphore of a rank."""
        self.count[rank] += 1
        return self.count[rank] - 1


def semaphores_of(work: PlanWork, block: Int64Array) -> Semaphores:
    """One semaphore for every wait between blocks that no earlier wait of the block covers."""
    steps, position = work.steps, work.position
    found = Semaphores([0] * steps.num_ranks)
    parents, children = work.edges()
    crosses = block[parents] != block[children]
    parents, children = parents[crosses], children[crosses]
    # Later parents first: waiting for one covers all before it in its block.
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
        semaphore = found.another(rank)
        found.released.setdefault(parent, []).append(semaphore)
        found.acquired.setdefault(child, []).append(semaphore)
    return found


MOST_BLOCKS = 64
"""Thread blocks of a rank before they are cut to fit the executor's tables."""


def blocks_of(work: PlanWork) -> Int64Array:
    """The thread block of every step, from 0 in each rank: int64[rows].

    Lanes of the algorithm stay together. Any division is free of deadlocks, as every block does its
    steps in the one order of all ranks; so are blocks folded where a rank has too many.
    """
    steps = work.steps
    rank = steps.rank.astype(np.int64)
    group = _groups(work)
    width = int(group.max(initial=0)) + 1
    number = labels(rank * width + group)
    _, first = np.unique(number, return_index=True)
    # Numbers of groups count over all ranks; those of blocks begin anew in each.
    block_of_group = ordinals(rank[first])
    return np.asarray(block_of_group[number] % MOST_BLOCKS, np.int64)


def _groups(work: PlanWork) -> Int64Array:
    """A number for every step, the same for those of one rank that one block does."""
    steps = work.steps
    lane = work.lane
    if bool((lane >= 0).all()):
        return lane
    open_group = int(lane.max(initial=-1)) + 1
    of_connection = _connection_groups(work)
    group = np.where(lane >= 0, lane, open_group)
    is_open = (lane < 0) & (work.connection >= 0)
    is_send = steps.sends.astype(np.int64)
    side = work.connection * 2 + is_send
    group[is_open] = open_group + 1 + of_connection[side[is_open]]
    _place_local_steps(work, group)
    return group


def _connection_groups(work: PlanWork) -> Int64Array:
    """The group of the receives (2 c) and of the sends (2 c + 1) of every connection c.

    A receiving block passes on what it got, to one connection: ring steps need no semaphores then.
    Messages that are added to one sum arrive in one block: one operation adds several.
    """
    steps, connection = work.steps, work.connection
    group = np.arange(2 * len(work.source), dtype=np.int64)
    parents, children = work.edges()
    is_open = (work.lane[parents] < 0) & (work.lane[children] < 0)
    parents, children = parents[is_open], children[is_open]
    is_sum = _is_further_term(steps, parents, children)
    for earlier, later in np.unique(
        connection[np.stack([parents[is_sum], children[is_sum]], axis=1)], axis=0
    ).tolist():
        group[group == group[2 * later]] = group[2 * earlier]
    is_forward = steps.receives[parents] & steps.sends[children]
    received, sent = connection[parents[is_forward]], connection[children[is_forward]]
    pairs, count = np.unique(np.stack([received, sent], axis=1), axis=0, return_counts=True)
    is_taken = np.zeros(len(group), np.bool_)
    # The pairs with most steps first; every connection has one partner.
    for pair in np.argsort(-count, kind="stable").tolist():
        receive_side, send_side = 2 * pairs[pair, 0], 2 * pairs[pair, 1] + 1
        if not is_taken[receive_side] and not is_taken[send_side]:
            group[send_side] = group[receive_side]
            is_taken[[receive_side, send_side]] = True
    return group


def _is_further_term(steps: StepTable, parents: Int64Array, children: Int64Array) -> BoolArray:
    """Dependencies from a sum of a message to the sum of another in the same place."""
    is_sum = steps.is_kind(StepKind.RECV_REDUCE)
    found = is_sum[parents] & is_sum[children]
    for column in (steps.dst_buffer, steps.dst_offset, steps.count):
        found &= column[parents] == column[children]
    return found


def _place_local_steps(work: PlanWork, group: Int64Array) -> None:
    """Put local steps without a lane behind the step that they wait for."""
    steps = work.steps
    is_local = steps.is_kind(StepKind.COPY, StepKind.REDUCE) & (work.lane < 0)
    rows = np.flatnonzero(is_local)
    in_order = rows[np.argsort(work.position[rows], kind="stable")]
    for row in in_order.tolist():
        first, last = steps.data_indptr[row], steps.data_indptr[row + 1]
        if last > first:
            parents = steps.data_indices[first:last]
            group[row] = group[parents[np.argmax(work.position[parents])]]


_SEND = int(StepKind.SEND)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What every operation needs."""

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
        """Choose thread blocks, channels, landing places and semaphores.

        Raises `UsageError` for packets between memory domains.
        """
        # Types come first: ranks number channels by type.
        types = channel_types(work, network.domain)
        is_packets = options.protocol == PACKETS
        if is_packets and PORT in types:
            # Proxies move what lies in memory: they make no packets of it.
            message = "packets do not travel between nodes"
            raise UsageError(message, cure="choose -O protocol=Simple for several nodes")
        tables = tables_of(work, types, options.tbg)
        block = blocks_of(work)
        landing = _landing(work, block, types, options)
        landing, stores = place_switch_stores(work, landing, is_packets=is_packets)
        if is_packets:
            landing = with_equal_scratch(work, landing)
        for number, (_, ranks) in enumerate(stores.groups):
            for rank in ranks:
                tables[rank].join(number)
        semaphores = semaphores_of(work, block)
        counts = zip(tables, semaphores.count, strict=True)
        for table, count in counts:
            # Each part of a block waits for the same part of the other one.
            table.semaphores = count * options.tbg
        return cls(work, landing, block, semaphores, types, tables, options, stores)

    @property
    def parts(self) -> int:
        """Thread blocks that share the work of one."""
        return self.options.tbg

    def rows_of_blocks(self) -> list[list[int]]:
        """Rows of every thread block in the order of doing, blocks by rank and number."""
        rank = self.work.steps.rank.astype(np.int64)
        order = self.work.order
        width = int(self.block.max(initial=0)) + 1
        # Sorted stably, rows of a block stay in the order of doing.
        key = rank[order] * width + self.block[order]
        by_block = np.argsort(key, kind="stable")
        borders = np.flatnonzero(np.diff(key[by_block])) + 1
        groups = np.split(order[by_block], borders)
        return [group.tolist() for group in groups if len(group)]

    def channel(self, row: int, part: int) -> int:
        """Channel of a message on the rank of this row."""
        # Parts have channels of their own: one counter would mix their signals.
        number = int(self.work.connection[row]) * self.parts + part
        return self.tables[int(self.work.steps.rank[row])].channels[number]

    def channel_type(self, row: int) -> str:
        """Type of the channel of a message."""
        connection = int(self.work.connection[row])
        return self.types[connection]

    def numbers(self, of_row: dict[int, list[int]], row: int, part: int) -> list[int]:
        """Semaphores of one part of a block."""
        return [number * self.parts + part for number in of_row.get(row, ())]

    def source(self, row: int) -> Range:
        """What a step reads."""
        steps, unit = self.work.steps, self.work.unit
        index, size = int(steps.src_offset[row]) // unit, int(steps.count[row]) // unit
        return Range(int(steps.src_buffer[row]), index, size)

    def port_source(self, row: int) -> Range:
        """What a send through a port reads, from the start of its allocation."""
        one, rank = self.source(row), int(self.work.steps.rank[row])
        buffer, index = containing_range(self.work, rank, one.buffer, one.index)
        return Range(buffer, index, one.size)

    def serves_in_place(self) -> bool:
        """Whether the plan is right in place too, where the algorithm claims it.

        A plan for both modes cannot send the smaller buffer of a call in place through a port, and
        packets need equal scratch on all ranks.
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
        """What a step writes."""
        steps, unit = self.work.steps, self.work.unit
        index, size = int(steps.dst_offset[row]) // unit, int(steps.count[row]) // unit
        return Range(int(steps.dst_buffer[row]), index, size)

    def landing_range(self, row: int) -> Range:
        """Where the message of a send, in the peer's memory, or of a receive lies."""
        steps, landing = self.work.steps, self.landing
        # A receive looks at its own memory, but for what it pulls.
        is_remote = int(steps.kind[row]) == _SEND or bool(landing.is_pulled[row])
        peer = int(steps.peer[row]) if is_remote else -1
        size = int(steps.count[row]) // self.work.unit
        return Range(int(landing.buffer[row]), int(landing.index[row]), size, peer)

    def group_range(self, group: int, index: int, row: int) -> Range:
        """The place of what a step moves, on all members of a group of a switch."""
        size = int(self.work.steps.count[row]) // self.work.unit
        return Range(self.stores.groups[group][0], index, size, group=group)

    def pieces(self, one: Range) -> list[Range]:
        """The range, or its chunks where several blocks share it.

        Parts of a range of two chunks are other parts of memory than those of its chunks.
        """
        if self.parts == 1:
            return [one]
        return [replace(one, index=one.index + k, size=1) for k in range(one.size)]

    def writer(self, rank: int, part: int) -> BlockWriter:
        """An empty thread block."""
        return BlockWriter(self.tables[rank], part, self.parts)


def _landing(
    work: PlanWork, block: Int64Array, types: Sequence[str], options: PlanWriteOptions
) -> Landing:
    if options.protocol == PACKETS:
        return packet_landing_of(work)
    nothing = np.zeros(len(work.steps), np.bool_)
    return landing_of(work, pulled_of(work, block, types) if options.pull else nothing)
