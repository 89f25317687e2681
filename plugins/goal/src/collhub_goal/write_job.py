"""Write a flat job, of computations and messages alone, as a GOAL schedule."""

from __future__ import annotations

from functools import partial

import numpy as np
from collhub_columns import labels

from collhub_goal.schedule import GoalOperation, GoalSchedule
from collhub_goal.text import goal_text
from hub_core.model import Loss, NodeColumns, NodeKind, UsageError, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult

_MESSAGES = (NodeKind.SEND, NodeKind.RECV)


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """Writer `goal` of jobs: one file, a line a node.

    Computations, markers, and loads and stores that state a duration become `calc`. Raises
    `UsageError` for collectives, which GOAL does not have, and for nodes whose time nobody states.
    """
    schedule = schedule_of(workload)
    return WriteResult([Artifact("", partial(goal_text, schedule))], _losses(workload))


def schedule_of(workload: Workload) -> GoalSchedule:
    """The operations of all nodes; dependencies of both kinds are alike. Raises as `write`."""
    nodes = workload.nodes
    _check(nodes)
    is_message = nodes.is_kind(*_MESSAGES)
    operation = np.full(len(nodes), int(GoalOperation.CALC), np.int64)
    operation[nodes.is_kind(NodeKind.SEND)] = GoalOperation.SEND
    operation[nodes.is_kind(NodeKind.RECV)] = GoalOperation.RECV
    parent, child = nodes.edges()
    unstated = np.full(len(nodes), -1, np.int64)
    none = np.zeros(0, np.int64)
    return GoalSchedule(
        workload.num_ranks,
        rank=nodes.rank.astype(np.int64),
        operation=operation,
        amount=np.where(is_message, nodes.bytes, nodes.duration_ns.clip(0)),
        peer=np.where(is_message, nodes.peer, -1).astype(np.int64),
        # Messages of one pair match in order, and those of jobs tell sizes apart, too.
        tag=np.where(is_message, labels(nodes.tag, nodes.bytes), 0),
        # One computation at a time on the device, and one on the host, as in ASTRA-sim.
        cpu=np.where(is_message, -1, np.where(nodes.on_host, 1, 0)).astype(np.int64),
        nic=unstated,
        line=unstated,
        parent=parent,
        child=child,
        early_parent=none,
        early_child=none,
    )


def _check(nodes: NodeColumns) -> None:
    """Refuse what a schedule cannot say."""
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    if is_collective.any():
        node = nodes.identity[np.argmax(is_collective)]
        message = f"node {node} is a collective, which GOAL does not have"
        raise UsageError(message, cure="run 'collhub expand' first", code="collective")
    is_work = nodes.is_kind(NodeKind.COMPUTE, NodeKind.LOAD, NodeKind.STORE)
    is_timeless = is_work & (nodes.duration_ns < 0)
    if is_timeless.any():
        node = nodes.identity[np.argmax(is_timeless)]
        message = f"node {node} states no duration"
        cure = "make the job with durations: GOAL knows no operations per second"
        raise UsageError(message, cure=cure, code="duration")


def _losses(workload: Workload) -> list[Loss]:
    nodes = workload.nodes
    losses = []
    if workload.names:
        losses.append(Loss("names", "all nodes", "lines have labels by number"))
    if workload.groups:
        losses.append(Loss("process groups", "all", "no message belongs to one"))
    if (nodes.operations >= 0).any():
        losses.append(Loss("operations", "computations", "their durations stand for them"))
    if nodes.is_kind(NodeKind.LOAD, NodeKind.STORE, NodeKind.MARKER).any():
        losses.append(Loss("kinds", "loads, stores and markers", "they are calculations"))
    if len(nodes.control_indices):
        losses.append(Loss("control dependencies", "all", "they are like those of data"))
    return losses
