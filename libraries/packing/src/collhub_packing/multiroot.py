"""Trees from all nodes at once, at the best rate of an all-gather, or of a stated number of trees.

After ForestColl (Zhao et al., arXiv 2402.06787): the least integers at which the rate is a whole
number of trees a root, switches split off, and then trees grown from all roots at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collhub_columns import Int64Array

from collhub_packing.flows import scaled
from collhub_packing.graph import CapacityGraph
from collhub_packing.growth import pack_rooted_trees
from collhub_packing.rates import Rate, SourcedNetwork, all_gather_rate, weights_of
from collhub_packing.splitting import DirectNetwork, SwitchSpread, direct, without_switches
from collhub_packing.trees import SpanningTree


@dataclass(frozen=True, slots=True, eq=False)
class MultirootPacking:
    """Trees from node v of weight `per_root[v]` together, in `network`.

    The `unit` of the network's graph is one weight in bytes/s. `rate`: the rate that the trees
    reach, in units of the graph given, for each unit of the nodes' weights; `cut`, where the rate
    is the best one, proves it.
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
    """Trees of the best rate x at which every node v sends `weights[v]` * x to all others.

    See `all_gather_rate`. With 1 / x = a / b and g the greatest common divisor of b and the
    capacities, capacities grow a / g-fold, and each node sends b / g for a unit of its weight:
    the least integers that do. Switches are split off, see `without_switches`. Of the packings of
    `seeds` random orders: the fewest trees, then the least depth by weight.
    """
    share = weights_of(graph, weights)
    rate = all_gather_rate(graph, weights)
    # Whatever divides the trees a root and all capacities is not needed.
    divisor = math.gcd(rate.value.numerator, *graph.capacity.tolist())
    grown = _times(graph, Fraction(rate.value.denominator, divisor))
    sent = scaled(share, rate.value.numerator // divisor)
    network = _switchless(grown, sent, spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(rate, sent, network, trees)


def fixed_rate(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
) -> Fraction:
    """The best rate x of trees of which each node has `per_root` of weight 1.

    As in `all_gather_rate`, per unit of a node's weight. The least U such that the capacities
    floor(U * c) suffice is a multiple of 1 / c for a capacity c: one binary search per distinct
    capacity; x = per_root / U.
    """
    sent = scaled(weights_of(graph, weights), per_root)
    network = SourcedNetwork(graph)

    def suffices(times: Fraction) -> bool:
        """Whether capacities times this, rounded down, let everything through."""
        return network.shortage(_floors(graph.capacity, times), sent) is None

    least = per_root / all_gather_rate(graph, weights).value
    most = _sufficient(least, suffices)
    for capacity in sorted({int(value) for value in graph.capacity if value}):
        most = _least_multiple(capacity, least, most, suffices)
    return per_root / most


def _sufficient(factor: Fraction, suffices: Callable[[Fraction], bool]) -> Fraction:
    """A factor doubled until it suffices."""
    # Ends, because rounding down costs a capacity less than 1.
    while not suffices(factor):
        factor *= 2
    return factor


def _least_multiple(
    capacity: int,
    least: Fraction,
    most: Fraction,
    suffices: Callable[[Fraction], bool],
) -> Fraction:
    """The least multiple of 1 / capacity between two factors that suffices, else the upper one."""
    low, high = math.ceil(least * capacity), math.floor(most * capacity)
    # More capacity never hurts, so that factors which suffice lie above those which do not.
    while low <= high:
        middle = (low + high) // 2
        factor = Fraction(middle, capacity)
        if suffices(factor):
            most, high = factor, middle - 1
        else:
            low = middle + 1
    return most


def fixed_trees(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    seeds: int = 4,
    first_seed: int = 0,
) -> MultirootPacking:
    """Trees of the best rate of which each node has `per_root` per unit of its weight.

    1 gives the fewest trees there are. As from `all_gather_trees`. The rate has no cut: more
    trees may be faster.
    """
    value = fixed_rate(graph, per_root, weights)
    sent = scaled(weights_of(graph, weights), per_root)
    network = _switchless(_times(graph, per_root / value), sent, spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(Rate(value, ()), sent, network, trees)


def _times(graph: CapacityGraph, times: Fraction) -> CapacityGraph:
    """The network with capacities `times` as large, rounded down."""
    # In a unit as much smaller.
    capacity = _floors(graph.capacity, times)
    return replace(graph, capacity=capacity, unit=graph.unit / times)


def _floors(capacity: Int64Array, times: Fraction) -> Int64Array:
    """Capacities `times` as large, rounded down."""
    # Whole numbers only: a float would round some of them up.
    return scaled(capacity, times.numerator) // times.denominator


def _switchless(graph: CapacityGraph, sent: Int64Array, spread: SwitchSpread) -> DirectNetwork:
    """The network without its switches, if it has any."""
    if not graph.has_switches:
        return direct(graph)
    return without_switches(graph, sent, spread=spread)
