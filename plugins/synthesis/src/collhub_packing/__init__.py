"""Exact flows, cuts and packings of spanning trees in networks.

All results are exact integers and fractions; there are no tolerances, except that the rate of
`pack_two_ways` is within 1e-6 of the maximum. A `CapacityGraph` is the network. Rates are maxima of
the data that it carries, with the cut or partition that proves them. Packings are lists of
`SpanningTree` that reach these rates. `collhub_packing.pipelining` schedules collectives on trees;
`collhub_packing.compiling` has the decorators for kernels, and imports numba.
"""

from __future__ import annotations

from collhub_packing.collective_packings import (
    AllReducePacking,
    MultirootPacking,
    all_gather_trees,
    all_reduce_packing,
    all_reduce_trees,
    fixed_rate,
    fixed_trees,
)
from collhub_packing.flows import Cut, FlowNetwork
from collhub_packing.graph import CapacityGraph, DuplexLinks, are_duplex, induced, transposed
from collhub_packing.rates import Rate, Strength, all_gather_rate, broadcast_rate, strength
from collhub_packing.splitting import DirectNetwork, SwitchSpread, direct, without_switches
from collhub_packing.trees import SpanningTree, pack_arborescences, pack_rooted_trees
from collhub_packing.two_ways import TwoWayPacking, pack_two_ways

__all__ = [
    "AllReducePacking",
    "CapacityGraph",
    "Cut",
    "DirectNetwork",
    "DuplexLinks",
    "FlowNetwork",
    "MultirootPacking",
    "Rate",
    "SpanningTree",
    "Strength",
    "SwitchSpread",
    "TwoWayPacking",
    "all_gather_rate",
    "all_gather_trees",
    "all_reduce_packing",
    "all_reduce_trees",
    "are_duplex",
    "broadcast_rate",
    "direct",
    "fixed_rate",
    "fixed_trees",
    "induced",
    "pack_arborescences",
    "pack_rooted_trees",
    "pack_two_ways",
    "strength",
    "transposed",
    "without_switches",
]
