"""Infer the root of a broadcast, reduce, gather or scatter: MSCCL-IR files do not name it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from collhub_columns import Int64Array

from hub_core.model import Buffer, CollectiveKind, StepKind

Columns = Mapping[str, Int64Array]

_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_READS_SRC = [StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]
_WRITES_DST = [StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]


def possible_roots(
    kind: CollectiveKind,
    columns: Columns,
    num_ranks: int,
    is_aliased: bool,
) -> list[int]:
    """Ranks that can be the root, ascending.

    Messages must lead from the root to all ranks (broadcast, scatter) or from all ranks to it
    (reduce, gather). Among those: ranks that read input which they do not store first, as only the
    root's input holds data; or ranks that write their output, as only the root has to.
    `is_aliased`: input and output are one buffer. Cost: linear in steps and connections.
    """
    is_send = columns["kind"] == StepKind.SEND
    source = columns["rank"][is_send].tolist()
    target = columns["peer"][is_send].tolist()
    if kind in _FROM_ROOT:
        connected = _reaching_all(source, target, num_ranks)
        is_one_buffer = is_aliased and kind is CollectiveKind.BROADCAST
        # Forwarding ranks read their buffer too, but only what was written there before.
        evident = _reading_own_input(columns, is_one_buffer)
    else:
        connected = _reaching_all(target, source, num_ranks)
        # In place, every rank of a reduce may keep partial sums in its output.
        is_one_buffer = is_aliased and kind is CollectiveKind.REDUCE
        evident = set() if is_one_buffer else _writing_output(columns)
    # Without evidence the connections alone decide, and may leave several.
    return sorted(connected & evident or connected)


def _reading_own_input(columns: Columns, is_output_too: bool) -> set[int]:
    """Ranks with a read of input that starts where no step of the rank writes."""
    reads = _input_accesses(columns, _READS_SRC, "src", is_output_too)
    writes = _input_accesses(columns, _WRITES_DST, "dst", is_output_too)
    return {rank for rank, _ in reads - writes}


def _input_accesses(
    columns: Columns,
    kinds: list[StepKind],
    side: str,
    is_output_too: bool,
) -> set[tuple[int, int]]:
    """(rank, first unit) of the accesses to INPUT on one side of steps of these kinds."""
    buffers = [Buffer.INPUT, Buffer.OUTPUT] if is_output_too else [Buffer.INPUT]
    is_kind = np.isin(columns["kind"], kinds)
    is_used = is_kind & np.isin(columns[f"{side}_buffer"], buffers)
    ranks = columns["rank"][is_used].tolist()
    offsets = columns[f"{side}_offset"][is_used].tolist()
    return set(zip(ranks, offsets, strict=True))


def _writing_output(columns: Columns) -> set[int]:
    """Ranks with a step that writes OUTPUT."""
    is_write = np.isin(columns["kind"], _WRITES_DST)
    is_write &= columns["dst_buffer"] == Buffer.OUTPUT
    return set(columns["rank"][is_write].tolist())


def _reaching_all(
    source: list[int],
    target: list[int],
    num_ranks: int,
) -> set[int]:
    """Ranks from which every rank can be reached over source -> target.

    The search for a "mother vertex" of a directed graph: the last start of a sweep that visits
    every rank once is one, if there is any; then all that reach it are. Three searches in all.
    """
    forward: list[list[int]] = [[] for _ in range(num_ranks)]
    backward: list[list[int]] = [[] for _ in range(num_ranks)]
    # Many messages, few connections.
    for here, there in set(zip(source, target, strict=True)):
        forward[here].append(there)
        backward[there].append(here)
    last_start = _last_start(forward)
    if len(_reached(forward, last_start, set())) < num_ranks:
        return set()
    return _reached(backward, last_start, set())


def _last_start(forward: list[list[int]]) -> int:
    """The last rank that no search from an earlier rank reached.

    Whatever no search before could reach must itself reach all, if any rank does.
    """
    seen: set[int] = set()
    last_start = 0
    for start in range(len(forward)):
        if start not in seen:
            last_start = start
            seen |= _reached(forward, start, seen)
    return last_start


def _reached(
    neighbours: list[list[int]],
    start: int,
    known: set[int],
) -> set[int]:
    """Ranks reached from `start` without passing through `known` ones, itself among them."""
    found = {start}
    # Breadth first; the list grows while it is walked.
    queue = [start]
    for rank in queue:
        for other in neighbours[rank]:
            if other not in found and other not in known:
                found.add(other)
                queue.append(other)
    return found
