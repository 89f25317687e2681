"""An algorithm as a draft of a plan: everything that the operations of its blocks refer to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_mscclpp.options import PACKETS, PlanWriteOptions
from collhub_mscclpp.writing.block_writer import BlockWriter, Range
from collhub_mscclpp.writing.blocks import Semaphores, blocks_of, semaphores_of
from collhub_mscclpp.writing.landing import (
    Landing,
    landing_of,
    packet_landing_of,
    pulled_of,
    with_equal_scratch,
)
from collhub_mscclpp.writing.networks import PlanNetwork
from collhub_mscclpp.writing.rank_tables import PORT, RankTables, channel_types, tables_of
from collhub_mscclpp.writing.segments import (
    containing_range,
    has_equal_scratch,
    has_port_offset,
    memory_layouts,
)
from collhub_mscclpp.writing.switch_stores import SwitchStores, place_switch_stores
from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import Int64Array
from hub_core.model import StepKind, UsageError

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
