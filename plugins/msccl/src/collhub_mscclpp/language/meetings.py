"""Insert the meetings of a thread block's threads (`nop`) that a program requires.

Threads meet around a synchronisation as `data_sync` states, and, with `auto_sync`, before an
operation that touches data of an earlier one. Executors have no implicit meeting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from collhub_mscclpp.language.recorded import (
    MEETINGS,
    BufferType,
    Chunk,
    Recorded,
    RemoteRange,
    SyncType,
)

Locate = Callable[[Chunk], Chunk]
"""Memory of a chunk: in place, chunks of two buffers may be the same memory."""


def insert_stated_meetings(operations: Iterable[Recorded]) -> list[Recorded]:
    """Insert the nops that `data_sync` of the operations states, in pipelines too."""
    inserted: list[Recorded] = []
    for operation in operations:
        nop = Recorded("nop", operation.rank)
        if SyncType.before in operation.sync:
            inserted.append(nop)
        body = insert_stated_meetings(operation.body)
        inserted.append(replace(operation, body=body) if body else operation)
        if SyncType.after in operation.sync:
            inserted.append(nop)
    return inserted


def insert_data_meetings(operations: Iterable[Recorded], locate: Locate) -> list[Recorded]:
    """Insert a nop between operations that touch the same data, if one of them writes it."""
    inserted: list[Recorded] = []
    since_meeting: list[Recorded] = []
    for operation in operations:
        if operation.name in MEETINGS:
            since_meeting = []
        elif any(are_dependent(earlier, operation, locate) for earlier in since_meeting):
            inserted.append(Recorded("nop", operation.rank))
            since_meeting = []
        body = insert_data_meetings(operation.body, locate)
        inserted.append(replace(operation, body=body) if body else operation)
        since_meeting.append(operation)
    return inserted


def insert_data_meetings_as_package(operations: Iterable[Recorded]) -> list[Recorded]:
    """Insert the nops of the package's tracker, which overlooks some dependencies.

    It keeps the last access to each chunk only, forgets all accesses at a conflict, those of the
    same operation included, and knows neither the plain operand of a sum of packets nor switches.
    """
    inserted: list[Recorded] = []
    last_access: dict[tuple[BufferType, int], tuple[int, bool]] = {}
    for number, operation in enumerate(operations):
        if operation.name in MEETINGS:
            last_access.clear()
        has_conflict = False
        for chunk, is_written in _tracked_by_package(operation):
            places = [(chunk.buffer, chunk.index + offset) for offset in range(chunk.size)]
            accesses = [last_access[place] for place in places if place in last_access]
            if any(by != number and (is_written or wrote) for by, wrote in accesses):
                last_access.clear()
                has_conflict = True
            last_access.update(dict.fromkeys(places, (number, is_written)))
        if has_conflict:
            inserted.append(Recorded("nop", operation.rank))
        body = insert_data_meetings_as_package(operation.body)
        inserted.append(replace(operation, body=body) if body else operation)
    return inserted


def find_missing_meeting(
    operations: Sequence[Recorded], locate: Locate
) -> tuple[Recorded, Recorded] | None:
    """The first two dependent operations between which the threads do not meet, or None."""
    since_meeting: list[Recorded] = []
    for operation in operations:
        if operation.name in MEETINGS:
            since_meeting = []
        for earlier in since_meeting:
            if are_dependent(earlier, operation, locate):
                return earlier, operation
        since_meeting.append(operation)
    return None


def are_dependent(first: Recorded, second: Recorded, locate: Locate) -> bool:
    """Whether one of the operations writes data that the other one touches, on their rank."""
    return any(
        (is_written or is_written_too) and locate(chunk).overlaps(locate(other))
        for chunk, is_written in _accesses(first)
        for other, is_written_too in _accesses(second)
    )


def _accesses(operation: Recorded) -> Iterator[tuple[Chunk, bool]]:
    """Local ranges of plain data, and whether they are written. Flags guard packets."""
    for inner in operation.body:
        yield from _accesses(inner)
    if operation.name not in ("upkt", "rppkt", "gstorepkt"):
        yield from _local(operation.src, is_written=False)
    if operation.name != "cpkt":
        # A sum of packets writes its first range as plain data, its further ones as packets.
        dst = operation.dst[:1] if operation.name in _PACKET_SUMS else operation.dst
        yield from _local(dst, is_written=True)


def _tracked_by_package(operation: Recorded) -> Iterator[tuple[Chunk, bool]]:
    """The accesses that the package's tracker knows of, in its order."""
    for inner in operation.body:
        yield from _tracked_by_package(inner)
    if operation.channel_type == "switch":
        return
    if operation.name not in ("upkt", "rppkt"):
        src = operation.src[1:] if operation.name in _PACKET_SUMS else operation.src
        yield from _local(src, is_written=False)
    if operation.name != "cpkt":
        dst = operation.dst[:1] if operation.name in _PACKET_SUMS else operation.dst
        yield from _local(dst, is_written=True)


def _local(chunks: Sequence[Chunk], *, is_written: bool) -> Iterator[tuple[Chunk, bool]]:
    """Local ranges; signals order the accesses through channels."""
    for chunk in chunks:
        if not isinstance(chunk, RemoteRange):
            yield chunk, is_written


_PACKET_SUMS = ("repkt", "respkt", "recpkt", "recspkt")
