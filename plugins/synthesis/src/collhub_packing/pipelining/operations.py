"""The messages of one chunk on one tree, with their dependencies.

Broadcast, reduction, both, or a path to one target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_packing.trees import SpanningTree
from hub_core.columns import BoolArray, ColumnTable, Int64Array, first_positions, positions_in
from hub_core.model import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Operations(ColumnTable):
    """Messages of one chunk; int64 columns, `reduces`: bool.

    `root`: root of the tree. `remaining`: number of messages in sequence from this one to the last,
    included. Dependency i: operation `after[i]` waits for operation `before[i]`.
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
        """Concatenate the operations of several parts, in order; dependencies are renumbered."""
        firsts = first_positions([len(part) for part in parts]).tolist()
        shifted = [part.shifted(first) for part, first in zip(parts, firsts, strict=True)]
        columns = {}
        for name in cls.__dataclass_fields__:
            columns[name] = np.concatenate([getattr(part, name) for part in shifted])
        return cls(**columns)

    def shifted(self, first: int) -> Operations:
        """Return the operations with dependencies for messages numbered from `first` on."""
        return replace(self, before=self.before + first, after=self.after + first)

    def waiting(self, before: Int64Array, after: Int64Array) -> Operations:
        """Return the operations with the additional dependencies of all `after` on all `before`."""
        first = np.repeat(before, len(after))
        second = np.tile(after, len(before))
        return replace(
            self,
            before=np.concatenate([self.before, first]),
            after=np.concatenate([self.after, second]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PrunedTree:
    """The part of a tree that joins some nodes to its root; int64 columns.

    `nodes`: nodes below the root, nearest first. Per node of the network: `parent`, -1 at the root
    and outside; `depth`, `height`: number of messages from the root, and to the deepest node below;
    `place`: position in `nodes`, -1 for other nodes.
    """

    root: int
    nodes: Int64Array
    parent: Int64Array
    depth: Int64Array
    height: Int64Array
    place: Int64Array


def pruned(tree: SpanningTree, members: Int64Array) -> PrunedTree:
    """Prune a tree to the paths from its root to `members`.

    Raises `InputError` if the tree does not reach a member.
    """
    depth = tree.depths
    is_unreached = depth[members] < 0
    if np.any(is_unreached):
        unreached = int(members[np.argmax(is_unreached)])
        message = f"a tree rooted at {tree.root} does not reach NPU {unreached}"
        raise InputError(message, code="tree-does-not-span")
    needed, height = _find_needed(tree, members, depth)
    needed_nodes = np.flatnonzero(needed & (depth > 0))
    nodes = needed_nodes[np.argsort(depth[needed_nodes], kind="stable")]
    parent = np.full(len(depth), -1, np.int64)
    parent[nodes] = tree.parent[nodes]
    place = positions_in(nodes, len(depth))
    return PrunedTree(tree.root, nodes, parent, depth, height, place)


def _find_needed(
    tree: SpanningTree,
    members: Int64Array,
    depth: Int64Array,
) -> tuple[BoolArray, Int64Array]:
    """Find the members and the nodes above them, and how far below each the deepest member is.

    bool[nodes] and int64[nodes].
    """
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
    """Build the messages of a broadcast: operation i brings the chunk to `tree.nodes[i]`.

    The sender is the parent.
    """
    nodes = tree.nodes
    parent = tree.parent[nodes]
    # Nodes other than the root wait for the message that brings them the chunk.
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
    """Build the messages of a reduction: operation i sends from `tree.nodes[i]` to its parent."""
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
    """Build the messages of a reduction to the root and a broadcast back, without waiting for other
    chunks.
    """
    reduce_operations, broadcast_operations = reduction(tree), broadcast(tree)
    reduce_operations = replace(
        reduce_operations, remaining=reduce_operations.remaining + tree.height[tree.root]
    )
    root_children = np.flatnonzero(tree.parent[tree.nodes] == tree.root)
    # The root sends after the sums of all its children have arrived.
    return Operations.joined([reduce_operations, broadcast_operations]).waiting(
        root_children, len(reduce_operations) + root_children
    )


def paths(tree: PrunedTree, targets: Int64Array) -> list[Operations]:
    """Build for every target the messages that bring a chunk to this target only."""
    return [_build_path(tree, int(target)) for target in targets]


def _build_path(tree: PrunedTree, target: int) -> Operations:
    """Build the messages along the path from the root to a target."""
    nodes = _find_path_down(tree, target)
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


def _find_path_down(tree: PrunedTree, target: int) -> Int64Array:
    """List the nodes from below the root to a target: int64[depth of the target]."""
    nodes = []
    while target != tree.root:
        nodes.append(target)
        target = int(tree.parent[target])
    return np.asarray(nodes[::-1], np.int64)


def turned_round(path: Operations) -> Operations:
    """Return a path in the reverse direction, from its target to the root."""
    return replace(
        path,
        source=path.destination,
        destination=path.source,
        # The last message becomes the first.
        remaining=len(path) + 1 - path.remaining,
        before=path.after,
        after=path.before,
    )
