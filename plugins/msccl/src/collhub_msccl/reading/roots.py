"""Infer the root of a broadcast, reduce, gather or scatter: MSCCL-IR files do not name it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import Buffer, CollectiveKind, StepKind

Columns = Mapping[str, Int64Array]

_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_READS_SRC = [StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]
_WRITES_DST = [StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]


def find_possible_roots(
    kind: CollectiveKind,
    columns: Columns,
    num_ranks: int,
    is_aliased: bool,
) -> list[int]:
    """Ranks that can be the root of a broadcast, scatter, reduce or gather, ascending.

    Messages must connect the root to all ranks (broadcast, scatter), or all ranks to it (reduce,
    gather). If connected ranks with further evidence exist, only they are returned: ranks that read
    input which they never write, because only the root's input is defined; or ranks that write
    their output, because only the root must. `is_aliased`: input and output are one buffer. Cost:
    linear in steps and connections.
    """
    is_send = columns["kind"] == StepKind.SEND
    source = columns["rank"][is_send].tolist()
    target = columns["peer"][is_send].tolist()
    if kind in _FROM_ROOT:
        connected = _find_mother_vertices(source, target, num_ranks)
        is_one_buffer = is_aliased and kind is CollectiveKind.BROADCAST
        # Forwarding ranks read their buffer too, but only data that was written before.
        evident = _find_input_readers(columns, is_one_buffer)
    else:
        connected = _find_mother_vertices(target, source, num_ranks)
        # In place, every rank of a reduce may keep partial sums in its output.
        is_one_buffer = is_aliased and kind is CollectiveKind.REDUCE
        evident = set() if is_one_buffer else _find_output_writers(columns)
    # Without evidence the connections decide, which may leave several ranks.
    return sorted(connected & evident or connected)


def _find_input_readers(columns: Columns, is_output_too: bool) -> set[int]:
    """Ranks that read input at an offset where none of their steps writes."""
    reads = _find_input_accesses(columns, _READS_SRC, "src", is_output_too)
    writes = _find_input_accesses(columns, _WRITES_DST, "dst", is_output_too)
    return {rank for rank, _ in reads - writes}


def _find_input_accesses(
    columns: Columns,
    kinds: list[StepKind],
    side: str,
    is_output_too: bool,
) -> set[tuple[int, int]]:
    """(rank, first unit) of the accesses to INPUT (or OUTPUT, if included) on one side of these
    steps."""
    buffers = [Buffer.INPUT, Buffer.OUTPUT] if is_output_too else [Buffer.INPUT]
    is_kind = np.isin(columns["kind"], kinds)
    is_used = is_kind & np.isin(columns[f"{side}_buffer"], buffers)
    ranks = columns["rank"][is_used].tolist()
    offsets = columns[f"{side}_offset"][is_used].tolist()
    return set(zip(ranks, offsets, strict=True))


def _find_output_writers(columns: Columns) -> set[int]:
    """Ranks with a step that writes OUTPUT."""
    is_write = np.isin(columns["kind"], _WRITES_DST)
    is_write &= columns["dst_buffer"] == Buffer.OUTPUT
    return set(columns["rank"][is_write].tolist())


def _find_mother_vertices(
    source: list[int],
    target: list[int],
    num_ranks: int,
) -> set[int]:
    """Ranks from which every rank can be reached by edges source -> target.

    Search for a "mother vertex" of a directed graph: the last start of a sweep that visits every
    rank once is one, if any exists; all ranks that reach it are mother vertices too. Three
    searches.
    """
    forward: list[list[int]] = [[] for _ in range(num_ranks)]
    backward: list[list[int]] = [[] for _ in range(num_ranks)]
    # Deduplicate: there are many messages, but few connections.
    for sender, receiver in set(zip(source, target, strict=True)):
        forward[sender].append(receiver)
        backward[receiver].append(sender)
    last_start = _find_last_start(forward)
    if len(_find_reachable(forward, last_start, set())) < num_ranks:
        return set()
    return _find_reachable(backward, last_start, set())


def _find_last_start(forward: list[list[int]]) -> int:
    """The last rank that no search from an earlier rank reached.

    If any rank reaches all ranks, this one does: no earlier search reached it.
    """
    seen: set[int] = set()
    last_start = 0
    for start in range(len(forward)):
        if start not in seen:
            last_start = start
            seen |= _find_reachable(forward, start, seen)
    return last_start


def _find_reachable(
    neighbours: list[list[int]],
    start: int,
    known: set[int],
) -> set[int]:
    """Ranks reachable from `start` (inclusive) without passing through `known` ranks."""
    reached = {start}
    # Breadth first; the list grows during iteration.
    queue = [start]
    for rank in queue:
        for neighbour in neighbours[rank]:
            if neighbour not in reached and neighbour not in known:
                reached.add(neighbour)
                queue.append(neighbour)
    return reached
