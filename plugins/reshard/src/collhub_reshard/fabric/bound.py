"""A time that no streams beat, from weights of links: the dual of the flow, in whole numbers.

With weights w of links, a delivery costs at least bytes times the cheapest tree from its senders to
its receivers, while the links give rate times w a second: their ratio bounds the time (LP duality).
The cheapest tree is bounded by dual ascent (Wong 1984), so that any weights prove something and the
check needs no solver. Cuts of the network are the weights 1 of the links that cross them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collhub_reshard.fabric.links import Delivery, FabricLinks, find_cheapest_paths
from collhub_reshard.scheduling.host_tasks import find_owners
from hub_core.columns import Float64Array, Int64Array

# Fine enough for weights that are no simple ratios; sums stay exact in float64.
_SCALES = (1, 12, 720, 1_000_000)


@dataclass(frozen=True, slots=True)
class LinkBound:
    """Seconds that nothing beats, and the weights by row of link that prove it."""

    time_s: Fraction
    weights: Mapping[int, int]


def compute_proved_bound_s(
    fabric: FabricLinks, deliveries: Sequence[Delivery], weights: Mapping[int, int]
) -> Fraction:
    """The seconds that some weights of links prove."""
    column = np.zeros(len(fabric.rates))
    for link, weight in weights.items():
        column[link] = weight
    costs = np.asarray(find_cheapest_paths(fabric.sum_pair_costs(column))[0], np.int64)
    place = {device: at for at, device in enumerate(fabric.devices)}
    needed = 0
    for delivery in deliveries:
        senders = [place[device] for device in delivery.senders]
        receivers = [place[device] for device in delivery.receivers]
        needed += delivery.bytes * bound_tree_cost(costs, senders, receivers)
    given = sum((fabric.rates[link] * weight for link, weight in weights.items()), Fraction(0))
    return Fraction(needed) / given if given else Fraction(0)


def find_best_bound(
    fabric: FabricLinks, deliveries: Sequence[Delivery], prices: Iterable[Float64Array]
) -> LinkBound:
    """The largest bound of weights near to some prices of links, rounded more and more finely."""
    best = LinkBound(Fraction(0), {})
    for price in prices:
        if not price.any():
            continue
        is_cut = len(np.unique(price[price > 0])) == 1
        for scale in _SCALES[:1] if is_cut else _SCALES:
            whole = np.rint(price / price.max() * scale).astype(np.int64)
            weights = {int(link): int(whole[link]) for link in np.flatnonzero(whole)}
            time = compute_proved_bound_s(fabric, deliveries, weights)
            if time > best.time_s:
                best = LinkBound(time, weights)
    return best


def generate_cuts(fabric: FabricLinks, host_of: Int64Array) -> Iterator[Float64Array]:
    """Weights 1 of the links out of, and into, every node and every host."""
    topology = fabric.topology
    of_host = find_owners(topology, host_of)
    of_node = np.arange(topology.num_nodes)
    for owner in (of_node, of_host):
        start, end = owner[topology.source], owner[topology.destination]
        for one in np.unique(owner[owner >= 0]).tolist():
            yield ((start == one) & (end != one)).astype(np.float64)
            yield ((end == one) & (start != one)).astype(np.float64)


def bound_tree_cost(costs: Int64Array, senders: Sequence[int], receivers: Sequence[int]) -> int:
    """A cost that no tree from some senders to all receivers is below.

    Dual ascent: nodes from which a receiver is reached for nothing pay together for a way in, until
    a sender is among them. `costs`: int64[places, places] of messages. With one receiver it is the
    cheapest way itself.
    """
    left = costs.copy()
    total = 0
    for receiver in receivers:
        while True:
            inside = _find_reaching(left, receiver)
            if inside[list(senders)].any():
                break
            ways = np.ix_(~inside, inside)
            step = int(left[ways].min())
            left[ways] -= step
            total += step
    return total


def _find_reaching(costs: Int64Array, goal: int) -> np.typing.NDArray[np.bool_]:
    """Places from which a goal is reached for nothing: bool[places]."""
    inside = np.zeros(len(costs), np.bool_)
    inside[goal] = True
    while True:
        grown = inside | (costs[:, inside] == 0).any(axis=1)
        if (grown == inside).all():
            return inside
        inside = grown
