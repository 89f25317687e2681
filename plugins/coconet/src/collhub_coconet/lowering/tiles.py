"""Tiles: in which order a rank computes the chunks of a value, and what each tile costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collhub_coconet.program.operations import Operation
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.program.tensors import Binding
from collhub_coconet.transformations.costs import count_memory_bytes, count_operations
from hub_core.columns import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """Tiles of all ranks of a group, those of a rank in the order in which it computes them.

    By tile: `rank` int64, `chunks`. By chunk of a tile, int64: `tile`, `owner`: its rank, `chunk`.
    """

    rank: Int64Array
    chunks: tuple[tuple[int, ...], ...]
    tile: Int64Array
    owner: Int64Array
    chunk: Int64Array


def tiles_of(ranks: Int64Array, orders: Sequence[Int64Array], most: int | None) -> Tiles:
    """Cut the chunks of each rank, in order, into at most so many tiles of equal length."""
    rank, chunks = [], []
    for number, order in zip(ranks.tolist(), orders, strict=True):
        count = len(order) if most is None else min(most, len(order))
        borders = [tile * len(order) // count for tile in range(count + 1)] if count else [0]
        listed = order.tolist()
        for low, high in pairwise(borders):
            rank.append(number)
            chunks.append(tuple(listed[low:high]))
    lengths = [len(one) for one in chunks]
    tile = np.repeat(np.arange(len(chunks)), lengths)
    owner = np.asarray(rank, np.int64)
    flat = np.asarray([chunk for one in chunks for chunk in one], np.int64)
    return Tiles(owner, tuple(chunks), tile, owner[tile], flat)


def tile_costs(
    program: Program,
    binding: Binding,
    operations: Sequence[Operation],
    stage: Stage | None,
    tiles: Tiles,
) -> tuple[Int64Array, Int64Array]:
    """(operations, bytes) of every tile: its share of what the rank does in all.

    Rounded at the borders of tiles, so that the sum on a rank is the whole.
    """
    beside = stage.members if stage else ()
    count = sum(count_operations(program, one, binding) for one in operations)
    touched = count_memory_bytes(program, operations, binding, beside)
    size = np.bincount(tiles.tile, minlength=len(tiles.rank))
    behind = np.cumsum(size)
    ranks, first = np.unique(tiles.rank, return_index=True)
    start = (behind - size)[first]
    whole = np.bincount(np.searchsorted(ranks, tiles.rank), size).astype(np.int64)
    place = np.searchsorted(ranks, tiles.rank)
    high = behind - start[place]
    low = high - size
    shares = [
        _share(total, high, whole[place]) - _share(total, low, whole[place])
        for total in (count, touched)
    ]
    return shares[0], shares[1]


def _share(total: int, part: Int64Array, whole: Int64Array) -> Int64Array:
    """total * part // whole, in Python's integers where the product is large."""
    if total < 2**62 // max(1, int(whole.max(initial=1))):
        return np.asarray(total * part // np.maximum(whole, 1), np.int64)
    return np.asarray(part.astype(object) * total // np.maximum(whole, 1), np.int64)
