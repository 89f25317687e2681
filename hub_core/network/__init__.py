"""Networks: topologies, links and their times, routes, paths, and what they can carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.columns import names_from

if TYPE_CHECKING:
    from hub_core.network.bounds import (
        UNICAST,
        cut_bounds_ps,
        distance_bounds_ps,
        lower_bound_ns,
        lower_bounds_ps,
    )
    from hub_core.network.construction import (
        MAX_LINKS,
        MAX_NODES,
        GroupNetwork,
        grid,
        group_network,
        group_of_nodes,
        side_by_side,
    )
    from hub_core.network.failures import (
        LinkChanges,
        LinkFailure,
        find_separation,
        group_failures,
        list_failures,
        remove_rows,
        select_links,
        split_link_changes,
    )
    from hub_core.network.links import Links, Occupancy, link_times_ns, link_times_ps
    from hub_core.network.reachability import (
        check_paths,
        describe_nodes,
        describe_separation,
        find_reached,
        find_unreachable_pair,
        unreachable_error,
    )
    from hub_core.network.routes import Routes
    from hub_core.network.texts import (
        DEFAULT_BANDWIDTH_BYTES_PER_S,
        DEFAULT_LATENCY_S,
        TopologyFunction,
        TopologyText,
        build_topology,
    )
    from hub_core.network.topology import (
        PLANE_SEPARATOR,
        Dimension,
        DimensionKind,
        Link,
        MeasuredSwitches,
        Topology,
    )

__all__ = [
    "DEFAULT_BANDWIDTH_BYTES_PER_S", "DEFAULT_LATENCY_S", "MAX_LINKS", "MAX_NODES",
    "PLANE_SEPARATOR", "UNICAST", "Dimension", "DimensionKind", "GroupNetwork", "Link",
    "LinkChanges", "LinkFailure", "Links", "MeasuredSwitches", "Occupancy", "Routes", "Topology",
    "TopologyFunction", "TopologyText", "build_topology", "check_paths", "cut_bounds_ps",
    "describe_nodes", "describe_separation", "distance_bounds_ps", "find_reached",
    "find_separation", "find_unreachable_pair", "grid", "group_failures", "group_network",
    "group_of_nodes", "link_times_ns", "link_times_ps", "list_failures", "lower_bound_ns",
    "lower_bounds_ps", "remove_rows", "select_links", "side_by_side", "split_link_changes",
    "unreachable_error",
]  # fmt: skip

_HOMES = {
    "hub_core.network.bounds": (
        "UNICAST cut_bounds_ps distance_bounds_ps lower_bound_ns lower_bounds_ps"
    ),
    "hub_core.network.construction": (
        "GroupNetwork MAX_LINKS MAX_NODES grid group_network group_of_nodes side_by_side"
    ),
    "hub_core.network.failures": (
        "LinkChanges LinkFailure find_separation group_failures list_failures remove_rows "
        "select_links split_link_changes"
    ),
    "hub_core.network.links": "Links Occupancy link_times_ns link_times_ps",
    "hub_core.network.reachability": (
        "check_paths describe_nodes describe_separation find_reached find_unreachable_pair "
        "unreachable_error"
    ),
    "hub_core.network.routes": "Routes",
    "hub_core.network.texts": (
        "DEFAULT_BANDWIDTH_BYTES_PER_S DEFAULT_LATENCY_S TopologyFunction TopologyText "
        "build_topology"
    ),
    "hub_core.network.topology": (
        "Dimension DimensionKind Link MeasuredSwitches PLANE_SEPARATOR Topology"
    ),
}

__getattr__ = names_from(__name__, _HOMES)
