"""The happens-before relation of steps: dependencies and messages; a cycle is a deadlock.

`OrderGraph` holds the relation as columns, with covers of the steps by chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    Order,
    chain_cover,
    connected_parts,
    csr,
    csr_within,
    distinct,
    positions_in,
    topological_levels,
    values_of_single_keys,
)
from hub_core.model.diagnostics import CAP, Findings
from hub_core.model.messages import action, describe, matched_messages, matched_order
from hub_core.model.steps import StepTable

_NAMED_STEPS = 8


@dataclass(frozen=True, slots=True)
class HappensBefore:
    """Edges (parent row, child row) between steps, and a linear extension of their order.

    The first `num_dependencies` edges are data and control dependencies within a rank, the rest
    lead from the send to the receive of a message. `order` has no positions for steps in or after a
    cycle.
    """

    parents: Int64Array
    children: Int64Array
    num_dependencies: int
    order: Order


def happens_before(steps: StepTable) -> HappensBefore:
    """Build the order of the steps from dependencies and matched messages.

    Its edges are first the data and control dependencies, then one per message, from the send to
    the receive. Unmatched messages give no edge; the matching reports them. Steps in a cycle, and
    those that wait for them, get no position. The order is the cached one of `matched_order`.
    """
    messages = matched_messages(steps)
    parents, children = steps.edges()
    num_dependencies = len(parents)
    parents = np.concatenate([parents, messages.send])
    children = np.concatenate([children, messages.receive])
    return HappensBefore(parents, children, num_dependencies, matched_order(steps))


def sequential_positions(relation: HappensBefore) -> Int64Array:
    """Return the position of each row in one sequential run: int64[rows], -1 if it never runs.

    The run visits the ranks in ascending order, repeatedly. On each visit a rank executes,
    in the order of rows, all its remaining steps whose predecessors have run. A step that
    waits for a message does not delay later rows that do not depend on it. If the message
    comes from a higher rank, the step runs at the next visit or later.
    """
    # A message of a higher rank is available only in the next round.
    visit = find_longest_chains(relation, relation.parents > relation.children)
    rows = np.sort(relation.order.nodes)
    in_turns = rows[np.argsort(visit[rows], kind="stable")]
    return positions_in(in_turns, len(visit))


def find_longest_chains(relation: HappensBefore, counts: BoolArray) -> Int64Array:
    """Return the maximum number of counted edges on any path to each row: int64[rows].

    A path is a sequence of edges of the relation, each from a row to one that happens after
    it. `counts`: bool per edge, whether it is counted. The value is 0 for a row without
    counted edges on a path to it. It is 0 also for rows that never run, which wait for
    themselves in a cycle or for such rows.
    """
    order = relation.order
    runs = order.position[relation.children] >= 0
    parents, children, counts = relation.parents[runs], relation.children[runs], counts[runs]
    indptr, by_level = csr(order.position[parents], np.arange(len(parents)), len(order.nodes))
    borders = indptr[order.level_indptr]
    most = np.zeros(len(order.position), np.int64)
    for start, stop in pairwise(borders.tolist()):
        edges = by_level[start:stop]
        np.maximum.at(most, children[edges], most[parents[edges]] + counts[edges])
    return most


def order_with(relation: HappensBefore, parents: Int64Array, children: Int64Array) -> Order:
    """Return the topological order of the steps by happens-before with additional edges.

    Row `parents[i]` must precede row `children[i]`. The relation itself is not changed. If
    the edges form a cycle, the order is incomplete: rows in a cycle, and rows that wait for
    one, have position -1.
    """
    parents = np.concatenate([relation.parents, parents])
    children = np.concatenate([relation.children, children])
    return topological_levels(len(relation.order.position), parents, children)


class OrderGraph:
    """Graph of the steps that run; a node is the position of a step in one linear extension.

    `position`: int64[rows], node of every row, -1 for rows that never run. `rank`, `lane`:
    int64[nodes]. `parents`, `children`: int64[edges]; the first `num_dependencies` edges are
    dependencies, the rest messages; every edge leads to a later node. `level_indptr`: the nodes of
    level k are `level_indptr[k]:level_indptr[k + 1]`. `indptr`, `indices`: CSR table of the parents
    of every node.
    """

    def __init__(self, steps: StepTable, relation: HappensBefore) -> None:
        order = relation.order
        # All parents of a step that runs also run, so only the child is checked.
        parents, children = order.position[relation.parents], order.position[relation.children]
        runs = children >= 0
        self.position = order.position
        self.rank = steps.rank[order.nodes].astype(np.int64)
        self.lane = steps.lane[order.nodes].astype(np.int64)
        self.parents, self.children = parents[runs], children[runs]
        self.num_dependencies = int(np.count_nonzero(runs[: relation.num_dependencies]))
        self._data = tuple(order.position[rows] for rows in steps.data_edges)
        self.level_indptr = order.level_indptr
        self.indptr, self.indices = csr(self.children, self.parents, len(order.nodes))

    def __len__(self) -> int:
        return len(self.rank)

    def edges(self, part: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return a CSR table (indptr, indices) of the parents in the same part as the node.

        `part`: int64[nodes], the number of the part of each node.
        """
        return csr_within(self.indptr, self.indices, part)

    @cached_property
    def flow(self) -> Int64Array:
        """Return the connected component of every node: int64[nodes], its lowest node.

        Edges are data dependencies and messages, regardless of direction; control dependencies
        do not count. A node without edges is its own component.
        """
        edges = zip(self._data, (self.parents, self.children), strict=True)
        runs, split = self._data[1] >= 0, self.num_dependencies
        parents, children = (np.concatenate([data[runs], both[split:]]) for data, both in edges)
        return connected_parts(parents, children, len(self))

    @cached_property
    def program_chain(self) -> Int64Array:
        """Return for each node the first node of its chain: int64[nodes].

        A chain is a sequence of steps in which each one depends on the step before it. Only data
        and control dependencies count, not messages. Every node is in exactly one chain.

        1. Each step selects one of the steps on which it depends: the latest one of its own
           lane (thread block; -1 is none), otherwise the latest one of any lane.
        2. If several steps select the same step, one of them follows it in its chain: the
           earliest one of the same lane, otherwise the earliest one.
        3. Every step that follows no other step starts a chain, perhaps as its only node.
        """
        split = self.num_dependencies
        parents, children = self.parents[:split], self.children[:split]
        # Lane -1 means that the producer gave no lane.
        lane = self.lane[children]
        same_lane = self.lane[parents] == lane
        is_preferred = same_lane & (lane >= 0)
        return chain_cover(len(self), parents, children, is_preferred)

    @cached_property
    def flow_chain(self) -> Int64Array:
        """Return the first node of the chain that contains each node: int64[nodes].

        Every node is in exactly one chain, perhaps as its only node. Consecutive nodes of a
        chain are connected by a message or by a dependency of any kind. A matched receive
        always follows its send, because a rank usually forwards the data that it has just
        received. Every other step follows the latest step on which it depends, if that step has
        no successor yet; of several such steps, the earliest is the successor. Otherwise it
        starts a chain.
        """
        is_message = np.arange(len(self.parents)) >= self.num_dependencies
        return chain_cover(len(self), self.parents, self.children, is_message)

    @cached_property
    def only_child(self) -> Int64Array:
        """Child of every node with exactly one child, else -1: int64[nodes]."""
        return values_of_single_keys(len(self), self.parents, self.children)

    @cached_property
    def only_parent(self) -> Int64Array:
        """Parent of every node with exactly one parent, else -1: int64[nodes]."""
        return values_of_single_keys(len(self), self.children, self.parents)

    @cached_property
    def partners(self) -> tuple[Int64Array, Int64Array]:
        """Return the matched receive of every send, and the matched send of every receive.

        Both are int64[nodes] of node numbers. In the first array, a node that is no matched send
        has its own number. In the second, so does a node that is no matched receive.
        """
        sends = self.parents[self.num_dependencies :]
        receives = self.children[self.num_dependencies :]
        receive_of, send_of = np.arange(len(self)), np.arange(len(self))
        receive_of[sends] = receives
        send_of[receives] = sends
        return receive_of, send_of


def report_deadlock(steps: StepTable, relation: HappensBefore, findings: Findings) -> None:
    """Add findings to `findings` if some steps never run; nothing is added if all steps run.

    First one `deadlock`: it describes one cycle (`find_cycle`), and the numbers of all steps
    and of all ranks that never run. Its location is the step of the cycle with the lowest row.
    Then one `blocked` per rank, for the first `CAP` ranks with steps that never run, ascending:
    it names the first such step of the rank and a blocked step for which it waits. There is
    none for a rank whose first such step is in the cycle, but the rank counts.
    """
    order = relation.order
    if order.is_complete:
        return
    cycle = find_cycle(relation.parents, relation.children, order)
    stuck = np.flatnonzero(order.position < 0)
    # More steps than those of the cycle may wait for it.
    ranks = distinct(steps.rank[stuck])
    consequence = f"{len(stuck)} steps of {len(ranks)} ranks never run"
    findings.add(
        "deadlock",
        f"these steps wait for each other: {describe_cycle(steps, cycle)}; {consequence}",
        steps.location(cycle[0], findings.file),
        cure="send before waiting for what answers the send, or remove a dependency of the cycle",
    )
    _, first = np.unique(steps.rank[stuck], return_index=True)
    for row in stuck[first][:CAP].tolist():
        # Steps of the cycle are reported by the finding on the cycle.
        if row in cycle:
            continue
        # Only blocked parents are a cause; the other parents have run.
        is_cause = (relation.children == row) & (order.position[relation.parents] < 0)
        cause = describe(steps, int(relation.parents[is_cause][0]))
        message = f"this {action(steps, row)} waits for {cause}, which never runs"
        findings.add("blocked", message, steps.location(row, findings.file))


def find_cycle(parents: Int64Array, children: Int64Array, order: Order) -> list[int]:
    """Return one cycle among the nodes without a position; it starts with its lowest node.

    `parents`, `children`: edges, of which only those between nodes without a position count. Each
    node of the result is followed by one that waits for it, the last one by the first; no node is
    repeated. A node that waits for itself gives [node]. Nodes that wait for the cycle are not in
    it.

    The search begins at the lowest node without a position. It goes from a node to its parent on
    the first edge that ends at the node, until a node recurs. At least one node must have no
    position; else `IndexError` is raised.
    """
    is_stuck = order.position < 0
    inside = is_stuck[parents] & is_stuck[children]
    cause = np.full(len(order.position), -1, np.int64)
    # Assigned in reverse order, so that the first edge of a node is kept.
    cause[children[inside][::-1]] = parents[inside][::-1]
    seen: dict[int, int] = {}
    path: list[int] = []
    node = int(np.flatnonzero(is_stuck)[0])
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = int(cause[node])
    # The walk visits parents last; reversed, it is the order of waiting.
    cycle = path[seen[node] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def describe_cycle(steps: StepTable, cycle: Sequence[int]) -> str:
    """Describe the rows of a cycle in their order, in the form `a -> b -> the first`.

    The first `_NAMED_STEPS` rows are described; for further rows, their number is given.
    """
    parts = [describe(steps, row) for row in cycle[:_NAMED_STEPS]]
    if len(cycle) > _NAMED_STEPS:
        parts.append(f"... ({len(cycle) - _NAMED_STEPS} more)")
    return " -> ".join([*parts, "the first"])
