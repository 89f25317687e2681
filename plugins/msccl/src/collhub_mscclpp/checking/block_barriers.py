"""Find block barriers (`nop`) that are missing between operations of one thread block.

The executor has no implicit barrier. All threads of a block work on data, each on its own elements.
Only thread i signals or awaits channel or semaphore i and requests range i of a port operation from
the proxy (microsoft/mscclpp, `execution_kernel.hpp`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from collhub_mscclpp.checking.lowering import Ranges
from collhub_mscclpp.checking.report import PlanFindings
from collhub_mscclpp.plans.operations import CHANNEL_TYPES, Role
from collhub_mscclpp.plans.records import Plan

_PORT = CHANNEL_TYPES.index("port")
# Operations at which all threads of a block wait for each other.
_MEETING = (Role.NOP, Role.BARRIER)
_CURE = "put a nop between them"


@dataclass(frozen=True, slots=True)
class _Access:
    """Cells `first` to `last - 1` that an operation reads or writes; `is_packet`: as packets.

    `is_of_packets`: whether any range of the operation is packets.
    """

    first: int
    last: int
    is_write: bool
    is_packet: bool
    is_of_packets: bool

    def conflicts(self, other: _Access) -> bool:
        """Whether a block barrier is needed between the two accesses.

        It is needed if ranges overlap and one access writes. Exceptions: two accesses to packets,
        which the flags order, and two operations with packets on equal ranges, which assign the
        same elements to each thread.
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
        """Drop all operations, at a block barrier."""
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

    def of(self, row: int) -> list[_Access]:
        """List the accesses of one operation."""
        first, last = np.searchsorted(self._operation, [row, row + 1])
        ranges, has_packets = self._ranges, bool(self._has_packets[row])
        columns = (ranges.base, ranges.cells, ranges.is_dst, ranges.is_packet)
        rows = zip(*(column[first:last].tolist() for column in columns), strict=True)
        return [
            _Access(base, base + cells, is_dst == 1, is_packet == 1, has_packets)
            for base, cells, is_dst, is_packet in rows
        ]


def check_block_barriers(plan: Plan, ranges: Ranges, findings: PlanFindings) -> None:
    """Report operations that need a block barrier before them and have none.

    A barrier is needed between a wait or acquire and data, between data and the signal or release
    that announces it, and between operations on the same data of which one writes it.
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
            _check_announcement(plan, row, unmet, findings)
        elif operation.role is Role.DATA:
            _check_data(plan, row, unmet, items, accesses, findings)
            unmet.moves.append(row)


def _check_announcement(plan: Plan, row: int, unmet: _Unmet, findings: PlanFindings) -> None:
    """Report a signal or release without a block barrier after the data that it announces."""
    channel_types = plan.operations.channel_type
    # A proxy executes requests of a port channel in order, so a signal follows earlier puts.
    is_port = channel_types[row] == _PORT
    moves = [move for move in unmet.moves if not (is_port and channel_types[move] == _PORT)]
    if moves:
        message = f"no nop since the {_name(plan, moves[-1])} that it announces"
        findings.at("missing-nop", row, message, _CURE)
        unmet.moves.clear()


def _check_data(
    plan: Plan,
    row: int,
    unmet: _Unmet,
    items: Sequence[int],
    accesses: _Accesses,
    findings: PlanFindings,
) -> None:
    """Report an operation on data without a barrier after a wait or a conflicting access."""
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
    operation = plan.operation(row)
    return operation.name if operation else plan.unknown_names[row]
