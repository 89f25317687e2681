"""Decide exactly, for many pairs of steps at once, whether the first happens before the second.

Cheap sufficient tests come first: a direct edge; both on one chain of program order; both on one
chain that follows messages. What is left is contracted (the only way out of a node, or into it,
must be taken), and decided by marks that spread from the starts: within what data and messages
connect where these flows are small, within the rank, at last, exactly, over the whole graph.
Invariant: a pair leaves the open ones only with a proof of its path, so that what stays open at the
end is unordered. Cost: linear in steps, edges and pairs, but for the marks: (steps + edges) times
the smaller of the number of chains that hold the start of an open pair and a thirty-second of the
number of these starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from collhub_columns import BoolArray, Int64Array, distinct, ordinals, rows_of

from hub_core.verification.order_graph import OrderGraph

_PROBED_PARENTS = 8
_CONTRACTIONS = 16
_CLOCK_BYTES = 1 << 28
_PARENTS_AT_ONCE = 16
# As many need at most four columns of bits.
_PAIRS_OF_SMALL_FLOW = 256

_Array = npt.NDArray[Any]


def unordered_in(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> Int64Array:
    """Indices of the pairs of rows without a path from `earlier` to `later`, ascending."""
    open_pairs = np.arange(len(earlier))
    earlier, later = graph.position[earlier], graph.position[later]
    open_pairs = open_pairs[~_are_linked(graph, earlier, later)]
    is_open = ~_are_joined(graph, earlier[open_pairs], later[open_pairs])
    return open_pairs[is_open]


def _are_linked(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Whether `earlier` is a parent of `later`."""
    linked = np.zeros(len(earlier), np.bool_)
    first = graph.indptr[later]
    degree = graph.indptr[later + 1] - first
    for k in range(min(_PROBED_PARENTS, int(degree.max(initial=0)))):
        # Clamped, since a node without a k-th parent must still read something.
        probe = np.minimum(first + k, max(len(graph.indices) - 1, 0))
        linked |= (degree > k) & (graph.indices[probe] == earlier)
    # All edges to nodes of more parents are searched: one copy may wait for thousands of messages.
    has_more = np.diff(graph.indptr)[graph.children] > _PROBED_PARENTS
    rest = np.flatnonzero(~linked)
    edges = distinct(graph.children[has_more] * len(graph) + graph.parents[has_more])
    linked[rest] = rows_of(later[rest] * len(graph) + earlier[rest], edges) >= 0
    return linked


def _are_joined(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Whether there is a path: exactly."""
    if not len(earlier):
        return np.zeros(0, np.bool_)
    earlier, later = _contract(graph, earlier, later)
    ordered = _are_on_a_chain(graph, earlier, later)
    for part, start, stop in _searches(graph, earlier, later):
        asked = np.flatnonzero(~ordered)
        if not len(asked):
            break
        ordered[asked] = _reach(graph, start[asked], stop[asked], part)
    return ordered


def _searches(
    graph: OrderGraph, earlier: Int64Array, later: Int64Array
) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
    """Where to search, by rising cost, as (part of every node, starts, ends); the last is exact."""
    if np.bincount(graph.flow[earlier]).max(initial=0) <= _PAIRS_OF_SMALL_FLOW:
        yield graph.flow, earlier, later
    receive_of, send_of = graph.partners
    # Within a rank, also from the receive of the first step to the send of the second.
    yield graph.rank, receive_of[earlier], send_of[later]
    yield graph.rank, earlier, later
    yield np.zeros_like(graph.rank), earlier, later


def _are_on_a_chain(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Whether a pair is one node, or in order on one chain: bool[pairs]."""
    same_program = graph.program_chain[earlier] == graph.program_chain[later]
    # Within a chain a later node is reached from an earlier one; that of one chain suffices.
    same_flow = graph.flow_chain[earlier] == graph.flow_chain[later]
    on_chain = (same_program | same_flow) & (earlier < later)
    ordered: BoolArray = on_chain | (earlier == later)
    return ordered


def _contract(
    graph: OrderGraph, earlier: Int64Array, later: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Move `earlier` along only successors, `later` along only predecessors: the answer stays."""
    earlier, later = earlier.copy(), later.copy()
    for _ in range(_CONTRACTIONS):
        undecided = ~_are_on_a_chain(graph, earlier, later) & (earlier < later)
        forward = undecided & (graph.only_child[earlier] >= 0)
        earlier[forward] = graph.only_child[earlier[forward]]
        # Judged again: the move forward may have met the other end.
        backward = undecided & (earlier < later) & (graph.only_parent[later] >= 0)
        later[backward] = graph.only_parent[later[backward]]
        if not bool(np.any(forward | backward)):
            break
    return earlier, later


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """What spreads from the starts of pairs along paths.

    Per node a column (-1: none) and a value, joined by `join`. Clocks: a column a chain, the last
    node of that chain that reaches here, or -1; b is reached from a if its clock for the chain of a
    is a or later. Bits: 64 starts a column, one bit each.
    """

    column: Int64Array
    value: _Array
    join: np.ufunc
    nothing: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.column.max()) + 1

    def has(self, found: _Array, starts: Int64Array) -> BoolArray:
        """Whether a start reached there; `found`: the marks there, in the column of the start."""
        value = self.value[starts]
        is_bit = self.join is np.bitwise_or
        reached: BoolArray = (found & value) != 0 if is_bit else found >= value
        return reached


def _reach(
    graph: OrderGraph, earlier: Int64Array, later: Int64Array, part: Int64Array
) -> BoolArray:
    """Whether a path stays in one part, by marks; `part`: int64, the part of every node.

    Columns are done in blocks that fit memory, each over the levels between its starts and their
    ends. Parts share the columns.
    """
    reached = np.zeros(len(earlier), np.bool_)
    # A path leads to later nodes.
    local = np.flatnonzero((part[earlier] == part[later]) & (earlier < later))
    if not len(local):
        return reached
    earlier, later = earlier[local], later[local]
    marks = _bits(graph, earlier, part)
    # Of a chain in several parts, the clock would be in the column of another one.
    if np.array_equal(part, part[graph.program_chain]):
        clocks = _clocks(graph, earlier, part)
        # Bytes a node: clocks are int32, bits uint64.
        marks = clocks if 4 * clocks.width <= 8 * marks.width else marks
    edges = graph.edges(part)
    # As many columns as fit the memory set aside for them.
    width = max(1, _CLOCK_BYTES // (marks.value.itemsize * (len(graph) + 1)))
    column = marks.column[earlier]
    for first in range(0, marks.width, width):
        asked = np.flatnonzero((column >= first) & (column < first + width))
        if not len(asked):
            continue
        starts, ends = earlier[asked], later[asked]
        block, base = _spread(graph, edges, marks, (first, width), (starts, ends))
        reached[local[asked]] = marks.has(block[ends - base, column[asked] - first], starts)
    return reached


def _clocks(graph: OrderGraph, starts: Int64Array, part: Int64Array) -> _Marks:
    """Marks of all nodes of the chains that hold a start."""
    chains = distinct(graph.program_chain[starts])
    column_of_chain = np.full(len(graph), -1, np.int64)
    column_of_chain[chains] = ordinals(part[chains])
    # The clock of a node on its own chain is the node itself.
    clock = np.arange(len(graph), dtype=np.int32)
    return _Marks(column_of_chain[graph.program_chain], clock, np.maximum, -1)


def _bits(graph: OrderGraph, starts: Int64Array, part: Int64Array) -> _Marks:
    """Marks of the starts alone."""
    starts = distinct(starts)
    # Numbers of starts, 64 to a column.
    number = ordinals(part[starts])
    column = np.full(len(graph), -1, np.int64)
    value = np.zeros(len(graph), np.uint64)
    column[starts] = number // 64
    value[starts] = np.uint64(1) << (number % 64).astype(np.uint64)
    return _Marks(column, value, np.bitwise_or, 0)


def _spread(
    graph: OrderGraph,
    edges: tuple[Int64Array, Int64Array],
    marks: _Marks,
    columns: tuple[int, int],
    asked: tuple[Int64Array, Int64Array],
) -> tuple[_Array, int]:
    """Marks in `columns` (first, width) of the nodes of the levels that are asked for.

    (block, first node): from the level of the first of the starts to that of the last of the ends.
    """
    # Columns of this block count from 0; all others fall outside 0..width-1.
    column = marks.column - columns[0]
    width = min(columns[1], int(column.max()) + 1)
    span = [asked[0].min(), asked[1].max()]
    low, high = np.searchsorted(graph.level_indptr, span, side="right").tolist()
    base, end = int(graph.level_indptr[low - 1]), int(graph.level_indptr[high])
    # One row more: it stands for all nodes before the first level, which nothing marks.
    block = np.full((end - base + 1, width), marks.nothing, marks.value.dtype)
    is_own = (column[base:end] >= 0) & (column[base:end] < width)
    own_nodes = base + np.flatnonzero(is_own)
    borders = np.searchsorted(own_nodes, graph.level_indptr[low - 1 : high + 1])
    for level in range(low - 1, high):
        _join_parents(block, base, graph.level_indptr[level : level + 2], edges, marks.join)
        own = own_nodes[borders[level - low + 1] : borders[level - low + 2]]
        cells = (own - base, column[own])
        block[cells] = marks.join(block[cells], marks.value[own])
    return block, base


def _join_parents(
    block: _Array,
    base: int,
    level: Int64Array,
    edges: tuple[Int64Array, Int64Array],
    join: np.ufunc,
) -> None:
    """Join the marks of all parents into each node of a level.

    The first parents of all nodes at once, the k-th with the k-th; nodes of very many parents last,
    one by one.
    """
    indptr, indices = edges
    nodes = np.arange(int(level[0]), int(level[1]))
    degree = indptr[nodes + 1] - indptr[nodes]
    for k in range(min(int(degree.max(initial=0)), _PARENTS_AT_ONCE)):
        some = nodes[degree > k]
        # Parents before the first level become -1: the last row, which nothing marks.
        parents = np.maximum(indices[indptr[some] + k] - base, -1)
        block[some - base] = join(block[some - base], block[parents])
    for node in nodes[degree > _PARENTS_AT_ONCE].tolist():
        parents = np.maximum(indices[int(indptr[node]) : int(indptr[node + 1])] - base, -1)
        block[node - base] = join.reduce(block[parents], axis=0)
