"""A lower bound on the time of streams, from integer weights of links (the dual of the flow).

With weights w of links, a delivery costs at least its bytes times the cheapest tree from its
senders to its receivers, while the links provide rate times w per second: the ratio of the sums
bounds the time (LP duality). The cheapest tree is bounded by dual ascent (Wong 1984), so any
weights prove some bound, and the check needs no solver. Cuts of the network are weights 1 of the
links that cross them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collhub_reshard.fabric.links import Delivery, FabricLinks, find_cheapest_paths
from collhub_reshard.scheduling.host_tasks import find_owners
from hub_core.columns import Float64Array, Int64Array

# The largest is sufficient for weights without simple ratios; sums are still exact in float64.
_SCALES = (1, 12, 720, 1_000_000)


@dataclass(frozen=True, slots=True)
class LinkBound:
    """A proven minimum time in seconds, and the weights by row of link that prove it."""

    time_s: Fraction
    weights: Mapping[int, int]


def compute_proved_bound_s(
    fabric: FabricLinks, deliveries: Sequence[Delivery], weights: Mapping[int, int]
) -> Fraction:
    """Return the minimum time in seconds that these weights of links prove."""
    column = np.zeros(len(fabric.rates))
    for link, weight in weights.items():
        column[link] = weight
    costs = np.asarray(find_cheapest_paths(fabric.sum_pair_costs(column))[0], np.int64)
    index = {device: number for number, device in enumerate(fabric.devices)}
    needed = 0
    for delivery in deliveries:
        senders = [index[device] for device in delivery.senders]
        receivers = [index[device] for device in delivery.receivers]
        needed += delivery.bytes * bound_tree_cost(costs, senders, receivers)
    provided = sum((fabric.rates[link] * weight for link, weight in weights.items()), Fraction(0))
    return Fraction(needed) / provided if provided else Fraction(0)


def find_best_bound(
    fabric: FabricLinks, deliveries: Sequence[Delivery], prices: Iterable[Float64Array]
) -> LinkBound:
    """Return the largest bound over integer weights near to the given prices of links.

    Prices are rounded at increasingly fine scales.
    """
    best = LinkBound(Fraction(0), {})
    for price in prices:
        if not price.any():
            continue
        is_cut = len(np.unique(price[price > 0])) == 1
        for scale in _SCALES[:1] if is_cut else _SCALES:
            rounded = np.rint(price / price.max() * scale).astype(np.int64)
            weights = {int(link): int(rounded[link]) for link in np.flatnonzero(rounded)}
            time = compute_proved_bound_s(fabric, deliveries, weights)
            if time > best.time_s:
                best = LinkBound(time, weights)
    return best


def generate_cuts(fabric: FabricLinks, host_of: Int64Array) -> Iterator[Float64Array]:
    """Yield weights 1 of the links out of, and into, every node and every host."""
    topology = fabric.topology
    of_host = find_owners(topology, host_of)
    of_node = np.arange(topology.num_nodes)
    for owner in (of_node, of_host):
        start, end = owner[topology.source], owner[topology.destination]
        for group in np.unique(owner[owner >= 0]).tolist():
            yield ((start == group) & (end != group)).astype(np.float64)
            yield ((end == group) & (start != group)).astype(np.float64)


def bound_tree_cost(costs: Int64Array, senders: Sequence[int], receivers: Sequence[int]) -> int:
    """Return a lower bound on the cost of any tree from some senders to all receivers.

    Dual ascent: the nodes from which a receiver is reachable at cost 0 jointly pay for the cheapest
    edge into their set, until the set contains a sender. `costs`: int64[positions, positions] of
    messages. With one receiver the bound is the cost of the cheapest path.
    """
    remaining = costs.copy()
    total = 0
    for receiver in receivers:
        while True:
            inside = _find_reaching(remaining, receiver)
            if inside[list(senders)].any():
                break
            entering = np.ix_(~inside, inside)
            step = int(remaining[entering].min())
            remaining[entering] -= step
            total += step
    return total


def _find_reaching(costs: Int64Array, goal: int) -> np.typing.NDArray[np.bool_]:
    """Return the mask of positions from which a goal is reachable at cost 0, bool[positions]."""
    inside = np.zeros(len(costs), np.bool_)
    inside[goal] = True
    while True:
        grown = inside | (costs[:, inside] == 0).any(axis=1)
        if (grown == inside).all():
            return inside
        inside = grown
