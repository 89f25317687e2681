"""Rates of the machine for which a search computes the times of programs."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core import Topology
from hub_core.model import InputError
from hub_core.network import DimensionKind


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one rank: arithmetic, memory, link to its group, and kernel launches.

    `operations_per_s`: rate of contractions (matrix products, convolutions).
    `memory_bytes_per_s`: rate of the rank's memory. `link_bytes_per_s`: bandwidth to a neighbour in
    one direction. `latency_s`: of a message to a neighbour. `launch_s`: time to launch a kernel.
    `is_any_to_any`: any two ranks communicate at that bandwidth and latency, as through a switch.
    """

    operations_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    latency_s: float
    launch_s: float
    is_any_to_any: bool = True


def is_any_to_any(topology: Topology) -> bool:
    """Whether the network has exactly one dimension, which is a switch or fully connected.

    Only these networks have the same bandwidth and latency between any two NPUs.
    """
    kinds = [dimension.kind for dimension in topology.dimensions]
    return kinds in ([DimensionKind.SWITCH], [DimensionKind.FULLY_CONNECTED])


def find_slowest_link(topology: Topology) -> tuple[float, float]:
    """Find bandwidth (bytes/s) and latency (s) of the NPU whose fastest outgoing link is slowest.

    The fastest link of an NPU has the highest bandwidth. NPUs without outgoing links are ignored.
    The latency of a link to a switch counts twice, for the link from the switch to the receiver.
    Raises `InputError` if no NPU has a link.
    """
    fastest_by_npu: dict[int, tuple[float, float]] = {}
    for link in topology.links():
        hops = 2 if link.destination >= topology.num_npus else 1
        rates = link.bandwidth_bytes_per_s, hops * link.latency_s
        is_from_npu = link.source < topology.num_npus
        if is_from_npu and rates > fastest_by_npu.get(link.source, (0.0, 0.0)):
            fastest_by_npu[link.source] = rates
    if not fastest_by_npu:
        raise InputError("the network has no links", cure="name one such as ring:8")
    return min(fastest_by_npu.values())
