"""Decide exactly, for many pairs of steps at once, whether the first happens before the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.model.columns import csr
from hub_core.model.steps import StepTable
from hub_core.verification.happens_before import HappensBefore

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PROBED_PARENTS = 8
_CONTRACTIONS = 16
_CLOCK_BYTES = 1 << 28
_PARENTS_AT_ONCE = 16


def unordered_pairs(
    steps: StepTable, relation: HappensBefore, earlier: Int64Array, later: Int64Array
) -> Int64Array:
    """Indices of the pairs of rows without a path from `earlier` to `later`.

    Cheap sufficient tests come first: a direct edge; both on one chain of program order; both on one chain that
    follows messages. What is left is contracted (the only way out of a node, or into it, must be taken), and
    decided within the rank by marks that spread from the starts; at last, exactly, by marks over the whole graph.
    Cost: linear in steps, edges and pairs, but for the marks: (steps + edges) times the smaller of the number of
    chains that hold the start of an open pair and a thirty-second of the number of these starts.
    """
    open_pairs = np.arange(len(earlier))
    graph = _graph(steps, relation)
    earlier, later = relation.order.position[earlier], relation.order.position[later]
    open_pairs = open_pairs[~_are_linked(graph, earlier, later)]
    if not len(open_pairs):
        return open_pairs
    return _search(_with_chains(graph), open_pairs, earlier[open_pairs], later[open_pairs])


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """The order of steps, nodes being positions: edges by child, of dependencies alone and with messages.

    `parents`/`children`: all edges, dependencies first. `program`, `flow`: the chain of every node in two
    decompositions (a chain is named by its first node; consecutive nodes of a chain are joined by an edge).
    """

    rank: Int64Array
    lane: Int64Array
    parents: Int64Array
    children: Int64Array
    num_dependencies: int
    level_indptr: Int64Array
    indptr: Int64Array
    indices: Int64Array
    program: Int64Array
    flow: Int64Array

    def __len__(self) -> int:
        return len(self.rank)


def _graph(steps: StepTable, relation: HappensBefore) -> _Graph:
    order = relation.order
    parents, children = order.position[relation.parents], order.position[relation.children]
    runs = children >= 0
    dependencies = int(np.count_nonzero(runs[: relation.num_dependencies]))
    parents, children = parents[runs], children[runs]
    indptr, indices = csr(children, parents, len(order.nodes))
    none = np.zeros(0, np.int64)
    rank = steps.rank[order.nodes].astype(np.int64)
    lane = steps.lane[order.nodes].astype(np.int64)
    return _Graph(
        rank, lane, parents, children, dependencies, order.level_indptr, indptr, indices, none, none
    )


def _are_linked(graph: _Graph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Whether `earlier` is one of the first few parents of `later`."""
    linked = np.zeros(len(earlier), np.bool_)
    first, degree = graph.indptr[later], graph.indptr[later + 1] - graph.indptr[later]
    for k in range(min(_PROBED_PARENTS, int(degree.max(initial=0)))):
        probe = np.minimum(first + k, max(len(graph.indices) - 1, 0))
        linked |= (degree > k) & (graph.indices[probe] == earlier)
    return linked


def _with_chains(graph: _Graph) -> _Graph:
    split = graph.num_dependencies
    parents, children = graph.parents, graph.children
    same_lane = (graph.lane[parents] == graph.lane[children]) & (graph.lane[children] >= 0)
    same_lane[split:] = False
    program = _chains(len(graph), parents[:split], children[:split], same_lane[:split])
    is_message = np.arange(len(parents)) >= split
    flow = _chains(len(graph), parents, children, is_message)
    return _Graph(
        graph.rank,
        graph.lane,
        parents,
        children,
        split,
        graph.level_indptr,
        graph.indptr,
        graph.indices,
        program,
        flow,
    )


def _chains(
    nodes: int, parents: Int64Array, children: Int64Array, preferred: BoolArray
) -> Int64Array:
    """Cover the graph with chains greedily: the name of the chain of every node, which is its first node.

    Every child asks for one parent, a preferred one or the latest; every parent grants one child, a preferred
    one or the earliest.
    """
    here = np.arange(nodes)
    wanted = np.full(nodes, -1, np.int64)
    np.maximum.at(wanted, children, parents + preferred * np.int64(nodes))
    asks = np.flatnonzero(wanted >= 0)
    liked, parent = np.divmod(wanted[asks], max(nodes, 1))
    granted = np.full(nodes, np.iinfo(np.int64).max)
    np.minimum.at(granted, parent, asks + (1 - liked) * nodes)
    served = granted[parent] % max(nodes, 1) == asks
    head = here.copy()
    head[asks[served]] = parent[served]
    while True:
        further = head[head]
        if np.array_equal(further, head):
            return head
        head = further


def _search(
    graph: _Graph, open_pairs: Int64Array, earlier: Int64Array, later: Int64Array
) -> Int64Array:
    """Indices of `open_pairs` that stay unordered after all tests."""
    earlier, later = _contract(graph, earlier, later)
    undecided = np.flatnonzero(~_are_ordered_cheaply(graph, earlier, later))
    hopeless = undecided[earlier[undecided] >= later[undecided]]
    undecided = undecided[earlier[undecided] < later[undecided]]
    for start, stop in ((earlier, later), _hop(graph, earlier, later)):
        local = undecided[
            (graph.rank[start] == graph.rank[stop])[undecided] & (start < stop)[undecided]
        ]
        found = local[_reach(graph, start[local], stop[local], within_rank=True)]
        undecided = np.setdiff1d(undecided, found, assume_unique=True)
    unreached = undecided[~_reach(graph, earlier[undecided], later[undecided], within_rank=False)]
    return np.sort(open_pairs[np.concatenate([hopeless, unreached])])


def _are_ordered_cheaply(graph: _Graph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Whether both are one node, or in order on one chain."""
    on_chain = (graph.program[earlier] == graph.program[later]) | (
        graph.flow[earlier] == graph.flow[later]
    )
    ordered: BoolArray = (earlier == later) | (on_chain & (earlier < later))
    return ordered


def _contract(
    graph: _Graph, earlier: Int64Array, later: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Move `earlier` forward along an only successor and `later` back along an only predecessor: the answer stays the same."""
    earlier, later = earlier.copy(), later.copy()
    only_child = _only(len(graph), graph.parents, graph.children)
    only_parent = _only(len(graph), graph.children, graph.parents)
    for _ in range(_CONTRACTIONS):
        undecided = ~_are_ordered_cheaply(graph, earlier, later) & (earlier < later)
        forward = undecided & (only_child[earlier] >= 0)
        earlier[forward] = only_child[earlier[forward]]
        backward = undecided & (earlier < later) & (only_parent[later] >= 0)
        later[backward] = only_parent[later[backward]]
        if not bool(np.any(forward | backward)):
            break
    return earlier, later


def _only(nodes: int, keys: Int64Array, values: Int64Array) -> Int64Array:
    """The value of every key that occurs once, -1 for the others."""
    only = np.full(nodes, -1, np.int64)
    only[keys] = values
    only[np.bincount(keys, minlength=nodes) != 1] = -1
    return only


def _hop(graph: _Graph, earlier: Int64Array, later: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Step over to the partners of the messages, where the pair consists of a send and a receive."""
    sends, receives = (
        graph.parents[graph.num_dependencies :],
        graph.children[graph.num_dependencies :],
    )
    receive_of, send_of = np.arange(len(graph)), np.arange(len(graph))
    receive_of[sends] = receives
    send_of[receives] = sends
    return receive_of[earlier], send_of[later]


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """What spreads from the starts of pairs along paths: per node a column (-1: none) and a value, joined by `join`.

    Clocks: a column a chain, the last node of that chain that reaches here, or -1; b is reached from a if its
    clock for the chain of a is a or later. Bits: 64 starts a column, one bit each.
    """

    column: Int64Array
    value: npt.NDArray[Any]
    join: np.ufunc
    nothing: int

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.column.max()) + 1

    def has(self, found: npt.NDArray[Any], starts: Int64Array) -> BoolArray:
        """Whether the marks `found` show that each of `starts` reached there."""
        value = self.value[starts]
        reached: BoolArray = (found & value) != 0 if self.join is np.bitwise_or else found >= value
        return reached


def _reach(graph: _Graph, earlier: Int64Array, later: Int64Array, within_rank: bool) -> BoolArray:
    """Whether there is a path, along dependencies only where `within_rank`, by marks that spread from `earlier`.

    Columns are done in blocks that fit memory, each over the levels between its starts and their ends. Where only
    paths within a rank count, the ranks share the columns.
    """
    reached = np.zeros(len(earlier), np.bool_)
    if not len(earlier):
        return reached
    clocks, bits = _clocks(graph, earlier, within_rank), _bits(graph, earlier, within_rank)
    marks = clocks if 4 * clocks.width <= 8 * bits.width else bits
    last = graph.num_dependencies if within_rank else len(graph.parents)
    edges = csr(graph.children[:last], graph.parents[:last], len(graph))
    width = max(1, _CLOCK_BYTES // (marks.value.itemsize * (len(graph) + 1)))
    column = marks.column[earlier]
    for first in range(0, marks.width, width):
        asked = np.flatnonzero((column >= first) & (column < first + width))
        if len(asked):
            block, base = _spread(
                graph, edges, marks, (first, width), (earlier[asked], later[asked])
            )
            reached[asked] = marks.has(
                block[later[asked] - base, column[asked] - first], earlier[asked]
            )
    return reached


def _clocks(graph: _Graph, starts: Int64Array, within_rank: bool) -> _Marks:
    """Marks of all nodes of the chains that hold a start."""
    chains = np.unique(graph.program[starts])
    column_of_chain = np.full(len(graph), -1, np.int64)
    column_of_chain[chains] = (
        _columns_per_rank(graph.rank[chains]) if within_rank else np.arange(len(chains))
    )
    return _Marks(
        column_of_chain[graph.program], np.arange(len(graph), dtype=np.int32), np.maximum, -1
    )


def _bits(graph: _Graph, starts: Int64Array, within_rank: bool) -> _Marks:
    """Marks of the starts alone."""
    starts = np.unique(starts)
    number = _columns_per_rank(graph.rank[starts]) if within_rank else np.arange(len(starts))
    column = np.full(len(graph), -1, np.int64)
    value = np.zeros(len(graph), np.uint64)
    column[starts] = number // 64
    value[starts] = np.uint64(1) << (number % 64).astype(np.uint64)
    return _Marks(column, value, np.bitwise_or, 0)


def _columns_per_rank(ranks: Int64Array) -> Int64Array:
    """Number the entries of each rank from 0."""
    order = np.argsort(ranks, kind="stable")
    first = np.flatnonzero(np.concatenate([[True], ranks[order][1:] != ranks[order][:-1]]))
    columns = np.empty(len(ranks), np.int64)
    columns[order] = np.arange(len(ranks)) - np.repeat(first, np.diff(np.append(first, len(ranks))))
    return columns


def _spread(
    graph: _Graph,
    edges: tuple[Int64Array, Int64Array],
    marks: _Marks,
    columns: tuple[int, int],
    asked: tuple[Int64Array, Int64Array],
) -> tuple[npt.NDArray[Any], int]:
    """Marks in `columns` (first, width) of the nodes from the level of the first start asked for on: (block, first node)."""
    column = marks.column - columns[0]
    width = min(columns[1], int(column.max()) + 1)
    low, high = np.searchsorted(
        graph.level_indptr, [asked[0].min(), asked[1].max()], side="right"
    ).tolist()
    base, end = int(graph.level_indptr[low - 1]), int(graph.level_indptr[high])
    # One row more: it stands for all nodes before the first level, which nothing marks.
    block = np.full((end - base + 1, width), marks.nothing, marks.value.dtype)
    own_nodes = base + np.flatnonzero((column[base:end] >= 0) & (column[base:end] < width))
    borders = np.searchsorted(own_nodes, graph.level_indptr[low - 1 : high + 1])
    for level in range(low - 1, high):
        _join_parents(block, base, graph.level_indptr[level : level + 2], edges, marks.join)
        own = own_nodes[borders[level - low + 1] : borders[level - low + 2]]
        block[own - base, column[own]] = marks.join(
            block[own - base, column[own]], marks.value[own]
        )
    return block, base


def _join_parents(
    block: npt.NDArray[Any],
    base: int,
    level: Int64Array,
    edges: tuple[Int64Array, Int64Array],
    join: np.ufunc,
) -> None:
    """Join the marks of all parents into each node of a level: the first parents of all at once, the many of a few at last."""
    indptr, indices = edges
    nodes = np.arange(int(level[0]), int(level[1]))
    degree = indptr[nodes + 1] - indptr[nodes]
    for k in range(min(int(degree.max(initial=0)), _PARENTS_AT_ONCE)):
        some = nodes[degree > k]
        parents = np.maximum(indices[indptr[some] + k] - base, -1)
        block[some - base] = join(block[some - base], block[parents])
    for node in nodes[degree > _PARENTS_AT_ONCE].tolist():
        parents = np.maximum(indices[int(indptr[node]) : int(indptr[node + 1])] - base, -1)
        block[node - base] = join.reduce(block[parents], axis=0)
