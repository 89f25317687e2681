"""What has to be sent for one chunk on one tree, and in what order.

Broadcast, reduction, both, or a path to one target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import BoolArray, ColumnTable, Int64Array, first_positions, positions_in

from collhub_packing.trees import SpanningTree
from hub_core.model import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Operations(ColumnTable):
    """Messages for one chunk, as int64 columns; `reduces`: bool.

    `root`: of the tree. `remaining`: messages in a row from this one to the last. Pair i: operation
    `after[i]` waits for `before[i]`.
    """

    source: Int64Array
    destination: Int64Array
    root: Int64Array
    reduces: BoolArray
    remaining: Int64Array
    before: Int64Array
    after: Int64Array

    @classmethod
    def joined(cls, parts: Sequence[Operations]) -> Operations:
        """All operations of all parts, in order."""
        firsts = first_positions([len(part) for part in parts]).tolist()
        shifted = [part.shifted(first) for part, first in zip(parts, firsts, strict=True)]
        columns = {}
        for name in cls.__dataclass_fields__:
            columns[name] = np.concatenate([getattr(part, name) for part in shifted])
        return cls(**columns)

    def shifted(self, first: int) -> Operations:
        """The same messages, numbered from `first` on."""
        return replace(self, before=self.before + first, after=self.after + first)

    def waiting(self, before: Int64Array, after: Int64Array) -> Operations:
        """The same messages, and every one of `after` waits for every one of `before` as well."""
        # Every pair of the two, in the order of `before`.
        first = np.repeat(before, len(after))
        second = np.tile(after, len(before))
        return replace(
            self,
            before=np.concatenate([self.before, first]),
            after=np.concatenate([self.after, second]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PrunedTree:
    """The part of a tree that joins some nodes to its root, as int64 columns.

    `nodes`: those below the root, nearest first. Per node of the network: `parent`, -1 at the
    root and outside; `depth`, `height`: messages from the root, and to the farthest node below;
    `place`: position in `nodes`, -1 for others.
    """

    root: int
    nodes: Int64Array
    parent: Int64Array
    depth: Int64Array
    height: Int64Array
    place: Int64Array


def pruned(tree: SpanningTree, members: Int64Array) -> PrunedTree:
    """The part of a tree that joins `members` to its root.

    Raises `InputError` where the tree does not reach one of them.
    """
    depth = tree.depths
    is_lost = depth[members] < 0
    if np.any(is_lost):
        lost = int(members[np.argmax(is_lost)])
        message = f"a tree rooted at {tree.root} does not reach NPU {lost}"
        raise InputError(message, code="tree-does-not-span")
    needed, height = _needed(tree, members, depth)
    kept = np.flatnonzero(needed & (depth > 0))
    nodes = kept[np.argsort(depth[kept], kind="stable")]
    parent = np.full(len(depth), -1, np.int64)
    parent[nodes] = tree.parent[nodes]
    place = positions_in(nodes, len(depth))
    return PrunedTree(tree.root, nodes, parent, depth, height, place)


def _needed(
    tree: SpanningTree,
    members: Int64Array,
    depth: Int64Array,
) -> tuple[BoolArray, Int64Array]:
    """Whether a node is a member or above one, and how far below it the farthest member is."""
    needed = np.zeros(len(depth), np.bool_)
    needed[members] = True
    height = np.zeros(len(depth), np.int64)
    # From the leaves up, so that the heights below a level are final.
    for level in range(int(depth.max(initial=0)), 0, -1):
        nodes = np.flatnonzero((depth == level) & needed)
        parents = tree.parent[nodes]
        needed[parents] = True
        np.maximum.at(height, parents, height[nodes] + 1)
    return needed, height


def broadcast(tree: PrunedTree) -> Operations:
    """From the root to every node: operation i brings the chunk to node `tree.nodes[i]`."""
    nodes = tree.nodes
    parent = tree.parent[nodes]
    # The root has the chunk from the beginning; all others wait for what brings it to them.
    inner = np.flatnonzero(parent != tree.root)
    return Operations(
        source=parent,
        destination=nodes,
        root=np.full(len(nodes), tree.root),
        reduces=np.zeros(len(nodes), np.bool_),
        remaining=tree.height[nodes] + 1,
        before=tree.place[parent[inner]],
        after=inner,
    )


def reduction(tree: PrunedTree) -> Operations:
    """From every node to the root: operation i takes what `tree.nodes[i]` has to its parent."""
    down = broadcast(tree)
    return Operations(
        source=down.destination,
        destination=down.source,
        root=down.root,
        reduces=np.ones(len(down), np.bool_),
        remaining=tree.depth[tree.nodes],
        before=down.after,
        after=down.before,
    )


def reduce_and_broadcast(tree: PrunedTree) -> Operations:
    """To the root and, without waiting for other chunks, back to every node."""
    up, down = reduction(tree), broadcast(tree)
    up = replace(up, remaining=up.remaining + tree.height[tree.root])
    top = np.flatnonzero(tree.parent[tree.nodes] == tree.root)
    # The root sends once all its children's sums have arrived.
    return Operations.joined([up, down]).waiting(top, len(up) + top)


def paths(tree: PrunedTree, targets: Int64Array) -> list[Operations]:
    """For every target, the messages that take a chunk to it alone."""
    return [_path(tree, int(target)) for target in targets]


def _path(tree: PrunedTree, target: int) -> Operations:
    nodes = _way_down(tree, target)
    length = len(nodes)
    hops = np.arange(length, dtype=np.int64)
    return Operations(
        source=tree.parent[nodes],
        destination=nodes,
        root=np.full(length, tree.root),
        reduces=np.zeros(length, np.bool_),
        remaining=length - hops,
        before=hops[:-1],
        after=hops[1:],
    )


def _way_down(tree: PrunedTree, target: int) -> Int64Array:
    """Nodes from below the root to a target: int64[depth of the target]."""
    nodes = []
    while target != tree.root:
        nodes.append(target)
        # From the target up, and turned round at the end.
        target = int(tree.parent[target])
    return np.asarray(nodes[::-1], np.int64)


def turned_round(path: Operations) -> Operations:
    """The same path from its target to the root."""
    return replace(
        path,
        source=path.destination,
        destination=path.source,
        # What came last comes first.
        remaining=len(path) + 1 - path.remaining,
        before=path.after,
        after=path.before,
    )
