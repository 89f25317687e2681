"""Write a flat job, which has only computations and messages, as a GOAL schedule."""

from __future__ import annotations

from functools import partial

import numpy as np

from collhub_goal.schedule import GoalOperation, GoalSchedule
from collhub_goal.text import format_goal
from hub_core.columns import labels
from hub_core.model import Loss, NodeColumns, NodeKind, UsageError, Workload
from hub_core.plugin_api import Artifact, NoOptions, WriteResult

_MESSAGES = (NodeKind.SEND, NodeKind.RECV)


def write(workload: Workload, options: NoOptions) -> WriteResult:
    """Writer `goal` of jobs: one file, one line per node.

    Computations, markers, and loads and stores with a duration become `calc`. Raises `UsageError`
    for collectives, which GOAL does not have, and for work without a duration.
    """
    schedule = build_job_schedule(workload)
    return WriteResult([Artifact("", partial(format_goal, schedule))], _find_losses(workload))


def build_job_schedule(workload: Workload) -> GoalSchedule:
    """Operations of all nodes; data and control dependencies become equal. Raises as `write`."""
    nodes = workload.nodes
    _check_nodes(nodes)
    is_message = nodes.is_kind(*_MESSAGES)
    operation = np.full(len(nodes), int(GoalOperation.CALC), np.int64)
    operation[nodes.is_kind(NodeKind.SEND)] = GoalOperation.SEND
    operation[nodes.is_kind(NodeKind.RECV)] = GoalOperation.RECV
    parent, child = nodes.edges()
    unstated = np.full(len(nodes), -1, np.int64)
    no_edges = np.zeros(0, np.int64)
    return GoalSchedule(
        workload.num_ranks,
        rank=nodes.rank.astype(np.int64),
        operation=operation,
        amount=np.where(is_message, nodes.bytes, nodes.duration_ns.clip(0)),
        peer=np.where(is_message, nodes.peer, -1).astype(np.int64),
        # Messages of one pair match in order, and those of jobs by size too.
        tag=np.where(is_message, labels(nodes.tag, nodes.bytes), 0),
        # One computation at a time on the device, and one on the host, as in ASTRA-sim.
        cpu=np.where(is_message, -1, np.where(nodes.on_host, 1, 0)).astype(np.int64),
        nic=unstated,
        line=unstated,
        parent=parent,
        child=child,
        early_parent=no_edges,
        early_child=no_edges,
    )


def _check_nodes(nodes: NodeColumns) -> None:
    """Raise `UsageError` for nodes that a schedule cannot represent."""
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    if is_collective.any():
        node = nodes.identity[np.argmax(is_collective)]
        message = f"node {node} is a collective, which GOAL does not have"
        raise UsageError(message, cure="run 'collhub expand' first", code="collective")
    is_work = nodes.is_kind(NodeKind.COMPUTE, NodeKind.LOAD, NodeKind.STORE)
    is_timeless = is_work & (nodes.duration_ns < 0)
    if is_timeless.any():
        node = nodes.identity[np.argmax(is_timeless)]
        message = f"node {node} has no duration"
        cure = "create the job with durations: GOAL has no rates of operations"
        raise UsageError(message, cure=cure, code="duration")


def _find_losses(workload: Workload) -> list[Loss]:
    """Losses of names, groups, operation counts, node kinds and control dependencies."""
    nodes = workload.nodes
    losses = []
    if workload.names:
        losses.append(Loss("names", "all nodes", "lines have labels by number"))
    if workload.groups:
        losses.append(Loss("process groups", "all", "no message belongs to one"))
    if (nodes.operations >= 0).any():
        losses.append(Loss("operations", "computations", "only their durations are written"))
    if nodes.is_kind(NodeKind.LOAD, NodeKind.STORE, NodeKind.MARKER).any():
        losses.append(Loss("kinds", "loads, stores and markers", "written as calculations"))
    if len(nodes.control_indices):
        losses.append(Loss("control dependencies", "all", "written like data dependencies"))
    return losses
