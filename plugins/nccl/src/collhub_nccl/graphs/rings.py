"""Recognise algorithms that pass every part of the buffer round a ring of all ranks, and say which rings these are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.algorithm import Algorithm
from hub_core.collectives import Buffer, Collective, CollectiveKind
from hub_core.diagnostics import InputError
from hub_core.execution.levels import levelled_program
from hub_core.execution.program import LevelledProgram, RecordKind

Int64Array = npt.NDArray[np.int64]
Ring = tuple[int, ...]
"""Ranks in the order in which data passes them, from rank 0 on; the last one sends to the first."""

# Times that a part passes over a link of its ring, as a multiple of n - 1.
_PASSES = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.BROADCAST: 1,
    CollectiveKind.REDUCE: 1,
}
RING_KINDS = tuple(_PASSES)
_NOTHING = -1


def rings_of(algorithm: Algorithm) -> dict[Ring, int]:
    """Rings, in the order of the first part that uses them, and the number of equal parts (blocks) that pass each.

    Every part must be forwarded along a path over all ranks, the same cycle where an all-reduce passes it twice. Raises
    `InputError` with the first part that is not.
    """
    kind, n = algorithm.collective.kind, algorithm.num_ranks
    if kind not in _PASSES or n < 2:
        raise _refusal(
            f"NCCL has no rings for {kind} of {n} ranks; it has for {', '.join(RING_KINDS)}"
        )
    program = levelled_program(algorithm, not algorithm.collective.out_of_place)
    collective = replace(algorithm.collective, unit_count=program.unit_count)
    part, source, target = _passages(collective, program)
    order = np.argsort(part, kind="stable")
    bounds = np.searchsorted(part[order], np.arange(program.unit_count + 1))
    found: Counter[Ring] = Counter()
    for index, (first, last) in enumerate(
        zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
    ):
        rows = order[first:last]
        if len(rows) != _PASSES[kind] * (n - 1):
            raise _refusal(
                f"part {index} passes over {len(rows)} links; in a ring {kind} of {n} ranks it passes {_PASSES[kind] * (n - 1)}"
            )
        found[
            _ring(index, n, set(zip(source[rows].tolist(), target[rows].tolist(), strict=True)))
        ] += 1
    return dict(found)


def _refusal(reason: str) -> InputError:
    return InputError(
        f"not a set of rings: {reason}", cure="write it as a program: --to nccl", code="not-rings"
    )


def _ring(part: int, n: int, links: Iterable[tuple[int, int]]) -> Ring:
    successor: dict[int, int] = {}
    for source, target in sorted(links):
        if source in successor:
            raise _refusal(
                f"rank {source} sends part {part} to rank {successor[source]} and to rank {target}"
            )
        successor[source] = target
    if len(set(successor.values())) < len(successor):
        twice = Counter(successor.values()).most_common(1)[0][0]
        raise _refusal(f"rank {twice} receives part {part} from more than one rank")
    if len(successor) == n - 1:
        # A path over all ranks: the ring is closed by the link that the part does not need.
        (end,), (start,) = set(range(n)) - set(successor), set(range(n)) - set(successor.values())
        successor[end] = start
    ring = [0]
    while len(ring) <= n and successor.get(ring[-1], 0) != 0:
        ring.append(successor[ring[-1]])
    if len(ring) != n:
        raise _refusal(f"part {part} does not pass all {n} ranks in one cycle")
    return tuple(ring)


def _passages(
    collective: Collective, program: LevelledProgram
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(part, source, target) of every block that a message moves: the program runs on numbers of parts instead of data."""
    memory = _initial_parts(collective, program)
    source, target = program.addresses()
    rank = program.rank
    partner = np.full(len(program), -1, np.int64)
    sends, receives = program.message_ends()
    partner[receives] = sends
    moved: list[tuple[Int64Array, int, int]] = []
    for row in _running_order(program):
        kind, count = int(program.kind[row]), int(program.count[row])
        begin = int(source[partner[row] if kind == RecordKind.RECV else row])
        parts = memory[begin : begin + count].copy()
        place = slice(int(target[row]), int(target[row]) + count)
        if kind == RecordKind.REDUCE and not np.array_equal(memory[place], parts):
            raise _refusal(f"rank {int(rank[row])} reduces different parts of the buffer together")
        if kind == RecordKind.RECV:
            moved.append((parts, int(program.peer[row]), int(rank[row])))
        memory[place] = parts
    if not moved:
        raise _refusal("no rank sends anything")
    lengths = [len(parts) for parts, _, _ in moved]
    ends = [
        np.repeat(np.asarray([passage[side] for passage in moved], np.int64), lengths)
        for side in (1, 2)
    ]
    return np.concatenate([parts for parts, _, _ in moved]), ends[0], ends[1]


def _running_order(program: LevelledProgram) -> Iterator[int]:
    """Rows but the sends: level by level, messages first, then what ranks do on their own."""
    rows = np.flatnonzero(program.kind != RecordKind.SEND)
    order = np.lexsort((rows, program.is_local[rows], program.level[rows]))
    yield from rows[order].tolist()


def _initial_parts(collective: Collective, program: LevelledProgram) -> Int64Array:
    """The part of the full buffer that every block of memory holds before."""
    memory = np.full(program.layout.total, _NOTHING, np.int64)
    for rank in np.flatnonzero(collective.defined_inputs()).tolist():
        size = int(program.layout.size[rank, Buffer.INPUT])
        base = int(program.layout.base[rank, Buffer.INPUT])
        shift = rank * size if collective.kind is CollectiveKind.ALL_GATHER else 0
        memory[base : base + size] = shift + np.arange(size)
    return memory
