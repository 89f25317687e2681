"""The order that every run obeys: dependencies, and a send before its receive; cycles in it are deadlocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hub_core.model.columns import csr
from hub_core.model.findings import CAP, Findings
from hub_core.model.levels import Order, topological_levels
from hub_core.model.messages import Messages
from hub_core.model.steps import StepTable
from hub_core.model.wording import action, describe

Int64Array = npt.NDArray[np.int64]

_NAMED_STEPS = 8


@dataclass(frozen=True, slots=True)
class HappensBefore:
    """Edges between rows, messages last, and a linear extension of them.

    The first `num_dependencies` edges are dependencies (data and control), within a rank; the rest are messages.
    """

    parents: Int64Array
    children: Int64Array
    num_dependencies: int
    order: Order


def happens_before(steps: StepTable, messages: Messages) -> HappensBefore:
    """Build the order of the steps. A receive without a send (reported already) holds nothing up."""
    parents, children = steps.edges()
    all_parents = np.concatenate([parents, messages.send])
    all_children = np.concatenate([children, messages.receive])
    return HappensBefore(
        all_parents,
        all_children,
        len(parents),
        topological_levels(len(steps), all_parents, all_children),
    )


def sequential_positions(relation: HappensBefore) -> Int64Array:
    """Place of every row when ranks take turns, each in row order as far as it can get; -1 for rows that never run."""
    order = relation.order
    runs = order.position[relation.children] >= 0
    parents, children = relation.parents[runs], relation.children[runs]
    indptr, by_level = csr(order.position[parents], np.arange(len(parents)), len(order.nodes))
    turn = np.zeros(len(order.position), np.int64)
    for start, stop in zip(
        indptr[order.level_indptr[:-1]].tolist(),
        indptr[order.level_indptr[1:]].tolist(),
        strict=True,
    ):
        edges = by_level[start:stop]
        parent, child = parents[edges], children[edges]
        # What comes from a higher rank is there only in the next turn.
        np.maximum.at(turn, child, turn[parent] + (parent > child))
    rows = np.sort(order.nodes)
    position = np.full(len(order.position), -1, np.int64)
    position[rows[np.argsort(turn[rows], kind="stable")]] = np.arange(len(rows))
    return position


def order_with(relation: HappensBefore, parents: Int64Array, children: Int64Array) -> Order:
    """The order with further edges, which must agree with one of its linear extensions."""
    all_parents, all_children = (
        np.concatenate([relation.parents, parents]),
        np.concatenate([relation.children, children]),
    )
    return topological_levels(len(relation.order.position), all_parents, all_children)


def report_deadlock(steps: StepTable, relation: HappensBefore, findings: Findings) -> None:
    """Name the steps of one cycle, and count what never runs because of it."""
    if relation.order.is_complete:
        return
    cycle = find_cycle(relation.parents, relation.children, relation.order)
    stuck = np.flatnonzero(relation.order.position < 0)
    ranks = np.unique(steps.rank[stuck])
    named = " -> ".join(describe(steps, row) for row in cycle[:_NAMED_STEPS])
    more = f" -> ... ({len(cycle) - _NAMED_STEPS} more)" if len(cycle) > _NAMED_STEPS else ""
    consequence = f"{len(stuck)} steps of {len(ranks)} ranks never run"
    findings.add(
        "deadlock",
        f"these steps wait for each other: {named}{more} -> the first; {consequence}",
        steps.location(cycle[0], findings.file),
        cure="send before waiting for what answers the send, or remove a dependency of the cycle",
    )
    _report_waiting(steps, relation, stuck, set(cycle), findings)


def find_cycle(parents: Int64Array, children: Int64Array, order: Order) -> list[int]:
    """One cycle among the nodes without a position, from its smallest node on, each node before the one that waits for it."""
    stuck = order.position < 0
    inside = stuck[parents] & stuck[children]
    cause = np.full(len(order.position), -1, np.int64)
    # Written backwards, so that the first edge of a node is the one that stays.
    cause[children[inside][::-1]] = parents[inside][::-1]
    seen: dict[int, int] = {}
    path: list[int] = []
    node = int(np.flatnonzero(stuck)[0])
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = int(cause[node])
    cycle = path[seen[node] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def _report_waiting(
    steps: StepTable,
    relation: HappensBefore,
    stuck: Int64Array,
    cycle: set[int],
    findings: Findings,
) -> None:
    """Say of the first stuck step of the first ranks for what it waits."""
    _, first = np.unique(steps.rank[stuck], return_index=True)
    never = relation.order.position < 0
    for row in stuck[first][:CAP].tolist():
        if row in cycle:
            continue
        causes = relation.parents[(relation.children == row) & never[relation.parents]]
        message = f"this {action(steps, row)} waits for {describe(steps, int(causes[0]))}, which never runs"
        findings.add("blocked", message, steps.location(row, findings.file))
