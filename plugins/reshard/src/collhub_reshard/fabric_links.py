"""Devices on a topology: links of their messages, cheapest paths, required deliveries, bounds.

The bound on the time of streams follows from integer weights of links (the dual of the flow). With
weights w, a delivery costs at least its bytes times the cheapest tree from its senders to its
receivers, while the links provide rate times w per second: the ratio of the sums bounds the time
(LP duality). The cheapest tree is bounded by dual ascent (Wong 1984), so any weights prove some
bound, and the check needs no solver. Cuts of the network are weights 1 of the links that cross
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_shardings import UnitTasks

from collhub_reshard.scheduling.host_tasks import find_owners, parse_exact_rate
from hub_core.columns import Float64Array, Int64Array, group_of_entry
from hub_core.network import Topology

Edge = tuple[int, int]
# Cheapest paths between all pairs take time cubic in the number of devices.
_MAX_DEVICES = 128


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """Links between devices, by the routes of a topology.

    `devices`: NPUs, ascending; an edge is a pair of positions in it. `rates`: bytes per second of
    every link of the topology, exact. `indptr`, `links`: the rows of links on the route from
    position a to position b are `links[indptr[i]:indptr[i + 1]]`, i = a * len(devices) + b.
    """

    topology: Topology
    devices: tuple[int, ...]
    rates: tuple[Fraction, ...]
    indptr: Int64Array
    links: Int64Array

    @classmethod
    def of(cls, topology: Topology, devices: Iterable[int]) -> FabricLinks:
        """Build the links that messages between NPUs of a topology use.

        `devices`: the NPUs; they may be repeated and in any order, and are stored ascending,
        each once. Every ordered pair of the n stored NPUs has a route, also of an NPU with
        itself (without links). The route from position i to position j of the stored NPUs has
        number i * n + j. It is the path with the fewest links that `Topology.routes` chooses.
        The rates of all links of the topology are exact fractions, in bytes/s. Raises
        `InputError` (`disconnected`) for a pair without a path.
        """
        npus = np.asarray(sorted(set(devices)), np.int64)
        count = len(npus)
        routes = topology.routes(np.repeat(npus, count), np.tile(npus, count))
        exact_rates = {
            rate: parse_exact_rate(rate) for rate in set(topology.bandwidth_bytes_per_s.tolist())
        }
        rates = tuple(exact_rates[rate] for rate in topology.bandwidth_bytes_per_s.tolist())
        return cls(topology, tuple(npus.tolist()), rates, routes.indptr, routes.links)

    def route(self, edge: Edge) -> Int64Array:
        """Return the link numbers on the route of a message, in their order: int64[links].

        `edge`: positions of source and destination in `devices`, not NPU numbers. The array is
        empty if both are equal.
        """
        pair = edge[0] * len(self.devices) + edge[1]
        return self.links[self.indptr[pair] : self.indptr[pair + 1]]

    def count_uses(self, edges: Iterable[Edge]) -> Int64Array:
        """Return how many of the messages use each link: int64[links of the topology].

        `edges`: one per message, as positions in `devices`; equal edges count separately. Raises
        `ValueError` without edges.
        """
        rows = [self.route(edge) for edge in edges]
        return np.bincount(np.concatenate(rows), minlength=len(self.rates))

    def sum_pair_costs(self, weights: Float64Array) -> Float64Array:
        """Return the cost of a message between every two devices: float64[positions, positions].

        It is the sum of `weights` (float64, one per link) over the links of the route. The first
        index is the source. A message from a device to itself costs 0.
        """
        count = len(self.devices)
        pair = group_of_entry(self.indptr)
        costs = np.bincount(pair, weights[self.links], minlength=count * count)
        return costs.astype(np.float64).reshape(count, count)


def can_plan_streams(topology: Topology, devices: Iterable[int]) -> bool:
    """Return whether streams can be planned on a topology.

    It must have one plane, and there must be at most 128 devices.
    """
    # Messages of other planes would need a channel each.
    return topology.num_planes == 1 and len(set(devices)) <= _MAX_DEVICES


def find_cheapest_paths(costs: Float64Array) -> tuple[Float64Array, Int64Array]:
    """Find the cheapest path between every two positions; return (costs, predecessors).

    `costs`: float64[n, n], not changed. Entry [a, b] is the cost of a direct message from a to
    b, at least 0, or infinite. Both results have this shape. The cost of a path is the sum of
    its messages. Entry [a, a] of the resulting costs is the given one, unless a path through
    other positions is cheaper.

    Entry [a, b] of the predecessors (int64) is the position before b on the path from a to b.
    It is a for a direct message, and if there is no path. A direct message wins against a path
    of equal cost. Of equal paths the one that is formed first with ascending middle positions
    wins. Source: Floyd's algorithm (1962).
    """
    count = len(costs)
    best = costs.copy()
    before = np.repeat(np.arange(count)[:, None], count, axis=1)
    for middle in range(count):
        over = best[:, middle, None] + best[None, middle, :]
        is_better = over < best
        best = np.where(is_better, over, best)
        before = np.where(is_better, before[None, middle, :], before)
    return best, before


def build_cheap_tree(
    best: Float64Array,
    before: Int64Array,
    senders: Sequence[int],
    receivers: Sequence[int],
) -> tuple[Edge, ...]:
    """Build a cheap tree of messages from senders to all receivers; return (parent, child) edges.

    `best`, `before`: costs and predecessors of `find_cheapest_paths`; all numbers are positions in
    them. The tree begins with the senders, in the given order. The missing receiver with the
    smallest cost from any position of the tree joins next, until none is missing. Ties: the path
    from the position that joined first, then the receiver that is first in `receivers`.

    A path begins at its last position that is in the tree already; all later ones join in order.
    With infinite cost, the receiver is joined by a direct edge. Edges are in the order of joining.
    A sender is never a child. No edges result if all receivers are senders, or without receivers.
    Raises `ValueError` if there are receivers but no senders. Method: Takahashi, Matsuyama (1980).
    """
    reached = list(senders)
    missing = list(receivers)
    edges: list[Edge] = []
    while missing:
        costs = best[np.ix_(reached, missing)]
        start, end = np.unravel_index(int(costs.argmin()), costs.shape)
        goal = missing[int(end)]
        path: list[Edge] = []
        # A position on the path may already be in the tree, reached from another node.
        while goal not in reached:
            parent = int(before[reached[int(start)], goal])
            path.append((parent, goal))
            goal = parent
        edges += reversed(path)
        reached += [child for _, child in reversed(path)]
        missing = [receiver for receiver in missing if receiver not in reached]
    return tuple(edges)


Part = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Boxes that any of `senders` can send to all of `receivers`, in sequence.

    Senders and receivers are NPUs in the order of their meshes; receivers lack the boxes. `rows`:
    unit tasks; `ends`: running sum of their bytes.
    """

    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    rows: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all boxes together, for one receiver."""
        return self.ends[-1]

    def boxes(self, part: Part) -> Iterator[tuple[int, Part]]:
        """Yield (unit task, part of its box) for each box with bytes of a part of the delivery.

        A delivery is a sequence of boxes, each with the contiguous data of one unit task, for
        the same receivers. A part is (first, last), exact fractions from 0 to 1. `part` refers
        to the bytes of the delivery, and the yielded part to the bytes of the box. The order is
        that of the boxes. With boxes of 10 and 30 bytes, part (0, 1/2) gives all of the first
        box, and (0, 1/3) of the second. Boxes without bytes in `part` are skipped, so a part
        with first = last yields nothing.
        """
        low, high = part[0] * self.bytes, part[1] * self.bytes
        begin = 0
        for row, end in zip(self.rows, self.ends, strict=True):
            first, last = max(low, Fraction(begin)), min(high, Fraction(end))
            if first < last:
                size = end - begin
                yield row, ((first - begin) / size, (last - begin) / size)
            begin = end


def group_deliveries(units: UnitTasks) -> list[Delivery]:
    """Group unit tasks with equal senders and equal receivers, which are sent as one delivery.

    A unit task moves one box of data from any of its senders to all of its receivers. Receivers
    that are also senders of the task are removed first. Then lists are equal if they have the same
    devices in the same order. A unit task with 0 bytes or without remaining receivers is in no
    delivery.

    A delivery has its senders, its remaining receivers, its unit tasks in order, and for each the
    sum of bytes of the delivery up to its end. Deliveries are in the order of their first unit
    task. `units` is not changed; without unit tasks the result is empty.
    """
    rows_by_ends: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for row in range(len(units)):
        senders = tuple(units.senders_of(row).tolist())
        all_receivers = units.receivers_of(row).tolist()
        receivers = tuple(device for device in all_receivers if device not in senders)
        if receivers and units.bytes[row]:
            rows_by_ends.setdefault((senders, receivers), []).append(row)
    sizes: Mapping[int, int] = dict(enumerate(units.bytes.tolist()))
    deliveries = []
    for (senders, receivers), rows in rows_by_ends.items():
        ends, total = [], 0
        for row in rows:
            total += sizes[row]
            ends.append(total)
        deliveries.append(Delivery(senders, receivers, tuple(rows), tuple(ends)))
    return deliveries


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
    """Return the minimum time in seconds for all deliveries that weights of links prove, exactly.

    It is needed / provided, or 0 if provided is 0 or without deliveries:

    - Needed: for each delivery, its bytes times `bound_tree_cost` from the senders to the
      receivers. This is a lower bound on the cost of a tree, where a message between two devices
      costs the smallest sum of weights of all paths between them.
    - Provided: for each link, its rate (bytes/s) times its weight.

    `weights`: integers of at least 0 by link number; all other links have 0. Raises `KeyError` if a
    device of a delivery is not in `fabric`, and `IndexError` for a link that the topology lacks.
    """
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
    """Find integer weights of links that prove the largest lower bound on the time.

    `prices`: candidates, each float64[links] with values of at least 0. A candidate without
    positive prices is skipped. The weights of a candidate are round(price / largest price *
    scale), where .5 is rounded to the even number. If all positive prices of the candidate are
    equal, the only scale is 1. Otherwise the scales 1, 12, 720 and 1 000 000 are tried in this
    order.

    Returns the weights with the largest `compute_proved_bound_s` and this time in s, of equal
    times the first. The mapping has only the links with positive weights. If no weights prove a
    time above 0, also without candidates, the result is the time 0 with an empty mapping.
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
    """Yield prices of links for simple cuts of the network: around every node and every host.

    For each node or host there are two arrays, float64[links]: first 1 for every link that
    leaves it, then 1 for every link that enters it, and 0 for all other links. A link within a
    host is 0 in both. All nodes of the topology come first, ascending, then the hosts in
    `host_of`, ascending.

    `host_of`: host of every NPU, -1 if it is not used. A switch belongs to a host if all NPUs
    with a link to the switch do. Unused NPUs and other switches belong to no host.
    """
    topology = fabric.topology
    of_host = find_owners(topology, host_of)
    of_node = np.arange(topology.num_nodes)
    for owner in (of_node, of_host):
        start, end = owner[topology.source], owner[topology.destination]
        for group in np.unique(owner[owner >= 0]).tolist():
            yield ((start == group) & (end != group)).astype(np.float64)
            yield ((end == group) & (start != group)).astype(np.float64)


def bound_tree_cost(costs: Int64Array, senders: Sequence[int], receivers: Sequence[int]) -> int:
    """Return a lower bound on the cost of any tree that leads from some senders to all receivers.

    `costs`: int64[positions, positions] of at least 0, cost of each message, source first; not
    changed. The bound begins with 0. For each receiver in the given order these steps are repeated
    on a copy of the costs:

    1. Take the set of positions from which the receiver can be reached at cost 0, itself included.
    2. If the set contains a sender, continue with the next receiver.
    3. Subtract the smallest cost of the messages into the set from all of them, and add it to the
       bound.

    Later receivers use the reduced costs, so their order may change the bound. With one receiver
    it is the cost of the cheapest path from a sender. The bound is 0 without receivers; otherwise
    `ValueError` is raised if there are no senders. Method: dual ascent.
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
    """Return which positions have a path to `goal` over edges of cost 0: bool[positions].

    `costs`: int64[positions, positions]; entry [a, b] is the cost of the edge from a to b. An edge
    whose cost is not exactly 0 is not used. Paths may have any number of edges. `goal` itself is
    True, also without edges. `costs` is not changed.
    """
    inside = np.zeros(len(costs), np.bool_)
    inside[goal] = True
    while True:
        grown = inside | (costs[:, inside] == 0).any(axis=1)
        if (grown == inside).all():
            return inside
        inside = grown
