"""Translate plans for `kernel`: ranges to cells, channels and semaphores to counters."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from collhub_mscclpp.checking.memory import PlanMemory
from collhub_mscclpp.checking.program import PlanColumns
from collhub_mscclpp.plan_records import CHANNEL_TYPES, KNOWN, Plan, Role, Scope
from hub_core.columns import BoolArray, Int64Array, UInt8Array, group_pointer, row_pointer
from hub_core.model import Buffer

_ROLES = np.asarray([operation.role for operation in KNOWN] + [Role.UNKNOWN], np.int64)
_IS_EACH = np.asarray([operation.is_each for operation in KNOWN] + [False])
# Operations that, on memory channels, read all sources from the buffer of src[0].
_FIRST_BUFFER = np.asarray([operation.name in ("put", "ppkt") for operation in KNOWN] + [False])
_IS_GET = np.asarray([operation.name == "get" for operation in KNOWN] + [False])
_PUTS_PACKETS = np.asarray([operation.name == "ppkt" for operation in KNOWN] + [False])
# Operations that increment or await counters of their channels or semaphores.
_COUNTS = np.asarray([operation.counts_items for operation in KNOWN] + [False])
_FLUSHES = np.asarray(
    [operation.flushes or operation.role is Role.FLUSH for operation in KNOWN] + [False]
)
_MEMORY, _PORT = CHANNEL_TYPES.index("memory"), CHANNEL_TYPES.index("port")


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Counters of a plan: one per direction of a channel, and one per semaphore.

    `names`: descriptions; `targets`: ranks that await the counters; `initial`: int64[counters].
    `of_item`: int64[items], counter of every row of `Plan.items`, -1 for a channel without a
    partner, and for channels that an operation does not signal or await.
    """

    names: tuple[str, ...]
    targets: tuple[int, ...]
    of_item: Int64Array
    initial: Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Ranges of operations in cells, one row for every rank of a range; int64 columns.

    `operand`: row of `Plan.operands`; `move`: number within its operation; `rank`, `buffer`: its
    memory; `base`: first cell; `shift`: added to `base` in every second launch; `cells`: number of
    cells; `is_packet`, `is_dst`: 0 or 1.
    """

    operand: Int64Array
    move: Int64Array
    rank: Int64Array
    buffer: Int64Array
    base: Int64Array
    shift: Int64Array
    cells: Int64Array
    is_packet: UInt8Array
    is_dst: UInt8Array


@dataclass(frozen=True, slots=True, eq=False)
class Proxies:
    """Port channels whose proxy may lag, that is read later than the request; one actor each.

    `count`: number of channels. `of_item`: int64[items], number of the channel of every row of
    `Plan.items`; -1 if it does not lag, or if a flush does not wait for it.
    """

    count: int
    of_item: Int64Array


def lagging_proxies(plan: Plan) -> Proxies:
    """Number the lagging port channels: those whose proxy may read the source of a put late.

    A proxy is the thread of the host that executes puts of a port channel. The operations of each
    thread block are examined in order. They change the set of pending channels:

    - A put on port channels adds its channels.
    - An operation on port channels that flushes by itself removes all its channels.
    - A flush removes its first channels, as many as it has entries in dst_buff.
    - A signal on port channels and a nop change nothing.
    - Any other operation, and the end of the block: all pending channels lag, and the set is
      emptied.

    Channels (rank, id) are numbered in the order in which they begin to lag; those that begin
    together, in the order of their puts. Returns the number of lagging channels, and for each item
    of the plan the number of its channel, or -1.
    """
    table, items = plan.operations, plan.items
    if not (table.channel_type == _PORT).any():
        return Proxies(0, np.full(len(items), -1, np.int64))
    first = group_pointer(items.operation, len(table))
    channels = items.item.tolist()
    is_port = (table.channel_type == _PORT).tolist()
    numbers: dict[tuple[int, int], int] = {}
    requested: dict[tuple[int, int], None] = {}
    last_block = -1

    def leave() -> None:
        for channel in requested:
            numbers.setdefault(channel, len(numbers))
        requested.clear()

    for row, block in enumerate(table.block.tolist()):
        if block != last_block:
            leave()
            last_block = block
        operation = plan.operation(row)
        rank = plan.blocks[block].rank
        operation_channels = [(rank, channel) for channel in channels[first[row] : first[row + 1]]]
        role = operation.role if operation else Role.UNKNOWN
        if role is Role.FLUSH or (operation and operation.flushes and is_port[row]):
            count = int(table.flushed[row]) if role is Role.FLUSH else len(operation_channels)
            for channel in operation_channels[:count]:
                requested.pop(channel, None)
        elif role is Role.DATA and is_port[row]:
            requested.update(dict.fromkeys(operation_channels))
        elif role is not Role.NOP and not (role is Role.SIGNAL and is_port[row]):
            leave()
    leave()
    return Proxies(len(numbers), _proxies_of_items(plan, first, numbers))


def _proxies_of_items(
    plan: Plan, first: Int64Array, numbers: dict[tuple[int, int], int]
) -> Int64Array:
    """Return the number of the lagging port channel of every item: int64[items], -1 for none.

    A port channel lags if its proxy, a thread of the host, may read sources late
    (`lagging_proxies`). `first`: first item of each operation. `numbers`: number of each lagging
    channel by (rank, channel). An item of an operation on port channels has the number of its
    channel, if that lags:

    - all items of data operations and signals
    - of a flush only the first items, as many as it has entries in dst_buff

    All other items have -1, such as those of waits and of other channel types.
    """
    table, items = plan.operations, plan.items
    operation = items.operation
    rank = block_ranks(plan)[table.block[operation]]
    is_port = table.channel_type[operation] == _PORT
    role = _ROLES[table.code[operation]]
    # Waits read memory of the local rank, without a proxy.
    is_port &= (role == Role.DATA) | (role == Role.SIGNAL) | (role == Role.FLUSH)
    position = np.arange(len(operation)) - first[operation]
    is_port &= (role != Role.FLUSH) | (position < table.flushed[operation])
    proxy_of_item = np.full(len(operation), -1, np.int64)
    for row in np.flatnonzero(is_port).tolist():
        proxy_of_item[row] = numbers.get((int(rank[row]), int(items.item[row])), -1)
    return proxy_of_item


def program_of(
    plan: Plan,
    counters: Counters,
    proxies: Proxies,
    ranges: Ranges,
) -> PlanColumns:
    """Build the arrays that the simulation kernel executes, from a plan and its ranges of cells.

    A move is a group of ranges of one operation with equally many cells; the sum of its sources is
    written to every destination. Moves are numbered in the order of operations. Reads and writes
    are sorted by move, then in the order of `ranges`. In an array `..._first`, group k has the
    entries from [k] to [k + 1] - 1.

    - `flushes`: 1 for operations on port channels that flush by themselves, otherwise 0
    - `item`, `item_proxy`: for every row of `plan.items`, the counter (`counters.of_item`) and the
      lagging port channel (`proxies.of_item`), -1 for none. A port channel lags if its proxy may
      read the sources after the thread block has continued.
    - `read_is_packet`, `write_is_packet`: `is_packet` of the range; for a read of an operation
      `ppkt` on port channels always 0
    - `write_proxy`: number of the lagging channel that writes the range, -1 for none

    Ranges must be inside their buffers; this is not checked. The arguments are not changed.
    """
    table = plan.operations
    rows = len(table)
    operation = plan.operands.operation[ranges.operand]
    # Moves are numbered over all operations, consecutively within an operation.
    moves = np.zeros(rows, np.int64)
    np.maximum.at(moves, operation, ranges.move + 1)
    move_first = row_pointer(moves)
    move = move_first[operation] + ranges.move
    cells = np.zeros(int(move_first[-1]), np.int64)
    cells[move] = ranges.cells
    reads = np.flatnonzero(ranges.is_dst == 0)
    writes = np.flatnonzero(ranges.is_dst == 1)
    # Sorted by move; within a move in the order of the plan.
    reads = reads[np.argsort(move[reads], kind="stable")]
    writes = writes[np.argsort(move[writes], kind="stable")]
    # A proxy copies packets without waiting for their flags.
    is_stored = puts_stored_packets(plan)[operation[reads]]
    return PlanColumns(
        block_first=group_pointer(table.block, len(plan.blocks)),
        role=_ROLES[table.code],
        barrier=barriers_of(plan),
        barrier_blocks=table.barrier_blocks,
        flushes=(_FLUSHES[table.code] & (table.channel_type == _PORT)).astype(np.uint8),
        item_first=group_pointer(plan.items.operation, rows),
        item=counters.of_item,
        item_proxy=proxies.of_item,
        move_first=move_first,
        cells=cells,
        read_first=group_pointer(move[reads], len(cells)),
        read_base=ranges.base[reads],
        read_shift=ranges.shift[reads],
        read_is_packet=ranges.is_packet[reads] & ~is_stored,
        write_first=group_pointer(move[writes], len(cells)),
        write_base=ranges.base[writes],
        write_shift=ranges.shift[writes],
        write_is_packet=ranges.is_packet[writes],
        write_proxy=_proxies_of_writes(plan, proxies, ranges, writes),
    )


def _proxies_of_writes(
    plan: Plan, proxies: Proxies, ranges: Ranges, writes: Int64Array
) -> Int64Array:
    """Return the number of the lagging port channel that writes each range in `writes`, or -1.

    A port channel lags if its proxy may read the sources after the thread block has continued
    (`lagging_proxies`). `writes`: rows of `ranges`; the result is int64 in this order. A range that
    is destination k of an operation on port channels gets the entry of `proxies.of_item` for the
    k-th channel of the operation, which must exist. It is -1 if this channel does not lag. Ranges
    of operations on other types of channels, or without channels, get -1.
    """
    operands, items = plan.operands, plan.items
    operand = ranges.operand[writes]
    operation = operands.operation[operand]
    first = group_pointer(items.operation, len(plan.operations))
    proxy_of_write = np.full(len(writes), -1, np.int64)
    # Destination k uses channel k, which exists (rule `port-channels`).
    is_port = plan.operations.channel_type[operation] == _PORT
    proxy_of_write[is_port] = proxies.of_item[
        (first[operation] + operands.position[operand])[is_port]
    ]
    return proxy_of_write


def barriers_of(plan: Plan) -> Int64Array:
    """Return the number of the barrier of every operation: int64, -1 for other operations.

    The barriers that occur are numbered from 0 over all ranks, by rank, then by their number in the
    plan.
    """
    table = plan.operations
    rank = block_ranks(plan)[table.block]
    is_barrier = table.barrier >= 0
    barrier_of_operation = np.full(len(table), -1, np.int64)
    pairs = np.stack([rank[is_barrier], table.barrier[is_barrier]], axis=1)
    if len(pairs):
        barrier_of_operation[is_barrier] = np.unique(pairs, axis=0, return_inverse=True)[1].ravel()
    return barrier_of_operation


def block_ranks(plan: Plan) -> Int64Array:
    """Return the rank of every thread block: int64[blocks]."""
    return np.asarray([block.rank for block in plan.blocks], np.int64)


def ranges_of(
    plan: Plan,
    memory: PlanMemory,
) -> Ranges:
    """Translate the ranges of a plan's operations to memory cells, as the executor does.

    The result has one row per range and rank whose memory the range accesses, sorted by range. A
    range of a switch channel has one row per member of its group. If several thread blocks share
    an operation, the row is the part of the block. The columns are those of `Ranges`, among them:

    - `buffer`: as the executor takes it, like the index (`as_executed`)
    - `base`: first cell, with `memory.cells_per_chunk` cells per chunk. Packets in scratch lie
      behind all halves of plain scratch. `cells`: number of cells.
    - `shift`: cells added to `base` in every second launch. It is one half of double scratch for a
      scratch range that has packets, or that is local and not on a port channel; otherwise 0.
    - `move`: position of the range among the sources or destinations, if the operation copies each
      source to the destination at the same position; otherwise 0

    Raises `KeyError` if a source or destination of a get has no counterpart.
    """
    operands, table = plan.operands, plan.operations
    code = table.code[operands.operation]
    operand, rank = owners(plan)
    buffer, index = as_executed(plan)
    is_packet = _packets(plan)[operand]
    part, parts = table.part[operands.operation], table.parts[operands.operation]
    operand_cells = operands.size * memory.cells_per_chunk
    start = (index * memory.cells_per_chunk + operand_cells * part // parts)[operand]
    cells = (operand_cells // parts)[operand]
    home = buffer[operand]
    half = memory.half[rank]
    is_scratch = home == Buffer.SCRATCH
    # The packet form of the scratch follows all halves of the plain form.
    packet_offset = np.where(is_scratch & (is_packet == 1), memory.halves * half, 0)
    # The executor adds the half of the launch to addresses of packets and to local addresses of a
    # thread block; proxies and remote plain accesses use addresses without it.
    is_near = operands.scope == Scope.LOCAL
    is_near &= table.channel_type[operands.operation] != _PORT
    is_alternating = (is_packet == 1) | is_near[operand]
    shift = np.where(is_scratch & is_alternating & memory.is_double, half, 0)
    move = np.where(_IS_EACH[code], operands.position, 0)[operand]
    return Ranges(
        operand=operand,
        move=move,
        rank=rank,
        buffer=home,
        base=memory.layout.base[rank, home] + start + packet_offset,
        shift=shift,
        cells=cells,
        is_packet=is_packet,
        is_dst=operands.is_dst[operand].astype(np.uint8),
    )


def owners(plan: Plan) -> tuple[Int64Array, Int64Array]:
    """Return (operand, rank) for every rank whose memory an operand accesses, as two int64 arrays.

    An operand is a range of an operation. The rank is the executing one for a local range, the rank
    of the remote buffer for a remote one, and each rank of the group for a range of a switch. The
    order is by operand, then as listed in the group.
    """
    operands = plan.operands
    executing_rank = block_ranks(plan)[plan.operations.block[operands.operation]]
    owners: list[int] = []
    rows: list[int] = []
    columns = zip(
        executing_rank.tolist(), operands.scope.tolist(), operands.reference.tolist(), strict=True
    )
    for row, (rank, scope, reference) in enumerate(columns):
        owner_ranks: tuple[int, ...] = (rank,)
        if scope == Scope.REMOTE:
            owner_ranks = (plan.gpus[rank].remote_buffers[reference].rank,)
        if scope == Scope.SWITCH:
            owner_ranks = plan.gpus[rank].groups[reference].ranks
        owners += owner_ranks
        rows += [row] * len(owner_ranks)
    return np.asarray(rows, np.int64), np.asarray(owners, np.int64)


def as_executed(plan: Plan) -> tuple[Int64Array, Int64Array]:
    """Return the buffer and the index of every operand as the executor uses them.

    Both are int64[operands] and equal to those of the plan, with two exceptions:

    - All sources of a `put` or `ppkt` over a memory channel have the buffer of the first
      source.
    - In a `get`, the source and the destination at the same position swap their indices, but
      not their buffers. Each must have its counterpart, otherwise `KeyError` is raised.
    """
    operands, table = plan.operands, plan.operations
    code = table.code[operands.operation]
    is_source = operands.is_dst == 0
    is_memory = table.channel_type[operands.operation] == _MEMORY
    first = np.flatnonzero(is_source & (operands.position == 0))
    buffer_of_first = np.zeros(len(table), np.int64)
    buffer_of_first[operands.operation[first]] = operands.buffer[first]
    takes_first = is_source & is_memory & _FIRST_BUFFER[code]
    buffer = np.where(takes_first, buffer_of_first[operands.operation], operands.buffer)
    index = operands.index.copy()
    row_of_side = {
        (int(operands.operation[row]), int(operands.position[row]), int(operands.is_dst[row])): row
        for row in np.flatnonzero(_IS_GET[code]).tolist()
    }
    for (operation, position, is_dst), row in row_of_side.items():
        index[row] = operands.index[row_of_side[operation, position, 1 - is_dst]]
    return buffer, index


def puts_stored_packets(plan: Plan) -> BoolArray:
    """Return for every operation whether it is a `ppkt` on port channels, bool[operations].

    Its sources are packets, which the proxy copies as they are, without waiting for their flags.
    """
    table = plan.operations
    is_stored: BoolArray = _PUTS_PACKETS[table.code] & (table.channel_type == _PORT)
    return is_stored


def _packets(plan: Plan) -> UInt8Array:
    """Return which operands are packets: uint8[operands], 1 for packets, otherwise 0.

    Each kind of operation defines the position from which on its sources, and its destinations, are
    packets. Sources of a `ppkt` on port channels are packets too. All operations must be known.
    """
    first_packet = np.asarray(
        [[operation.src_packets, operation.dst_packets] for operation in KNOWN], np.int64
    ).reshape(-1, 2)
    operands = plan.operands
    code = plan.operations.code[operands.operation]
    is_packet = operands.position >= first_packet[code, operands.is_dst]
    is_packet |= puts_stored_packets(plan)[operands.operation]
    return is_packet.astype(np.uint8)


def counters_of(plan: Plan) -> Counters:
    """Number the counters that operations increment and await: signals of channels, and semaphores.

    For each channel type, the j-th channel of rank a to rank b is paired with the j-th channel
    of rank b to rank a. Each pair has one counter per direction: a wait uses the counter from
    the peer, other operations the counter to the peer. A semaphore belongs to the executing
    rank. Counters are numbered from 0 in the order of their first use.

    `of_item`: the counter of each item (channel or semaphore of an operation). It is -1 if the
    operation uses none, and if its channel has no partner or leads to its own rank. `targets`:
    the rank that awaits each counter; for a semaphore its rank. `initial`: the declared value
    of a semaphore, 0 for a channel. `names`: texts such as `semaphore 0 of rank 1`.
    """
    pairing = _Pairing(plan)
    table, items = plan.operations, plan.items
    rank = block_ranks(plan)[table.block][items.operation]
    role = _ROLES[table.code[items.operation]]
    kind = table.channel_type[items.operation]
    counts = _COUNTS[table.code[items.operation]]
    columns = (counts, rank, role, kind, items.item)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    counter_numbers = [pairing.counter(*row) if is_counted else -1 for is_counted, *row in rows]
    return Counters(
        tuple(pairing.names),
        tuple(pairing.targets),
        np.asarray(counter_numbers, np.int64),
        np.asarray(pairing.initial, np.int64),
    )


class _Pairing:
    """Numbers counters in the order of their first use."""

    def __init__(
        self,
        plan: Plan,
    ) -> None:
        self._plan = plan
        self.names: list[str] = []
        self.targets: list[int] = []
        self.initial: list[int] = []
        self._numbers: dict[tuple[object, ...], int] = {}
        # By (rank, type, channel): (peer, ordinal among the channels to this peer).
        self._ends: dict[tuple[int, str, int], tuple[int, int]] = {}
        self._connections: set[tuple[int, str, int, int]] = set()
        for rank, gpu in enumerate(plan.gpus):
            for kind, peers in gpu.peers.items():
                seen: dict[int, int] = defaultdict(int)
                for channel, peer in enumerate(peers):
                    self._ends[rank, kind, channel] = (peer, seen[peer])
                    self._connections.add((rank, kind, peer, seen[peer]))
                    seen[peer] += 1

    def counter(
        self,
        rank: int,
        role: int,
        kind: int,
        item: int,
    ) -> int:
        """Return the number of the counter that an operation increments or awaits.

        `rank`: executes the operation. `role`: one of `Role`. `kind`: index of the channel
        type. `item`: number of the channel or semaphore on this rank.

        - An acquire or release uses the counter of its semaphore. It is created with the
          declared initial value, and `rank` is its target.
        - A wait uses the counter of the signals from the peer to this rank.
        - Any other role uses the counter of the signals from this rank to the peer.

        Signal counters begin at 0; the receiver is their target. Equal calls give equal
        numbers; a new counter gets the next number. Return -1 if the channel has no partner on
        the peer or leads to its own rank.
        """
        if role in (Role.ACQUIRE, Role.RELEASE):
            initial = self._plan.gpus[rank].semaphores[item]
            return self._number(("semaphore", rank, item), rank, initial)
        name = CHANNEL_TYPES[kind]
        peer, which = self._ends[rank, name, item]
        # The executor creates a dummy for a missing partner and for a channel of a rank to itself.
        if peer == rank or (peer, name, rank, which) not in self._connections:
            return -1
        source, target = (peer, rank) if role == Role.WAIT else (rank, peer)
        return self._number((name, source, target, which), target, 0)

    def _number(
        self,
        key: tuple[object, ...],
        target: int,
        initial: int,
    ) -> int:
        if key in self._numbers:
            return self._numbers[key]
        if key[0] == "semaphore":
            name = f"semaphore {key[2]} of rank {key[1]}"
        else:
            kind, source, destination, which = key
            name = f"{kind} connection {which} from rank {source} to rank {destination}"
        number = len(self.names)
        self._numbers[key] = number
        self.names.append(name)
        self.targets.append(target)
        self.initial.append(initial)
        return number
