"""Order of chunks: in computations of a rank (tiles), and in the steps of a collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collhub_coconet.lowering.contents import Contents
from collhub_coconet.lowering.grids import Grid
from collhub_coconet.program.operations import Operation
from collhub_coconet.program.program import Program, Stage
from collhub_coconet.program.tensors import Binding
from collhub_coconet.transformations.costs import count_memory_bytes, count_operations
from hub_core.columns import Int64Array
from hub_core.model import NodeKind


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


def chunk_numbers(
    grid: Grid,
    contents: Contents,
    units: Int64Array,
    piece: int,
    position: Int64Array,
    *,
    is_given: bool,
) -> Int64Array:
    """The chunks of units of the full buffer in a piece; pieces of a block stand in order.

    `position`: in the group, of the rank that needs the unit, or that is given it. Of an AllToAll
    the unit tells the other end: full buffers are those of ranks.
    """
    share = contents.units // grid.blocks
    block, place = np.divmod(units, share)
    if grid.across is not None:
        source, target = (block, position) if is_given else (position, block)
        block = source * grid.blocks + target
    found: Int64Array = block * grid.parts + piece * share + place
    return found


def ordered_chunks(
    grid: Grid, contents: Contents, pieces: int, position: int, *, is_needed: bool
) -> Int64Array:
    """All chunks that a position needs, or gets, piece by piece in the order of first use.

    The order is that of levels of the algorithm's own graph, messages included, then of its steps:
    nothing is assumed of its shape. What it never touches comes last.
    """
    if is_needed:
        node, unit = contents.need_node, contents.need_unit
        first = contents.template.first
        is_mine = (node >= first[position]) & (node < first[position + 1])
    else:
        node, unit = contents.give_node, contents.give_unit
        is_mine = contents.give_rank == position
    node, unit = node[is_mine], unit[is_mine]
    # What is there from the start has no node.
    level = np.where(node >= 0, contents.level[np.maximum(node, 0)], -1)
    # Of one level, what a rank has itself is there before what travels.
    is_received = contents.template.kind[node] == NodeKind.RECV
    order = np.lexsort((node, is_received & ~np.bool_(is_needed), level))
    ranked = unit[order]
    _, first_seen = np.unique(ranked, return_index=True)
    ranked = ranked[np.sort(first_seen)]
    place = np.full_like(ranked, position)
    found = [
        chunk_numbers(grid, contents, ranked, piece, place, is_given=not is_needed)
        for piece in range(pieces)
    ]
    used = np.concatenate(found)
    rest = np.setdiff1d(np.arange(grid.chunks), used)
    return np.concatenate([used, rest])
