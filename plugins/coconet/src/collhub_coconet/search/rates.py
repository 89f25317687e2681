"""The machine that a search times programs on."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core import Topology
from hub_core.model import InputError
from hub_core.network import DimensionKind


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one rank: arithmetic, memory, its link to the others of its group, and launches.

    `operations_per_s`: of contractions. `memory_bytes_per_s`, `link_bytes_per_s`: one direction.
    `latency_s`: of a message between neighbours. `launch_s`: of a kernel. `is_any_to_any`: whether
    all ranks may talk to any others at that rate, as behind a switch.
    """

    operations_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    latency_s: float
    launch_s: float
    is_any_to_any: bool = True


def is_any_to_any(topology: Topology) -> bool:
    """Whether the network is one dimension of a switch, or of links between all."""
    # No other network has one bandwidth and latency between any two.
    kinds = [dimension.kind for dimension in topology.dimensions]
    return kinds in ([DimensionKind.SWITCH], [DimensionKind.FULLY_CONNECTED])


def link_of(topology: Topology) -> tuple[float, float]:
    """Bandwidth (bytes/s) and latency (s) between neighbours: of the slowest rank's fastest link.

    Behind a switch a message takes two links. Raises `InputError` for a network without links.
    """
    best: dict[int, tuple[float, float]] = {}
    # A ring keeps one link of each rank busy in either direction.
    for link in topology.links():
        # Messages pass a switch on their way.
        hops = 2 if link.destination >= topology.num_npus else 1
        found = link.bandwidth_bytes_per_s, hops * link.latency_s
        if link.source < topology.num_npus and found > best.get(link.source, (0.0, 0.0)):
            best[link.source] = found
    if not best:
        raise InputError("the network has no links", cure="name one such as ring:8")
    return min(best.values())
