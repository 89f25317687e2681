"""What has to be sent for one chunk on one tree, and in what order: broadcast, reduction, both, or a path to one target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_packing.trees import SpanningTree
from hub_core.diagnostics import InputError

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """Messages for one chunk, as int64 columns; `reduces`: bool. `remaining`: messages in a row from this one to the last.

    Pair i: operation `after[i]` waits for `before[i]`.
    """

    source: Int64Array
    destination: Int64Array
    reduces: BoolArray
    remaining: Int64Array
    before: Int64Array
    after: Int64Array

    def __len__(self) -> int:
        return len(self.source)

    @classmethod
    def joined(cls, parts: Sequence[Operations]) -> Operations:
        """All operations of all parts, in order."""
        first = np.cumsum([0, *(len(part) for part in parts)])
        shifted = [
            replace(part, before=part.before + at, after=part.after + at)
            for part, at in zip(parts, first, strict=False)
        ]
        columns = ("source", "destination", "reduces", "remaining", "before", "after")
        return cls(*(np.concatenate([getattr(part, name) for part in shifted]) for name in columns))


@dataclass(frozen=True, slots=True, eq=False)
class PrunedTree:
    """A tree as columns: nodes below the root, nearest first, and for every node of the network what hangs where.

    `parent`: -1 at the root and outside. `depth`, `height`: messages from the root, and to the farthest node below.
    `place`: position in `nodes`, -1 for others.
    """

    root: int
    nodes: Int64Array
    parent: Int64Array
    depth: Int64Array
    height: Int64Array
    place: Int64Array


def pruned(tree: SpanningTree, members: Int64Array) -> PrunedTree:
    """The part of a tree that joins `members` to its root. Raises `InputError` where it does not reach one of them."""
    depth = tree.depths()
    if np.any(depth[members] < 0):
        lost = int(members[np.argmax(depth[members] < 0)])
        raise InputError(
            f"a tree rooted at {tree.root} does not reach NPU {lost}", code="tree-does-not-span"
        )
    needed = np.zeros(len(depth), np.bool_)
    needed[members] = True
    height = np.zeros(len(depth), np.int64)
    for level in range(int(depth.max(initial=0)), 0, -1):
        nodes = np.flatnonzero((depth == level) & needed)
        needed[tree.parent[nodes]] = True
        np.maximum.at(height, tree.parent[nodes], height[nodes] + 1)
    kept = np.flatnonzero(needed & (depth > 0))
    nodes = kept[np.argsort(depth[kept], kind="stable")]
    parent, place = np.full(len(depth), -1, np.int64), np.full(len(depth), -1, np.int64)
    parent[nodes], place[nodes] = tree.parent[nodes], np.arange(len(nodes))
    return PrunedTree(tree.root, nodes, parent, depth, height, place)


def broadcast(tree: PrunedTree) -> Operations:
    """From the root to every node: operation i brings the chunk to node `tree.nodes[i]`."""
    nodes = tree.nodes
    parent = tree.parent[nodes]
    inner = np.flatnonzero(parent != tree.root)
    reduces = np.zeros(len(nodes), np.bool_)
    return Operations(
        parent, nodes, reduces, tree.height[nodes] + 1, tree.place[parent[inner]], inner
    )


def reduction(tree: PrunedTree) -> Operations:
    """From every node to the root: operation i takes what `tree.nodes[i]` has gathered to its parent."""
    down = broadcast(tree)
    reduces = np.ones(len(down), np.bool_)
    return Operations(
        down.destination, down.source, reduces, tree.depth[tree.nodes], down.after, down.before
    )


def reduce_and_broadcast(tree: PrunedTree) -> Operations:
    """To the root and, without waiting for other chunks, back to every node."""
    up, down = reduction(tree), broadcast(tree)
    up = replace(up, remaining=up.remaining + tree.height[tree.root])
    both = Operations.joined([up, down])
    top = np.flatnonzero(tree.parent[tree.nodes] == tree.root)
    before, after = np.repeat(top, len(top)), len(up) + np.tile(top, len(top))
    return replace(
        both,
        before=np.concatenate([both.before, before]),
        after=np.concatenate([both.after, after]),
    )


def paths(tree: PrunedTree, targets: Int64Array) -> list[Operations]:
    """For every target, the messages that take a chunk to it alone."""
    return [_path(tree, int(target)) for target in targets]


def _path(tree: PrunedTree, target: int) -> Operations:
    length = int(tree.depth[target])
    nodes = np.empty(length, np.int64)
    for hop in range(length - 1, -1, -1):
        nodes[hop] = target
        target = int(tree.parent[target])
    hops = np.arange(length, dtype=np.int64)
    return Operations(
        tree.parent[nodes], nodes, np.zeros(length, np.bool_), length - hops, hops[:-1], hops[1:]
    )


def turned_round(path: Operations) -> Operations:
    """The same path from its target to the root."""
    remaining = len(path) + 1 - path.remaining
    return replace(
        path,
        source=path.destination,
        destination=path.source,
        remaining=remaining,
        before=path.after,
        after=path.before,
    )
