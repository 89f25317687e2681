"""Messages of chunks on trees with their dependencies, and the streams of data that use the trees.

The messages of one chunk on one tree are a broadcast, a reduction, both, or a path to one target. A
stream defines which part of the data is sent over which tree, by which messages and which routes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from collhub_packing.trees import SpanningTree
from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    first_positions,
    positions_in,
    row_pointer,
)
from hub_core.model import Collective, CollectiveKind, InputError
from hub_core.network import Routes, Topology


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
        """Concatenate the operations of several parts in order.

        The operations are renumbered from 0, also in the dependencies. There are no dependencies
        between parts. An empty sequence raises `ValueError`.
        """
        firsts = first_positions([len(part) for part in parts]).tolist()
        shifted = [part.shifted(first) for part, first in zip(parts, firsts, strict=True)]
        columns = {}
        for name in cls.__dataclass_fields__:
            columns[name] = np.concatenate([getattr(part, name) for part in shifted])
        return cls(**columns)

    def shifted(self, first: int) -> Operations:
        """Return the operations with `first` added to both ends of every dependency.

        Their dependencies then refer to messages numbered from `first` on.
        """
        return replace(self, before=self.before + first, after=self.after + first)

    def measure_remaining(self, times: Int64Array) -> Int64Array:
        """Return the time of the slowest sequence of messages that begins with each one: int64.

        `times`: duration of every message, in any unit. Each message of a sequence waits for the
        one before it, and nothing else delays it.
        """
        remaining, previous = times, np.zeros(0, np.int64)
        # One round per message of the longest sequence.
        while not np.array_equal(remaining, previous):
            following = np.zeros(len(self), np.int64)
            np.maximum.at(following, self.before, remaining[self.after])
            remaining, previous = times + following, remaining
        return remaining

    def waiting(self, before: Int64Array, after: Int64Array) -> Operations:
        """Return the operations with additional dependencies.

        Each operation of `after` waits for all of `before`; both are row numbers and may be empty.
        Existing dependencies are kept and come first.
        """
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


TreePaths = Sequence[Mapping[int, Sequence[int]]]


def pruned(tree: SpanningTree, members: Int64Array) -> PrunedTree:
    """Return the part of a tree on the paths from its root to `members` (nodes).

    The tree is not changed. `nodes` has the members and the nodes between them and the root,
    without the root, sorted by depth, then number. It is empty if there are no members besides the
    root. The other columns have one entry per node of the network:

    - `parent`: the parent in the tree for entries of `nodes`; -1 for the root and all other nodes.
    - `depth`: depth in the unpruned tree, negative for nodes that it does not reach.
    - `height`: number of edges down to the deepest member below; 0 without one.
    - `place`: position in `nodes`, else -1.

    Raises `InputError` (`tree-does-not-span`) with the first of `members` that the tree does not
    reach.
    """
    depth = tree.depths
    is_unreached = depth[members] < 0
    if np.any(is_unreached):
        unreached = int(members[np.argmax(is_unreached)])
        message = f"a tree rooted at {tree.root} does not reach NPU {unreached}"
        raise InputError(message, code="tree-does-not-span")
    needed = np.zeros(len(depth), np.bool_)
    needed[members] = True
    height = np.zeros(len(depth), np.int64)
    # From the leaves up, so that the heights below a level are final.
    for level in range(int(depth.max(initial=0)), 0, -1):
        children = np.flatnonzero((depth == level) & needed)
        parents = tree.parent[children]
        needed[parents] = True
        np.maximum.at(height, parents, height[children] + 1)
    needed_nodes = np.flatnonzero(needed & (depth > 0))
    nodes = needed_nodes[np.argsort(depth[needed_nodes], kind="stable")]
    parent = np.full(len(depth), -1, np.int64)
    parent[nodes] = tree.parent[nodes]
    place = positions_in(nodes, len(depth))
    return PrunedTree(tree.root, nodes, parent, depth, height, place)


def broadcast(tree: PrunedTree) -> Operations:
    """Build the messages of one chunk for a broadcast on a tree, from parents to children.

    Operation i sends to `tree.nodes[i]` (nodes below the root, nearest first) from its parent,
    without a reduction. If the parent is not the root, it waits for the operation that sends to the
    parent. `remaining` is the number of messages from this one (included) down to the deepest node.
    A tree of only the root has no operations.
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
    """Build the messages of one chunk for a reduction on a tree, from children to parents.

    Operation i sends from `tree.nodes[i]` to its parent, which reduces. It waits for the
    messages of all children of the node. So operations are in the order of the nodes, and
    can precede those for which they wait. `remaining` is the number of messages from the
    node to the root. There are no operations if the tree has only its root.
    """
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
    """Build the messages of one chunk for a reduction to the root and a broadcast from it.

    The operations are those of `reduction`, then those of `broadcast`. The root sends when
    the sums of all its children have arrived. `remaining` of an operation of the reduction
    is increased by the height of the root, because the broadcast follows it. Different
    chunks do not wait for each other.
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
    """Return for every target the messages along the path from the root to it, in path order.

    Message i waits for message i - 1, the first one for none. No message reduces. `remaining`
    counts the messages from this one (included) to the end of the path, so the last message has
    1. The path of the root has no messages. Each target must be the root or in `tree.nodes`;
    this is not checked.
    """
    operations = []
    for target in targets.tolist():
        upwards = []
        node = int(target)
        while node != tree.root:
            upwards.append(node)
            node = int(tree.parent[node])
        nodes = np.asarray(upwards[::-1], np.int64)
        length = len(nodes)
        hops = np.arange(length, dtype=np.int64)
        path = Operations(
            source=tree.parent[nodes],
            destination=nodes,
            root=np.full(length, tree.root),
            reduces=np.zeros(length, np.bool_),
            remaining=length - hops,
            before=hops[:-1],
            after=hops[1:],
        )
        operations.append(path)
    return operations


def turned_round(path: Operations) -> Operations:
    """Return a path in the reverse direction, from its target to the root.

    Rows keep their order, so the first message of the new path is the last row; ends, dependencies
    and remaining lengths are exchanged. Whether messages reduce does not change.
    """
    return replace(
        path,
        source=path.destination,
        destination=path.source,
        # The last message becomes the first.
        remaining=len(path) + 1 - path.remaining,
        before=path.after,
        after=path.before,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A part of the data that is divided into chunks, all sent by the same operations.

    The fraction `part` of share `share` (as in `Chunks.cut`), from the fraction `begin` on. `tree`:
    number of the tree that carries it.
    """

    tree: int
    share: int
    begin: Fraction
    part: Fraction
    operations: Operations


def generate_streams(
    trees: Sequence[SpanningTree],
    collective: Collective,
    members: Int64Array,
) -> Iterator[Stream]:
    """Divide the data of a collective among trees; yield the resulting streams, tree by tree.

    Rank r runs on NPU `members[r]`. Of a tree only the paths from its root to members are used. A
    tree carries shares, i.e. parts of the data, with one stream per share:

    - All-gather and reduce-scatter: the data of the rank at its root.
    - All-reduce, broadcast and reduce: share 0, all data.
    - Scatter and gather: the data of every rank, by rank. The root's stream has no messages.

    Of a share, a tree carries its weight / the weights of all trees that carry the share, an exact
    fraction. The parts of a share follow each other in the order of the trees, from 0.

    Errors are `InputError`, raised during the iteration. Before the first stream:
    `trees-unsuitable` for another kind; `tree-root` for no trees, a rank without a tree rooted at
    it or a tree rooted at no member (all-gather, reduce-scatter), or another root than that of the
    collective. Before a tree's first stream: `tree-does-not-span` if it does not reach a member.
    """
    if collective.kind not in _OPERATION_BUILDERS:
        message = f"{collective.kind} does not run on spanning trees"
        raise InputError(message, code="trees-unsuitable")
    build_operations = _OPERATION_BUILDERS[collective.kind]
    # The number of the first share that each tree carries; -1 if its root is no member.
    shares = [0] * len(trees)
    if collective.kind in _ROOTED_AT_RANKS:
        rank_of = {int(npu): rank for rank, npu in enumerate(members)}
        shares = [rank_of.get(tree.root, -1) for tree in trees]
    _check_roots(trees, shares, collective, members)
    weight: dict[int, int] = {}
    for tree, first in zip(trees, shares, strict=True):
        weight[first] = weight.get(first, 0) + tree.weight
    begin = dict.fromkeys(weight, Fraction(0))
    for tree_number, (tree, first) in enumerate(zip(trees, shares, strict=True)):
        part = Fraction(tree.weight, weight[first])
        # A scatter's tree has a path, and so a stream, for the share of every rank.
        for offset, operations in enumerate(build_operations(pruned(tree, members), members)):
            yield Stream(tree_number, first + offset, begin[first], part, operations)
        begin[first] += part


def apply_tree_paths(
    tree_paths: TreePaths,
    trees: Sequence[SpanningTree],
    streams: Sequence[Stream],
    topology: Topology,
    routes: Routes,
) -> Routes:
    """Return all routes, with given paths in place of the topology's routes on edges of trees.

    `tree_paths`: for each tree, by child node, the links (rows of `topology`) from the parent to
    this child. `routes`: one route per operation, for all operations of all streams in this order.
    The result has the same order; `routes` is not changed.

    A message from the parent to the child uses the path of the child as given. A message from the
    child to the parent uses the opposite links in reverse order; of parallel links, the last row is
    taken. An operation whose child has no path, or an empty one, keeps its route.

    Raises `KeyError` for a link without an opposite link, and `ValueError` if there are no
    operations.
    """
    bounds = zip(routes.indptr[:-1], routes.indptr[1:], strict=True)
    rows = [routes.links[first:last] for first, last in bounds]
    endpoints = zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
    row_between = {pair: row for row, pair in enumerate(endpoints)}
    operation = 0
    for stream in streams:
        paths, parent = tree_paths[stream.tree], trees[stream.tree].parent
        sources = stream.operations.source.tolist()
        destinations = stream.operations.destination.tolist()
        for source, destination in zip(sources, destinations, strict=True):
            is_down = bool(parent[destination] == source)
            links = list(paths.get(destination if is_down else source, ()))
            if not is_down:
                links = [
                    row_between[int(topology.destination[row]), int(topology.source[row])]
                    for row in reversed(links)
                ]
            if links:
                rows[operation] = np.asarray(links, np.int64)
            operation += 1
    indptr = row_pointer([len(row) for row in rows])
    return Routes(indptr, np.concatenate(rows))


# Every rank sends, or receives, its own share over its own trees.
_ROOTED_AT_RANKS = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})


def _build_reduce_and_broadcast(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Return one set of operations: reduce to the root, then broadcast. `members` is not used."""
    return [reduce_and_broadcast(tree)]


def _build_broadcast(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Return one set of operations: broadcast from the root. `members` is not used."""
    return [broadcast(tree)]


def _build_reduction(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Return one set of operations: reduce from all nodes to the root. `members` is not used."""
    return [reduction(tree)]


def _build_gather_paths(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Return one set of operations per member: the messages on its path to the root."""
    return [turned_round(path) for path in paths(tree, members)]


_OPERATION_BUILDERS: Mapping[
    CollectiveKind, Callable[[PrunedTree, Int64Array], list[Operations]]
] = {
    CollectiveKind.ALL_REDUCE: _build_reduce_and_broadcast,
    CollectiveKind.BROADCAST: _build_broadcast,
    CollectiveKind.ALL_GATHER: _build_broadcast,
    CollectiveKind.REDUCE: _build_reduction,
    CollectiveKind.REDUCE_SCATTER: _build_reduction,
    CollectiveKind.SCATTER: paths,
    CollectiveKind.GATHER: _build_gather_paths,
}


def _check_roots(
    trees: Sequence[SpanningTree],
    shares: Sequence[int],
    collective: Collective,
    members: Int64Array,
) -> None:
    """Raise `InputError` (`tree-root`) if the roots of the trees do not fit the collective.

    `shares`: for each tree the number of the share (part of the data) that it carries, -1 for
    none. The first violated condition is reported:

    1. All-gather and reduce-scatter: every rank's number is in `shares`. The error names the
       smallest missing rank. Other collectives: 0 is in `shares`, so there must be a tree.
    2. No share is -1.
    3. If the collective has a root: every tree is rooted at the NPU `members[collective.root]`.

    The roots of trees are compared in condition 3 only. Without a root of the collective, for
    example in an all-reduce, trees may be rooted at any node.
    """
    share_count = collective.num_ranks if collective.kind in _ROOTED_AT_RANKS else 1
    uncovered = set(range(share_count)) - set(shares)
    context = f"{collective.kind} on {len(trees)} trees"
    if uncovered:
        raise _root_error(f"{context}: no tree is rooted at rank {min(uncovered)}")
    if -1 in shares:
        raise _root_error(f"{context}: a tree is rooted at an NPU that is no member")
    if collective.root is None:
        return
    root = int(members[collective.root])
    if any(tree.root != root for tree in trees):
        raise _root_error(f"{collective.kind}: a tree is not rooted at NPU {root}")


def _root_error(message: str) -> InputError:
    """Return (do not raise) the error `tree-root` for a tree with a wrong root."""
    return InputError(message, code="tree-root")


"""For every tree, a map from nodes to the links (rows of the topology) from their parent to them.

Nodes without an entry use the topology's own routes.
"""
