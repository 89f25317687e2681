"""Recognise algorithms that pass every part of the buffer round a ring of all ranks.

The algorithm is run on numbers of parts instead of data, so that every message says which parts it
moves. A part goes round a ring if its messages give every rank at most one successor, and these
close one cycle over all ranks, or leave out one link of it. Work is linear in the blocks moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from collhub_execution import LevelledProgram, RecordKind, levelled_program

from collhub_nccl.graphs.ring_graph import Ring
from hub_core.columns import Int64Array, csr
from hub_core.model import Algorithm, Buffer, Collective, CollectiveKind, InputError

RankPair = tuple[int, int]

# Times that a part passes over a link of its ring, as a multiple of n - 1. An all-reduce passes it
# once to reduce it and once to spread the result.
_PASSES = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.BROADCAST: 1,
    CollectiveKind.REDUCE: 1,
}
RING_KINDS = tuple(_PASSES)
# In memory that holds no part of the buffer yet.
_NOTHING = -1


def rings_of(algorithm: Algorithm) -> dict[Ring, int]:
    """Rings, in the order of the first part that uses them, and the number of parts that pass each.

    Rings are written from rank 0 on.
    Parts are equal: the blocks of the levelled program. Every part must be forwarded along a path
    over all ranks, the same cycle where an all-reduce passes it twice. Raises `InputError` with the
    first part that is not.
    """
    kind, n = algorithm.collective.kind, algorithm.num_ranks
    if kind not in _PASSES or n < 2:
        raise _refusal(
            f"NCCL has no rings for {kind} of {n} ranks; it has for {', '.join(RING_KINDS)}"
        )
    program = levelled_program(algorithm, not algorithm.collective.out_of_place)
    collective = replace(algorithm.collective, unit_count=program.unit_count)
    passages = _passages(collective, program)
    expected = _PASSES[kind] * (n - 1)
    found: Counter[Ring] = Counter()
    for part, links in enumerate(passages.by_part(program.unit_count)):
        if len(links) != expected:
            raise _refusal(
                f"part {part} passes over {len(links)} links; "
                f"in a ring {kind} of {n} ranks it passes {expected}"
            )
        found[_ring(part, n, set(links))] += 1
    return dict(found)


def _refusal(reason: str) -> InputError:
    return InputError(
        f"not a set of rings: {reason}",
        cure="write it as a program: --to nccl",
        code="not-rings",
    )


def _ring(part: int, n: int, links: Iterable[RankPair]) -> Ring:
    """The ring over which a part goes, by the (source, target) of its messages."""
    successor = _successors(part, links)
    if len(successor) == n - 1:
        # A path over all ranks: the ring is closed by the link that the part does not need.
        (end,) = set(range(n)) - set(successor)
        (start,) = set(range(n)) - set(successor.values())
        successor[end] = start
    # Every ring holds rank 0, from which two equal rings are written alike.
    ring = [0]
    # No longer than n, as a cycle without rank 0 would never end.
    while len(ring) <= n and successor.get(ring[-1], 0) != 0:
        ring.append(successor[ring[-1]])
    if len(ring) != n:
        raise _refusal(f"part {part} does not pass all {n} ranks in one cycle")
    return tuple(ring)


def _successors(part: int, links: Iterable[RankPair]) -> dict[int, int]:
    """The rank to which every rank sends a part, where there is one and no two have the same."""
    successor: dict[int, int] = {}
    for source, target in sorted(links):
        if source in successor:
            raise _refusal(
                f"rank {source} sends part {part} to rank {successor[source]} and to rank {target}"
            )
        successor[source] = target
    targets = Counter(successor.values())
    if len(targets) < len(successor):
        twice, _ = targets.most_common(1)[0]
        raise _refusal(f"rank {twice} receives part {part} from more than one rank")
    return successor


@dataclass(frozen=True, slots=True)
class _Passages:
    """Blocks that messages move, one row each: part, sending rank, receiving rank; int64."""

    part: Int64Array
    source: Int64Array
    target: Int64Array

    def by_part(self, part_count: int) -> Iterator[list[RankPair]]:
        """(source, target) of the messages that move part 0, 1 and so on, in the order of time."""
        indptr, messages = csr(self.part, np.arange(len(self.part)), part_count)
        for first, last in pairwise(indptr.tolist()):
            rows = messages[first:last]
            sources, targets = self.source[rows], self.target[rows]
            yield list(zip(sources.tolist(), targets.tolist(), strict=True))


def _passages(collective: Collective, program: LevelledProgram) -> _Passages:
    """Run the program on numbers of parts instead of data, and note what every message moves."""
    moved = list(_moved(collective, program))
    if not moved:
        raise _refusal("no rank sends anything")
    lengths = [len(parts) for parts, _, _ in moved]
    sources = np.asarray([source for _, source, _ in moved], np.int64)
    targets = np.asarray([target for _, _, target in moved], np.int64)
    return _Passages(
        np.concatenate([parts for parts, _, _ in moved]),
        np.repeat(sources, lengths),
        np.repeat(targets, lengths),
    )


def _moved(
    collective: Collective, program: LevelledProgram
) -> Iterator[tuple[Int64Array, int, int]]:
    """(parts, source, target) of every message."""
    memory = _initial_parts(collective, program)
    source, target = _addresses(program)
    # Lists, since elements of columns cost more, and some columns are computed at each access.
    counts, kinds = program.count.tolist(), program.kind.tolist()
    ranks, peers = program.rank.tolist(), program.peer.tolist()
    for row in _running_order(program):
        count, kind = counts[row], kinds[row]
        rank, peer = ranks[row], peers[row]
        # A copy within one rank may overlap what it reads.
        parts = memory[source[row] : source[row] + count].copy()
        held = memory[target[row] : target[row] + count]
        # A sum of different parts is no part of the result of these collectives.
        if kind == RecordKind.REDUCE and not np.array_equal(held, parts):
            raise _refusal(f"rank {rank} reduces different parts of the buffer together")
        if kind == RecordKind.RECV:
            yield parts, peer, rank
        held[:] = parts


def _addresses(program: LevelledProgram) -> tuple[Sequence[int], Sequence[int]]:
    """Where every record reads and writes in the memory of all ranks.

    A receive reads what its send does.
    """
    source, target = program.addresses()
    sends, receives = program.message_ends()
    read = source.copy()
    read[receives] = source[sends]
    return read.tolist(), target.tolist()


def _running_order(program: LevelledProgram) -> Sequence[int]:
    """Rows but the sends: level by level, messages first, then what ranks do on their own."""
    rows = np.flatnonzero(program.kind != RecordKind.SEND)
    order = np.lexsort((rows, program.is_local[rows], program.level[rows]))
    in_order: list[int] = rows[order].tolist()
    return in_order


def _initial_parts(collective: Collective, program: LevelledProgram) -> Int64Array:
    """The part of the full buffer that every block of memory holds before."""
    layout = program.layout
    memory = np.full(layout.total, _NOTHING, np.int64)
    for rank in np.flatnonzero(collective.defined_inputs()).tolist():
        size = int(layout.size[rank, Buffer.INPUT])
        base = int(layout.base[rank, Buffer.INPUT])
        # The full buffer of an all-gather is its output, of which a rank's input is a share.
        shift = rank * size if collective.kind is CollectiveKind.ALL_GATHER else 0
        memory[base : base + size] = shift + np.arange(size)
    return memory
