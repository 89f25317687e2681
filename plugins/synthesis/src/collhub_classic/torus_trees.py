"""Spanning trees of tori and meshes from one root, of which no two use the same link.

Edge-disjoint trees let the root send a different part of the data over every link (Johnsson and Ho,
IEEE Transactions on Computers 38, 1989, for hypercubes; Ku, Wang, Hung, IEEE Transactions on
Parallel and Distributed Systems 14, 2003, for products of networks). Here, most hops are along the
last dimension of a tree, in both directions from the plane of the root or from the opposite one, so
that these paths have half the length of a ring.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hub_core.columns import Int64Array


def find_grid_trees(sizes: Sequence[int], is_ring: Sequence[bool], root: int) -> Int64Array:
    """Return the parent of every rank in each tree: int64[trees, ranks], -1 at `root`.

    `sizes`: ranks of each dimension, at least 2, the first varies fastest. `is_ring`: whether a
    dimension is a ring; the other ones are lines. Two ranks have one link in each direction in both
    cases. There are two trees for a ring of more than two ranks and one for every other dimension,
    which is the number of links into a corner of a mesh. No two trees use the same link in the same
    direction.
    """
    if all(ring or size == 2 for size, ring in zip(sizes, is_ring, strict=True)):
        return _find_torus_trees(sizes, root)
    return _find_mesh_trees(sizes, is_ring, root)


def compute_depths(parent: Int64Array) -> Int64Array:
    """Return the number of links from the root of a tree to every rank: int64[ranks].

    `parent`: int64[ranks], negative at the root, to which all ranks must lead: with a
    cycle the function would not return. The root has 0.
    """
    depth = np.zeros(len(parent), np.int64)
    above = parent
    while (is_below := above >= 0).any():
        depth += is_below
        above = np.where(is_below, parent[np.maximum(above, 0)], -1)
    return depth


def compute_heights(parent: Int64Array) -> Int64Array:
    """Return the largest number of links from every rank down to a leaf below it:
    int64[ranks].

    Leaves have 0. `parent`: int64[ranks], negative at the root, to which all ranks must
    lead. Raises `ValueError` without ranks.
    """
    depth = compute_depths(parent)
    height = np.zeros(len(parent), np.int64)
    for level in range(int(depth.max()), 0, -1):
        ranks = np.flatnonzero(depth == level)
        np.maximum.at(height, parent[ranks], height[ranks] + 1)
    return height


def _find_mesh_trees(sizes: Sequence[int], is_ring: Sequence[bool], root: int) -> Int64Array:
    """Return the trees of `find_grid_trees` for any mixture of lines and rings.

    A tree begins along one dimension a. The trees are in the order of a. A ring of more than two
    ranks has a tree for direction d = +1, then one for d = -1. Every other dimension has one tree.
    The displacement of a rank is its signed distance from the root along a dimension. On a ring it
    is the shorter way, positive if both are equal. The first rule that applies gives the parent:

    1. The root has -1.
    2. Displacement 0 along a: the next rank in direction d along a, cyclic on a ring. Without d:
       the next rank, or the previous one at the end of the dimension.
    3. With d, and a displacement along a of the sign opposite to d: the next rank in direction -d.
    4. A displacement along another dimension: the next rank towards the root along the last such
       dimension in the cyclic order a + 1, a + 2, ...
    5. The next rank towards the root along a.
    """
    count, ranks = len(sizes), np.arange(prod(sizes))
    strides = [prod(sizes[:axis]) for axis in range(count)]
    place = [ranks // stride % size for stride, size in zip(strides, sizes, strict=True)]
    # Signed displacements: on a ring the shorter way.
    moved = [coordinate - coordinate[root] for coordinate in place]
    for axis, size in enumerate(sizes):
        if is_ring[axis]:
            moved[axis] = (moved[axis] + (size - 1) // 2) % size - (size - 1) // 2

    def step(axis: int, hop: Int64Array | int) -> Int64Array:
        """Return for every rank the rank `hop` places further along dimension `axis`:
        int64[ranks].

        Places are modulo the size of the dimension, also on a line. `hop` may be negative,
        and one number or one per rank.
        """
        target: Int64Array = (place[axis] + hop) % sizes[axis]
        return ranks + (target - place[axis]) * strides[axis]

    parents = []
    for first, size in enumerate(sizes):
        for direction in (1, -1) if is_ring[first] and size > 2 else (0,):
            parent = step(first, -np.sign(moved[first]))
            for offset in range(1, count):
                axis = (first + offset) % count
                parent = np.where(moved[axis] != 0, step(axis, -np.sign(moved[axis])), parent)
            if direction:
                is_behind = moved[first] * direction < 0
                parent = np.where(is_behind, step(first, -direction), parent)
                inner = step(first, direction)
            else:
                inner = step(first, np.where(place[first] + 1 < size, 1, -1))
            parent = np.where(moved[first] == 0, inner, parent)
            parent[root] = -1
            parents.append(parent)
    return np.asarray(parents)


def _find_torus_trees(sizes: Sequence[int], root: int) -> Int64Array:
    """Return the parent of every rank in each tree: int64[trees, ranks], -1 at `root`.

    `sizes`: the ranks of each dimension, at least one; the first varies fastest. A dimension
    is a ring, or a pair of two ranks. Dimensions are used by descending size, ties in order:

    1. If two dimensions have more than two ranks, the first two give four trees together.
    2. Otherwise the first gives two trees: each rank receives from the previous one, or each
       from the next one. If it has at most two ranks, it gives one tree.
    3. Each further ring of more than two ranks adds two trees, a pair adds one.
    """
    order = sorted(range(len(sizes)), key=lambda axis: -sizes[axis])
    lengths = [sizes[axis] for axis in order]
    if len(lengths) > 1 and lengths[1] > 2:
        trees = _build_plane_trees(lengths[0], lengths[1])
        lengths = lengths[2:]
    else:
        position = np.arange(lengths[0])
        trees = np.asarray([position - 1, (position + 1) % lengths[0]])
        trees = trees[: 2 if lengths[0] > 2 else 1]
        trees[:, 0] = -1
        lengths = lengths[1:]
    for length in lengths:
        trees = _extend_trees(trees, length)
    # Positions relative to the root, in the order of the lengths, are renamed to ranks.
    rest = np.arange(prod(sizes))
    rank_of = np.zeros_like(rest)
    for axis in order:
        size, stride = sizes[axis], prod(sizes[:axis])
        rank_of += (rest + root // stride) % size * stride
        rest = rest // size
    parents = np.empty_like(trees)
    parents[:, rank_of] = np.where(trees >= 0, rank_of[np.maximum(trees, 0)], -1)
    return parents


def _build_plane_trees(width: int, height: int) -> Int64Array:
    """Return the parents in four trees of a torus: int64[4, ranks], -1 for the root 0.

    The torus has two rings of more than two ranks. The rank in column x and row y is x +
    `width` * y; coordinates are modulo `width` and `height`. X = width // 2, Y = height // 2.
    Outward x means the parent (x - 1, y) if x <= X, else (x + 1, y). Inward x means (x + 1,
    y) if x < X, else (x - 1, y). Outward y and inward y do the same with y and Y. The first
    case decides:

    - Tree 0: (x - 1, y) if y = 0; (-1, y) if x = 0; (x + 1, y) if x = X; else outward y.
    - Tree 1: (0, y + 1) if x = 0; outward x if y = Y; else inward y.
    - Tree 2: (0, y - 1) if x = 0; (x, -1) if y = 0; (x, y + 1) if y = Y; else outward x.
    - Tree 3: (x + 1, 0) if y = 0; outward y if x = X; else inward x.
    """
    y, x = np.divmod(np.arange(width * height), width)
    middle_x, middle_y = width // 2, height // 2

    def locate(column: Int64Array | int, row: Int64Array | int) -> Int64Array:
        return np.asarray(row % height * width + column % width)

    outward_x = locate(np.where(x <= middle_x, x - 1, x + 1), y)
    inward_x = locate(np.where(x < middle_x, x + 1, x - 1), y)
    outward_y = locate(x, np.where(y <= middle_y, y - 1, y + 1))
    inward_y = locate(x, np.where(y < middle_y, y + 1, y - 1))
    is_x, is_y = x == middle_x, y == middle_y
    choices = (
        ((y == 0, locate(x - 1, y)), (x == 0, locate(-1, y)), (is_x, locate(x + 1, y)), outward_y),
        ((x == 0, locate(x, y + 1)), (is_y, outward_x), inward_y),
        ((x == 0, locate(x, y - 1)), (y == 0, locate(x, -1)), (is_y, locate(x, y + 1)), outward_x),
        ((y == 0, locate(x + 1, y)), (is_x, outward_y), inward_x),
    )
    trees = np.asarray(
        [
            np.select([rows for rows, _ in special], [parent for _, parent in special], usual)
            for *special, usual in choices
        ]
    )
    trees[:, 0] = -1
    return trees


def _extend_trees(trees: Int64Array, size: int) -> Int64Array:
    """Return the parents in the trees of a torus after it gets one more dimension (a ring).

    `trees`: int64[trees, ranks], the parent of each rank, -1 at rank 0, the root. In each tree
    the root must have exactly one child, the head of the tree. `size`: ranks of the new
    dimension, at least 2; above 2 needs two trees. Position p of plane z becomes rank p + ranks
    * z. M = `size` // 2. The inner neighbour of plane z, on the shorter way to plane 0, is plane
    z - 1 if z <= M, else plane z + 1 modulo `size`. First the given trees are sorted by depth,
    ties in order.

    A rank receives from the same position of another plane unless a rule names a position. The
    result has the same form, with these trees:

    1. The first tree in plane 0. Other planes receive from the inner neighbour. There, position
       0 receives from the first tree's head of its plane, and other heads from position 0 of
       their plane. If `size` > 2, the second tree's head of plane M receives from plane M - 1.
    2. The first tree in all planes but 0. Plane 0 receives from plane `size` - 1, and position 0
       of the other planes from the next plane (modulo `size`).
    3. If `size` > 2: the second tree in plane M. Planes below M receive from the next plane,
       others from the previous one. Position 0 always receives from the previous plane.
    4. Each tree from the second on, in all planes. Except in plane 0, position 0 receives from
       the head of its plane, and the head from the inner neighbour. If `size` > 2, in the copy
       of the second tree the other positions of plane M receive from the next plane.
    """
    count, ranks = trees.shape
    trees = trees[np.argsort([compute_depths(tree).max() for tree in trees], kind="stable")]
    heads = np.argmax(trees == 0, axis=1)
    plane, position = np.arange(size), np.arange(ranks)
    later = plane[1:]
    opposite = size // 2
    outward = np.where(plane <= opposite, plane - 1, (plane + 1) % size)
    inward = np.where(plane < opposite, plane + 1, plane - 1)
    beyond = (opposite + 1) % size
    has_opposite = size > 2

    first = outward[:, None] * ranks + position
    first[0] = trees[0]
    first[1:, heads[1:]] = later[:, None] * ranks
    first[1:, 0] = later * ranks + heads[0]
    copy = plane[:, None] * ranks + trees[0]
    copy[0] = (size - 1) * ranks + position
    copy[1:, 0] = (later + 1) % size * ranks
    parents = [first, copy]
    if has_opposite:
        # The second tree uses this link to the head.
        first[opposite, heads[1]] = (opposite - 1) * ranks + heads[1]
        second = inward[:, None] * ranks + position
        second[opposite] = opposite * ranks + trees[1]
        second[1:, 0] = (later - 1) * ranks
        parents.append(second)
    for number in range(1, count):
        copy = plane[:, None] * ranks + trees[number]
        copy[1:, heads[number]] = outward[1:] * ranks + heads[number]
        if has_opposite and number == 1:
            copy[opposite] = beyond * ranks + position
        copy[1:, 0] = later * ranks + heads[number]
        parents.append(copy)
    result = np.asarray(parents).reshape(len(parents), -1)
    result[:, 0] = -1
    return result
