"""Trees for several machines alike, joined by narrower links than those within them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
from collhub_columns import BoolArray, Int64Array
from collhub_packing import CapacityGraph, SpanningTree

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import exact_bandwidths, loads, shallow_tree
from collhub_blink.packing.shallow import along_routes
from collhub_blink.packing.task import PackingTask
from hub_core.model import CollectiveKind

Blocks = list[tuple[int, ...]]
"""A partition of the ranks."""

# Trees of two kinds share the data as one to so much at most: chunks are as large as the smaller
# share, and there must not be too many.
_MOST_PARTS = 64
# Two kinds of trees are made for so much more of the rate.
_WORTH_OF_TWO_KINDS = Fraction(1, 200)
# Of shares with about the best rate, those with the fewest parts.
_AS_GOOD = Fraction(1, 5000)


def machine_packings(task: PackingTask, bound: RateBound) -> list[PlacedPacking]:
    """Blink's plan for several machines, as trees, and with room left between them a second one.

    The plan (Wang et al., MLSys 2020) has one tree a rank, over the ranks of its number in the
    other machines: reduce within machines, across, and broadcast within machines are then one
    pipeline. For every partition into machines of one size.
    """
    packings = []
    for machines in _machines_of(task.network.graph):
        plan = along_routes(task, "three phases", machines.trees(is_across=False), bound)
        packings.append(plan)
        if plan.rate * (1 + _WORTH_OF_TWO_KINDS) < bound.rate:
            across = along_routes(task, "straight across", machines.trees(is_across=True), bound)
            both = _both(task, plan, across)
            if both.rate >= plan.rate * (1 + _WORTH_OF_TWO_KINDS):
                packings.append(both)
    return packings


def rooted_machine_packings(task: PackingTask, bound: RateBound) -> list[PlacedPacking]:
    """Every part of the data goes to one machine first, which hands it on to all others.

    A tree for every rank outside the root's machine. Chains over all machines have the same rate
    and many more hops. For every partition into machines of one size.
    """
    method = "by way of every machine"
    return [
        along_routes(task, method, machines.rooted_trees(task.root), bound)
        for machines in _machines_of(task.network.graph)
    ]


def _are_machines(blocks: Blocks) -> bool:
    """Whether there are several blocks of one size above 1."""
    sizes = {len(block) for block in blocks}
    return len(blocks) > 1 and len(sizes) == 1 and sizes != {1}


def _machines_of(graph: CapacityGraph) -> Iterator[_Machines]:
    """Partitions into machines of one size, whose ranks reach one another within."""
    for blocks in islands(graph):
        if not _are_machines(blocks):
            continue
        inner = [_within(graph, block) for block in blocks]
        if all(len(trees) == len(block) for trees, block in zip(inner, blocks, strict=True)):
            yield _Machines(blocks, inner, graph.num_compute)


class _Machines:
    """Blocks of ranks, and trees within each from all of its ranks."""

    def __init__(
        self, blocks: Blocks, inner: Sequence[dict[int, SpanningTree]], num_ranks: int
    ) -> None:
        self._blocks = blocks
        self._inner = inner
        self._num_ranks = num_ranks

    def trees(self, is_across: bool) -> list[SpanningTree]:
        """A tree a rank, which leaves its machine from the root alone or, `is_across`, from all."""
        joined = self._straight_across if is_across else self._over_the_same_number
        places = [(home, index) for home in range(len(self._blocks)) for index in self._numbers]
        return [joined(home, index) for home, index in places]

    def rooted_trees(self, root: int) -> list[SpanningTree]:
        """A tree of the root for every rank outside its machine, which is the first to get it."""
        home = next(number for number, block in enumerate(self._blocks) if root in block)
        others = [number for number in range(len(self._blocks)) if number != home]
        return [
            self._by_way_of(root, home, first, index) for first in others for index in self._numbers
        ]

    @property
    def _numbers(self) -> range:
        """Numbers of ranks within a machine."""
        return range(len(self._blocks[0]))

    def _over_the_same_number(self, home: int, index: int) -> SpanningTree:
        """The ranks of the root's number hang at it, and all others at that of their machine."""
        parent = np.full(self._num_ranks, -1, np.int64)
        root = self._blocks[home][index]
        for number, block in enumerate(self._blocks):
            self._hang_up(parent, number, block[index])
            if number != home:
                parent[block[index]] = root
        return _tree(root, parent)

    def _straight_across(self, home: int, index: int) -> SpanningTree:
        """Every rank outside the root's machine hangs at the one of its number there."""
        parent = np.full(self._num_ranks, -1, np.int64)
        root = self._blocks[home][index]
        for block in self._blocks:
            parent[list(block)] = self._blocks[home]
        parent[list(self._blocks[home])] = -1
        self._hang_up(parent, home, root)
        return _tree(root, parent)

    def _by_way_of(self, root: int, home: int, first: int, index: int) -> SpanningTree:
        """From the rank of a number in the root's machine to that of another, and of all others."""
        parent = np.full(self._num_ranks, -1, np.int64)
        for number, block in enumerate(self._blocks):
            self._hang_up(parent, number, block[index])
            parent[block[index]] = self._blocks[first][index]
        leaving = self._blocks[home][index]
        parent[self._blocks[first][index]] = leaving
        if leaving == root:
            # It sends all of the data anyway: others serve its machine in its place, two each.
            others = np.asarray([rank for rank in self._blocks[home] if rank != root])
            others = np.roll(others, first)
            above = (np.arange(len(others)) - 1) // 2
            parent[others] = others[above]
            leaving = int(others[0])
        parent[leaving] = root
        parent[root] = -1
        return _tree(root, parent)

    def _hang_up(self, parent: Int64Array, machine: int, top: int) -> None:
        """Set the parents in a machine below one of its ranks."""
        tree = self._inner[machine][top]
        hanging = np.flatnonzero(tree.parent >= 0)
        parent[hanging] = tree.parent[hanging]


def _tree(root: int, parent: Int64Array) -> SpanningTree:
    """A tree of weight 1 over ranks, of no graph's arcs."""
    return SpanningTree(root, 1, parent, np.full(len(parent), -1, np.int64))


def _both(task: PackingTask, plan: PlacedPacking, across: PlacedPacking) -> PlacedPacking:
    """Trees of both packings, by weights of which one is 1, at about the best rate."""
    units = _units_by_weights(task, plan, across)
    best = max(unit * sum(weights) for weights, unit in units.items())
    enough = best * (1 - _AS_GOOD)
    good = [weights for weights, unit in units.items() if unit * sum(weights) >= enough]
    weights = min(good, key=sum)
    trees = []
    for packing, weight in zip((plan, across), weights, strict=True):
        for placed in packing.trees:
            trees.append(replace(placed, tree=replace(placed.tree, weight=weight)))
    return replace(
        plan,
        method="three phases, part straight across",
        trees=tuple(trees),
        unit=units[weights],
    )


def _units_by_weights(
    task: PackingTask, plan: PlacedPacking, across: PlacedPacking
) -> dict[tuple[int, int], Fraction]:
    """Bytes per second and weight for which all links have room, by the weights of the two."""
    is_up = task.collective.kind is CollectiveKind.ALL_REDUCE
    bandwidth = exact_bandwidths(task.oriented_network.topology)
    one = loads(plan.trees, is_up)
    two = loads(across.trees, is_up)
    # Most links are like others.
    alike = {(one[pair], two[pair], bandwidth[pair]) for pair in one | two}
    units = {}
    for part in range(1, _MOST_PARTS + 1):
        for first, second in ((part, 1), (1, part)):
            room = (width / (first * here + second * there) for here, there, width in alike)
            units[first, second] = min(room)
    return units


def _within(graph: CapacityGraph, block: tuple[int, ...]) -> dict[int, SpanningTree]:
    """Shallow trees over links of a machine from those of its ranks that reach all others."""
    is_outside = np.zeros(graph.num_nodes, np.bool_)
    is_outside[: graph.num_compute] = True
    is_outside[list(block)] = False
    inside = np.flatnonzero(~is_outside[graph.source] & ~is_outside[graph.destination])
    machine = replace(
        graph,
        source=graph.source[inside],
        destination=graph.destination[inside],
        capacity=graph.capacity[inside],
        row=graph.row[inside],
    )
    trees = {}
    for root in block:
        # Ranks that it does not reach have no parent.
        tree = shallow_tree(machine, root)
        if np.count_nonzero(tree.parent >= 0) == len(block) - 1:
            trees[root] = tree
    return trees


def islands(graph: CapacityGraph) -> Iterator[Blocks]:
    """Partitions of the ranks into those that wide links join, for ever narrower links.

    The ranks of a machine are joined by wider links than machines are. Every rank alone comes
    first.
    """
    seen = set()
    # No link is as wide as this: every rank is alone.
    above_all = int(graph.capacity.max()) + 1
    for width in [above_all, *np.unique(graph.capacity)[::-1].tolist()]:
        part = _parts(graph, graph.capacity >= width)[: graph.num_compute]
        blocks = [tuple(np.flatnonzero(part == number).tolist()) for number in np.unique(part)]
        # Narrower links may join nothing new.
        if tuple(blocks) not in seen:
            seen.add(tuple(blocks))
            yield blocks


def _parts(graph: CapacityGraph, chosen: BoolArray) -> Int64Array:
    """The least node that each node is joined with by the chosen arcs, either way."""
    part = np.arange(graph.num_nodes)
    source, destination = graph.source[chosen], graph.destination[chosen]
    while True:
        # Along every arc the smaller number counts at both ends.
        least = part.copy()
        np.minimum.at(least, destination, part[source])
        np.minimum.at(least, source, part[destination])
        # Numbers only fall, so that this ends.
        if np.array_equal(least, part):
            return part
        part = least
