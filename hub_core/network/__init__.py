"""Networks: topologies, links and their times, routes, and bounds on what they can carry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.public_names import names_from

if TYPE_CHECKING:
    from hub_core.network.bounds import lower_bound_ns
    from hub_core.network.connectedness import Pairs, check_topology
    from hub_core.network.facts import (
        Facts,
        HalfCut,
        LinkClass,
        Span,
        diameter,
        facts_of,
        half_cuts,
        link_classes,
        reached,
        spans,
    )
    from hub_core.network.texts import (
        DEFAULT_BANDWIDTH_BYTES_PER_S,
        DEFAULT_LATENCY_S,
        grid,
        parse_topology,
        side_by_side,
    )
    from hub_core.network.topology import (
        PLANE_SEPARATOR,
        Dimension,
        DimensionKind,
        Link,
        Links,
        Occupancy,
        Routes,
        Topology,
        link_times_ns,
    )

__all__ = [
    "DEFAULT_BANDWIDTH_BYTES_PER_S",
    "DEFAULT_LATENCY_S",
    "PLANE_SEPARATOR",
    "Dimension",
    "DimensionKind",
    "Facts",
    "HalfCut",
    "Link",
    "LinkClass",
    "Links",
    "Occupancy",
    "Pairs",
    "Routes",
    "Span",
    "Topology",
    "check_topology",
    "diameter",
    "facts_of",
    "grid",
    "half_cuts",
    "link_classes",
    "link_times_ns",
    "lower_bound_ns",
    "parse_topology",
    "reached",
    "side_by_side",
    "spans",
]

_HOMES = {
    "hub_core.network.bounds": "lower_bound_ns",
    "hub_core.network.connectedness": "Pairs check_topology",
    "hub_core.network.facts": (
        "Facts HalfCut LinkClass Span diameter facts_of half_cuts link_classes reached spans"
    ),
    "hub_core.network.texts": (
        "DEFAULT_BANDWIDTH_BYTES_PER_S DEFAULT_LATENCY_S grid parse_topology side_by_side"
    ),
    "hub_core.network.topology": (
        "Dimension DimensionKind Link Links Occupancy PLANE_SEPARATOR Routes Topology link_times_ns"
    ),
}

__getattr__ = names_from(__name__, _HOMES)
