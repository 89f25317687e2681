"""Check for operations that the executor interprets differently than a plan suggests.

Also finds missing block barriers (`nop`) between operations of a thread block. The executor has no
implicit barrier. All threads of a block work on data, each on its own elements. Only thread i
signals or awaits channel or semaphore i and requests range i of a port operation from the proxy
(microsoft/mscclpp, `execution_kernel.hpp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_mscclpp.checking.lowering import Ranges, puts_stored_packets
from collhub_mscclpp.checking.memory import PlanMemory
from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.plan_records import CHANNEL_TYPES, KNOWN, Plan, Role, Scope
from collhub_mscclpp.plugin import ALIGNMENT
from hub_core.columns import expanded_ranges
from hub_core.model import Buffer

_MEMORY = CHANNEL_TYPES.index("memory")
# Operations that make earlier stores visible to other ranks.
_RELEASES = frozenset(("signal", "sem_release", "barrier"))


def check_habits(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Warn in `findings` of operations that the executor runs differently from the plan.

    First, per range (entry of src_buff or dst_buff), in the order of the ranges:

    - `put-sources`: a source of a `put` or `ppkt` over memory channels is in another buffer
      than the first source of this operation.
    - `get-indices`: a range of a `get` has another index than the first range at the same
      position. So source and destination differ.

    Then per operation, in the order of the operations:

    - `memory-signal`: it moves data and then signals (`pws`, `pwsf`), over a memory channel.
    - `flush-count`: a flush has fewer entries in dst_buff than channels.

    Finally once, at the operation of the first range:

    - `alignment`: `buffer_alignment` is not a multiple of 16. Not reported without ranges.

    Operations with unknown names get none of the first four warnings.
    """
    table, operands = plan.operations, plan.operands
    first_of: dict[int, int] = {}
    indices: dict[tuple[int, int], int] = {}
    for row, position, is_dst, buffer, index in zip(
        operands.operation.tolist(),
        operands.position.tolist(),
        operands.is_dst.tolist(),
        operands.buffer.tolist(),
        operands.index.tolist(),
        strict=True,
    ):
        operation = plan.operation(row)
        name = operation.name if operation else ""
        is_memory = table.channel_type[row] == _MEMORY
        is_source_of_put = name in ("put", "ppkt") and is_memory and not is_dst
        if is_source_of_put and first_of.setdefault(row, buffer) != buffer:
            message = "the executor takes the buffer of src_buff[0] for all of its sources"
            findings.warn_at("put-sources", row, message, "use one operation a buffer")
        if name == "get" and indices.setdefault((row, position), index) != index:
            message = "the executor swaps the indices of both sides of a get"
            findings.warn_at("get-indices", row, message, "use equal indices")
    named = np.bincount(plan.items.operation, minlength=len(table))
    for row in range(len(table)):
        operation = plan.operation(row)
        if operation and operation.signals and table.channel_type[row] == _MEMORY:
            message = "on memory channels it does not signal"
            findings.warn_at("memory-signal", row, message, "write put, nop, signal")
        if operation and operation.role is Role.FLUSH and table.flushed[row] < named[row]:
            message = (
                f"the executor counts the channels of a flush by dst_buff, which has"
                f" {table.flushed[row]} entries for {named[row]} channels: it does not wait for all"
            )
            cure = "list one entry in dst_buff for each channel"
            findings.warn_at("flush-count", row, message, cure)
    if plan.header.alignment % ALIGNMENT and len(operands):
        message = (
            f"with buffer_alignment {plan.header.alignment} ranges may start or end between"
            f" multiples of {ALIGNMENT} bytes, where sums, packets and copies take other addresses"
        )
        row = int(operands.operation[0])
        findings.warn_at("alignment", row, message, f"use a multiple of {ALIGNMENT}")


def check_relaxed_signals(plan: Plan, findings: PlanFindings) -> None:
    """Warn of relaxed signals that may arrive before data which was stored before them.

    A relaxed signal (`rlxsignal`) does not order the stores of its thread block. The warning
    `relaxed-signal` is added to `findings` if both of these hold for a signalled rank:
    - An earlier operation of the block stores plain data (no packets, whose flags order them) in
      the memory of this rank over a memory channel. Stores over port channels are ignored.
    - There is no release operation (`_RELEASES`: `signal`, `sem_release`, `barrier`) of the block
      between the store and the signal. A release orders all stores before it, to any rank.

    The channel of the signal itself may be of either type. There is one warning per relaxed signal
    and signalled rank, in the order of the operations, then of the ranks.
    """
    table, items = plan.operations, plan.items
    stored: dict[int, set[int]] = {}
    operands = plan.operands
    is_remote = (operands.is_dst == 1) & (operands.scope == Scope.REMOTE)
    is_remote &= table.channel_type[operands.operation] == _MEMORY
    for at in np.flatnonzero(is_remote).tolist():
        row = int(operands.operation[at])
        operation = plan.operation(row)
        if operation and not operation.has_packets(True, int(operands.position[at])):
            gpu = plan.gpus[plan.blocks[int(table.block[row])].rank]
            peer = gpu.remote_buffers[int(operands.reference[at])].rank
            stored.setdefault(row, set()).add(peer)
    relaxed: dict[int, set[int]] = {}
    is_relaxed = np.asarray([operation.name == "rlxsignal" for operation in KNOWN] + [False])
    for row, item in zip(items.operation.tolist(), items.item.tolist(), strict=True):
        if is_relaxed[table.code[row]]:
            kind = CHANNEL_TYPES[int(table.channel_type[row])]
            gpu = plan.gpus[plan.blocks[int(table.block[row])].rank]
            relaxed.setdefault(row, set()).add(gpu.peers[kind][item])
    is_release = np.asarray([operation.name in _RELEASES for operation in KNOWN] + [False])[
        table.code
    ]
    rows = sorted({*stored, *relaxed, *np.flatnonzero(is_release).tolist()})
    pending: set[int] = set()
    block = -1
    for row in rows:
        if table.block[row] != block:
            block, pending = int(table.block[row]), set()
        if is_release[row]:
            pending = set()
        pending |= stored.get(row, set())
        for peer in sorted(relaxed.get(row, set()) & pending):
            message = f"a relaxed signal does not order the data stored at rank {peer} before"
            findings.warn_at("relaxed-signal", row, message, "use signal and wait")


def check_pipelines(
    plan: Plan,
    findings: PlanFindings,
) -> None:
    """Report operations in pipelines with wrong ranges or a `tbg_info`, as error `pipeline-range`.

    A pipeline repeats its operations for every slice of the data. A slice is the number of
    chunks of the pipeline (`num_chunks`). An operation gives one error if any of its ranges
    has another size, or if `tbg_info` divides its ranges among several thread blocks.
    Errors are sorted by operation. Operations outside pipelines are not checked.
    """
    table, operands = plan.operations, plan.operands
    outer = table.pipeline[operands.operation]
    is_inside = outer >= 0
    is_odd = operands.size != table.slice_chunks[outer]
    is_odd |= table.parts[operands.operation] > 1
    for row in np.unique(operands.operation[is_inside & is_odd]).tolist():
        slice_chunks = int(table.slice_chunks[table.pipeline[row]])
        message = f"in this pipeline ranges have {slice_chunks} chunks, and no tbg_info"
        findings.at("pipeline-range", row, message, "the executor's sizes wrap otherwise")


def check_scratch(
    plan: Plan,
    memory: PlanMemory,
    ranges: Ranges,
    findings: PlanFindings,
) -> None:
    """Report wrong uses of packets (data with flags for which the reader waits) in a plan.

    `ranges`: the memory ranges of the first launch. The errors, in the order in which they
    are added to `findings`; the first two occur once per operation, by operation:

    - `packet-buffer`: an operation has packets outside of scratch.
    - `packet-room`: packets end beyond the scratch of one launch. Position and size of
      packets count twice, since flags take as much space as data. A launch has `memory.half`
      cells of a rank, twice that in plans of protocol LL.
    - `scratch-forms`: packets are in scratch where plain data of the rank is, too; once per range
      of packets, in the order of `ranges`. Packet cell k is in the plain cells 2k and 2k + 1. Read
      and written ranges count alike, of any operation and at any time.
    """
    operands = plan.operands
    buffer = operands.buffer[ranges.operand]
    is_scratch = buffer == Buffer.SCRATCH
    row = operands.operation[ranges.operand]
    for operation_row in np.unique(row[(ranges.is_packet == 1) & ~is_scratch]).tolist():
        findings.at(
            "packet-buffer", operation_row, "packets lie in scratch only", "name a scratch buffer"
        )
    start = ranges.base - memory.layout.base[ranges.rank, Buffer.SCRATCH]
    is_packet = (ranges.is_packet == 1) & is_scratch
    packet_start = start - memory.halves * memory.half[ranges.rank]
    # A packet has as many flag words as data words, so packet k is stored at 2 k.
    room = memory.half[ranges.rank] * (2 if plan.header.protocol == "LL" else 1)
    overruns = is_packet & (2 * (packet_start + ranges.cells) > room)
    for operation_row in np.unique(row[overruns]).tolist():
        message = "packets take twice the room, which the scratch of a Simple plan does not have"
        findings.at("packet-room", operation_row, message, 'state protocol "LL"')

    # Plain cells of each rank's scratch that an operation uses at any time.
    width = int(2 * memory.half.max(initial=0)) + 1
    used = np.zeros((plan.num_ranks, width), np.bool_)
    for at in np.flatnonzero(is_scratch & ~is_packet).tolist():
        first = int(start[at])
        used[int(ranges.rank[at]), first : first + int(ranges.cells[at])] = True
    for at in np.flatnonzero(is_packet).tolist():
        rank, first = int(ranges.rank[at]), int(packet_start[at])
        # Packet cell k occupies the plain cells 2 k and 2 k + 1.
        if used[rank, 2 * first : 2 * (first + int(ranges.cells[at]))].any():
            message = f"packets where plain data lies in the scratch of rank {rank}"
            cure = "give packets scratch of their own"
            findings.at("scratch-forms", int(row[at]), message, cure)


def check_overlaps(
    plan: Plan,
    ranges: Ranges,
    findings: PlanFindings,
) -> None:
    """Report operations that read and write ranges that overlap partly, as error `overlap`.

    The threads of an operation access its elements without an order. Only sources and destinations
    of the same move are compared. If an operation copies source k to destination k, each such pair
    is a move; otherwise the entire operation is one move. All ranges of a move have equal sizes.
    Ranges that begin at the same cell are permitted. There is at most one error per operation,
    sorted by operation.
    """
    operation = plan.operands.operation[ranges.operand]
    key = operation * (int(ranges.move.max(initial=0)) + 1) + ranges.move
    reads = np.flatnonzero(ranges.is_dst == 0)
    reads = reads[np.argsort(key[reads], kind="stable")]
    writes = np.flatnonzero(ranges.is_dst == 1)
    # Pair every written range with every range that its move reads.
    first = np.searchsorted(key[reads], key[writes])
    count = np.searchsorted(key[reads], key[writes], side="right") - first
    read = reads[expanded_ranges(first, count)]
    write = np.repeat(writes, count)
    distance = np.abs(ranges.base[read] - ranges.base[write])
    overlaps = (distance > 0) & (distance < ranges.cells[write])
    for row in np.unique(operation[write[overlaps]]).tolist():
        message = "reads and writes ranges that overlap, by threads without an order"
        findings.at("overlap", row, message, "use ranges apart, or equal")


_PORT = CHANNEL_TYPES.index("port")
# Operations at which all threads of a block wait for each other.
_MEETING = (Role.NOP, Role.BARRIER)
_CURE = "put a nop between them"


@dataclass(frozen=True, slots=True)
class _Access:
    """Cells `first` to `last - 1` that an operation reads or writes.

    `is_packet`: as packets whose flags order the accesses; false for the sources of a `ppkt` on
    port channels, for which no thread waits. `is_of_packets`: whether any range of the operation is
    packets; false for such a `ppkt`.
    """

    first: int
    last: int
    is_write: bool
    is_packet: bool
    is_of_packets: bool

    def conflicts(self, other: _Access) -> bool:
        """Return whether a block barrier is needed between two accesses to cells of one buffer.

        It is needed if the ranges share a cell and at least one access writes. There are two
        exceptions:

        - Both accesses are packets (`is_packet`): their flags order the accesses.
        - Both operations use packets (`is_of_packets`) and the ranges are equal: the same thread
          then handles the same element in both.
        """
        is_apart = self.last <= other.first or other.last <= self.first
        if is_apart or not (self.is_write or other.is_write):
            return False
        is_equal = (self.first, self.last) == (other.first, other.last)
        is_of_one_thread = self.is_of_packets and other.is_of_packets and is_equal
        return not is_of_one_thread and not (self.is_packet and other.is_packet)


@dataclass(slots=True)
class _Unmet:
    """Rows of the operations of a thread block since its last block barrier."""

    waits: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all waits and data operations; a block barrier orders them before later ones."""
        self.waits.clear()
        self.moves.clear()


class _Accesses:
    """Cells that data operations read and write in the first launch.

    Accesses are listed on demand, because operations usually follow a block barrier.
    """

    def __init__(self, plan: Plan, ranges: Ranges) -> None:
        self._ranges = ranges
        # Ranges are in the order of operands, and so of operations.
        self._operation = plan.operands.operation[ranges.operand]
        self._has_packets = np.zeros(len(plan.operations), np.bool_)
        self._has_packets[self._operation[ranges.is_packet == 1]] = True
        # A proxy neither waits for flags nor is one of the threads that wrote the packets.
        is_stored = puts_stored_packets(plan)
        self._has_packets[is_stored] = False
        is_read = ranges.is_dst == 0
        self._is_flagged = ranges.is_packet.astype(np.bool_) & ~(
            is_stored[self._operation] & is_read
        )

    def of(self, row: int) -> list[_Access]:
        """Return the accesses of one operation in the first launch as ranges of cells.

        The begin of a range is included, the end is excluded. There is one access per range and
        rank, in the order of the plan. The list is empty for an operation without data.
        """
        first, last = np.searchsorted(self._operation, [row, row + 1])
        ranges, has_packets = self._ranges, bool(self._has_packets[row])
        columns = (ranges.base, ranges.cells, ranges.is_dst, self._is_flagged)
        rows = zip(*(column[first:last].tolist() for column in columns), strict=True)
        return [
            _Access(base, base + cells, is_dst == 1, is_flagged, has_packets)
            for base, cells, is_dst, is_flagged in rows
        ]


def check_block_barriers(plan: Plan, ranges: Ranges, findings: PlanFindings) -> None:
    """Report operations before which a block barrier is missing, as error `missing-nop`.

    A barrier is a `nop` or `barrier`; an unknown operation counts as one. It is needed in three
    places within a thread block:
    - between a wait or acquire and a later data operation, except if thread 0 executes both
      (`_check_data`)
    - between a data operation and a later signal or release, except if both use port channels
    - between two data operations that use the same data, at least one of which writes, except if
      packets order them (`_Access.conflicts`)

    The error is at the later operation, at most one per operation, in the order of the plan. The
    earlier waits, or the earlier data operations, are then forgotten: later operations are not
    reported because of them. A data operation with a missing barrier after a wait is not compared
    with earlier data. Flushes and pipelines have no effect.
    """
    table = plan.operations
    accesses = _Accesses(plan, ranges)
    items = np.bincount(plan.items.operation, minlength=len(table)).tolist()
    unmet, last_block = _Unmet(), -1
    for row, block in enumerate(table.block.tolist()):
        operation = plan.operation(row)
        if block != last_block:
            unmet.clear()
            last_block = block
        if operation is None or operation.role in _MEETING:
            unmet.clear()
        elif operation.role in (Role.WAIT, Role.ACQUIRE):
            unmet.waits.append(row)
        elif operation.role in (Role.SIGNAL, Role.RELEASE):
            # A block barrier must separate a signal or release from the data that it announces.
            channel_types = plan.operations.channel_type
            # A proxy executes the requests of a port channel in order: signals follow their puts.
            is_port = channel_types[row] == _PORT
            moves = [move for move in unmet.moves if not (is_port and channel_types[move] == _PORT)]
            if moves:
                message = f"no nop since the {_name(plan, moves[-1])} that it announces"
                findings.at("missing-nop", row, message, _CURE)
                unmet.moves.clear()
        elif operation.role is Role.DATA:
            _check_data(plan, row, unmet, items, accesses, findings)
            unmet.moves.append(row)


def _check_data(
    plan: Plan,
    row: int,
    unmet: _Unmet,
    items: Sequence[int],
    accesses: _Accesses,
    findings: PlanFindings,
) -> None:
    """Report a data operation without a barrier after a wait or a conflicting operation.

    `row`: the data operation. `unmet`: waits and data operations of its thread block since the last
    barrier. `items`: number of channels or semaphores of every operation. The first rule that
    applies adds one error `missing-nop` to `findings`:

    1. There are waits, unless thread 0 executes all of them and the operation. That is so if the
       operation uses port channels, and the operation and each wait have at most one item. The
       error is about the last wait; all waits are removed from `unmet`.
    2. Data operations of `unmet` conflict with `row` (`_Access.conflicts`). The error is about the
       latest of them; all data operations are removed from `unmet`.

    Without an error `unmet` does not change. `row` is not added to it here.
    """
    is_port = plan.operations.channel_type[row] == _PORT
    # Thread 0 executes both the wait and the request of a single channel.
    is_of_one_thread = is_port and items[row] <= 1 and all(items[wait] <= 1 for wait in unmet.waits)
    if unmet.waits and not is_of_one_thread:
        message = f"no nop since the {_name(plan, unmet.waits[-1])} before it"
        findings.at("missing-nop", row, message, _CURE)
        unmet.waits.clear()
        return
    for move in reversed(unmet.moves):
        if any(
            earlier.conflicts(later) for earlier in accesses.of(move) for later in accesses.of(row)
        ):
            message = f"no nop since the {_name(plan, move)} before it, which uses the same data"
            findings.at("missing-nop", row, message, _CURE)
            unmet.moves.clear()
            return


def _name(plan: Plan, row: int) -> str:
    """Return the name of the operation in a row, also of one that the executor does not have.

    `row`: row of the plan's operations; the name of an unknown one is that in the file.
    """
    operation = plan.operation(row)
    return operation.name if operation else plan.unknown_names[row]
