"""Pack trees from all nodes at once, at the best all-gather rate or with a fixed number of trees.

After ForestColl (Zhao et al., arXiv 2402.06787): scale to the smallest integers at which the rate
is an integer number of trees per root, split off the switches, then grow trees from all roots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from collhub_packing.flows import scaled
from collhub_packing.graph import CapacityGraph
from collhub_packing.rates import Rate, SourcedNetwork, all_gather_rate, to_weight_array
from collhub_packing.splitting import DirectNetwork, SwitchSpread, direct, without_switches
from collhub_packing.trees import SpanningTree, pack_rooted_trees
from hub_core.columns import Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class MultirootPacking:
    """Trees in `network`; those rooted at node v have total weight `per_root[v]`.

    The unit of the network's graph is one weight in bytes/s. `rate`: rate of the trees in units of
    the original graph, per unit of the nodes' weights; its `cut` proves it if it is the best rate,
    and is empty for a fixed number of trees.
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
    """Pack trees of the best rate x at which every node v sends `weights[v]` * x to all others.

    See `all_gather_rate`. With 1 / x = a / b and g the greatest common divisor of b and the
    capacities, the smallest integers are capacities times a / g, and b / g sent per unit of a
    node's weight. Switches are split off, see `without_switches`. Of the packings of `seeds` random
    orders, the one with the fewest trees is returned, then the smallest depth by weight.
    """
    share = to_weight_array(graph, weights)
    rate = all_gather_rate(graph, weights)
    # A common divisor of the trees per root and of all capacities is not needed.
    divisor = math.gcd(rate.value.numerator, *graph.capacity.tolist())
    scaled_graph = _scale_capacities(graph, Fraction(rate.value.denominator, divisor))
    sent = scaled(share, rate.value.numerator // divisor)
    network = _remove_switches(scaled_graph, sent, spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(rate, sent, network, trees)


def fixed_rate(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
) -> Fraction:
    """Compute the best rate x of trees if each node roots `per_root` trees of weight 1.

    As in `all_gather_rate`, per unit of a node's weight. The smallest factor U such that the
    capacities floor(U * c) suffice is a multiple of 1 / c for some capacity c: one binary search
    per distinct capacity; x = per_root / U.
    """
    sent = scaled(to_weight_array(graph, weights), per_root)
    network = SourcedNetwork(graph)

    def is_sufficient(times: Fraction) -> bool:
        """Whether the capacities times a factor, rounded down, carry all data."""
        return network.shortage(_scale_and_floor(graph.capacity, times), sent) is None

    lower = per_root / all_gather_rate(graph, weights).value
    upper = _double_until_sufficient(lower, is_sufficient)
    for capacity in sorted({int(value) for value in graph.capacity if value}):
        upper = _find_smallest_multiple(capacity, lower, upper, is_sufficient)
    return per_root / upper


def _double_until_sufficient(
    factor: Fraction, is_sufficient: Callable[[Fraction], bool]
) -> Fraction:
    """Double a factor until it suffices."""
    # Terminates, because rounding down reduces a capacity by less than 1.
    while not is_sufficient(factor):
        factor *= 2
    return factor


def _find_smallest_multiple(
    capacity: int,
    lower: Fraction,
    upper: Fraction,
    is_sufficient: Callable[[Fraction], bool],
) -> Fraction:
    """Find the smallest sufficient multiple of 1 / capacity in a range, else return its
    upper end.
    """
    low, high = math.ceil(lower * capacity), math.floor(upper * capacity)
    # More capacity never hurts, so that sufficient factors are above the insufficient ones.
    while low <= high:
        middle = (low + high) // 2
        factor = Fraction(middle, capacity)
        if is_sufficient(factor):
            upper, high = factor, middle - 1
        else:
            low = middle + 1
    return upper


def fixed_trees(
    graph: CapacityGraph,
    per_root: int,
    weights: Sequence[int] | None = None,
    *,
    spread: SwitchSpread = SwitchSpread.NOWHERE,
    seeds: int = 4,
    first_seed: int = 0,
) -> MultirootPacking:
    """Pack trees of the best rate if each node roots `per_root` trees per unit of its weight.

    1 gives the fewest possible trees. The result is as from `all_gather_trees`, but the rate has no
    cut: more trees may be faster.
    """
    value = fixed_rate(graph, per_root, weights)
    sent = scaled(to_weight_array(graph, weights), per_root)
    network = _remove_switches(_scale_capacities(graph, per_root / value), sent, spread)
    trees = pack_rooted_trees(network.graph, sent, seeds=seeds, first_seed=first_seed)
    return MultirootPacking(Rate(value, ()), sent, network, trees)


def _scale_capacities(graph: CapacityGraph, times: Fraction) -> CapacityGraph:
    """Multiply capacities by a factor, rounded down; the unit shrinks by that factor."""
    capacity = _scale_and_floor(graph.capacity, times)
    return replace(graph, capacity=capacity, unit=graph.unit / times)


def _scale_and_floor(capacity: Int64Array, times: Fraction) -> Int64Array:
    """Multiply capacities by a factor, rounded down."""
    # Integers only: a float would round some of them up.
    return scaled(capacity, times.numerator) // times.denominator


def _remove_switches(graph: CapacityGraph, sent: Int64Array, spread: SwitchSpread) -> DirectNetwork:
    """Remove the switches of the network, if it has any."""
    if not graph.has_switches:
        return direct(graph)
    return without_switches(graph, sent, spread=spread)
