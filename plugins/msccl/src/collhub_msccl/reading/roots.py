"""Infer the root of a broadcast, reduce, gather or scatter: MSCCL-IR files do not name it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hub_core.collectives import Buffer, CollectiveKind
from hub_core.steps import StepKind

Int64Array = npt.NDArray[np.int64]
Columns = Mapping[str, Int64Array]

_FROM_ROOT = (CollectiveKind.BROADCAST, CollectiveKind.SCATTER)
_READS_SRC = [StepKind.SEND, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]
_WRITES_DST = [StepKind.RECV, StepKind.RECV_REDUCE, StepKind.COPY, StepKind.REDUCE]


def possible_roots(
    kind: CollectiveKind, columns: Columns, num_ranks: int, is_aliased: bool
) -> list[int]:
    """Ranks that can be the root, ascending.

    Messages must lead from the root to all ranks (broadcast, scatter) or from all ranks to it (reduce, gather).
    Among those: ranks that read input which they do not store first, as only the root's input holds data; or
    ranks that write their output, as only the root has to. `is_aliased`: input and output are one buffer.
    """
    sends = columns["kind"] == StepKind.SEND
    source, target = columns["rank"][sends].tolist(), columns["peer"][sends].tolist()
    if kind in _FROM_ROOT:
        connected = _reaching_all(source, target, num_ranks)
        evident = _reading_own_input(columns, is_aliased and kind is CollectiveKind.BROADCAST)
    else:
        connected = _reaching_all(target, source, num_ranks)
        evident = (
            set() if is_aliased and kind is CollectiveKind.REDUCE else _writing_output(columns)
        )
    return sorted(connected & evident or connected)


def _reading_own_input(columns: Columns, is_output_too: bool) -> set[int]:
    """Ranks with a read of input that starts where no step of the rank writes."""
    reads, writes = (
        set(
            zip(
                *(
                    column.tolist()
                    for column in _input_accesses(columns, kinds, side, is_output_too)
                ),
                strict=True,
            )
        )
        for kinds, side in ((_READS_SRC, "src"), (_WRITES_DST, "dst"))
    )
    return {rank for rank, _ in reads - writes}


def _input_accesses(
    columns: Columns, kinds: list[StepKind], side: str, is_output_too: bool
) -> tuple[Int64Array, Int64Array]:
    buffers = [Buffer.INPUT, Buffer.OUTPUT] if is_output_too else [Buffer.INPUT]
    used = np.isin(columns["kind"], kinds) & np.isin(columns[f"{side}_buffer"], buffers)
    return columns["rank"][used], columns[f"{side}_offset"][used]


def _writing_output(columns: Columns) -> set[int]:
    writes = np.isin(columns["kind"], _WRITES_DST) & (columns["dst_buffer"] == Buffer.OUTPUT)
    return set(columns["rank"][writes].tolist())


def _reaching_all(source: list[int], target: list[int], num_ranks: int) -> set[int]:
    """Ranks from which every rank can be reached over source -> target."""
    forward: list[list[int]] = [[] for _ in range(num_ranks)]
    backward: list[list[int]] = [[] for _ in range(num_ranks)]
    for here, there in set(zip(source, target, strict=True)):
        forward[here].append(there)
        backward[there].append(here)
    seen: set[int] = set()
    last_start = 0
    for start in range(num_ranks):
        if start not in seen:
            last_start = start
            seen |= _reached(forward, start, seen)
    # Whatever no search before could reach must itself reach all, if any rank does.
    if len(_reached(forward, last_start, set())) < num_ranks:
        return set()
    return _reached(backward, last_start, set())


def _reached(neighbours: list[list[int]], start: int, known: set[int]) -> set[int]:
    found = {start}
    queue = [start]
    for rank in queue:
        for other in neighbours[rank]:
            if other not in found and other not in known:
                found.add(other)
                queue.append(other)
    return found
