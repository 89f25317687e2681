"""In which order the ranks need or get the chunks of a collective, from its own steps."""

from __future__ import annotations

import numpy as np

from collhub_coconet.lowering.contents import Contents
from collhub_coconet.lowering.grids import Grid
from hub_core.columns import Int64Array
from hub_core.model import NodeKind


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
