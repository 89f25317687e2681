"""Check the nodes of a set of traces and number their messages for the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.kernel import MAX_NODES_PER_RANK, Network, Nodes
from collhub_astra_sim.network import LONGEST_NS, network_arrays
from collhub_astra_sim.options import Model
from hub_core.chakra.nodes import NodeTable, NodeType
from hub_core.diagnostics import InputError, Location
from hub_core.topology import Topology

__all__ = ["TAG_MODULUS", "kernel_inputs", "rank_of_nodes"]

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Locate = Callable[[int], Location]

# ASTRA-sim keeps the upper part of its tag space for itself.
TAG_MODULUS = 500_000_000


def rank_of_nodes(nodes: NodeTable) -> npt.NDArray[np.int32]:
    """Rank of every node."""
    return np.repeat(np.arange(nodes.num_ranks, dtype=np.int32), np.diff(nodes.rank_indptr))


def kernel_inputs(
    nodes: NodeTable, duration_ns: Int64Array, topology: Topology, model: Model, locate: Locate
) -> tuple[Nodes, Network]:
    """Arrays for the kernel. Raises `InputError` for what cannot be simulated, with the place that `locate` gives."""
    rank = rank_of_nodes(nodes)
    _check(nodes, rank, topology, locate)
    sends = np.flatnonzero(nodes.type == NodeType.COMM_SEND)
    sizes, size_class = np.unique(nodes.size, return_inverse=True)
    pairs, pair_of_send = np.unique(_pair_codes(rank[sends], nodes.peer[sends], nodes.num_ranks), return_inverse=True)
    network = network_arrays(topology, pairs // nodes.num_ranks, pairs % nodes.num_ranks, sizes, model)
    path = np.full(len(nodes), -1, np.int32)
    path[sends] = pair_of_send
    hops = np.diff(network.path_indptr)[pair_of_send]
    slowest = network.arrival_ns.max(axis=1, initial=0).astype(np.float64)[size_class[sends]]
    if float(np.sum(hops * slowest)) + float(np.sum(duration_ns, dtype=np.float64)) >= LONGEST_NS:
        raise InputError("the simulated time may exceed 146 years", cure="check sizes, bandwidths and durations", code="too-long")
    key, slot_base = _matching(nodes, rank, size_class)
    columns = (rank, nodes.node_id, nodes.type, duration_ns, nodes.size, size_class.astype(np.int32), key, path, slot_base)
    edges = (nodes.data_indptr, nodes.data_indices, nodes.control_indptr, nodes.control_indices)
    return Nodes(nodes.rank_indptr, *columns, *edges), network


def _matching(nodes: NodeTable, rank: npt.NDArray[np.int32], size_class: Int64Array) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """(key of every node, first slot of every key): messages of one tag, source, destination and size share a key.

    A key has as many slots as its sends or its receives, whichever are more.
    """
    rows = np.flatnonzero((nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV))
    is_send = nodes.type[rows] == NodeType.COMM_SEND
    source = np.where(is_send, rank[rows], nodes.peer[rows])
    destination = np.where(is_send, nodes.peer[rows], rank[rows])
    codes = _joint_codes(
        (_pair_codes(source, destination, nodes.num_ranks), nodes.tag[rows] % TAG_MODULUS, size_class[rows]),
    )
    key = np.full(len(nodes), -1, np.int32)
    key[rows] = codes
    keys = int(codes.max(initial=-1)) + 1
    slots = np.maximum(*(np.bincount(codes[side], minlength=keys) for side in (is_send, ~is_send)))
    return key, np.concatenate([[0], np.cumsum(slots)]).astype(np.int64)


def _pair_codes(source: npt.NDArray[np.int32], destination: npt.NDArray[np.int32], num_ranks: int) -> Int64Array:
    return source.astype(np.int64) * num_ranks + destination


def _joint_codes(columns: Sequence[npt.NDArray[np.integer]]) -> Int64Array:
    """Number the distinct combinations of non-negative columns densely."""
    codes = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        width = int(column.max(initial=0)) + 1
        if span * width >= 1 << 63:
            distinct, codes = np.unique(codes, return_inverse=True)
            span = len(distinct)
        codes = codes * width + column
        span *= width
    return np.unique(codes, return_inverse=True)[1].astype(np.int64)


def _check(nodes: NodeTable, rank: npt.NDArray[np.int32], topology: Topology, locate: Locate) -> None:
    if topology.num_npus < nodes.num_ranks:
        raise InputError(
            f"topology {topology.name} has {topology.num_npus} NPUs, the algorithm has {nodes.num_ranks} ranks",
            cure="choose a topology with at least one NPU per rank",
            code="topology-too-small",
        )
    if int(np.diff(nodes.rank_indptr).max(initial=0)) > MAX_NODES_PER_RANK:
        raise InputError(f"a rank has more than {MAX_NODES_PER_RANK} nodes", code="too-large")
    message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    defects: tuple[tuple[BoolArray, str, str], ...] = (
        (message & ((nodes.peer < 0) | (nodes.peer >= nodes.num_ranks)), "names a peer that is not a rank", "peer-range"),
        (message & (nodes.peer == rank), "sends to or receives from its own rank", "self-message"),
        (message & (nodes.size < 0), "has a negative size", "negative-size"),
    )
    for is_wrong, what, code in defects:
        if is_wrong.any():
            raise InputError(f"a message {what}", location=locate(int(np.flatnonzero(is_wrong)[0])), code=code)
    for indptr, parents in ((nodes.data_indptr, nodes.data_indices), (nodes.control_indptr, nodes.control_indices)):
        child_rank = np.repeat(rank, np.diff(indptr))
        if np.any((parents < 0) | (parents >= len(nodes))) or np.any(rank[parents] != child_rank):
            raise InputError("a dependency names a node that its rank does not have", code="dangling")
