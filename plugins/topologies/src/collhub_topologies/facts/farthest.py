"""How far apart nodes are at most, by a search that follows many of them at once."""

from __future__ import annotations

import numpy as np
from collhub_columns import Arcs, Int64Array, csr, ordinals


def farthest(arcs: Arcs, starts: Int64Array, goals: int, work: int) -> tuple[int, int] | None:
    """Arcs on the longest of the shortest paths from any of `starts` to nodes 0..goals-1.

    With the bytes that the search went through. None where some goal is not reached from some
    start, or where that would take more than `work` bytes. Starts are bits, 8 a byte, and a round
    hands the bits of every tail to its heads: rounds times arcs times starts / 8 bytes.
    """
    turns = _turns(arcs)
    # Big-endian within a byte, as packbits does it.
    place = np.arange(len(starts))
    everyone = np.packbits(np.ones(len(starts), np.bool_))
    reach = np.zeros((arcs.num_nodes, len(everyone)), np.uint8)
    reach[starts, place // 8] = 128 >> (place % 8)
    hops = done = 0
    while not np.all(reach[:goals] == everyone):
        done += len(arcs.tail) * len(everyone)
        if done > work:
            return None
        # All arcs hand on what there was before the round, or a round would count several hops.
        before = reach.copy()
        for tails, heads in turns:
            reach[heads] |= before[tails]
        # Nothing moves any more, and a goal is not reached from all.
        if np.array_equal(before, reach):
            return None
        hops += 1
    return hops, done


def _turns(arcs: Arcs) -> list[tuple[Int64Array, Int64Array]]:
    """The arcs as (tails, heads) in parts, each head at most once in a part.

    An assignment to rows of which one stands twice would keep the last value alone.
    """
    turn = ordinals(arcs.head)
    indptr, rows = csr(turn, np.arange(len(turn)), int(turn.max(initial=-1)) + 1)
    parts = np.split(rows, indptr[1:-1]) if len(rows) else []
    return [(arcs.tail[part], arcs.head[part]) for part in parts]
