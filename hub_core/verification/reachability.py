"""Decide exactly, for many pairs of steps at once, whether the first happens before the second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.steps import StepTable
from hub_core.verification.happens_before import HappensBefore
from hub_core.verification.order import csr

__all__ = ["unordered_pairs"]

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PROBED_PARENTS = 8
_CONTRACTIONS = 16
_CLOCK_BYTES = 1 << 28


def unordered_pairs(steps: StepTable, relation: HappensBefore, earlier: Int64Array, later: Int64Array) -> Int64Array:
    """Indices of the pairs of rows without a path from `earlier` to `later`.

    Cheap sufficient tests come first: a direct edge; both on one chain of program order; both on one chain that
    follows messages. What is left is contracted (the only way out of a node, or into it, must be taken), and
    decided within the rank by clocks over chains; at last, exactly, by clocks over the whole graph. Cost: linear
    in steps, edges and pairs, but for the clocks: (steps + edges) x (chains that hold the start of an open pair).
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
    return _Graph(rank, lane, parents, children, dependencies, order.level_indptr, indptr, indices, none, none)


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
        graph.rank, graph.lane, parents, children, split, graph.level_indptr, graph.indptr, graph.indices, program, flow
    )


def _chains(nodes: int, parents: Int64Array, children: Int64Array, preferred: BoolArray) -> Int64Array:
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


def _search(graph: _Graph, open_pairs: Int64Array, earlier: Int64Array, later: Int64Array) -> Int64Array:
    """Indices of `open_pairs` that stay unordered after all tests."""
    earlier, later = _contract(graph, earlier, later)
    undecided = np.flatnonzero(~_are_ordered_cheaply(graph, earlier, later))
    hopeless = undecided[earlier[undecided] >= later[undecided]]
    undecided = undecided[earlier[undecided] < later[undecided]]
    for start, stop in ((earlier, later), _hop(graph, earlier, later)):
        local = undecided[(graph.rank[start] == graph.rank[stop])[undecided] & (start < stop)[undecided]]
        found = local[_reach(graph, start[local], stop[local], within_rank=True)]
        undecided = np.setdiff1d(undecided, found, assume_unique=True)
    unreached = undecided[~_reach(graph, earlier[undecided], later[undecided], within_rank=False)]
    return np.sort(open_pairs[np.concatenate([hopeless, unreached])])


def _are_ordered_cheaply(graph: _Graph, earlier: Int64Array, later: Int64Array) -> BoolArray:
    """Whether both are one node, or in order on one chain."""
    on_chain = (graph.program[earlier] == graph.program[later]) | (graph.flow[earlier] == graph.flow[later])
    ordered: BoolArray = (earlier == later) | (on_chain & (earlier < later))
    return ordered


def _contract(graph: _Graph, earlier: Int64Array, later: Int64Array) -> tuple[Int64Array, Int64Array]:
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
    sends, receives = graph.parents[graph.num_dependencies :], graph.children[graph.num_dependencies :]
    receive_of, send_of = np.arange(len(graph)), np.arange(len(graph))
    receive_of[sends] = receives
    send_of[receives] = sends
    return receive_of[earlier], send_of[later]


def _reach(graph: _Graph, earlier: Int64Array, later: Int64Array, within_rank: bool) -> BoolArray:
    """Whether there is a path, along dependencies only where `within_rank`, by clocks over chains.

    The clock of a node holds, per chain, the last node of that chain from which the node is reached; `later` is
    reached from `earlier` exactly if its clock for the chain of `earlier` is `earlier` or later. Chains of
    different ranks share a column where only paths within a rank count. Columns are done in blocks that fit memory.
    """
    reached = np.zeros(len(earlier), np.bool_)
    if not len(earlier):
        return reached
    chains, chain_index = np.unique(graph.program[earlier], return_inverse=True)
    column = _columns_per_rank(graph.rank[chains]) if within_rank else np.arange(len(chains))
    last = int(graph.num_dependencies) if within_rank else len(graph.parents)
    edges = _edges_with_sentinel(graph, last)
    width = max(1, _CLOCK_BYTES // (4 * (len(graph) + 1)))
    column_of_chain = np.full(len(graph), -1, np.int64)
    column_of_chain[chains] = column
    column_of_node = column_of_chain[graph.program]
    for first in range(0, int(column.max()) + 1, width):
        asked = np.flatnonzero((column[chain_index] >= first) & (column[chain_index] < first + width))
        if len(asked):
            clocks = _clocks(graph, edges, column_of_node - first, width, (earlier[asked], later[asked]))
            reached[asked] = clocks[later[asked], column[chain_index[asked]] - first] >= earlier[asked]
    return reached


def _columns_per_rank(ranks: Int64Array) -> Int64Array:
    """Number the chains of each rank from 0."""
    order = np.argsort(ranks, kind="stable")
    first = np.flatnonzero(np.concatenate([[True], ranks[order][1:] != ranks[order][:-1]]))
    columns = np.empty(len(ranks), np.int64)
    columns[order] = np.arange(len(ranks)) - np.repeat(first, np.diff(np.append(first, len(ranks))))
    return columns


def _edges_with_sentinel(graph: _Graph, last: int) -> tuple[Int64Array, Int64Array]:
    """Parents by child; nodes without any get the sentinel node n, so that no group is empty."""
    nodes = len(graph)
    orphans = np.flatnonzero(np.bincount(graph.children[:last], minlength=nodes) == 0)
    children = np.concatenate([graph.children[:last], orphans])
    return csr(children, np.concatenate([graph.parents[:last], np.full(len(orphans), nodes)]), nodes)


def _clocks(
    graph: _Graph,
    edges: tuple[Int64Array, Int64Array],
    column: Int64Array,
    width: int,
    asked: tuple[Int64Array, Int64Array],
) -> npt.NDArray[np.int32]:
    """Clocks of the nodes between the first and the last node asked for, in `width` columns; -1: never reached."""
    indptr, indices = edges
    width = min(width, int(column.max()) + 1)
    clocks = np.full((len(graph) + 1, width), -1, np.int32)
    tracked = np.flatnonzero((column >= 0) & (column < width))
    low, high = np.searchsorted(graph.level_indptr, [asked[0].min(), asked[1].max()], side="right")
    borders = np.searchsorted(tracked, graph.level_indptr)
    for level in range(int(low) - 1, int(high)):
        start, stop = int(graph.level_indptr[level]), int(graph.level_indptr[level + 1])
        edge = int(indptr[start])
        groups = clocks[indices[edge : int(indptr[stop])]]
        clocks[start:stop] = np.maximum.reduceat(groups, indptr[start:stop] - edge, axis=0)
        own = tracked[borders[level] : borders[level + 1]]
        clocks[own, column[own]] = own
    return clocks
