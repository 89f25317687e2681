"""Rates of the packing library as bounds on the collective's bytes per second."""

from __future__ import annotations

from collhub_packing import Rate, Strength

from collhub_blink.packing.packings import RateBound
from collhub_blink.packing.rank_network import RankNetwork


def cut_bound(network: RankNetwork, rate: Rate) -> RateBound:
    """The bound of a broadcast, or of a reduce in the network turned round."""
    bytes_per_s = rate.value * network.graph.unit
    return RateBound("cut", bytes_per_s, network.named(rate.cut))


def ingress_bound(network: RankNetwork, rate: Rate) -> RateBound:
    """The bound of an all-gather, or of a reduce-scatter in the network turned round."""
    # A unit of every rank's rate is as many units of the collective's as there are ranks.
    bytes_per_s = rate.value * network.graph.unit * network.graph.num_compute
    return RateBound("ingress-cut", bytes_per_s, network.named(rate.cut))


def partition_bound(network: RankNetwork, found: Strength) -> RateBound:
    """The bound of an all-reduce on duplex links."""
    bytes_per_s = found.value * network.graph.unit
    # The sides with their switches, since it is what leaves these that proves the rate.
    blocks = tuple(network.named(side) for side in found.sides)
    return RateBound("partition", bytes_per_s, blocks=blocks)
