"""Find block barriers (`nop`) that are missing between operations of one thread block.

The executor has no implicit barrier. All threads of a block work on data, each on its own elements.
Only thread i signals or awaits channel or semaphore i, and requests range i of a port operation
from the proxy (microsoft/mscclpp, `execution_kernel.hpp`).
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
# Threads meet at these, as at a nop.
_MEETING = (Role.NOP, Role.BARRIER)
_CURE = "put a nop between them"


@dataclass(frozen=True, slots=True)
class _Access:
    """Cells `first` to `last` that an operation reads or writes, as packets or not.

    `is_of_packets`: the operation has packets, here or elsewhere.
    """

    first: int
    last: int
    is_write: bool
    is_packet: bool
    is_of_packets: bool

    def conflicts(self, other: _Access) -> bool:
        """Whether threads must meet between the two.

        The flag of a packet tells that it is there. Operations with packets divide equal ranges
        among the threads in the same way: each thread comes back to its own elements.
        """
        is_apart = self.last <= other.first or other.last <= self.first
        if is_apart or not (self.is_write or other.is_write):
            return False
        is_equal = (self.first, self.last) == (other.first, other.last)
        is_of_one_thread = self.is_of_packets and other.is_of_packets and is_equal
        return not is_of_one_thread and not (self.is_packet and other.is_packet)


@dataclass(slots=True)
class _Unmet:
    """Operations of a thread block since its threads met last, by row."""

    waits: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)

    def clear(self) -> None:
        """Forget them: the threads meet."""
        self.waits.clear()
        self.moves.clear()


class _Accesses:
    """What data operations read and write in the first launch.

    Most operations follow a block barrier, so accesses are listed on demand.
    """

    def __init__(self, plan: Plan, ranges: Ranges) -> None:
        self._ranges = ranges
        # Ranges are in the order of operands, and so of operations.
        self._operation = plan.operands.operation[ranges.operand]
        self._has_packets = np.zeros(len(plan.operations), np.bool_)
        self._has_packets[self._operation[ranges.is_packet == 1]] = True

    def of(self, row: int) -> list[_Access]:
        """The accesses of one operation."""
        first, last = np.searchsorted(self._operation, [row, row + 1])
        ranges, has_packets = self._ranges, bool(self._has_packets[row])
        columns = (ranges.base, ranges.cells, ranges.is_dst, ranges.is_packet)
        rows = zip(*(column[first:last].tolist() for column in columns), strict=True)
        return [
            _Access(base, base + cells, is_dst == 1, is_packet == 1, has_packets)
            for base, cells, is_dst, is_packet in rows
        ]


def check_block_barriers(plan: Plan, ranges: Ranges, findings: PlanFindings) -> None:
    """Find operations that need a block barrier before them and have none.

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
    """Find data that a signal or release announces before all threads have done their share."""
    channel_types = plan.operations.channel_type
    # A proxy takes what a port channel is asked for in order: a signal comes behind puts.
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
    """Find waits and data that an operation on data needs, and that other threads may be at."""
    is_port = plan.operations.channel_type[row] == _PORT
    # Thread 0 goes on from its own wait to its own request.
    is_of_one_thread = is_port and items[row] <= 1 and all(items[one] <= 1 for one in unmet.waits)
    if unmet.waits and not is_of_one_thread:
        message = f"no nop since the {_name(plan, unmet.waits[-1])} before it"
        findings.at("missing-nop", row, message, _CURE)
        unmet.waits.clear()
        return
    for move in reversed(unmet.moves):
        if any(one.conflicts(other) for one in accesses.of(move) for other in accesses.of(row)):
            message = f"no nop since the {_name(plan, move)} before it, which uses the same data"
            findings.at("missing-nop", row, message, _CURE)
            unmet.moves.clear()
            return


def _name(plan: Plan, row: int) -> str:
    operation = plan.operation(row)
    return operation.name if operation else plan.unknown_names[row]
