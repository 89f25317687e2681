"""Ranges of NCCL on the host threads, and the calls that each kernel of NCCL performs.

A kernel performs the call whose range encloses its launch. Calls between `ncclGroupStart` and
`ncclGroupEnd` are launched within `ncclGroupEnd`: kernels and calls of the group are paired by
kind, in their order; if a group has fewer kernels than calls, a kernel performs several calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from collhub_nccl_records.calls import COLLECTIVES, MESSAGES, operation_word

from collhub_pytorch.nsys.database import Condition, Tables
from collhub_pytorch.nsys.payloads import NcclPayload, PayloadDecoder

_PID_SHIFT, _PID_MASK = 24, (1 << 24) - 1
_GROUP_START, _GROUP_END = "groupstart", "groupend"
_INITIALISATIONS = ("comminit", "commsplit", "commshrink", "commgrow", "commhash")
_MAX_RANGES = 1 << 22
# Names of ranges of NCCL, and of the patched NCCL of ATLAHS.
_NAME_PREFIXES = ("nccl", "commHash")
_MAX_NESTING = 32
# The kernel of messages, and of the collectives that consist of messages.
_MESSAGE_KERNEL = "sendrecv"
_BY_MESSAGES = (*MESSAGES, "alltoall", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class CallRange:
    """One call on a host thread: times in ns, operation (`AllReduce`) and payload."""

    start: int
    end: int
    operation: str
    payload: NcclPayload

    @property
    def word(self) -> str:
        """The operation in lower-case letters."""
        return operation_word(self.operation)


@dataclass(slots=True)
class ThreadRanges:
    """Ranges of one thread in the order of their starts. `groups`: (start, end, calls) of the
    ranges of `ncclGroupEnd` that launch calls."""

    pid: int
    calls: list[CallRange] = field(default_factory=list)
    groups: list[tuple[int, int, list[CallRange]]] = field(default_factory=list)


@dataclass(slots=True)
class NcclRanges:
    """Ranges by thread, and the payloads of initialisations with the process of each.

    `undecodable`: payloads that do not fit their schema; `without_payload`: calls that have none.
    """

    threads: dict[int, ThreadRanges] = field(default_factory=dict)
    members: list[tuple[int, NcclPayload]] = field(default_factory=list)
    undecodable: int = 0
    without_payload: int = 0


def read_ranges(tables: Tables) -> NcclRanges:
    """Read the ranges of NCCL of all threads."""
    ranges, decoder = NcclRanges(), PayloadDecoder.of(tables)
    raw: dict[int, list[tuple[int, int, str, NcclPayload | None]]] = defaultdict(list)
    count = 0
    for start, end, thread, text, content in _select(tables):
        payload = decoder.decode(content, text)
        name = operation_word(text.partition("(")[0].partition(" ")[0])
        pid = (thread >> _PID_SHIFT) & _PID_MASK
        if name.startswith(_INITIALISATIONS):
            if payload is not None and payload.rank >= 0 and payload.communicator:
                ranges.members.append((pid, payload))
            continue
        count += 1
        if count <= _MAX_RANGES and end is not None:
            raw[thread].append((start, end, text, payload))
    for thread, entries in raw.items():
        pid = (thread >> _PID_SHIFT) & _PID_MASK
        ranges.threads[thread] = _thread_ranges(pid, entries, ranges)
    ranges.undecodable = decoder.undecodable
    return ranges


def _select(tables: Tables) -> Iterator[tuple[int, int | None, int, str, object]]:
    """Yield start, end, thread, name and payload of the ranges of NCCL."""
    ids: dict[int, str] = {}
    nccl = Condition("value", prefixes=_NAME_PREFIXES)
    for chunk in tables.rows("StringIds", ("id", "value"), ("id",), [nccl]):
        ids |= {int(str(number)): str(text) for number, text in chunk}
    columns = ("start", "end", "globalTid", "text", "textId", "binaryData")
    where = [Condition("textId", list(ids)), Condition("text", prefixes=_NAME_PREFIXES)]
    for chunk in tables.rows("NVTX_EVENTS", columns, ("start", "globalTid"), where):
        for start, end, thread, text, number, content in chunk:
            name = text if isinstance(text, str) else ids.get(number, "")  # type: ignore[call-overload]
            stop = end if isinstance(end, int) else None
            value = content if isinstance(content, bytes | str) else None
            yield int(str(start)), stop, int(str(thread)), str(name), value


def _thread_ranges(
    pid: int, entries: list[tuple[int, int, str, NcclPayload | None]], ranges: NcclRanges
) -> ThreadRanges:
    thread = ThreadRanges(pid)
    depth, calls = 0, list[CallRange]()
    for start, end, text, payload in sorted(entries, key=lambda one: (one[0], -one[1])):
        operation = payload.operation if payload is not None else ""
        operation = operation or text.partition("(")[0].removeprefix("nccl")
        word = operation_word(operation)
        if word == _GROUP_START:
            depth += 1
        elif word == _GROUP_END:
            depth = max(0, depth - 1)
            if depth == 0 and calls:
                thread.groups.append((start, end, calls))
                calls = []
        elif word in COLLECTIVES or word in MESSAGES:
            ranges.without_payload += payload is None
            call = CallRange(start, end, operation, payload or NcclPayload())
            thread.calls.append(call)
            if depth:
                calls.append(call)
    return thread


@dataclass(slots=True)
class KernelCalls:
    """Calls of each kernel of NCCL, by its row; `added`: kernels that perform several calls."""

    of_kernel: dict[int, list[CallRange]] = field(default_factory=dict)
    added: int = 0


def assign_calls(ranges: NcclRanges, launches: Sequence[tuple[int, int, int, str]]) -> KernelCalls:
    """Find the calls of kernels. `launches`: row, thread, time and name of the kernel."""
    result = KernelCalls()
    by_group: dict[tuple[int, int], list[tuple[int, int, str]]] = defaultdict(list)
    for row, thread, moment, name in launches:
        if thread not in ranges.threads:
            continue
        of_thread = ranges.threads[thread]
        group = _enclosing(of_thread.groups, moment)
        if group >= 0:
            by_group[thread, group].append((moment, row, name))
        elif (call := _enclosing_call(of_thread.calls, moment)) is not None:
            result.of_kernel[row] = [call]
    for (thread, group), kernels in by_group.items():
        calls = ranges.threads[thread].groups[group][2]
        _pair_group(sorted(kernels), calls, result)
    return result


def _pair_group(
    kernels: Sequence[tuple[int, int, str]], calls: Sequence[CallRange], result: KernelCalls
) -> None:
    """Divide the calls of a group among its kernels of the same kind, in order."""
    rows: dict[str, list[int]] = defaultdict(list)
    for _, row, name in kernels:
        rows[_kernel_word(name)].append(row)
    by_kind: dict[str, list[CallRange]] = defaultdict(list)
    for call in calls:
        by_kind[_MESSAGE_KERNEL if call.word in _BY_MESSAGES else call.word].append(call)
    for kind, numbers in rows.items():
        shares = np.array_split(np.arange(len(by_kind[kind])), len(numbers))
        for row, share in zip(numbers, shares, strict=True):
            if len(share):
                result.of_kernel[row] = [by_kind[kind][index] for index in share.tolist()]
                result.added += len(share) > 1 and kind != _MESSAGE_KERNEL


def _kernel_word(name: str) -> str:
    """Return the operation in the name of a kernel, `sendrecv` for messages; "" if unknown."""
    word = operation_word(name.partition("(")[0])
    names = (_MESSAGE_KERNEL, *sorted(COLLECTIVES, key=len, reverse=True))
    return next((kind for kind in names if kind in word), "")


def _enclosing(groups: Sequence[tuple[int, int, list[CallRange]]], moment: int) -> int:
    """Return the group whose end launches at this time, or -1."""
    index = bisect_right(groups, moment, key=lambda group: group[0]) - 1
    return index if index >= 0 and moment <= groups[index][1] else -1


def _enclosing_call(calls: Sequence[CallRange], moment: int) -> CallRange | None:
    """Return the innermost call around a time."""
    last = bisect_right(calls, moment, key=lambda call: call.start)
    around = [call for call in calls[max(0, last - _MAX_NESTING) : last] if call.end >= moment]
    return around[-1] if around else None
