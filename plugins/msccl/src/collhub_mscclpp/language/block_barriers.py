"""Insert the barriers of a thread block (`nop`) that a program requires.

A barrier precedes or follows a synchronising operation as `data_sync` specifies, and, with
`auto_sync`, precedes an operation that uses data of an earlier one. The executor has no implicit
barrier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from collhub_mscclpp.language.recorded import (
    BLOCK_BARRIERS,
    BufferType,
    Chunk,
    Recorded,
    RemoteRange,
    SyncType,
)

Locate = Callable[[Chunk], Chunk]
"""Maps a chunk to its memory: in place, chunks of two buffers may be the same memory."""


def insert_requested_barriers(operations: Iterable[Recorded]) -> list[Recorded]:
    """Insert the nops that `data_sync` of the operations specifies, also within pipelines."""
    inserted: list[Recorded] = []
    for operation in operations:
        nop = Recorded("nop", operation.rank)
        if SyncType.before in operation.sync:
            inserted.append(nop)
        body = insert_requested_barriers(operation.body)
        inserted.append(replace(operation, body=body) if body else operation)
        if SyncType.after in operation.sync:
            inserted.append(nop)
    return inserted


def insert_data_barriers(operations: Iterable[Recorded], locate: Locate) -> list[Recorded]:
    """Insert a nop between operations that access the same data if one of them writes it."""
    inserted: list[Recorded] = []
    since_barrier: list[Recorded] = []
    for operation in operations:
        if operation.name in BLOCK_BARRIERS:
            since_barrier = []
        elif any(are_dependent(earlier, operation, locate) for earlier in since_barrier):
            inserted.append(Recorded("nop", operation.rank))
            since_barrier = []
        body = insert_data_barriers(operation.body, locate)
        inserted.append(replace(operation, body=body) if body else operation)
        since_barrier.append(operation)
    return inserted


def insert_data_barriers_as_package(operations: Iterable[Recorded]) -> list[Recorded]:
    """Insert nops as the package does, which misses some dependencies.

    The package records only the last access to each chunk, drops all accesses (also those of the
    current operation) at a conflict, and ignores the plain operand of a sum of packets and all
    operations of switches.
    """
    inserted: list[Recorded] = []
    last_access: dict[tuple[BufferType, int], tuple[int, bool]] = {}
    for number, operation in enumerate(operations):
        if operation.name in BLOCK_BARRIERS:
            last_access.clear()
        has_conflict = False
        for chunk, is_written in _list_tracked_accesses(operation):
            cells = [(chunk.buffer, chunk.index + offset) for offset in range(chunk.size)]
            accesses = [last_access[cell] for cell in cells if cell in last_access]
            if any(by != number and (is_written or wrote) for by, wrote in accesses):
                last_access.clear()
                has_conflict = True
            last_access.update(dict.fromkeys(cells, (number, is_written)))
        if has_conflict:
            inserted.append(Recorded("nop", operation.rank))
        body = insert_data_barriers_as_package(operation.body)
        inserted.append(replace(operation, body=body) if body else operation)
    return inserted


def find_missing_barrier(
    operations: Sequence[Recorded], locate: Locate
) -> tuple[Recorded, Recorded] | None:
    """Find the first two dependent operations without a barrier in between, or return None."""
    since_barrier: list[Recorded] = []
    for operation in operations:
        if operation.name in BLOCK_BARRIERS:
            since_barrier = []
        for earlier in since_barrier:
            if are_dependent(earlier, operation, locate):
                return earlier, operation
        since_barrier.append(operation)
    return None


def are_dependent(first: Recorded, second: Recorded, locate: Locate) -> bool:
    """Whether one of the operations writes local data that the other one accesses."""
    return any(
        (is_written or is_written_too) and locate(chunk).overlaps(locate(second_chunk))
        for chunk, is_written in _list_accesses(first)
        for second_chunk, is_written_too in _list_accesses(second)
    )


def _list_accesses(operation: Recorded) -> Iterator[tuple[Chunk, bool]]:
    """Yield the local ranges of plain data and whether they are written.

    Packets are omitted: their flags order reads after writes.
    """
    for inner in operation.body:
        yield from _list_accesses(inner)
    if operation.name not in ("upkt", "rppkt", "gstorepkt"):
        yield from _select_local(operation.src, is_written=False)
    if operation.name != "cpkt":
        # A sum of packets writes its first range as plain data, its further ones as packets.
        dst = operation.dst[:1] if operation.name in _PACKET_SUMS else operation.dst
        yield from _select_local(dst, is_written=True)


def _list_tracked_accesses(operation: Recorded) -> Iterator[tuple[Chunk, bool]]:
    """Yield the accesses that the package tracks, in its order."""
    for inner in operation.body:
        yield from _list_tracked_accesses(inner)
    if operation.channel_type == "switch":
        return
    if operation.name not in ("upkt", "rppkt"):
        src = operation.src[1:] if operation.name in _PACKET_SUMS else operation.src
        yield from _select_local(src, is_written=False)
    if operation.name != "cpkt":
        dst = operation.dst[:1] if operation.name in _PACKET_SUMS else operation.dst
        yield from _select_local(dst, is_written=True)


def _select_local(chunks: Sequence[Chunk], *, is_written: bool) -> Iterator[tuple[Chunk, bool]]:
    """Yield the local ranges; accesses to remote ranges are ordered by signals."""
    for chunk in chunks:
        if not isinstance(chunk, RemoteRange):
            yield chunk, is_written


_PACKET_SUMS = ("repkt", "respkt", "recpkt", "recspkt")
