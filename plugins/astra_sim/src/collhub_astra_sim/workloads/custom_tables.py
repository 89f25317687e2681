"""Build tables of custom algorithms for compiled code, in the order of ASTRA-sim's sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from collhub_kernels.event_queue import Records

from collhub_astra_sim.simulating.set_order import ELEMENT
from collhub_astra_sim.workloads.machine_state import CUSTOM, CUSTOM_RANK
from hub_core import NodeTable, NodeType
from hub_core.columns import Int32Array, Int64Array, UInt64Array
from hub_core.model import Location


class CustomTables(NamedTuple):
    """The fields of `Machine` that describe custom algorithms; `most_nodes`: maximum of a rank."""

    custom: Records
    custom_rank: Records
    custom_first: Int64Array
    custom_root: Int64Array
    custom_child: Int32Array
    identity: UInt64Array
    element: Records
    before: Int64Array
    most_nodes: int


def build_custom_tables(algorithms: Sequence[NodeTable]) -> CustomTables:
    """Return the concatenated tables of these algorithms."""
    parts = [_build_tables(nodes) for nodes in algorithms]
    node_first = np.cumsum([0, *(len(part.custom) for part in parts)])
    root_first = np.cumsum([0, *(len(part.custom_root) for part in parts)])
    child_first = np.cumsum([0, *(len(part.custom_child) for part in parts)])
    for part, nodes, roots, children in zip(
        parts, node_first, root_first, child_first, strict=False
    ):
        part.custom["first_child"] += children
        part.custom_rank["first"] += nodes
        part.custom_rank["first_root"] += roots
        part.custom_root[:] += nodes
        part.custom_child[:] += nodes
    ranks = np.cumsum([0, *(len(part.custom_rank) for part in parts)])
    max_nodes = max((part.most_nodes for part in parts), default=0)
    empty = np.zeros(0, np.int64)
    return CustomTables(
        np.concatenate([np.zeros(0, CUSTOM), *(part.custom for part in parts)]),
        np.concatenate([np.zeros(0, CUSTOM_RANK), *(part.custom_rank for part in parts)]),
        ranks.astype(np.int64),
        np.concatenate([empty, *(part.custom_root for part in parts)]),
        np.concatenate([empty.astype(np.int32), *(part.custom_child for part in parts)]),
        np.concatenate([empty.astype(np.uint64), *(part.identity for part in parts)]),
        max((part.element for part in parts), key=len, default=np.zeros(1, ELEMENT)),
        max((part.before for part in parts), key=len, default=np.full(16, -1)),
        max_nodes,
    )


def _build_tables(nodes: NodeTable) -> CustomTables:
    """Return the tables of one algorithm."""
    # Imported here, because most jobs have no custom algorithms.
    from collhub_astra_sim.simulating.kernel import get_parents, write_orders
    from collhub_astra_sim.simulating.starting_world import build_world
    from collhub_astra_sim.simulating.timing_model import TimingModel, get_trace_durations_ns
    from hub_core import parse_topology

    ranks = nodes.num_ranks
    # The order of nodes does not depend on the network.
    topology = parse_topology(f"switch:{ranks}")
    durations = get_trace_durations_ns(nodes)
    world = build_world(
        nodes, durations, topology, TimingModel(), lambda row: Location(step=row), np.arange(ranks)
    )
    roots = np.zeros(len(nodes), np.int64)
    counts = np.zeros(ranks, np.int64)
    write_orders(world, get_parents(nodes), roots, counts, events=len(nodes))
    custom = np.zeros(len(nodes), CUSTOM)
    for name in ("first_child", "children", "unmet", "kind"):
        custom[name] = world.node[name]
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    custom["work"] = np.where(is_message, nodes.size, durations)
    custom["peer"], custom["tag"] = nodes.peer, nodes.tag
    custom_rank = np.zeros(ranks, CUSTOM_RANK)
    custom_rank["first"], custom_rank["count"] = nodes.rank_indptr[:-1], np.diff(nodes.rank_indptr)
    custom_rank["first_root"], custom_rank["roots"] = np.cumsum(counts) - counts, counts
    custom_rank["buckets"] = world.rank["buckets"][:-1]
    return CustomTables(
        custom,
        custom_rank,
        np.zeros(0, np.int64),
        roots[: counts.sum()],
        world.child[: int(custom["children"].sum())],
        nodes.node_id,
        world.element,
        world.before,
        int(custom_rank["count"].max(initial=0)),
    )
