"""Lower the steps of an algorithm to nodes of execution traces."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.chakra import NodeTable, NodeType
from hub_core.columns import (
    Int64Array,
    counted_positions,
    csr,
    first_positions,
    group_of_entry,
    row_pointer,
    run_lengths,
    run_starts,
    stable_order_by,
)
from hub_core.model import Algorithm, StepKind, StepTable, message_bytes
from hub_core.trace_profile.algorithms.numbering import EXTENSION, restore

_TYPE_OF_KIND = np.full(len(StepKind), NodeType.COMP, np.uint8)
_TYPE_OF_KIND[StepKind.SEND] = NodeType.COMM_SEND
_TYPE_OF_KIND[[StepKind.RECV, StepKind.RECV_REDUCE]] = NodeType.COMM_RECV


def lower(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    """Lower steps to nodes, as profile v1 writes them, for a collective of `collective_bytes`.

    RECV_REDUCE becomes COMM_RECV and a COMP that depends on it; every other step is one node; a
    rank without steps gets one COMP. Nodes keep the order of the steps, and ids count from 0 in
    every rank. The dependencies of a step belong to its first node; its dependants depend on its
    last node. If `algorithm.extensions["chakra"]` records ids, order and tags of a foreign trace
    (see `numbering`), the nodes get these. Cost: O(n log n).
    """
    nodes = _lower_plain(algorithm, collective_bytes)
    if EXTENSION not in algorithm.extensions:
        return nodes
    # The placeholder of a rank without steps belongs to step -1.
    channel = np.append(algorithm.steps.channel, np.int32(-1))
    return restore(nodes, algorithm.extensions[EXTENSION], channel[nodes.step])


def _lower_plain(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    """Create the nodes with ids, order and tags of profile v1."""
    steps = algorithm.steps
    is_pair = steps.kind == StepKind.RECV_REDUCE
    # Number of nodes of all earlier steps.
    before = row_pointer(1 + is_pair)
    nodes_of_rank = np.maximum(np.diff(before[steps.rank_indptr]), 1)
    rank_indptr = row_pointer(nodes_of_rank)
    # Placeholders of ranks without steps shift later nodes.
    shift = rank_indptr - before[steps.rank_indptr]
    first = before[:-1] + shift[steps.rank]
    # Equal to `first` for steps of one node.
    last = first + is_pair
    nodes = int(rank_indptr[-1])
    # A data dependency connects both nodes of a step; it follows the dependencies of the step.
    behind_own = steps.data_indptr[1:][is_pair]
    data_indices = np.insert(last[steps.data_indices], behind_own, first[is_pair])
    waits = np.bincount(last[is_pair], minlength=nodes)
    waits[first] += np.diff(steps.data_indptr)
    children, parents = first[group_of_entry(steps.control_indptr)], last[steps.control_indices]
    control_indptr, control_indices = csr(children, parents, nodes)
    return NodeTable(
        counted_positions(nodes_of_rank).astype(np.uint64),
        **_build_columns(algorithm, first, last, nodes, collective_bytes),
        rank_indptr=rank_indptr,
        data_indptr=row_pointer(waits),
        data_indices=data_indices,
        control_indptr=control_indptr,
        control_indices=control_indices,
    )


def _build_columns(
    algorithm: Algorithm, first: Int64Array, last: Int64Array, nodes: int, collective_bytes: int
) -> dict[str, Any]:
    """Create the columns of `NodeTable` that describe single nodes."""
    steps, unit_count = algorithm.steps, algorithm.collective.unit_count
    columns: dict[str, Any] = {
        "type": np.full(nodes, NodeType.COMP, np.uint8),
        "peer": np.full(nodes, -1, np.int32),
        "tag": np.zeros(nodes, np.int32),
        "size": np.zeros(nodes, np.int64),
        "duration_ns": np.full(nodes, -1, np.int64),
        "step": np.full(nodes, -1, np.int64),
    }
    columns["type"][first] = _TYPE_OF_KIND[steps.kind]
    messages = steps.sends | steps.receives
    at = first[messages]
    columns["peer"][at] = steps.peer[messages]
    columns["tag"][at] = message_tags(steps)[messages]
    columns["size"][at] = message_bytes(collective_bytes, unit_count, steps.count[messages])
    # A receive-reduce takes its time after both operands are available.
    columns["duration_ns"][last] = steps.duration_ns
    columns["step"][first] = columns["step"][last] = np.arange(len(steps))
    return columns


def message_tags(steps: StepTable) -> npt.NDArray[np.int32]:
    """Compute one tag per message:

    int32 per row, -1 for local steps; equal for a SEND and its RECV.

    The k-th message of (source, destination, channel) gets tag base + k; the channels of one
    (source, destination) have consecutive ranges in ascending order. Cost: one sort of the message
    rows.
    """
    tags = np.full(len(steps), -1, np.int32)
    rows = np.flatnonzero(steps.sends | steps.receives)
    is_send = steps.sends[rows]
    source, destination = steps.ends(rows)
    # The peer may be -1 in invalid algorithms.
    pair = source.astype(np.int64) * (steps.num_ranks + 1) + destination
    channel = steps.channel[rows]
    # The sort is stable: messages of a side keep program order.
    order = stable_order_by(pair, 2 * channel.astype(np.int64) + is_send)
    pair, channel, is_send = pair[order], channel[order], is_send[order]
    side_lengths = run_lengths(run_starts(pair, channel, is_send), len(rows))
    ordinal = counted_positions(side_lengths)
    connection_starts = run_starts(pair, channel)
    connection_lengths = run_lengths(connection_starts, len(rows))
    # The number of tags is that of the longer side, so that no tag is repeated in invalid
    # algorithms.
    tag_counts = np.maximum.reduceat(ordinal, connection_starts) + 1 if len(rows) else ordinal
    base = first_positions(tag_counts)
    pair_of_connection = pair[connection_starts]
    base -= base[np.searchsorted(pair_of_connection, pair_of_connection)]
    tags[rows[order]] = np.repeat(base, connection_lengths) + ordinal
    return tags
