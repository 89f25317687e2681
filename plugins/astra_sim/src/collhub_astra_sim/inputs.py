"""Check the nodes of a set of traces and number their messages for the kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.kernel import (
    BUCKET_COUNTS,
    ELEMENT,
    EVENT,
    KEY,
    LINK,
    NOBODY,
    NODE,
    QUEUE,
    RANK,
    TIME,
    World,
)
from collhub_astra_sim.network import LONGEST_NS, Network, network_between
from collhub_astra_sim.options import Model
from hub_core import NodeTable, NodeType
from hub_core.model import InputError, Location
from hub_core.network import Topology

Int64Array = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]
BoolArray = npt.NDArray[np.bool_]
Locate = Callable[[int], Location]

# ASTRA-sim keeps the upper part of its tag space for itself.
TAG_MODULUS = 500_000_000
# The kernel counts nodes and hops in 32 bits.
_MOST_ROWS = 1 << 31


def rank_of_nodes(nodes: NodeTable) -> npt.NDArray[np.int32]:
    """Rank of every node."""
    return np.repeat(np.arange(nodes.num_ranks, dtype=np.int32), np.diff(nodes.rank_indptr))


def world_of(
    nodes: NodeTable,
    duration_ns: Int64Array,
    topology: Topology,
    model: Model,
    locate: Locate,
    channel: Int64Array | None = None,
) -> World:
    """The state before the start; `channel` (int64 per node) chooses the plane of a message.

    Raises `InputError` for what cannot be simulated, at the place that `locate` gives.
    """
    rank = rank_of_nodes(nodes)
    _check(nodes, rank, topology, locate)
    sends = np.flatnonzero(nodes.type == NodeType.COMM_SEND)
    sizes, size_class = np.unique(nodes.size, return_inverse=True)
    pairs, planes, pair_of_send = _pairs(nodes, rank, sends, topology.num_planes, channel)
    network = network_between(
        topology, pairs // nodes.num_ranks, pairs % nodes.num_ranks, sizes, model, planes
    )
    if max(len(nodes), len(network.routes.links)) >= _MOST_ROWS:
        raise InputError(
            f"more than {_MOST_ROWS - 1} nodes or hops",
            cure="simulate fewer ranks",
            code="too-large",
        )
    hops = np.diff(network.routes.indptr)[pair_of_send]
    _check_time(hops, network.arrival_ns.max(axis=1, initial=0)[size_class[sends]], duration_ns)
    key, key_records = _matching(nodes, rank, size_class)
    columns: dict[str, npt.ArrayLike] = {
        "identity": nodes.node_id,
        "duration_ns": duration_ns,
        "rank": rank,
        "key": key,
        "size_class": size_class,
        "kind": nodes.type,
    }
    columns |= dict.fromkeys(("start", "end", "slot", "next_message", "latest_child"), -1)
    node = _records(NODE, len(nodes), columns)
    node["hop"][sends] = network.routes.indptr[:-1][pair_of_send]
    node["last_hop"][sends] = network.routes.indptr[1:][pair_of_send] - 1
    return _world(nodes, node, key_records, network, model)


def _pairs(
    nodes: NodeTable,
    rank: npt.NDArray[np.int32],
    sends: Int64Array,
    num_planes: int,
    channel: Int64Array | None,
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """(codes of the pairs of ranks that talk, their planes, and which of them every send is of)."""
    plane = np.zeros(len(sends), np.int64) if channel is None else channel[sends] % num_planes
    square = nodes.num_ranks**2
    codes, of_send = np.unique(
        plane * square + _pair_codes(rank[sends], nodes.peer[sends], nodes.num_ranks),
        return_inverse=True,
    )
    return codes % square, codes // square, of_send


def _world(nodes: NodeTable, node: Records, key: Records, network: Network, model: Model) -> World:
    count, ranks, links = len(nodes), nodes.num_ranks, len(network.link_class)
    slots = int(key["first_slot"][-1])
    times = {
        "size": network.sizes[:, None],
        "busy_ns": network.busy_ns,
        "arrival_ns": network.arrival_ns,
    }
    largest = int(np.diff(nodes.rank_indptr).max(initial=2))
    # At most one event is pending per node and per link, and at most one COMP is running per node.
    queue_first = np.concatenate([[0], count + links + nodes.rank_indptr[:-1]])
    return World(
        node=node,
        rank=_records(RANK, ranks + 1, {"first": nodes.rank_indptr, "finish": -1, "buckets": 1}),
        key=key,
        link=_records(LINK, links, {"first": -1, "last": -1, "link_class": network.link_class}),
        time=_records(TIME, network.busy_ns.shape, times),
        slot=np.full(slots, NOBODY, np.int64),
        path_link=network.routes.links,
        child=np.empty(len(nodes.data_indices) + len(nodes.control_indices), np.int64),
        queue=_records(QUEUE, ranks + 1, {"first": queue_first}),
        event=np.empty(2 * count + links, EVENT),
        counter=np.zeros(1, np.int64),
        ended=np.empty(largest, np.int64),
        freed=np.empty(largest, np.int64),
        parents=np.empty(largest, np.int64),
        element=np.empty(largest + 1, ELEMENT),
        before=np.full(
            next(buckets for buckets in BUCKET_COUNTS if buckets >= largest), -1, np.int64
        ),
        is_shared=model.is_congestion_aware,
    )


def _records(
    dtype: np.dtype[np.void], shape: int | tuple[int, ...], columns: Mapping[str, npt.ArrayLike]
) -> Records:
    """Records with these columns, 0 elsewhere."""
    records = np.zeros(shape, dtype)
    for name, column in columns.items():
        records[name] = column
    return records


def _matching(
    nodes: NodeTable, rank: npt.NDArray[np.int32], size_class: Int64Array
) -> tuple[npt.NDArray[np.int32], Records]:
    """(key of every node, the keys): messages of one tag, source, destination and size share a key.

    A key has as many slots as its sends or its receives, whichever are more. One key more ends the last one's.
    """
    rows = np.flatnonzero((nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV))
    is_send = nodes.type[rows] == NodeType.COMM_SEND
    source = np.where(is_send, rank[rows], nodes.peer[rows])
    destination = np.where(is_send, nodes.peer[rows], rank[rows])
    codes = _joint_codes(
        (
            _pair_codes(source, destination, nodes.num_ranks),
            nodes.tag[rows] % TAG_MODULUS,
            size_class[rows],
        ),
    )
    key = np.full(len(nodes), -1, np.int32)
    key[rows] = codes
    keys = int(codes.max(initial=-1)) + 1
    slots = np.maximum(*(np.bincount(codes[side], minlength=keys) for side in (is_send, ~is_send)))
    return key, _records(KEY, keys + 1, {"first_slot": np.concatenate([[0], np.cumsum(slots)])})


def _pair_codes(
    source: npt.NDArray[np.int32], destination: npt.NDArray[np.int32], num_ranks: int
) -> Int64Array:
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


def _check(
    nodes: NodeTable, rank: npt.NDArray[np.int32], topology: Topology, locate: Locate
) -> None:
    if topology.num_npus < nodes.num_ranks:
        raise InputError(
            f"topology {topology.name} has {topology.num_npus} NPUs, the algorithm has {nodes.num_ranks} ranks",
            cure="choose a topology with at least one NPU per rank",
            code="topology-too-small",
        )
    if int(np.diff(nodes.rank_indptr).max(initial=0)) > BUCKET_COUNTS[-1]:
        raise InputError(f"a rank has more than {BUCKET_COUNTS[-1]} nodes", code="too-large")
    message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    defects: tuple[tuple[BoolArray, str, str], ...] = (
        (
            message & ((nodes.peer < 0) | (nodes.peer >= nodes.num_ranks)),
            "names a peer that is not a rank",
            "peer-range",
        ),
        (message & (nodes.peer == rank), "sends to or receives from its own rank", "self-message"),
        (message & (nodes.size < 0), "has a negative size", "negative-size"),
    )
    for is_wrong, what, code in defects:
        if is_wrong.any():
            raise InputError(
                f"a message {what}", location=locate(int(np.flatnonzero(is_wrong)[0])), code=code
            )
    for indptr, parents in (
        (nodes.data_indptr, nodes.data_indices),
        (nodes.control_indptr, nodes.control_indices),
    ):
        child_rank = np.repeat(rank, np.diff(indptr))
        if np.any((parents < 0) | (parents >= len(nodes))) or np.any(rank[parents] != child_rank):
            raise InputError(
                "a dependency names a node that its rank does not have", code="dangling"
            )


def _check_time(hops: Int64Array, slowest_ns: Int64Array, duration_ns: Int64Array) -> None:
    """Refuse what could overflow: everything one after the other is an upper bound of the time."""
    bound = float(np.sum(hops * slowest_ns.astype(np.float64))) + float(
        np.sum(duration_ns, dtype=np.float64)
    )
    if bound >= LONGEST_NS:
        raise InputError(
            "the simulated time may exceed 146 years",
            cure="check sizes, bandwidths and durations",
            code="too-long",
        )
