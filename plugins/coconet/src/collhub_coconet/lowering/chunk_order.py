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
    """Tiles of all ranks of a group; those of a rank in the order of computation.

    By tile: `rank` int64, `chunks`. By chunk of a tile, int64: `tile`, `owner` (its rank), `chunk`.
    """

    rank: Int64Array
    chunks: tuple[tuple[int, ...], ...]
    tile: Int64Array
    owner: Int64Array
    chunk: Int64Array


def cut_tiles(ranks: Int64Array, orders: Sequence[Int64Array], max_tiles: int | None) -> Tiles:
    """Cut the ordered chunks of each rank into at most `max_tiles` tiles of equal length."""
    rank, chunks = [], []
    for number, order in zip(ranks.tolist(), orders, strict=True):
        count = len(order) if max_tiles is None else min(max_tiles, len(order))
        borders = [tile * len(order) // count for tile in range(count + 1)] if count else [0]
        chunk_list = order.tolist()
        for low, high in pairwise(borders):
            rank.append(number)
            chunks.append(tuple(chunk_list[low:high]))
    lengths = [len(tile_chunks) for tile_chunks in chunks]
    tile = np.repeat(np.arange(len(chunks)), lengths)
    owner = np.asarray(rank, np.int64)
    flat = np.asarray([chunk for tile_chunks in chunks for chunk in tile_chunks], np.int64)
    return Tiles(owner, tuple(chunks), tile, owner[tile], flat)


def compute_tile_costs(
    program: Program,
    binding: Binding,
    operations: Sequence[Operation],
    stage: Stage | None,
    tiles: Tiles,
) -> tuple[Int64Array, Int64Array]:
    """Compute (operations, bytes) of every tile: its share of the costs of the rank, int64.

    Shares are rounded at the borders of tiles, so that their sum is the total of the rank.
    """
    members = stage.members if stage else ()
    count = sum(count_operations(program, operation, binding) for operation in operations)
    traffic = count_memory_bytes(program, operations, binding, members)
    size = np.bincount(tiles.tile, minlength=len(tiles.rank))
    end = np.cumsum(size)
    ranks, first = np.unique(tiles.rank, return_index=True)
    start = (end - size)[first]
    rank_index = np.searchsorted(ranks, tiles.rank)
    chunks_of_rank = np.bincount(rank_index, size).astype(np.int64)
    high = end - start[rank_index]
    low = high - size
    shares = [
        _compute_share(total, high, chunks_of_rank[rank_index])
        - _compute_share(total, low, chunks_of_rank[rank_index])
        for total in (count, traffic)
    ]
    return shares[0], shares[1]


def _compute_share(total: int, count: Int64Array, total_count: Int64Array) -> Int64Array:
    """Compute total * count // total_count, with Python integers if the product is large."""
    if total < 2**62 // max(1, int(total_count.max(initial=1))):
        return np.asarray(total * count // np.maximum(total_count, 1), np.int64)
    return np.asarray(count.astype(object) * total // np.maximum(total_count, 1), np.int64)


def number_chunks(
    grid: Grid,
    contents: Contents,
    units: Int64Array,
    piece: int,
    position: Int64Array,
    *,
    is_given: bool,
) -> Int64Array:
    """Number the chunks in which a piece has units of the full buffer; int64 by unit.

    The pieces of a block are numbered in order. `position`: in the group, of the rank that needs
    the unit, or that receives it (`is_given`). In an AllToAll, the unit determines the other rank,
    since full buffers belong to ranks.
    """
    share = contents.units // grid.blocks
    block, offset = np.divmod(units, share)
    if grid.across is not None:
        source, target = (block, position) if is_given else (position, block)
        block = source * grid.blocks + target
    chunks: Int64Array = block * grid.parts + piece * share + offset
    return chunks


def order_chunks(
    grid: Grid, contents: Contents, pieces: int, position: int, *, is_needed: bool
) -> Int64Array:
    """Order all chunks by the time at which a position needs or receives them, piece by piece.

    The order is by level in the graph of the algorithm, including messages, then by step; it does
    not depend on the shape of the algorithm. Unused chunks come last.
    """
    if is_needed:
        node, unit = contents.need_node, contents.need_unit
        first = contents.template.first
        is_mine = (node >= first[position]) & (node < first[position + 1])
    else:
        node, unit = contents.give_node, contents.give_unit
        is_mine = contents.give_rank == position
    node, unit = node[is_mine], unit[is_mine]
    # Units that are available from the start have no node.
    level = np.where(node >= 0, contents.level[np.maximum(node, 0)], -1)
    # Within a level, units of the rank itself precede received ones.
    is_received = contents.template.kind[node] == NodeKind.RECV
    order = np.lexsort((node, is_received & ~np.bool_(is_needed), level))
    ranked = unit[order]
    _, first_seen = np.unique(ranked, return_index=True)
    ranked = ranked[np.sort(first_seen)]
    positions = np.full_like(ranked, position)
    numbers = [
        number_chunks(grid, contents, ranked, piece, positions, is_given=not is_needed)
        for piece in range(pieces)
    ]
    used = np.concatenate(numbers)
    unused = np.setdiff1d(np.arange(grid.chunks), used)
    return np.concatenate([used, unused])
