"""The nodes of a set of execution traces as columns, and how the steps of an algorithm become nodes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hub_core.chakra.numbering import EXTENSION, restore
from hub_core.model.algorithm import Algorithm, message_bytes
from hub_core.model.kinds import StepKind
from hub_core.model.steps import StepTable

Int64Array = npt.NDArray[np.int64]


class NodeType(IntEnum):
    """Node types of the Chakra schema."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """The nodes of all ranks in file order: what a simulator of traces needs.

    One entry a node: `node_id` uint64, unique within a rank; `type` uint8 (`NodeType`); `peer` int32
    (COMM_SEND: destination, COMM_RECV: source, else -1); `tag` int32; `size` int64, bytes of a message, else 0;
    `duration_ns` int64, -1 where not stated; `step` int64, the row of the algorithm's step table that the
    node belongs to, -1 for none. `rank_indptr` int64[num_ranks + 1]. `data_indptr`, `control_indptr`
    int64[nodes + 1] with `data_indices`, `control_indices` int64: rows of this table that a node waits for, in
    the order in which the file lists them; they may point forward.
    """

    rank_indptr: Int64Array
    node_id: npt.NDArray[np.uint64]
    type: npt.NDArray[np.uint8]
    peer: npt.NDArray[np.int32]
    tag: npt.NDArray[np.int32]
    size: Int64Array
    duration_ns: Int64Array
    step: Int64Array
    data_indptr: Int64Array
    data_indices: Int64Array
    control_indptr: Int64Array
    control_indices: Int64Array

    def __len__(self) -> int:
        return len(self.node_id)

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.rank_indptr) - 1


_TYPE_OF_KIND = np.asarray(
    [
        NodeType.COMM_SEND,
        NodeType.COMM_RECV,
        NodeType.COMM_RECV,
        NodeType.COMP,
        NodeType.COMP,
        NodeType.COMP,
    ],
    np.uint8,
)


def lower(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    """Turn steps into nodes, as profile v1 writes them, for a collective of `collective_bytes`.

    RECV_REDUCE becomes COMM_RECV and a COMP that depends on it; every other step is one node; a rank without
    steps gets one COMP. Nodes keep the order of the steps, ids count from 0 in every rank. Dependencies of a
    step sit on its first node, dependants wait for its last one. Where `algorithm.extensions["chakra"]` remembers
    the ids, the order and the tags of a foreign trace (see `numbering`), the nodes get these. Cost: O(n log n).
    """
    nodes = _plain(algorithm, collective_bytes)
    if EXTENSION not in algorithm.extensions:
        return nodes
    channel = np.append(algorithm.steps.channel, np.int32(-1))
    return restore(nodes, algorithm.extensions[EXTENSION], channel[nodes.step])


def _plain(algorithm: Algorithm, collective_bytes: int) -> NodeTable:
    steps = algorithm.steps
    idle = np.flatnonzero(np.diff(steps.rank_indptr) == 0)
    width = 1 + (steps.kind == StepKind.RECV_REDUCE).astype(np.int64)
    # Idle ranks get a slot of their own between the steps of their neighbours.
    idle_before = np.searchsorted(steps.rank_indptr[idle], np.arange(len(steps)), side="right")
    first = np.cumsum(width) - width + idle_before
    last = first + width - 1
    nodes = int(width.sum()) + len(idle)
    table = _columns(algorithm, first, last, nodes, collective_bytes)
    rank_of_node = np.empty(nodes, np.int64)
    rank_of_node[np.flatnonzero(table["step"] < 0)] = idle
    owned = table["step"] >= 0
    rank_of_node[owned] = steps.rank[table["step"][owned]]
    rank_indptr = np.searchsorted(rank_of_node, np.arange(steps.num_ranks + 1)).astype(np.int64)
    data = _moved(
        steps.data_indptr, steps.data_indices, first, last, nodes, extra=np.flatnonzero(width == 2)
    )
    control = _moved(steps.control_indptr, steps.control_indices, first, last, nodes)
    ids = np.arange(nodes) - np.repeat(rank_indptr[:-1], np.diff(rank_indptr))
    return NodeTable(
        rank_indptr,
        ids.astype(np.uint64),
        table["type"].astype(np.uint8),
        table["peer"].astype(np.int32),
        table["tag"].astype(np.int32),
        table["size"],
        table["duration_ns"],
        table["step"],
        *data,
        *control,
    )


def message_tags(steps: StepTable) -> npt.NDArray[np.int32]:
    """One tag per message: int32 per row, -1 for local steps; equal on a SEND and the RECV that it matches.

    The k-th message of (source, destination, channel) gets tag base + k, where the channels of one (source,
    destination) occupy consecutive ranges in ascending order. Cost: one sort of the message rows.
    """
    tags = np.full(len(steps), -1, np.int32)
    rows = np.flatnonzero(steps.sends | steps.receives)
    if not len(rows):
        return tags
    is_send = steps.sends[rows]
    here, peer = steps.rank[rows].astype(np.int64), steps.peer[rows].astype(np.int64)
    pair = np.where(is_send, here, peer) * (1 << 31) + np.where(is_send, peer, here)
    order = np.lexsort((rows, is_send, steps.channel[rows], pair))
    pair, channel, side = pair[order], steps.channel[rows][order], is_send[order]
    new_pair = np.concatenate([[True], pair[1:] != pair[:-1]])
    new_connection = new_pair | np.concatenate([[True], channel[1:] != channel[:-1]])
    new_side = new_connection | np.concatenate([[True], side[1:] != side[:-1]])
    starts = np.flatnonzero(new_side)
    ordinal = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    connection = np.cumsum(new_connection) - 1
    length = np.zeros(connection[-1] + 1, np.int64)
    np.maximum.at(length, connection, ordinal + 1)
    base = np.cumsum(length) - length
    pair_of_connection = (np.cumsum(new_pair) - 1)[new_connection]
    base -= base[np.concatenate([[True], pair_of_connection[1:] != pair_of_connection[:-1]])][
        pair_of_connection
    ]
    tags[rows[order]] = base[connection] + ordinal
    return tags


def _columns(
    algorithm: Algorithm, first: Int64Array, last: Int64Array, nodes: int, collective_bytes: int
) -> dict[str, Int64Array]:
    steps = algorithm.steps
    columns = {name: np.zeros(nodes, np.int64) for name in ("type", "tag", "size")}
    columns |= {name: np.full(nodes, -1, np.int64) for name in ("peer", "duration_ns", "step")}
    columns["type"][:] = NodeType.COMP
    columns["type"][first] = _TYPE_OF_KIND[steps.kind]
    messages = steps.sends | steps.receives
    columns["peer"][first[messages]] = steps.peer[messages]
    columns["tag"][first[messages]] = message_tags(steps)[messages]
    sizes = message_bytes(collective_bytes, algorithm.collective.unit_count, steps.count[messages])
    columns["size"][first[messages]] = sizes
    columns["duration_ns"][last] = steps.duration_ns
    columns["step"][first] = np.arange(len(steps))
    columns["step"][last] = np.arange(len(steps))
    return columns


def _moved(
    indptr: Int64Array,
    indices: Int64Array,
    first: Int64Array,
    last: Int64Array,
    nodes: int,
    extra: Int64Array | None = None,
) -> tuple[Int64Array, Int64Array]:
    """Re-address a CSR of step dependencies to nodes; `extra` steps add the edge first -> last."""
    child = np.repeat(first, np.diff(indptr))
    parent = last[indices]
    if extra is not None and len(extra):
        child, parent = np.concatenate([child, last[extra]]), np.concatenate([parent, first[extra]])
        order = np.argsort(child, kind="stable")
        child, parent = child[order], parent[order]
    moved = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(child, minlength=nodes), out=moved[1:])
    return moved, parent
