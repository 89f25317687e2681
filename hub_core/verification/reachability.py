"""Decide exactly, for many pairs of steps at once, whether the first happens before the second.

Inexpensive sufficient tests come first: a direct edge; a search within the components that data and
messages connect, if these are small and hold both nodes of every pair; both on one chain of program
order; both on one chain that follows messages. The remaining pairs are contracted (a node with a
single successor or predecessor is replaced by it) and decided by marks that are propagated from the
starts: within these components, if they are small; within the rank; and finally, exactly, in the
entire graph. Invariant: a pair is closed only with a proof of its path, so that the pairs that
remain open at the end are unordered. Cost: linear in steps, edges and pairs, but for the marks:
(steps + edges) times the smaller of the number of chains that hold the start of an open pair and a
thirty-second of the number of these starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array, distinct, ordinals, rows_of
from hub_core.verification.step_order import OrderGraph

_PROBED_PARENTS = 8
_CONTRACTIONS = 16
_CLOCK_BYTES = 1 << 28
_PARENTS_AT_ONCE = 16
# As many need at most four columns of bits.
_PAIRS_OF_SMALL_FLOW = 256

_Array = npt.NDArray[Any]


def unordered_in(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> Int64Array:
    """Return the indices of the pairs without a path from `earlier` to `later`, ascending.

    `earlier`, `later`: int64[pairs], rows of steps, all of which must run. A path consists
    of dependencies and messages; a step has a path to itself. The result is exact.
    """
    earlier, later = graph.position[earlier], graph.position[later]
    open_pairs = np.flatnonzero((earlier != later) & ~are_linked(graph, earlier, later))
    if not len(open_pairs):
        return open_pairs
    # A search within small components of data flow decides nearly all pairs of synthesized
    # algorithms.
    flow, starts, ends = graph.flow, earlier[open_pairs], later[open_pairs]
    if np.array_equal(flow[starts], flow[ends]) and _is_small(flow, starts):
        open_pairs = open_pairs[~_reach(graph, starts, ends, flow)]
    if not len(open_pairs):
        return open_pairs
    # Pairs are moved along nodes with a single successor or predecessor, then decided by common
    # chains, and the remaining ones by searches of increasing cost, the last of which is exact.
    starts, ends = _contract(graph, earlier[open_pairs], later[open_pairs])
    is_ordered = _are_on_a_chain(graph, starts, ends)
    for part, start, stop in _generate_searches(graph, starts, ends):
        left = np.flatnonzero(~is_ordered)
        if not len(left):
            break
        is_ordered[left] = _reach(graph, start[left], stop[left], part)
    return open_pairs[~is_ordered]


def are_linked(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Return whether there is an edge from node `earlier[i]` to node `later[i]`: bool[pairs].

    Only direct edges count, no paths. The arguments are not changed. Most work is a comparison
    with the first 8 parents of each `later` node; further parents are looked up in a sorted
    list.
    """
    linked = np.zeros(len(earlier), np.bool_)
    first = graph.indptr[later]
    degree = graph.indptr[later + 1] - first
    for k in range(min(_PROBED_PARENTS, int(degree.max(initial=0)))):
        # Clamped for nodes without a k-th parent, whose result is masked.
        probe = np.minimum(first + k, max(len(graph.indices) - 1, 0))
        linked |= (degree > k) & (graph.indices[probe] == earlier)
    # Edges to nodes with more parents are searched: one copy may wait for thousands of messages.
    has_more = np.diff(graph.indptr)[graph.children] > _PROBED_PARENTS
    rest = np.flatnonzero(~linked)
    edges = distinct(graph.children[has_more] * len(graph) + graph.parents[has_more])
    linked[rest] = rows_of(later[rest] * len(graph) + earlier[rest], edges) >= 0
    return linked


def _generate_searches(
    graph: OrderGraph, earlier: Int64Array, later: Int64Array
) -> Iterator[tuple[Int64Array, Int64Array, Int64Array]]:
    """Yield searches for paths from `earlier[i]` to `later[i]`, by increasing cost.

    A search is (part of every node, starts, targets). Entry i of both arrays belongs to
    pair i; a path from the start to the target proves a path of the pair. A search
    considers only paths within one part, so all searches but the last may miss paths. The
    parts are, in this order:

    1. Components of data flow, from the first step to the second one. This search is
       omitted if more than `_PAIRS_OF_SMALL_FLOW` first steps are in one component.
    2. Ranks, from the receive of the first step to the send of the second one. A step that
       is no send (or no receive) takes its own place.
    3. Ranks, from the first step to the second one.
    4. All nodes as one part, which is exact.
    """
    if _is_small(graph.flow, earlier):
        yield graph.flow, earlier, later
    receive_of, send_of = graph.partners
    # Within a rank; first from the receive of the first step to the send of the second one.
    yield graph.rank, receive_of[earlier], send_of[later]
    yield graph.rank, earlier, later
    yield np.zeros_like(graph.rank), earlier, later


def _is_small(flow: Int64Array, earlier: Int64Array) -> bool:
    """Return whether at most `_PAIRS_OF_SMALL_FLOW` of `earlier` are in each component of `flow`.

    `flow`: int64[nodes], the component of every node; `earlier`: int64[pairs], nodes.
    """
    return bool(np.bincount(flow[earlier]).max(initial=0) <= _PAIRS_OF_SMALL_FLOW)


def _are_on_a_chain(graph: OrderGraph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Return whether a chain proves a path from `earlier[i]` to `later[i]`: bool[pairs].

    True if both nodes are equal, or if `earlier[i]` is the lower one and both are on one
    chain of `program_chain` or of `flow_chain`; every node of a chain can be reached from
    its lower nodes. False does not mean that there is no path.
    """
    same_program = graph.program_chain[earlier] == graph.program_chain[later]
    # A node of a chain is reachable from all earlier nodes of the chain.
    same_flow = graph.flow_chain[earlier] == graph.flow_chain[later]
    on_chain = (same_program | same_flow) & (earlier < later)
    ordered: BoolArray = on_chain | (earlier == later)
    return ordered


def _contract(
    graph: OrderGraph, earlier: Int64Array, later: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Replace pairs of nodes by closer ones, without changing whether a path connects them.

    The question for pair i is whether a path leads from `earlier[i]` to `later[i]`. Nodes are
    positions in the graph, and all edges lead to higher nodes. In each round, for each pair:

    1. It is decided and stays if its nodes are equal or on one chain (a path exists), or if
       `earlier[i]` is above `later[i]` (no path exists).
    2. If `earlier[i]` has exactly one child, this child replaces it.
    3. If `earlier[i]` is then below `later[i]`, and `later[i]` has exactly one parent, this parent
       replaces it.

    A pair that does not move in a round is final. After 16 rounds pairs may be undecided. Returns
    (earlier, later) in the given order, as new arrays.
    """
    earlier, later = earlier.copy(), later.copy()
    # Only pairs that moved in the last round can move again.
    moving = np.arange(len(earlier))
    for _ in range(_CONTRACTIONS):
        start, stop = earlier[moving], later[moving]
        undecided = ~_are_on_a_chain(graph, start, stop) & (start < stop)
        moving, start, stop = moving[undecided], start[undecided], stop[undecided]
        child = graph.only_child[start]
        goes_forward = child >= 0
        start = np.where(goes_forward, child, start)
        # Compared again: the first move may have reached the other end.
        parent = graph.only_parent[stop]
        goes_backward = (start < stop) & (parent >= 0)
        earlier[moving] = start
        later[moving] = np.where(goes_backward, parent, stop)
        moving = moving[goes_forward | goes_backward]
        if not len(moving):
            break
    return earlier, later


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """Marks that are propagated from the starts of pairs along paths.

    Per node a column (-1: none) and a value; marks are combined by `join`, `nothing` is neutral.
    Clocks: one column per chain, with the last node of that chain from which a node is reachable,
    or -1; b is reachable from a if the clock of b for the chain of a is a or later. Bits: 64 starts
    per column, one bit each.
    """

    column: Int64Array
    value: _Array
    join: np.ufunc
    nothing: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.column.max()) + 1

    def has(self, marks: _Array, starts: Int64Array) -> BoolArray:
        """Return whether a path leads from each start to its end: bool[pairs].

        `starts`: int64[pairs], nodes with a mark. `marks[i]`: the mark that was propagated to
        the end of pair i, in the column of its start. With bits, the bit of the start must be
        set in it; with clocks, it must be at least the start's value.
        """
        value = self.value[starts]
        is_bit = self.join is np.bitwise_or
        reached: BoolArray = (marks & value) != 0 if is_bit else marks >= value
        return reached


def _reach(
    graph: OrderGraph, earlier: Int64Array, later: Int64Array, part: Int64Array
) -> BoolArray:
    """Return whether a path from `earlier[i]` to `later[i]` exists within one part: bool[pairs].

    `part`: int64[nodes], the part of each node; every node of the path must have the part of its
    ends. False for ends in different parts. Edges lead only to higher nodes, so the result is also
    False unless `earlier[i]` is the lower one, which excludes equal nodes.

    Marks are propagated from the starts along the edges within parts. They are clocks of chains if
    every chain is in one part and clocks need at most as much memory per node, else bits of starts.
    Columns are processed in blocks of `_CLOCK_BYTES`, or one at a time if a column is larger.
    """
    reached = np.zeros(len(earlier), np.bool_)
    # All edges lead to later nodes.
    local = np.flatnonzero((part[earlier] == part[later]) & (earlier < later))
    if not len(local):
        return reached
    earlier, later = earlier[local], later[local]
    marks = _build_bits(graph, earlier, part)
    # Clocks need chains that are within one part: parts share the columns. A single column of bits
    # is as good, without chains.
    if marks.width > 1 and np.array_equal(part, part[graph.program_chain]):
        clocks = _build_clocks(graph, earlier, part)
        # Bytes a node: clocks are int32, bits uint64.
        marks = clocks if 4 * clocks.width <= 8 * marks.width else marks
    edges = graph.edges(part)
    # Number of columns that fit into the memory reserved for them.
    width = max(1, _CLOCK_BYTES // (marks.value.itemsize * (len(graph) + 1)))
    column = marks.column[earlier]
    for first in range(0, marks.width, width):
        selected = np.flatnonzero((column >= first) & (column < first + width))
        if not len(selected):
            continue
        starts, last = earlier[selected], later[selected]
        block, base = _propagate(graph, edges, marks, (first, width), (starts, last))
        reached[local[selected]] = marks.has(block[last - base, column[selected] - first], starts)
    return reached


def _build_clocks(graph: OrderGraph, starts: Int64Array, part: Int64Array) -> _Marks:
    """Build marks that are clocks of the program chains that contain a start.

    A chain is a sequence of nodes in which each leads to the next. Every node of such a chain
    gets the column of the chain as its column, and its own number as its value. Nodes of
    other chains get column -1.

    Columns are numbered from 0 within a part, in ascending order of the chains. Parts thus
    share columns, and each chain must be in one part.

    Propagation takes the maximum. The clock of a node is then the highest node of the chain
    from which it can be reached, or -1.
    """
    chains = distinct(graph.program_chain[starts])
    column_of_chain = np.full(len(graph), -1, np.int64)
    column_of_chain[chains] = ordinals(part[chains])
    # The clock of a node on its own chain is the node itself.
    clock = np.arange(len(graph), dtype=np.int32)
    return _Marks(column_of_chain[graph.program_chain], clock, np.maximum, -1)


def _build_bits(graph: OrderGraph, starts: Int64Array, part: Int64Array) -> _Marks:
    """Build marks in which every distinct start has a bit of its own within its part.

    A column has 64 bits. Starts are numbered by node within their part from 0: number n has
    column n // 64 and the value 1 << (n % 64). Starts of different parts may have the same
    bit. A node that is no start has column -1 and value 0. Marks are combined by bitwise
    or.
    """
    starts = distinct(starts)
    # Numbers of starts, 64 to a column.
    number = ordinals(part[starts])
    column = np.full(len(graph), -1, np.int64)
    value = np.zeros(len(graph), np.uint64)
    column[starts] = number // 64
    value[starts] = np.uint64(1) << (number % 64).astype(np.uint64)
    return _Marks(column, value, np.bitwise_or, 0)


def _propagate(
    graph: OrderGraph,
    edges: tuple[Int64Array, Int64Array],
    marks: _Marks,
    columns: tuple[int, int],
    targets: tuple[Int64Array, Int64Array],
) -> tuple[_Array, int]:
    """Propagate marks from marked nodes along the edges; return (block, number of its first node).

    `edges`: parents of every node as (indptr, indices). `columns`: (first, number) of the columns
    of `marks` to compute. `targets`: two arrays of nodes, starts and ends, neither empty; only the
    lowest start and the highest end matter.

    - Rows: row r of the block is node `first node + r`, for all nodes from the first node of the
      level of the lowest start to the last node of the level of the highest end. One more row at
      the end has no marks.
    - Columns: column c is column `columns[0] + c` of `marks`. There are `columns[1]` columns, or
      fewer: none after the highest column that a node has.
    - Marks: the row of node n joins (`marks.join`) the mark of n and the marks of all nodes with a
      row from which a path leads to n.
    """
    # Columns of this block count from 0; all others fall outside 0..width-1.
    column = marks.column - columns[0]
    width = min(columns[1], int(column.max()) + 1)
    span = [targets[0].min(), targets[1].max()]
    low, high = np.searchsorted(graph.level_indptr, span, side="right").tolist()
    base, end = int(graph.level_indptr[low - 1]), int(graph.level_indptr[high])
    # The additional last row represents all nodes before the first level: no marks.
    block = np.full((end - base + 1, width), marks.nothing, marks.value.dtype)
    is_own = (column[base:end] >= 0) & (column[base:end] < width)
    own_nodes = base + np.flatnonzero(is_own)
    borders = np.searchsorted(own_nodes, graph.level_indptr[low - 1 : high + 1])
    for level in range(low - 1, high):
        _join_parents(block, base, graph.level_indptr[level : level + 2], edges, marks.join)
        level_nodes = own_nodes[borders[level - low + 1] : borders[level - low + 2]]
        cells = (level_nodes - base, column[level_nodes])
        block[cells] = marks.join(block[cells], marks.value[level_nodes])
    return block, base


def _join_parents(
    block: _Array,
    base: int,
    level: Int64Array,
    edges: tuple[Int64Array, Int64Array],
    join: np.ufunc,
) -> None:
    """Combine the marks of all parents of each node of a level into the row of the node.

    `block`: row r has the marks of node `base` + r; it is changed in place. Its last row
    must have no marks (the neutral value of `join`), because it replaces parents before
    node `base`. `level`: (first node, node after the last). These nodes must have no marks
    yet and must not be parents of each other; the rows of their parents must be complete.
    `edges`: parents of every node as (indptr, indices). `join`: how two marks are combined.
    A node without parents is not changed.
    """
    indptr, indices = edges
    nodes = np.arange(int(level[0]), int(level[1]))
    degree = indptr[nodes + 1] - indptr[nodes]
    for k in range(min(int(degree.max(initial=0)), _PARENTS_AT_ONCE)):
        selected = nodes[degree > k]
        # Parents before the first level become -1: the last row, which nothing marks.
        parents = np.maximum(indices[indptr[selected] + k] - base, -1)
        block[selected - base] = join(block[selected - base], block[parents])
    for node in nodes[degree > _PARENTS_AT_ONCE].tolist():
        parents = np.maximum(indices[int(indptr[node]) : int(indptr[node + 1])] - base, -1)
        block[node - base] = join.reduce(block[parents], axis=0)
