"""Broadcasts on several trees at once, each with a part of the data, chunk after chunk.

On a torus, two trees per dimension use no link twice (edge-disjoint spanning trees; Johnsson and
Ho, IEEE Transactions on Computers 38, 1989, for hypercubes): the root sends a different part over
every link. On other networks, the two binary trees of NCCL (Sanders, Speck, Traeff, Parallel
Computing 35, 2009), in which every rank forwards only one half of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model import Buffer, StepKind, StepTable
from hub_core.schedules import find_second_tree_parents, find_tree_parents


def find_torus_trees(sizes: Sequence[int], root: int) -> Int64Array:
    """Return the parents in edge-disjoint trees of a torus: int64[trees, ranks], -1 at the root.

    `sizes`: ranks of each dimension, at least 2, the first varies fastest; two trees per
    dimension, one for dimensions of two ranks, whose links trees of other dimensions may share if
    only some dimensions have two ranks. In the tree of dimension a and direction s, let y
    be the coordinates relative to the root in direction s. The data moves along a from the root,
    then from every rank with y[a] > 0 along the following dimensions cyclically; ranks with
    y[a] = 0 receive it from the rank before them along a.
    """
    count = len(sizes)
    number = np.arange(prod(sizes))
    strides = [prod(sizes[:axis]) for axis in range(count)]
    place = [number // stride % size for stride, size in zip(strides, sizes, strict=True)]
    parents = []
    for first in range(count):
        for direction in (1, -1) if sizes[first] > 2 else (1,):
            relative = [
                (coordinate - coordinate[root]) * direction % size
                for coordinate, size in zip(place, sizes, strict=True)
            ]
            # The dimension along which a rank receives: the last one with a displacement.
            axis_of = np.full(len(number), first)
            for offset in range(1, count):
                axis = (first + offset) % count
                axis_of[(relative[axis] > 0) & (relative[first] > 0)] = axis
            parent = np.empty_like(number)
            for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
                rows = axis_of == axis
                before = (place[axis] - direction) % size
                parent[rows] = (number + (before - place[axis]) * stride)[rows]
            parent[root] = -1
            parents.append(parent)
    return np.asarray(parents)


def find_binary_trees(num_ranks: int, root: int) -> Int64Array:
    """Return the parents in two binary trees, int64[2, ranks], -1 at the root.

    Inner ranks of one tree are leaves of the other, except for the root and the ranks with which
    it changes places.
    """
    parents = []
    for parent in (find_tree_parents(num_ranks), find_second_tree_parents(num_ranks)):
        position = int(np.flatnonzero(parent < 0)[0])
        rank_of = np.arange(num_ranks)
        rank_of[[position, root]] = root, position
        renamed = np.full(num_ranks, -1)
        has_parent = parent >= 0
        renamed[rank_of[has_parent]] = rank_of[parent[has_parent]]
        parents.append(renamed)
    return np.asarray(parents)


def compute_depth(parents: Int64Array) -> int:
    """Return the largest number of messages from the root to a rank, over all trees."""
    depth = 0
    for parent in parents:
        above = parent
        hops = 0
        while (above >= 0).any():
            hops += 1
            above = np.where(above >= 0, parent[np.maximum(above, 0)], -1)
        depth = max(depth, hops)
    return depth


def build_broadcast_steps(parents: Int64Array, chunks: int) -> StepTable:
    """Build the steps of a broadcast of `chunks` chunks on each of the trees, a unit per chunk.

    `parents`: as of `find_torus_trees`. Unit c * trees + t is chunk c of tree t. Every rank handles
    units in this order, and sends to its children by ascending rank. The root copies INPUT to
    OUTPUT, from which all ranks send.
    """
    trees, ranks = parents.shape
    units = trees * chunks
    tree, child = np.nonzero(parents >= 0)
    parent = parents[tree, child]
    # Per unit and edge a row that receives, and a row that sends after the receive of the sender.
    unit = (np.arange(chunks)[:, None] * trees + tree).ravel()
    receiver, sender = np.tile(child, chunks), np.tile(parent, chunks)
    edges = len(unit)
    root = int(np.flatnonzero(parents[0] < 0)[0])
    rank = np.concatenate([[root], receiver, sender])
    order = np.lexsort(
        (
            np.concatenate([[-1], receiver, receiver]),
            np.concatenate([[0], np.zeros(edges, np.int64), np.ones(edges, np.int64)]),
            np.concatenate([[-1], unit, unit]),
            rank,
        )
    )
    kind = np.repeat([StepKind.COPY, StepKind.RECV, StepKind.SEND], [1, edges, edges])
    offset = np.concatenate([[0], unit, unit])
    columns = {
        "rank": rank,
        "kind": kind,
        "peer": np.concatenate([[-1], sender, receiver]),
        "count": np.concatenate([[units], np.ones(2 * edges, np.int64)]),
        "src_buffer": np.repeat([Buffer.INPUT, Buffer.UNKNOWN, Buffer.OUTPUT], [1, edges, edges]),
        "src_offset": np.where(kind == StepKind.SEND, offset, 0),
        "dst_buffer": np.repeat([Buffer.OUTPUT, Buffer.OUTPUT, Buffer.UNKNOWN], [1, edges, edges]),
        "dst_offset": np.where(kind == StepKind.RECV, offset, 0),
    }
    # Row (rank, unit) of the receive, or the copy at the root.
    written = np.zeros((ranks, units), np.int64)
    written[receiver, unit] = 1 + np.arange(edges)
    position = np.empty(len(rank), np.int64)
    position[order] = np.arange(len(rank))
    before = position[written[sender, unit]]
    after = position[1 + edges :]
    return StepTable.from_columns(
        ranks, {name: column[order] for name, column in columns.items()}, (before, after)
    )
