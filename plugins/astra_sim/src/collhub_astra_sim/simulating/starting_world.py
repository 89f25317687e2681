"""Build the initial state of a simulation from traces and a topology."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from collhub_kernels.event_queue import (
    BUCKET,
    ENTRY,
    EVENT,
    HEAP,
    RECENT_TIMES,
    STORE,
    Records,
)

from collhub_astra_sim.simulating.kernel import (
    LINK,
    NO_RECEIVER,
    NODE,
    RANK,
    TIME,
    TRANSMISSION,
    SimulatedWorld,
)
from collhub_astra_sim.simulating.set_order import BUCKET_COUNTS, ELEMENT
from collhub_astra_sim.simulating.simulated_network import (
    SimulatedNetwork,
    TimingModel,
    build_network,
)
from collhub_astra_sim.simulating.switch_ways import (
    build_switched_records,
    create_no_switched_records,
)
from collhub_astra_sim.simulating.trace_nodes import (
    Locate,
    check_longest_time,
    check_nodes,
    compute_dense_codes,
    compute_message_keys,
    compute_pair_codes,
)
from hub_core import NodeTable, NodeType
from hub_core.columns import Int64Array, IntArray, distinct, group_of_entry
from hub_core.model import InputError
from hub_core.network import Topology
from hub_core.schedules import SwitchGroups

# The kernel numbers nodes and hops with 32 bits.
_MOST_ROWS = 1 << 31
_ROWS_AT_A_TIME = 1 << 12
# Fields that are -1 until an event sets them.
_UNSET = ("start", "end", "next_message")


def build_world(
    nodes: NodeTable,
    duration_ns: Int64Array,
    topology: Topology,
    model: TimingModel,
    locate: Locate,
    npu_of_rank: Int64Array,
    channel: Int64Array | None = None,
    groups: SwitchGroups | None = None,
    *,
    records_transmissions: bool = False,
) -> tuple[SimulatedWorld, int]:
    """Build the initial state of a simulation: nodes, routes, times and empty queues.

    Returns the `SimulatedWorld`, arrays that the kernel changes in one run, and a number of events:
    one per node, plus two per link of the route of every SEND, regardless of `groups`. An empty
    table of nodes is valid.

    - `duration_ns`: int64 by node. `npu_of_rank`: int64 by rank.
    - `channel`: int64 by node, None for 0. A SEND uses plane `channel` modulo the number of planes.
    - `groups`: steps whose messages switches copy or add; None for no such steps.
    - `records_transmissions`: reserve one record per message and link of its route, else none.

    Raises `InputError`: first the errors of `check_nodes`, then those of `build_network` (a pair
    without a path, or `too-large`). Then `too-large` for 2^31 or more nodes or links of all routes,
    and `too-long` if `check_longest_time` cannot exclude times of 146 years or more.
    """
    rank = group_of_entry(nodes.rank_indptr)
    check_nodes(nodes, rank, topology, locate)
    # For few distinct values a binary search is faster than the sort of `return_inverse`.
    sizes = distinct(nodes.size)
    size_class = np.searchsorted(sizes, nodes.size)
    sends = np.flatnonzero(nodes.type == NodeType.COMM_SEND)
    planes = (
        np.zeros(len(sends), np.int64) if channel is None else channel[sends] % topology.num_planes
    )
    # A code per SEND: (plane * ranks + source rank) * ranks + destination rank.
    ranks = nodes.num_ranks
    codes = planes * ranks**2 + compute_pair_codes(rank[sends], nodes.peer[sends], ranks)
    network, route_of_send = _build_routed_network(codes, npu_of_rank, topology, sizes, model)
    # The kernel has 32-bit indices.
    if max(len(nodes), len(network.routes.links)) >= _MOST_ROWS:
        raise InputError(
            f"more than {_MOST_ROWS - 1} nodes or hops",
            cure="simulate fewer ranks",
            code="too-large",
        )
    hops = np.diff(network.routes.indptr)[route_of_send]
    slowest_ns = network.arrival_ns.max(axis=1, initial=0)
    check_longest_time(hops, slowest_ns[size_class[sends]], duration_ns)
    key, first_slot = compute_message_keys(nodes, rank, size_class)
    work = duration_ns.copy()
    # The route of a message: its range in the links of all routes.
    last = network.routes.indptr[route_of_send + 1] - 1
    work[sends] = (last << 32) + network.routes.indptr[route_of_send]
    node = _build_node_records(nodes, work, rank, key, size_class)
    # The last entry serves nodes without a key, whose key is -1.
    only = np.append(np.where(np.diff(first_slot) == 1, first_slot[:-1], -1), -1)
    slots: Int64Array = only[key]
    node["slot"] = slots
    if groups is None:
        switches = create_no_switched_records()
    else:
        route_of_node = np.full(len(nodes), -1, np.int64)
        route_of_node[sends] = route_of_send
        # The SEND node of every step, -1 for none.
        node_of_row = np.full(int(nodes.step.max(initial=-1)) + 1, -1, np.int64)
        rows = nodes.step[sends]
        node_of_row[rows[rows >= 0]] = sends[rows >= 0]
        switches = build_switched_records(
            groups, topology, network.routes, node_of_row, route_of_node
        )
    transmissions = int(hops.sum())
    recorded = transmissions if records_transmissions else 0
    world = _assemble_world(nodes, node, first_slot, network, model, switches, recorded)
    return world, len(nodes) + 2 * transmissions


def _build_routed_network(
    codes: Int64Array,
    npu_of_rank: Int64Array,
    topology: Topology,
    sizes: Int64Array,
    model: TimingModel,
) -> tuple[SimulatedNetwork, Int64Array]:
    """Return the network of all messages, and the number of the route of each SEND: int64[SENDs].

    The network has one route per distinct code, numbered by ascending code. `codes`: by SEND,
    (plane * ranks + source rank) * ranks + destination rank. `sizes`: distinct sizes of messages in
    bytes. Raises `InputError` as `build_network` does.
    """
    span = int(codes.max(initial=-1)) + 1
    route_of_send, count = compute_dense_codes(codes, span)
    code_of_route = np.empty(count, np.int64)
    code_of_route[route_of_send] = codes
    ranks = len(npu_of_rank)
    planes, pair = np.divmod(code_of_route, ranks**2)
    sources, destinations = np.divmod(pair, ranks)
    ends = npu_of_rank[sources], npu_of_rank[destinations]
    return build_network(topology, *ends, sizes, model, planes), route_of_send


def _build_node_records(
    nodes: NodeTable,
    work: Int64Array,
    rank: Int64Array,
    key: npt.NDArray[np.int32],
    size_class: IntArray,
) -> Records:
    """Build the records of all nodes, without the slots of their messages.

    The fields of `_UNSET` are -1, and all other fields without a column are 0.
    """
    columns: dict[str, npt.ArrayLike] = {
        "work": work,
        "rank": rank,
        "key": key,
        "size_class": size_class,
        "kind": nodes.type,
    }
    columns |= dict.fromkeys(_UNSET, -1)
    return _create_records(NODE, len(nodes), columns)


def _assemble_world(
    nodes: NodeTable,
    node: Records,
    first_slot: Int64Array,
    network: SimulatedNetwork,
    model: TimingModel,
    switches: tuple[Records, Records],
    recorded: int,
) -> SimulatedWorld:
    """Assemble the initial state of the simulation from its parts, and allocate the work arrays.

    `node`: records of all nodes with their slots; they become a part of the world without a copy.
    `first_slot`: by key of messages (ends, tag and size class) its first slot, where SENDs meet
    RECVs, and the number of all slots at the end. `switches`: actions of switches by message, and
    sums. `recorded`: maximum number of transmissions to record.

    Queues are empty, no rank has finished (-1), and no RECV is posted (`NO_RECEIVER`). Arrays have
    the maximum size of a run: one pending event per node and per link, one running computation per
    node, and work arrays for the largest number of nodes of a rank. The children of nodes are not
    computed here; the kernel fills `child`. Links are shared if the model is congestion-aware.
    """
    count, ranks, links = len(nodes), nodes.num_ranks, len(network.link_class)
    largest = int(np.diff(nodes.rank_indptr).max(initial=2))
    # At most one event is pending per node and per link, and at most one COMP is running per node.
    pending = count + links
    heap_first = np.concatenate([[0], pending + nodes.rank_indptr[:-1]])
    edges = len(nodes.data_indices) + len(nodes.control_indices)
    keys = len(first_slot) - 1
    # The times of a message on a link, by size and link class.
    times = {
        "size": network.sizes[:, None],
        "busy_ns": network.busy_ns,
        "arrival_ns": network.arrival_ns,
    }
    return SimulatedWorld(
        node=node,
        identity=np.ascontiguousarray(nodes.node_id),
        rank=_create_records(
            RANK, ranks + 1, {"first": nodes.rank_indptr, "finish": -1, "buckets": 1}
        ),
        first_slot=first_slot,
        sends=np.zeros(keys, np.int32),
        receives=np.zeros(keys, np.int32),
        link=_create_records(
            LINK, links, {"first": -1, "last": -1, "link_class": network.link_class}
        ),
        time=_create_records(TIME, network.busy_ns.shape, times),
        slot=np.full(int(first_slot[-1]), NO_RECEIVER, np.int32),
        path_link=np.ascontiguousarray(network.routes.links),
        child=np.empty(edges, np.int32),
        heap=_create_records(HEAP, ranks + 1, {"first": heap_first}),
        entry=np.empty(pending + count, ENTRY),
        bucket=np.empty(pending, BUCKET),
        event=np.empty(pending, EVENT),
        recent=np.full(RECENT_TIMES, -1, np.int64),
        store=_create_records(STORE, 2, {"returned": -1}),
        counter=np.zeros(1, np.int64),
        switched=switches[0],
        sum=switches[1],
        ended=np.empty(largest, np.int64),
        freed=np.empty(largest, np.int64),
        parents=np.empty(largest, np.int64),
        is_touched=np.zeros(largest, np.bool_),
        latest_child=np.full(count, -1, np.int32),
        element=np.empty(largest + 1, ELEMENT),
        # As many buckets as a hash set has that has grown to `largest` elements.
        before=np.full(next(b for b in BUCKET_COUNTS if b >= largest), -1, np.int64),
        transmission=np.empty(recorded, TRANSMISSION),
        transmissions=np.zeros(1, np.int64),
        is_shared=model.is_congestion_aware,
    )


def _create_records(
    dtype: np.dtype[np.void], shape: int | tuple[int, ...], columns: Mapping[str, npt.ArrayLike]
) -> Records:
    """Create records with these columns, broadcast to `shape`; all other fields are 0.

    Raises `ValueError` for a column that cannot be broadcast or whose name is no field.
    """
    records = np.zeros(shape, dtype)
    full_columns = {name: np.broadcast_to(column, shape) for name, column in columns.items()}
    # Filled block by block, so that a block stays in the cache until it has all its columns.
    for first in range(0, len(records), _ROWS_AT_A_TIME):
        block = slice(first, first + _ROWS_AT_A_TIME)
        for name, column in full_columns.items():
            records[name][block] = column[block]
    return records
