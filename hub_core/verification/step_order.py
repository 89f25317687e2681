"""The order that every run obeys: dependencies, sends before receives; cycles are deadlocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from collhub_columns import Int64Array, Order, csr, distinct, positions_in, topological_levels

from hub_core.model.findings import CAP, Findings
from hub_core.model.messages import Messages
from hub_core.model.steps import StepTable
from hub_core.model.wording import action, describe

_NAMED_STEPS = 8


@dataclass(frozen=True, slots=True)
class HappensBefore:
    """Edges between rows, messages last, and a linear extension of them.

    The first `num_dependencies` edges are dependencies (data and control), within a rank; the rest
    are messages.
    """

    parents: Int64Array
    children: Int64Array
    num_dependencies: int
    order: Order


def happens_before(steps: StepTable, messages: Messages) -> HappensBefore:
    """Build the order of the steps; a receive without a send, a finding already, waits for none."""
    parents, children = steps.edges()
    num_dependencies = len(parents)
    parents = np.concatenate([parents, messages.send])
    children = np.concatenate([children, messages.receive])
    order = topological_levels(len(steps), parents, children)
    return HappensBefore(parents, children, num_dependencies, order)


def sequential_positions(relation: HappensBefore) -> Int64Array:
    """Place of every row when ranks take turns, each in row order as far as it can get.

    int64[rows], -1 for rows that never run.
    """
    order = relation.order
    # Steps of a deadlock have no turn.
    runs = order.position[relation.children] >= 0
    parents, children = relation.parents[runs], relation.children[runs]
    indptr, by_level = csr(order.position[parents], np.arange(len(parents)), len(order.nodes))
    borders = indptr[order.level_indptr]
    turn = np.zeros(len(order.position), np.int64)
    for start, stop in pairwise(borders.tolist()):
        edges = by_level[start:stop]
        parent, child = parents[edges], children[edges]
        # What comes from a higher rank is there only in the next turn.
        np.maximum.at(turn, child, turn[parent] + (parent > child))
    rows = np.sort(order.nodes)
    in_turns = rows[np.argsort(turn[rows], kind="stable")]
    return positions_in(in_turns, len(order.position))


def order_with(relation: HappensBefore, parents: Int64Array, children: Int64Array) -> Order:
    """The order with further edges, which must agree with one of its linear extensions."""
    parents = np.concatenate([relation.parents, parents])
    children = np.concatenate([relation.children, children])
    return topological_levels(len(relation.order.position), parents, children)


def report_deadlock(steps: StepTable, relation: HappensBefore, findings: Findings) -> None:
    """Name the steps of one cycle, and count what never runs because of it."""
    order = relation.order
    if order.is_complete:
        return
    cycle = find_cycle(relation.parents, relation.children, order)
    stuck = np.flatnonzero(order.position < 0)
    # Far more steps than those of the cycle can wait for it.
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
    """One cycle among the nodes without a position, from its smallest node on.

    Each node stands before the one that waits for it. Going back from a stuck node to one of its
    stuck parents never ends, so that a node comes again.
    """
    is_stuck = order.position < 0
    inside = is_stuck[parents] & is_stuck[children]
    cause = np.full(len(order.position), -1, np.int64)
    # Written backwards, so that the first edge of a node is the one that stays.
    cause[children[inside][::-1]] = parents[inside][::-1]
    seen: dict[int, int] = {}
    path: list[int] = []
    node = int(np.flatnonzero(is_stuck)[0])
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = int(cause[node])
    # The way back, turned round, is the order of waiting.
    cycle = path[seen[node] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def describe_cycle(steps: StepTable, cycle: Sequence[int]) -> str:
    """The rows of a cycle in words, joined by arrows: the first ones, and the way back."""
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
    """Say of the first stuck step of the first ranks for what it waits."""
    _, first = np.unique(steps.rank[stuck], return_index=True)
    never_runs = relation.order.position < 0
    for row in stuck[first][:CAP].tolist():
        # The cycle is told already.
        if row in cycle:
            continue
        # Waiting for a stuck step alone is a reason; other parents have run.
        is_cause = (relation.children == row) & never_runs[relation.parents]
        cause = describe(steps, int(relation.parents[is_cause][0]))
        message = f"this {action(steps, row)} waits for {cause}, which never runs"
        findings.add("blocked", message, steps.location(row, findings.file))
