"""Rates of the packing library as bounds on the collective's bytes per second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collhub_packing import Rate, Strength, broadcast_rate

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
    """The bound of an all-reduce on duplex links.

    Where switches multicast or reduce, a link carries what a partition counts several times: there
    it is that of the least cut.
    """
    if network.is_multiplied:
        return least_cut_bound(network)
    bytes_per_s = found.value * network.graph.unit
    # The sides with their switches, since it is what leaves these that proves the rate.
    blocks = tuple(network.named(side) for side in found.sides)
    return RateBound("partition", bytes_per_s, blocks=blocks)


def least_cut_bound(network: RankNetwork) -> RateBound:
    """The bound of an all-reduce by the least cuts, which all data must cross either way."""
    return min(_cut_bounds(network), key=lambda bound: bound.rate)


def _cut_bounds(network: RankNetwork) -> Iterator[RateBound]:
    """What leaves the side of rank 0 at a least cut, and what enters it at another."""
    yield cut_bound(network, broadcast_rate(network.graph, 0))
    into = broadcast_rate(network.reversed.graph, 0)
    # Turned round again, the links leave the nodes on the other side.
    every_node = range(network.graph.num_nodes)
    behind = tuple(node for node in every_node if node not in into.cut)
    yield cut_bound(network, replace(into, cut=behind))
