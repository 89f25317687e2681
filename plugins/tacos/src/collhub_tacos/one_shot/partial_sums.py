"""Messages of an all-reduce in which every NPU collects the sum over its own in-tree.

A message carries the sum of the contributions of a set of NPUs over an arc. What two trees send
over one arc from the same set is the same vector, and goes once: on hypercubes that makes
recursive doubling, on meshes prefix sums dimension by dimension, on full graphs one message a
pair.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.one_shot.in_trees import InTrees
from hub_core.columns import BoolArray, ColumnTable, Int64Array, csr

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
