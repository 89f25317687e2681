"""Partial sums of an all-reduce in one phase: in-trees, messages, and the additions of every NPU.

Every NPU collects the sum of all contributions over its in-tree of shortest paths. A message
carries the sum of the contributions of a set of NPUs over an arc. If two trees send the sum of the
same set over one arc, it is sent once: this gives recursive doubling on hypercubes, prefix sums
dimension by dimension on meshes, and one message per pair on full graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.symmetry import ShortestPaths
from hub_core.columns import ColumnTable, Int64Array, csr

# Link times are much smaller, and int64 holds the sum of two such values.
_UNREACHABLE = 1 << 61


@dataclass(frozen=True, slots=True, eq=False)
class InTrees:
    """Next arcs to all destinations: `arc[d, u]` int64, -1 at d itself and if there is no path.

    `distance[d, u]`: int64 picoseconds from u to d on idle links.
    """

    network: LinkNetwork
    arc: Int64Array
    distance: Int64Array

    @property
    def connects_all(self) -> bool:
        """Whether every NPU reaches every other NPU."""
        return bool(np.all(self.distance < _UNREACHABLE))

    @property
    def parent(self) -> Int64Array:
        """Next NPU on the path to every destination, int64, indexed like `arc`."""
        return np.where(self.arc < 0, -1, self.network.destination[self.arc])


def build_in_trees(network: LinkNetwork, times: LinkTimes) -> InTrees:
    """Build the trees of shortest paths to all NPUs, by `times.arrival` in picoseconds.

    Every arc counts at least 1 ps. `arc[d, u]` is the first arc of a shortest path from u
    to d. It is -1 if there is no path, and for d = u. `distance[d, u]` is the length of the
    path in ps, at least 2^61 without one.

    If several next NPUs v are possible, the one with the smallest |v - u| is chosen; of two
    such NPUs the higher number, and of parallel arcs the first. So the trees of neighbours
    share messages. On meshes, tori and hypercubes the choice is dimension order. The time
    is proportional to links times NPUs.
    """
    source, destination = network.source, network.destination
    nodes = network.num_nodes
    # Paths to a node are paths from the node on reversed links.
    # With arcs of 0 ps (a few bytes on fast links), an NPU would be as far as its parent.
    arrival = np.maximum(times.arrival, 1)
    paths = ShortestPaths(nodes, destination, source, arrival)
    distance = paths.lengths(np.arange(nodes))
    arc = np.full((nodes, nodes), -1, np.int64)
    # On rings and grids, NPUs with near numbers are near.
    step = network.destination - network.source
    order = np.lexsort((step % network.num_nodes, np.abs(step)))
    for target in range(nodes):
        is_tight = distance[target, source] == arrival + distance[target, destination]
        # The first of the arcs that leave every node, -1 for none.
        arcs = order[is_tight[order]]
        first_arc = np.full(nodes, -1, np.int64)
        # Of several assignments to one element, numpy keeps the last.
        first_arc[source[arcs[::-1]]] = arcs[::-1]
        arc[target] = first_arc
    np.fill_diagonal(arc, -1)
    return InTrees(network, arc, distance)


Bits = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class PartialSums(ColumnTable):
    """Distinct messages, int64 columns, and the summands of every message and every result.

    `arc`: of each message. `remaining`: picoseconds to the farthest NPU that needs it. `indptr`,
    `parts`: for message m, and for the result of NPU d as row `len(arc) + d`, the messages that are
    added to the NPU's contribution.
    """

    arc: Int64Array
    remaining: Int64Array
    indptr: Int64Array
    parts: Int64Array

    def parts_of(self, row: int) -> list[int]:
        """Return the numbers of the messages that are added for a sum, in ascending order.

        `row` below `len(self)`: the sum that message `row` carries; from `len(self)` on: the
        result of NPU `row - len(self)`. The contribution of the NPU itself is also added, but
        has no number; a sum without received messages gives [].
        """
        summands: list[int] = self.parts[self.indptr[row] : self.indptr[row + 1]].tolist()
        return summands


def build_partial_sums(trees: InTrees) -> PartialSums:
    """Return the messages of all trees, with equal ones merged, and the summands of every sum.

    In the tree of a destination, each other NPU sends one message: the sum of its subtree.
    Messages with the same arc and the contributions of the same NPUs are merged into one. Its
    summands are those of the first tree that has it. Messages that then reach no result are
    dropped. The remaining messages are numbered from 0 by arc, then by their set of NPUs.

    `arc`: of each message. `parts`: one row per message, then one per result of an NPU. A row has
    the messages that the NPU adds to its contribution, ascending. `remaining`: longest time in ps
    from the start of a message to a result that contains it; trees in which the message was merged
    or dropped count too. One NPU gives no messages and one empty result. Every NPU must reach every
    other one.
    """
    number, first = _number_messages(trees)
    parts_of_message, parts_of_result = _find_summands(trees, number, first)
    # Which messages contribute to a result, bool per message.
    is_needed = np.zeros(len(parts_of_message), np.bool_)
    pending = [message for parts in parts_of_result for message in parts]
    while pending:
        message = pending.pop()
        if not is_needed[message]:
            is_needed[message] = True
            pending.extend(parts_of_message[message])
    needed = np.flatnonzero(is_needed)
    new_number = np.cumsum(is_needed) - 1
    rows = [parts_of_message[message] for message in needed.tolist()] + parts_of_result
    lengths = np.asarray([len(row) for row in rows], np.int64)
    flat = np.concatenate([np.asarray(row, np.int64) for row in rows])
    farthest = _find_remaining(trees, number, first, parts_of_message)
    return PartialSums(
        arc=trees.arc.ravel()[first[needed]],
        remaining=farthest[needed],
        indptr=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        parts=new_number[flat],
    )


def _find_remaining(
    trees: InTrees, number: Int64Array, first: Int64Array, parts_of_message: list[list[int]]
) -> Int64Array:
    """Return for each message the longest time in ps from its start until a result has its data.

    The result is int64[messages]. The time of a message is the largest of:

    - in every tree in which an NPU sends the message: the distance to the destination of that tree
    - for every other message M that adds this message as a summand: the time of M, plus the time
      that this message takes on its arc

    The second rule also counts trees in which the summand is not sent itself: a message of several
    trees adds the summands of its first tree in all of them.

    `number`: int64[destinations, NPUs], message that an NPU sends in the tree of a destination, or
    -1. `first`: destination * NPUs + NPU, where a message is first sent. `parts_of_message`:
    summands of each message.
    """
    nodes = len(trees.arc)
    farthest = np.zeros(len(first), np.int64)
    is_sent = number >= 0
    np.maximum.at(farthest, number[is_sent], trees.distance[is_sent])
    target, source = np.divmod(first, nodes)
    arrival = trees.distance[target, source] - trees.distance[target, trees.parent[target, source]]
    lengths = [len(parts) for parts in parts_of_message]
    message = np.repeat(np.arange(len(first)), lengths)
    part = np.asarray([part for parts in parts_of_message for part in parts], np.int64)
    # Sets of contributors grow from a summand to its message, so that there is no cycle.
    while True:
        needed = farthest[message] + arrival[part]
        if not np.any(needed > farthest[part]):
            return farthest
        np.maximum.at(farthest, part, needed)


def _number_messages(trees: InTrees) -> tuple[Int64Array, Int64Array]:
    """Number the messages of all in-trees; return (numbers, first pair of every number).

    In the tree of a destination, every other NPU sends one message to its parent. Messages
    with the same arc and the same contributing NPUs are one message with one number. Numbers
    from 0 ascend by arc; on one arc they ascend by the bits of the contributing NPUs (64 NPUs
    per uint64 word, words compared in order).

    - The numbers are int64[destinations, NPUs], -1 at the destination itself.
    - The first pairs are int64[messages]: the smallest destination * NPUs + NPU with this
      message.
    """
    nodes = len(trees.arc)
    node = np.arange(nodes)
    # NPUs below each NPU in the tree of each destination, itself included: those whose path to the
    # destination passes it. NPU n is bit n modulo 64 of word n // 64.
    sets = np.zeros((nodes, nodes, -(-nodes // 64)), np.uint64)
    sets[:, node, node // 64] = np.uint64(1) << (node % 64).astype(np.uint64)
    # From the farthest NPU of every tree inwards: children before their parents.
    inwards = np.argsort(-trees.distance, axis=1, kind="stable")
    for step in range(nodes - 1):
        child = inwards[:, step]
        sets[node, trees.parent[node, child]] |= sets[node, child]
    pairs = np.flatnonzero(trees.arc.ravel() >= 0)
    arc = trees.arc.ravel()[pairs].astype(np.uint64)
    rows = np.concatenate([arc[:, None], sets.reshape(nodes * nodes, -1)[pairs]], axis=1)
    _, first, which = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    number = np.full(nodes * nodes, -1, np.int64)
    number[pairs] = which.ravel()
    return number.reshape(nodes, nodes), pairs[first]


def _find_summands(
    trees: InTrees, number: Int64Array, first: Int64Array
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the messages that are summed for each message, and those for each NPU's result.

    Both results are lists of ascending lists of message numbers:

    - Entry m of the first: the messages that the sender of message m receives from its children in
      the tree. It is [] for a leaf. If message m is in several trees, the tree of `first[m]`
      decides.
    - Entry n of the second: the messages that NPU n receives in its own tree, of which it is the
      destination.

    The sender or the NPU also adds its local contribution, which has no message number. `number`:
    int64[destinations, NPUs], the message of each NPU in each tree. `first`: int64[messages], the
    pair destination * NPUs + sender in the first tree with the message.
    """
    nodes = len(trees.arc)
    parent = trees.parent
    target, child = np.nonzero(parent >= 0)
    parent_pair = target * nodes + parent[target, child]
    indptr, rows = csr(parent_pair, np.arange(len(parent_pair)), nodes * nodes)
    incoming = number[target, child][rows]

    def get_incoming(pair: int) -> list[int]:
        return sorted(incoming[indptr[pair] : indptr[pair + 1]].tolist())

    messages = [get_incoming(pair) for pair in first.tolist()]
    results = [get_incoming(node * nodes + node) for node in range(nodes)]
    return messages, results


LOCAL_CONTRIBUTION = 0
"""Number of the NPU's contribution among its vectors."""
# An addition takes at least a nanosecond in simulators.
_ADDITION_PS = 1000


@dataclass(slots=True)
class Vector:
    """Vector at an NPU: its own contribution, a received vector, or the sum of two other vectors.

    `time_ps`: time at which it is available on idle links. `message`: message that brings it, -1
    for none. `left`, `right`: summands, -1 for none. `uses`: number of sends and additions that
    read it. `adder`: last sum that reads it, -1 for none. The other fields are filled while steps
    are built. `slot`: slot in SCRATCH, -1 for none. `steps`: by piece, the step that writes it.
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
    """Vectors of one NPU; sums that start with the same two summands share this partial sum."""

    def __init__(self) -> None:
        self.vectors = [Vector(0)]
        self._sums: dict[tuple[int, int], int] = {}

    def __getitem__(self, number: int) -> Vector:
        return self.vectors[number]

    def add_received(self, message: int, time_ps: int) -> int:
        """Append the vector that message `message` brings at `time_ps`; return its number.

        The vector is always new, also if the same message was added before.
        """
        self.vectors.append(Vector(time_ps, message))
        return len(self.vectors) - 1

    def add_total(self, parts: Sequence[int]) -> int:
        """Return the number of the vector that is the sum of `parts`, and add missing sums.

        `parts`: numbers of existing vectors; `IndexError` is raised without parts. A single part
        is returned itself. A number that occurs twice counts as two summands.

        Repeatedly, the two vectors that are available earliest (ties: lower number) are replaced
        by their sum. So later arrivals are added on arrival, and simultaneous vectors in a tree.

        - A sum of the same two vectors that already exists is reused without any change.
        - A new sum is available 1000 ps after the later summand. It increases `uses` of each
          summand by one, and becomes their `adder`.
        """
        pending = sorted((self.vectors[part].time_ps, part) for part in parts)
        while len(pending) > 1:
            (_, first), (latest_ps, second) = pending[:2]
            summands = min(first, second), max(first, second)
            if summands not in self._sums:
                number = len(self.vectors)
                for part in summands:
                    self.vectors[part].uses += 1
                    self.vectors[part].adder = number
                self.vectors.append(Vector(latest_ps + _ADDITION_PS, -1, *summands))
                self._sums[summands] = number
            added = self._sums[summands]
            pending = sorted([*pending[2:], (self.vectors[added].time_ps, added)])
        return pending[0][1]
