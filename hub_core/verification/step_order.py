"""The happens-before relation of steps: dependencies and messages; a cycle is a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hub_core.columns import Int64Array, Order, csr, distinct, positions_in, topological_levels
from hub_core.model.findings import CAP, Findings
from hub_core.model.messages import Messages
from hub_core.model.steps import StepTable
from hub_core.model.wording import action, describe

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


def happens_before(steps: StepTable, messages: Messages) -> HappensBefore:
    """Build the order of the steps from dependencies and matched messages.

    Unmatched receives, which are findings of the matching, get no edge.
    """
    parents, children = steps.edges()
    num_dependencies = len(parents)
    parents = np.concatenate([parents, messages.send])
    children = np.concatenate([children, messages.receive])
    order = topological_levels(len(steps), parents, children)
    return HappensBefore(parents, children, num_dependencies, order)


def sequential_positions(relation: HappensBefore) -> Int64Array:
    """Return the position of every row in one sequential run: int64[rows], -1 if it never runs.

    The run visits the ranks round robin; in its turn a rank runs its steps in row order until one
    waits for a message of a higher rank.
    """
    order = relation.order
    # Steps that never run are left out.
    runs = order.position[relation.children] >= 0
    parents, children = relation.parents[runs], relation.children[runs]
    indptr, by_level = csr(order.position[parents], np.arange(len(parents)), len(order.nodes))
    borders = indptr[order.level_indptr]
    position_in_order = np.zeros(len(order.position), np.int64)
    for start, stop in pairwise(borders.tolist()):
        edges = by_level[start:stop]
        parent, child = parents[edges], children[edges]
        # A message of a higher rank is available only in the next round.
        np.maximum.at(position_in_order, child, position_in_order[parent] + (parent > child))
    rows = np.sort(order.nodes)
    in_turns = rows[np.argsort(position_in_order[rows], kind="stable")]
    return positions_in(in_turns, len(order.position))


def order_with(relation: HappensBefore, parents: Int64Array, children: Int64Array) -> Order:
    """Return the order with additional edges. They must agree with one linear extension of it."""
    parents = np.concatenate([relation.parents, parents])
    children = np.concatenate([relation.children, children])
    return topological_levels(len(relation.order.position), parents, children)


def report_deadlock(steps: StepTable, relation: HappensBefore, findings: Findings) -> None:
    """Add a finding for a deadlock, if there is one: one cycle, and the number of blocked steps.

    For the first steps that wait for the cycle, further findings name the step they wait for.
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
    _report_waiting(steps, relation, stuck, set(cycle), findings)


def find_cycle(parents: Int64Array, children: Int64Array, order: Order) -> list[int]:
    """Return one cycle among the nodes without a position, starting with its smallest node.

    Each node is followed by a node that waits for it. Method: walk from a blocked node to its first
    blocked parent until a node repeats; this happens, as every blocked node has a blocked parent.
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
    """Describe the rows of a cycle, joined by arrows; at most 8 are named, the rest is counted."""
    parts = [describe(steps, row) for row in cycle[:_NAMED_STEPS]]
    if len(cycle) > _NAMED_STEPS:
        parts.append(f"... ({len(cycle) - _NAMED_STEPS} more)")
    return " -> ".join([*parts, "the first"])


def _report_waiting(
    steps: StepTable,
    relation: HappensBefore,
    stuck: Int64Array,
    cycle: set[int],
    findings: Findings,
) -> None:
    """Add findings that name the step for which the first blocked step of a rank waits.

    Steps of the cycle are skipped; at most `CAP` ranks are considered.
    """
    _, first = np.unique(steps.rank[stuck], return_index=True)
    never_runs = relation.order.position < 0
    for row in stuck[first][:CAP].tolist():
        # Steps of the cycle are reported by the finding on the cycle.
        if row in cycle:
            continue
        # Only blocked parents are a cause; the other parents have run.
        is_cause = (relation.children == row) & never_runs[relation.parents]
        cause = describe(steps, int(relation.parents[is_cause][0]))
        message = f"this {action(steps, row)} waits for {cause}, which never runs"
        findings.add("blocked", message, steps.location(row, findings.file))
