"""Trees of an all-reduce: orient the links so that out-trees of the network's full strength fit, and pack them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from collhub_packing.duplex import DuplexLinks, LeastSets
from collhub_packing.flows import FlowNetwork
from collhub_packing.graph import CapacityGraph
from collhub_packing.growth import pack_arborescences
from collhub_packing.rates import Strength, strength
from collhub_packing.trees import Tree
from hub_core.diagnostics import InputError

__all__ = ["all_reduce_trees", "oriented"]

Int64Array = npt.NDArray[np.int64]


def all_reduce_trees(graph: CapacityGraph, *, seeds: int = 8, first_seed: int = 0) -> tuple[Strength, list[Tree]]:
    """The strength a / q of a network and trees of weight a together, in units of 1 / q of the graph's.

    Reduce towards the root and broadcast from it, on every tree at once, load a link by at most its capacity in either
    direction. Each tree is rooted at its centre. Of the packings of `seeds` random orientations and orders:
    the fewest trees, then the least sum of weight times depth. Raises `InputError` as `strength` does.
    """
    found = strength(graph)
    opposite = DuplexLinks.of(graph).opposite(graph.num_arcs)
    packings = []
    for seed in range(first_seed, first_seed + max(1, seeds)):
        order = np.random.default_rng(seed).permutation(graph.num_nodes)
        directed = oriented(graph, found, [int(node) for node in order])
        trees = pack_arborescences(directed, int(order[0]), found.value.numerator, seeds=1, first_seed=seed)
        packings.append([tree.rerooted(tree.centre(opposite), opposite) for tree in trees])
    best = min(packings, key=lambda trees: (len(trees), sum(tree.weight * tree.depth for tree in trees)))
    return found, sorted(best, key=lambda tree: (-tree.weight, tree.depth, tree.root, tuple(tree.arc)))


def oriented(graph: CapacityGraph, rate: Strength, order: list[int]) -> CapacityGraph:
    """Share the capacity of every link, q-fold, between its directions, so that a rate of a reaches all from `order[0]`.

    The strength is a / q. The capacity into every set of nodes depends on the capacity into single nodes alone, so
    it is lowered node by node, in `order`, as far as every set allows: one least cut each; the links follow by
    one flow (Frank 1980). Any order is right; each may give other trees.
    """
    if sorted(order) != list(range(graph.num_nodes)):
        raise InputError("the order must name every node once")
    links = DuplexLinks.of(graph)
    capacity = links.capacity * rate.value.denominator
    arriving = _arriving(links, rate, order)
    up = _shared(links, capacity, arriving)
    directed = np.zeros(graph.num_arcs, np.int64)
    directed[links.up], directed[links.down] = up, capacity - up
    return replace(graph, capacity=directed, unit=graph.unit / rate.value.denominator)


def _arriving(links: DuplexLinks, rate: Strength, order: list[int]) -> Int64Array:
    """How much capacity into every node is enough: for X without the root, the links inside X and a more."""
    root, a, q = order[0], rate.value.numerator, rate.value.denominator
    touching = _touching(links, links.capacity * q)
    arriving = touching.copy()
    sets = LeastSets(links, q)
    anything = np.ones(links.num_nodes, np.bool_)
    for node in order[::-1]:
        # Twice (arriving in X - links inside X - a unless X has the root), by 2 * inside = touching - leaving.
        weights = 2 * arriving - touching
        weights[root] += 2 * a
        slack, _ = sets.least(node, weights, anything)
        arriving[node] -= (slack - 2 * a) // 2
    return arriving


def _touching(links: DuplexLinks, capacity: Int64Array) -> Int64Array:
    """Capacity of the links at every node."""
    total = np.zeros(links.num_nodes, np.int64)
    np.add.at(total, links.low, capacity)
    np.add.at(total, links.high, capacity)
    return total


def _shared(links: DuplexLinks, capacity: Int64Array, arriving: Int64Array) -> Int64Array:
    """The part of every link that leads up, such that the parts into each node are `arriving`: one flow."""
    up = capacity // 2
    surplus = -arriving
    np.add.at(surplus, links.high, up)
    np.add.at(surplus, links.low, capacity - up)
    n = links.num_nodes
    nodes = np.arange(n)
    # To turn capacity that leads from u to v moves it from the capacity into v to that into u.
    network = FlowNetwork.of(
        n + 2,
        np.concatenate([links.high, links.low, np.full(n, n), nodes]),
        np.concatenate([links.low, links.high, nodes, np.full(n, n + 1)]),
    )
    amounts = np.concatenate([up, capacity - up, np.maximum(surplus, 0), np.maximum(-surplus, 0)])
    value, left = network.remainder(amounts, n, n + 1)
    assert value == int(np.maximum(surplus, 0).sum())
    return left[: len(up)]
