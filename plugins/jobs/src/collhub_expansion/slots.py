"""The order in which nodes took the slots of their ranks, as dependencies."""

from __future__ import annotations

import numpy as np
from collhub_templates import Edges

from hub_core import InputError
from hub_core.columns import Int64Array
from hub_core.model import NodeColumns, NodeKind
from hub_core.plugin_api import WorkloadTimes

FROZEN, FREE = "frozen", "free"
_HOST, _COMPUTE, _COMMUNICATION = range(3)
_SLOTS = 3


def occupants_in_order(nodes: NodeColumns, times: WorkloadTimes) -> Edges:
    """(previous occupant, next one) of every slot of every rank, rows of the workload.

    Slots are ASTRA-sim's: one for computation, one for that of the host, one for all communication
    but receives. Raises `InputError` for nodes that never ended.
    """
    start, end = np.asarray(times.step_start_ns), np.asarray(times.step_end_ns)
    never = np.flatnonzero(end < 0)
    if len(never):
        row = int(never[0])
        message = f"node {nodes.identity[row]} never ends, so that the order in slots is not known"
        cure = "see collhub simulate, or expand with --slots free"
        raise InputError(message, location=nodes.location(row), cure=cure, code="never-ends")
    rows = np.flatnonzero(~nodes.is_kind(NodeKind.RECV, NodeKind.MARKER))
    slot = nodes.rank[rows] * np.int64(_SLOTS) + _slot(nodes)[rows]
    order = np.lexsort((nodes.identity[rows], end[rows], start[rows], slot))
    rows, slot = rows[order], slot[order]
    is_followed = slot[1:] == slot[:-1]
    return rows[:-1][is_followed], rows[1:][is_followed]


def in_order_of_start(nodes: NodeColumns, times: WorkloadTimes) -> Int64Array:
    """The collectives of every rank in the order in which they began."""
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))
    start, end = np.asarray(times.step_start_ns)[rows], np.asarray(times.step_end_ns)[rows]
    return rows[np.lexsort((nodes.identity[rows], end, start, nodes.rank[rows]))]


def taken_ns(nodes: NodeColumns, times: WorkloadTimes) -> Int64Array:
    """Durations by row: as stated, and of other computations as simulated."""
    start, end = np.asarray(times.step_start_ns), np.asarray(times.step_end_ns)
    is_simulated = nodes.is_kind(NodeKind.COMPUTE)
    return np.where(is_simulated, end - start, nodes.duration_ns)


def _slot(nodes: NodeColumns) -> Int64Array:
    is_compute = nodes.is_kind(NodeKind.COMPUTE)
    on_device = np.where(is_compute, _COMPUTE, _COMMUNICATION)
    is_host = nodes.on_host & nodes.is_kind(NodeKind.COMPUTE, NodeKind.COLLECTIVE)
    found: Int64Array = np.where(is_host, _HOST, on_device).astype(np.int64)
    return found
