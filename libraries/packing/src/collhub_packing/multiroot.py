"""Trees from all nodes at once, at the best rate of an all-gather, or of a stated number of trees per node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from collhub_packing.flows import scaled
from collhub_packing.graph import CapacityGraph
from collhub_packing.growth import pack_rooted_trees
from collhub_packing.rates import Rate, SourcedNetwork, all_gather_rate
from collhub_packing.splitting import DirectNetwork, SwitchSpread, direct, without_switches
from collhub_packing.trees import SpanningTree

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class MultirootPacking:
    """Trees from node v of weight `per_root[v]` together, in `network`, whose graph's `unit` is one weight in bytes/s.

    `rate`: the rate that they reach, in units of the graph given, for each unit of the nodes' weights; `cut`, where
    the rate is the best one, proves it.
    """

    rate: Rate
    per_root: Int64Array
    network: DirectNetwork
    trees: list[SpanningTree]


def all_gather_trees(
    graph: CapacityGraph,
    weights: Sequence[int] | None = None,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    seeds: int = 4,
    first_seed: int = 0,
) -> MultirootPacking:
    """Trees of the best rate x at which every node v sends `weights[v]` * x to all others; see `all_gather_rate`.

    With 1 / x = a / b and g the greatest common divisor of b and the capacities, capacities grow a / g-fold, and
    each node sends b / g for a unit of its weight: the least integers that do. Switches are split off, see
    `without_switches`. Of the packings of `seeds` random orders: the fewest trees, then the least depth by weight.
    """
    share = (
        np.ones(graph.num_compute, np.int64) if weights is None else np.asarray(weights, np.int64)
    )
    rate = all_gather_rate(graph, weights)
    divisor = math.gcd(rate.value.numerator, *graph.capacity.tolist())
    times = Fraction(rate.value.denominator, divisor)
    grown = replace(graph, capacity=_floors(graph.capacity, times), unit=graph.unit / times)
    return _packed(
        grown, rate, scaled(share, rate.value.numerator // divisor), spread, seeds, first_seed
    )


def fixed_rate(
    graph: CapacityGraph, per_root: int, weights: Sequence[int] | None = None
) -> Fraction:
    """The best rate x, as in `all_gather_rate`, of trees of which each node has `per_root` of weight 1 per unit of its weight.

    The least U such that the capacities floor(U * c) suffice is a multiple of 1 / c for a capacity c: one binary
    search per distinct capacity; x = per_root / U.
    """
    share = (
        np.ones(graph.num_compute, np.int64) if weights is None else np.asarray(weights, np.int64)
    )
    network = SourcedNetwork(graph)

    def suffices(times: Fraction) -> bool:
        return network.shortage(_floors(graph.capacity, times), scaled(share, per_root)) is None

    least = per_root / all_gather_rate(graph, weights).value
    most = least
    while not suffices(most):
        most *= 2
    for capacity in sorted({int(value) for value in graph.capacity if value}):
        low, high = math.ceil(least * capacity), math.floor(most * capacity)
        while low <= high:
            middle = (low + high) // 2
            if suffices(Fraction(middle, capacity)):
                most, high = Fraction(middle, capacity), middle - 1
            else:
                low = middle + 1
    return per_root / most


def fixed_trees(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    seeds: int = 4,
    first_seed: int = 0,
) -> MultirootPacking:
    """Trees of the best rate of which each node has `per_root` per unit of its weight: 1 gives the fewest trees there are.

    As from `all_gather_trees`. The rate has no cut: more trees may be faster.
    """
    share = (
        np.ones(graph.num_compute, np.int64) if weights is None else np.asarray(weights, np.int64)
    )
    value = fixed_rate(graph, per_root, weights)
    times = per_root / value
    floored = replace(graph, capacity=_floors(graph.capacity, times), unit=graph.unit / times)
    return _packed(floored, Rate(value, ()), scaled(share, per_root), spread, seeds, first_seed)


def _floors(capacity: Int64Array, times: Fraction) -> Int64Array:
    """Capacities `times` as large, rounded down."""
    return scaled(capacity, times.numerator) // times.denominator


def _packed(
    graph: CapacityGraph,
    rate: Rate,
    sent: Int64Array,
    spread: SwitchSpread,
    seeds: int,
    first_seed: int,
) -> MultirootPacking:
    """Trees in a network with scaled capacities."""
    is_direct = graph.num_nodes == graph.num_compute
    network = direct(graph) if is_direct else without_switches(graph, sent, spread=spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(rate, sent, network, trees)
