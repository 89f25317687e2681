"""Trees for several equal hosts, joined by narrower links than the links within them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
from collhub_packing import CapacityGraph, SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound, build_packing_along_routes
from collhub_blink.packing.placing import (
    build_shallow_tree,
    collect_exact_bandwidths,
    compute_loads,
)
from collhub_blink.packing.task import PackingTask
from hub_core.columns import Int64Array, connected_parts
from hub_core.model import CollectiveKind

Blocks = list[tuple[int, ...]]
"""A partition of the ranks, each block ascending."""

# Maximum ratio of the weights of two kinds of trees: chunks are as large as the smaller share, and
# their number must stay small.
_MAX_WEIGHT_RATIO = 64
# Minimum relative gain in rate that justifies two kinds of trees.
_MIN_GAIN_OF_TWO_KINDS = Fraction(1, 200)
# Among weights whose rate is within this fraction of the best, the smallest sum is chosen.
_RATE_TOLERANCE = Fraction(1, 5000)


def build_machine_packings(task: PackingTask, bound: RateBound) -> list[PlacedPacking]:
    """Build packings of trees for several equal hosts with narrower links between them.

    For every division of the ranks into hosts that `_find_hosts` yields, in its order, the list has
    one packing or two. Without such divisions it is empty.

    1. `three phases`, always: one tree per rank as its root. The root sends to the ranks with its
       local index on the other hosts, and these ranks and the root distribute the data within
       their hosts. This is Blink's plan (Wang et al., MLSys 2020): reduction within hosts,
       exchange between hosts and broadcast within hosts are one pipeline.
    2. A mix (`_mix_packings`) of these trees with one more tree per rank. In the additional trees
       the root distributes the data within its host first, and each rank of this host sends to
       the ranks with its index on the other hosts. This packing exists only if the rate of the
       first one times 1.005 is below the rate of `bound`, and the rate of the mix is at least
       the rate of the first one times 1.005.

    All edges follow the topology's own routes. Raises `ValueError` for a graph without links.
    """
    packings = []
    for hosts in _find_hosts(task.network.graph):
        peer_trees = build_packing_along_routes(
            task, "three phases", hosts.build_peer_trees(), bound
        )
        packings.append(peer_trees)
        if peer_trees.rate * (1 + _MIN_GAIN_OF_TWO_KINDS) < bound.rate:
            direct_trees = build_packing_along_routes(
                task, "straight across", hosts.build_direct_trees(), bound
            )
            mixed = _mix_packings(task, peer_trees, direct_trees)
            if mixed.rate >= peer_trees.rate * (1 + _MIN_GAIN_OF_TWO_KINDS):
                packings.append(mixed)
    return packings


def build_rooted_machine_packings(task: PackingTask, bound: RateBound) -> list[PlacedPacking]:
    """Build packings for several hosts in which the data enter the other hosts in parts.

    Each part is first sent to one rank of one other host, which forwards it to the
    remaining hosts. There is one packing per division of the ranks into equal hosts
    (`_find_hosts`), in its order, with a tree for every rank outside the host of the root;
    [] without a division. Chains over all hosts would have the same rate and many more
    hops. Raises `InputError` (`disconnected`) for an edge of a tree without a route.
    """
    method = "by way of every machine"
    return [
        build_packing_along_routes(task, method, hosts.build_rooted_trees(task.root), bound)
        for hosts in _find_hosts(task.network.graph)
    ]


def _find_hosts(graph: CapacityGraph) -> Iterator[_Hosts]:
    """Yield the divisions of the ranks into equal hosts, with the trees within them.

    They are those of `find_islands` with several hosts of the same size, above one rank, in
    which every rank reaches all ranks of its host without leaving it (except over switches).
    """
    for blocks in find_islands(graph):
        sizes = {len(block) for block in blocks}
        are_equal_hosts = len(blocks) > 1 and len(sizes) == 1 and sizes != {1}
        if not are_equal_hosts:
            continue
        inner = [_build_trees_within(graph, block) for block in blocks]
        if all(len(by_root) == len(block) for by_root, block in zip(inner, blocks, strict=True)):
            yield _Hosts(blocks, inner, graph.num_compute)


class _Hosts:
    """Blocks of ranks (hosts), with a tree within each host for every rank as its root.

    The local index of a rank is its position in its block.
    """

    def __init__(
        self, blocks: Blocks, inner: Sequence[dict[int, SpanningTree]], num_ranks: int
    ) -> None:
        self._blocks = blocks
        self._inner = inner
        self._num_ranks = num_ranks

    def build_peer_trees(self) -> list[SpanningTree]:
        """Build one tree of weight 1 from each rank, which distributes the data across hosts first.

        The root sends to the rank with its local index on every other host. Within each host, the
        root or this rank distributes the data along the host's tree from it. The trees are ordered
        by host of the root, then by its local index.
        """
        trees = []
        for home, index in product(range(len(self._blocks)), self._local_indices):
            parent = np.full(self._num_ranks, -1, np.int64)
            root = self._blocks[home][index]
            for number, block in enumerate(self._blocks):
                self._attach_below(parent, number, block[index])
                if number != home:
                    parent[block[index]] = root
            trees.append(_build_tree(root, parent))
        return trees

    def build_direct_trees(self) -> list[SpanningTree]:
        """Build one tree of weight 1 from each rank, which distributes the data in its host first.

        The root uses its host's tree. Then every rank of its host, also the root, sends to the rank
        with the sender's local index on each other host. The trees are ordered by host of the root,
        then by its local index.
        """
        trees = []
        for home, index in product(range(len(self._blocks)), self._local_indices):
            parent = np.full(self._num_ranks, -1, np.int64)
            home_ranks = self._blocks[home]
            for block in self._blocks:
                parent[list(block)] = home_ranks
            parent[list(home_ranks)] = -1
            self._attach_below(parent, home, home_ranks[index])
            trees.append(_build_tree(home_ranks[index], parent))
        return trees

    def build_rooted_trees(self, root: int) -> list[SpanningTree]:
        """Build a tree from `root` for every rank of the other hosts, by host, then by index.

        In the tree of a rank, the other hosts get the data through this rank: the root sends to
        the rank of its host with the same index, this one to the rank of the tree, and that one
        to the remaining hosts (`_build_tree_through_rank`). The list is empty if there is one
        host. Raises `StopIteration` if no host has the rank `root`.
        """
        home = next(number for number, block in enumerate(self._blocks) if root in block)
        return [
            self._build_tree_through_rank(root, home, first, index)
            for first in range(len(self._blocks))
            if first != home
            for index in self._local_indices
        ]

    @property
    def _local_indices(self) -> range:
        """Local indices of the ranks of a host."""
        return range(len(self._blocks[0]))

    def _build_tree_through_rank(
        self, root: int, home: int, first: int, index: int
    ) -> SpanningTree:
        """Build a tree from `root` in which host `first` forwards the data to the other hosts.

        The contact of a host is the rank at position `index` of its list of ranks. `root`: a rank;
        `home`: number of its host. The tree has weight 1 and belongs to no arcs of a graph. Its
        edges:

        - from the root to the contact of `home`, and from there to the contact of `first`; an edge
          from a rank to itself is omitted
        - from the contact of `first` to those of all other hosts except `home`
        - within each host, from its contact to the other ranks as in `_attach_below`, but none to
          the root

        If the root is the contact of `home`, the edges within `home` differ. Its other ranks are
        listed in the order of the host, and the list is rotated right by `first`. The root sends to
        the first rank of the list. Position p > 0 receives from position (p - 1) // 2. Raises
        `IndexError` if `home` has only one rank.
        """
        parent = np.full(self._num_ranks, -1, np.int64)
        for number, block in enumerate(self._blocks):
            self._attach_below(parent, number, block[index])
            parent[block[index]] = self._blocks[first][index]
        gateway = self._blocks[home][index]
        parent[self._blocks[first][index]] = gateway
        if gateway == root:
            # The root sends all of the data already, so that other ranks of its host distribute it,
            # two children each.
            remaining = np.asarray([rank for rank in self._blocks[home] if rank != root])
            remaining = np.roll(remaining, first)
            parent_positions = (np.arange(len(remaining)) - 1) // 2
            parent[remaining] = remaining[parent_positions]
            gateway = int(remaining[0])
        parent[gateway] = root
        parent[root] = -1
        return _build_tree(root, parent)

    def _attach_below(self, parent: Int64Array, host: int, top: int) -> None:
        """Set the parents of all ranks of a host except its rank `top`, which reaches them all.

        They are those of the tree within the host that has the root `top`. `parent` (of every rank)
        is changed.
        """
        tree = self._inner[host][top]
        children = np.flatnonzero(tree.parent >= 0)
        parent[children] = tree.parent[children]


def _build_tree(root: int, parent: Int64Array) -> SpanningTree:
    """Build a tree of weight 1 over ranks whose edges belong to no arcs of a graph."""
    return SpanningTree(root, 1, parent, np.full(len(parent), -1, np.int64))


def _mix_packings(
    task: PackingTask, peer_trees: PlacedPacking, direct_trees: PlacedPacking
) -> PlacedPacking:
    """Combine the trees of two packings to one packing whose rate is nearly the maximum.

    All trees of one packing get the same weight. The candidates are the weights (peer, direct) =
    (n, 1) and (1, n) for n from 1 to 64. The load of a link is the sum of the weights of its trees;
    in an all-reduce each tree also loads the reverse links. The unit of a candidate is the exact
    minimum of bandwidth / load over all links that a tree uses; its rate is the unit times the sum
    of both weights. Of those with at least 4999/5000 (1 - `_RATE_TOLERANCE`) of the highest rate,
    the smallest sum is chosen, of equal sums the one with the larger weight of the peer trees.

    The result has the peer trees first, then the direct ones, the chosen unit, and the method
    `three phases, part straight across`; all else is copied from `peer_trees`. Raises `ValueError`
    if no tree has an edge, `KeyError` if a tree uses two nodes without a link.
    """
    is_up = task.collective.kind is CollectiveKind.ALL_REDUCE
    bandwidth = collect_exact_bandwidths(task.oriented_network.topology)
    peer_loads = compute_loads(peer_trees.trees, is_up)
    direct_loads = compute_loads(direct_trees.trees, is_up)
    # Most links have the loads and the bandwidth of another link: compute each case once.
    cases = {
        (peer_loads[pair], direct_loads[pair], bandwidth[pair])
        for pair in peer_loads | direct_loads
    }
    units = {}
    for ratio in range(1, _MAX_WEIGHT_RATIO + 1):
        for first, second in ((ratio, 1), (1, ratio)):
            units[first, second] = min(
                width / (first * peer_load + second * direct_load)
                for peer_load, direct_load, width in cases
            )

    best_rate = max(unit * sum(weights) for weights, unit in units.items())
    minimum_rate = best_rate * (1 - _RATE_TOLERANCE)
    candidates = [weights for weights, unit in units.items() if unit * sum(weights) >= minimum_rate]
    weights = min(candidates, key=sum)
    trees = []
    for packing, weight in zip((peer_trees, direct_trees), weights, strict=True):
        for placed in packing.trees:
            trees.append(replace(placed, tree=replace(placed.tree, weight=weight)))
    return replace(
        peer_trees,
        method="three phases, part straight across",
        trees=tuple(trees),
        unit=units[weights],
    )


def _build_trees_within(graph: CapacityGraph, block: tuple[int, ...]) -> dict[int, SpanningTree]:
    """Build a tree within a host from every rank that reaches all ranks of the host, by root.

    Each tree is that of `build_shallow_tree`, of weight 1: every rank is reached over the fewest
    links, and of equally short routes over the widest last link. Its parents are ranks, also if a
    switch is between them; ranks outside of the host have the parent -1.

    Links from or to ranks of other hosts are not used; all switches are, also those outside of the
    host. The keys are the roots in the order of `block` (the ranks of the host). Ranks that do not
    reach all others are missing; the rank of a host of one rank has a tree without edges. `graph`
    is not changed.
    """
    is_outside = np.zeros(graph.num_nodes, np.bool_)
    is_outside[: graph.num_compute] = True
    is_outside[list(block)] = False
    inside = np.flatnonzero(~is_outside[graph.source] & ~is_outside[graph.destination])
    host = replace(
        graph,
        source=graph.source[inside],
        destination=graph.destination[inside],
        capacity=graph.capacity[inside],
        row=graph.row[inside],
    )
    tree_of = {}
    for root in block:
        # Unreached ranks have no parent.
        tree = build_shallow_tree(host, root)
        if np.count_nonzero(tree.parent >= 0) == len(block) - 1:
            tree_of[root] = tree
    return tree_of


def find_islands(graph: CapacityGraph) -> Iterator[Blocks]:
    """Yield partitions of the ranks into groups joined by wide links, as candidates for hosts.

    Each partition belongs to a width. Ranks are in one group if links of at least this
    width connect them, also over switches and in either direction. The width decreases from
    above all capacities, where every rank is its own group, to the smallest one. Equal
    partitions are yielded once. Groups are sorted by their lowest rank, and the ranks of a
    group ascend. Hosts are found only if links within them are wider than those between
    them. Raise `ValueError` for a graph without links.
    """
    seen = set()
    # Above all capacities: every rank is separate.
    above_all = int(graph.capacity.max()) + 1
    for width in [above_all, *np.unique(graph.capacity)[::-1].tolist()]:
        is_wide = graph.capacity >= width
        component = connected_parts(
            graph.source[is_wide], graph.destination[is_wide], graph.num_nodes
        )[: graph.num_compute]
        blocks = [
            tuple(np.flatnonzero(component == number).tolist()) for number in np.unique(component)
        ]
        if tuple(blocks) not in seen:
            seen.add(tuple(blocks))
            yield blocks
