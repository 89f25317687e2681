"""Shortest-path in-trees, one a destination, with one rule for ties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import BoolArray, ColumnTable, Int64Array, csr

# Times below are far less, and an int64 holds the sum of two.
_UNREACHABLE = 1 << 61


@dataclass(frozen=True, slots=True, eq=False)
class InTrees:
    """Next arcs to all destinations: `arc[d, u]` int64, -1 at d itself and where there is no way.

    `distance[d, u]`: int64 picoseconds from u to d on idle links.
    """

    network: LinkNetwork
    arc: Int64Array
    distance: Int64Array

    @property
    def connects_all(self) -> bool:
        """Whether every NPU reaches every other."""
        return bool(np.all(self.distance < _UNREACHABLE))

    @property
    def parent(self) -> Int64Array:
        """Next NPU on the way to every destination: int64 as `arc`."""
        return np.where(self.arc < 0, -1, self.network.destination[self.arc])


def in_trees(network: LinkNetwork, times: LinkTimes) -> InTrees:
    """The trees of a network of NPUs alone, by `times.arrival`.

    Of several next NPUs that of the nearest number is taken, and of these the first in turn: so
    trees of neighbours share what they can. That is dimension by dimension on meshes, tori and
    hypercubes. Cost: links times NPUs.
    """
    source, destination = network.source, network.destination
    nodes = network.num_nodes
    # Paths to a node are those from it on links that are turned round.
    paths = ShortestPaths(nodes, destination, source, times.arrival)
    distance = paths.lengths(np.arange(nodes))
    arc = np.full((nodes, nodes), -1, np.int64)
    order = _ties(network)
    for target in range(nodes):
        is_tight = distance[target, source] == times.arrival + distance[target, destination]
        arc[target] = _first_of(order[is_tight[order]], source, nodes)
    # A tree ends at its own NPU.
    np.fill_diagonal(arc, -1)
    return InTrees(network, arc, distance)


def _ties(network: LinkNetwork) -> Int64Array:
    """Arcs in the order in which they are taken, the best first."""
    # Near numbers are near on rings and grids.
    step = network.destination - network.source
    return np.lexsort((step % network.num_nodes, np.abs(step)))


def _first_of(arcs: Int64Array, source: Int64Array, nodes: int) -> Int64Array:
    """First of the arcs that leave every node, -1 for none."""
    found = np.full(nodes, -1, np.int64)
    # Of several assignments to one element, numpy keeps the last.
    found[source[arcs[::-1]]] = arcs[::-1]
    return found


Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class PartialSums(ColumnTable):
    """Distinct messages, int64 columns, and what every message and every result is the sum of.

    `arc`: of each message; `remaining`: picoseconds to the farthest NPU that waits for it.
    `indptr`, `parts`: for message m, and for the result of NPU d as row `len(arc) + d`, the
    messages that are added to the NPU's own contribution.
    """

    arc: Int64Array
    remaining: Int64Array
    indptr: Int64Array
    parts: Int64Array

    def parts_of(self, row: int) -> list[int]:
        """Messages that message `row`, or the result `row - len(self)`, is the sum of."""
        found: list[int] = self.parts[self.indptr[row] : self.indptr[row + 1]].tolist()
        return found


def partial_sums(trees: InTrees) -> PartialSums:
    """All messages that the trees need, those that are equal merged.

    Cost: a set of NPUs, a bit each, for every two NPUs, and a sort of these.
    """
    number, first = _numbered(trees)
    parts_of_message, parts_of_result = _parts(trees, number, first)
    is_needed = _needed(parts_of_message, parts_of_result)
    kept = np.flatnonzero(is_needed)
    place = np.cumsum(is_needed) - 1
    rows = [parts_of_message[message] for message in kept.tolist()] + parts_of_result
    lengths = np.asarray([len(row) for row in rows], np.int64)
    flat = np.concatenate([np.asarray(row, np.int64) for row in rows])
    return PartialSums(
        arc=trees.arc.ravel()[first[kept]],
        remaining=_remaining(trees, number, len(first))[kept],
        indptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        parts=place[flat],
    )


def _numbered(trees: InTrees) -> tuple[Int64Array, Int64Array]:
    """Number of the message of every (destination, NPU), and the first such pair of every number.

    int64[destinations, NPUs], -1 at the destination itself; pairs as flat indices.
    """
    sets = _contributors(trees)
    nodes = len(trees.arc)
    pairs = np.flatnonzero(trees.arc.ravel() >= 0)
    arc = trees.arc.ravel()[pairs].astype(np.uint64)
    rows = np.concatenate([arc[:, None], sets.reshape(nodes * nodes, -1)[pairs]], axis=1)
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    number = np.full(nodes * nodes, -1, np.int64)
    number[pairs] = which.ravel()
    return number.reshape(nodes, nodes), pairs[first]


def _contributors(trees: InTrees) -> Bits:
    """Who is below each NPU in the tree of each destination, itself included, a bit an NPU.

    uint64[destinations, NPUs, words].
    """
    nodes = len(trees.arc)
    words = -(-nodes // 64)
    node = np.arange(nodes)
    sets = np.zeros((nodes, nodes, words), np.uint64)
    sets[:, node, node // 64] = np.uint64(1) << (node % 64).astype(np.uint64)
    parent = trees.parent
    # From the farthest NPU of every tree inwards: what is below stands before what is above.
    inwards = np.argsort(-trees.distance, axis=1, kind="stable")
    for step in range(nodes - 1):
        child = inwards[:, step]
        sets[node, parent[node, child]] |= sets[node, child]
    return sets


def _parts(
    trees: InTrees, number: Int64Array, first: Int64Array
) -> tuple[list[list[int]], list[list[int]]]:
    """Messages that each message is the sum of, and each result.

    A message of several trees is made as in the first of them.
    """
    nodes = len(trees.arc)
    parent = trees.parent
    target, child = np.nonzero(parent >= 0)
    above = target * nodes + parent[target, child]
    indptr, rows = csr(above, np.arange(len(above)), nodes * nodes)
    carried = number[target, child][rows]

    def carried_to(pair: int) -> list[int]:
        return sorted(carried[indptr[pair] : indptr[pair + 1]].tolist())

    messages = [carried_to(pair) for pair in first.tolist()]
    results = [carried_to(node * nodes + node) for node in range(nodes)]
    return messages, results


def _needed(parts_of_message: list[list[int]], parts_of_result: list[list[int]]) -> BoolArray:
    """Which messages a result is made of in the end, bool per message."""
    is_needed = np.zeros(len(parts_of_message), np.bool_)
    ahead = [message for parts in parts_of_result for message in parts]
    while ahead:
        message = ahead.pop()
        if not is_needed[message]:
            is_needed[message] = True
            ahead.extend(parts_of_message[message])
    return is_needed


def _remaining(trees: InTrees, number: Int64Array, messages: int) -> Int64Array:
    """Picoseconds from the start of every message to the farthest result with it: int64."""
    farthest = np.zeros(messages, np.int64)
    is_sent = number >= 0
    np.maximum.at(farthest, number[is_sent], trees.distance[is_sent])
    return farthest


OWN = 0
"""Number of the NPU's own contribution among its vectors."""
# An addition takes a nanosecond in simulators, at least.
_ADDITION_PS = 1000


@dataclass(slots=True)
class Vector:
    """Own contribution of an NPU, what arrives there, or the sum of two other vectors.

    `time_ps`: when it is there on idle links. `message`: which one brings it, -1 for none. `left`,
    `right`: what it is the sum of, -1 for none. `uses`: sends and additions that read it. `adder`:
    the last sum that was made of it, -1 for none. The others are filled while steps are made:
    `slot` in SCRATCH, -1 for none; `steps`: by piece, the step that writes it.
    """

    time_ps: int
    message: int = -1
    left: int = -1
    right: int = -1
    uses: int = 0
    adder: int = -1
    slot: int = -1
    steps: list[int] = field(default_factory=list)


class Vectors:
    """Vectors of one NPU; of two sums that begin alike, the beginning is made once."""

    def __init__(self) -> None:
        self.vectors = [Vector(0)]
        self._sums: dict[tuple[int, int], int] = {}

    def __getitem__(self, number: int) -> Vector:
        return self.vectors[number]

    def arriving(self, message: int, time_ps: int) -> int:
        """Number of the vector that a message brings."""
        # Nobody reads it yet.
        self.vectors.append(Vector(time_ps, message))
        return len(self.vectors) - 1

    def total(self, parts: Sequence[int]) -> int:
        """Number of the sum of some vectors.

        The two that are there first are added first, and their sum is one of those that are left:
        so parts that come one by one are added as they come, and those of one instant in a tree.
        """
        ahead = sorted((self.vectors[part].time_ps, part) for part in parts)
        while len(ahead) > 1:
            one, other = ahead[0][1], ahead[1][1]
            added = self._sum(min(one, other), max(one, other))
            ahead = sorted([*ahead[2:], (self.vectors[added].time_ps, added)])
        return ahead[0][1]

    def _sum(self, left: int, right: int) -> int:
        if (left, right) in self._sums:
            return self._sums[left, right]
        number = len(self.vectors)
        latest = 0
        for part in (left, right):
            vector = self.vectors[part]
            vector.uses += 1
            vector.adder = number
            latest = max(latest, vector.time_ps)
        self.vectors.append(Vector(latest + _ADDITION_PS, left=left, right=right))
        self._sums[left, right] = number
        return number
