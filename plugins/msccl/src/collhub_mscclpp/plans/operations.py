"""Operations of the executor by name, and how each of them uses the ranges of its operands.

Source: microsoft/mscclpp, `execution_kernel.hpp` and `execution_plan.cc` (release of August 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

CHANNEL_TYPES = ("memory", "port", "switch")
"""Types of channels; the index is the code of the type in columns."""

BUFFER_TYPES = ("i", "o", "s")
"""Input, output, scratch; the index is the code of the type in columns, as `Buffer` counts."""

# Larger than any operand position: no operand is packets, or no limit.
NEVER = 99


class Role(IntEnum):
    """How an operation takes part in the order of operations."""

    NOP = 0
    SIGNAL = 1
    WAIT = 2
    ACQUIRE = 3
    RELEASE = 4
    BARRIER = 5
    FLUSH = 6
    DATA = 7
    PIPELINE = 8
    UNKNOWN = 9


_COUNTING = (Role.SIGNAL, Role.WAIT, Role.ACQUIRE, Role.RELEASE)


class Scope(IntEnum):
    """Location of the range of an operand: local, at a remote rank, or in a switch group."""

    LOCAL = 0
    REMOTE = 1
    SWITCH = 2


@dataclass(frozen=True, slots=True)
class Operation:
    """One kind of operation.

    `is_each`: if true, src[i] is copied to dst[i] for every i; else the sum of all src is written
    to every dst. `src`, `dst`: scopes of the first and of the further operands. `src_packets`,
    `dst_packets`: position of the first operand that is packets. `least_src`, `most_src`,
    `least_dst`, `most_dst`: minimum and maximum numbers of operands. `signals`: whether a signal
    follows; `flushes`: whether it then waits for the proxy; both on port channels only.
    """

    name: str
    role: Role
    is_each: bool = False
    src: tuple[Scope, Scope] = (Scope.LOCAL, Scope.LOCAL)
    dst: tuple[Scope, Scope] = (Scope.LOCAL, Scope.LOCAL)
    src_packets: int = NEVER
    dst_packets: int = NEVER
    most_src: int = NEVER
    most_dst: int = NEVER
    least_src: int = 1
    least_dst: int = 1
    channel_types: tuple[str, ...] = ()
    signals: bool = False
    flushes: bool = False

    @property
    def counts_items(self) -> bool:
        """Whether the operation increments or awaits counters of channels or semaphores."""
        return self.signals or self.role in _COUNTING

    def scope(
        self,
        is_dst: bool,
        position: int,
    ) -> Scope:
        """Return the location of operand `position` of one side."""
        first, rest = self.dst if is_dst else self.src
        return rest if position else first

    def has_packets(self, is_dst: bool, position: int) -> bool:
        """Whether operand `position` of one side is packets."""
        first = self.dst_packets if is_dst else self.src_packets
        return position >= first

    def counts(self, is_dst: bool) -> tuple[int, int]:
        """Return the minimum and maximum number of operands of one side."""
        if is_dst:
            return self.least_dst, self.most_dst
        return self.least_src, self.most_src


_L, _R, _S = Scope.LOCAL, Scope.REMOTE, Scope.SWITCH
# Short names, so that the table below has one row per operation.
_BOTH, _MEMORY, _PORT, _SWITCH = ("memory", "port"), ("memory",), ("port",), ("switch",)
_LOCAL, _REMOTE, _GROUP, _SPREAD = (_L, _L), (_R, _R), (_S, _S), (_L, _R)


def _order(
    name: str,
    role: Role,
    channel_types: tuple[str, ...] = (),
) -> Operation:
    return Operation(name, role, least_src=0, least_dst=0, channel_types=channel_types)


def _put(
    name: str, packets: int = NEVER, *, signals: bool = False, flushes: bool = False
) -> Operation:
    return Operation(
        name,
        Role.DATA,
        is_each=True,
        dst=_REMOTE,
        dst_packets=packets,
        channel_types=_BOTH,
        signals=signals,
        flushes=flushes,
    )


_LIST = (
    _order("nop", Role.NOP),
    _order("barrier", Role.BARRIER),
    _order("signal", Role.SIGNAL, _BOTH),
    _order("rlxsignal", Role.SIGNAL, _BOTH),
    _order("wait", Role.WAIT, _BOTH),
    _order("rlxwait", Role.WAIT, _BOTH),
    _order("sem_acquire", Role.ACQUIRE),
    _order("sem_release", Role.RELEASE),
    _order("flush", Role.FLUSH, _PORT),
    _order("pipeline", Role.PIPELINE),
    _put("put"),
    _put("pws", signals=True),
    _put("pwsf", signals=True, flushes=True),
    _put("ppkt", 0),
    Operation("get", Role.DATA, is_each=True, src=_REMOTE, channel_types=_MEMORY),
    Operation("copy", Role.DATA, most_src=1, most_dst=1),
    Operation("cpkt", Role.DATA, dst_packets=0, most_src=1, most_dst=1),
    Operation("upkt", Role.DATA, src_packets=0, most_src=1, most_dst=1),
    Operation(
        "rppkt",
        Role.DATA,
        dst=_REMOTE,
        src_packets=0,
        dst_packets=0,
        most_src=1,
        channel_types=_BOTH,
    ),
    Operation("re", Role.DATA, most_dst=1),
    Operation("res", Role.DATA, dst=_SPREAD, channel_types=_MEMORY),
    Operation("rre", Role.DATA, src=_SPREAD, most_dst=1, channel_types=_MEMORY),
    Operation("rres", Role.DATA, src=_SPREAD, dst=_SPREAD, channel_types=_MEMORY),
    Operation("repkt", Role.DATA, src_packets=1, most_dst=1),
    Operation(
        "respkt", Role.DATA, dst=_SPREAD, src_packets=1, dst_packets=1, channel_types=_MEMORY
    ),
    Operation("recpkt", Role.DATA, src_packets=1, dst_packets=1, least_dst=2, most_dst=2),
    Operation(
        "recspkt", Role.DATA, dst=_SPREAD, src_packets=1, dst_packets=1, least_dst=2,
        channel_types=_MEMORY,
    ),
    Operation(
        "glres", Role.DATA, src=_GROUP, dst=_GROUP, most_src=1, most_dst=1, channel_types=_SWITCH
    ),
    Operation("gstore", Role.DATA, dst=_GROUP, most_src=1, most_dst=1, channel_types=_SWITCH),
    Operation(
        "gstorepkt", Role.DATA, dst=_GROUP, src_packets=0, dst_packets=0, most_src=1, most_dst=1,
        channel_types=_SWITCH,
    ),
)  # fmt: skip

OPERATIONS: Mapping[str, Operation] = {operation.name: operation for operation in _LIST}
"""All operations of the executor, by name in plans."""

CODES: Mapping[str, int] = {operation.name: code for code, operation in enumerate(_LIST)}
"""Code of an operation in columns, by name."""

KNOWN: tuple[Operation, ...] = _LIST
"""All operations of the executor; the index is the code."""

UNKNOWN_CODE = -1
"""Code of an operation that the executor does not have."""


def scope_of(
    operation: Operation,
    is_dst: bool,
    position: int,
) -> Scope:
    """Return the location of operand `position` of one side, including an exception of recspkt."""
    # The second result is the local copy of the packets, the further ones are remote.
    if operation.name == "recspkt" and is_dst and position == 1:
        return Scope.LOCAL
    return operation.scope(is_dst, position)
