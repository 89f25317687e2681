"""Streams: which part of every delivery takes which tree, so that the fullest link ends earliest.

Column generation on the linear program of the flow: trees that are cheap at the prices of the links
join until none is cheaper than those that are there. All streams run at once and share links in
proportion, as packets do. Where receivers are several, trees are heuristic, the bound is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_shardings import UnitTasks

from collhub_reshard.fabric.bound import LinkBound, find_best_bound, generate_cuts
from collhub_reshard.fabric.links import (
    Delivery,
    Edge,
    FabricLinks,
    Part,
    build_cheap_tree,
    find_cheapest_paths,
    group_deliveries,
)
from hub_core.columns import Float64Array
from hub_core.network import Topology

# Trees to begin with: few a delivery where deliveries are many.
_SPREADING_ROUNDS = 12
_MOST_SPREAD = 1000
_PRICING_ROUNDS = 40
_SHARE = 1 << 20
_SIMPLE_SHARE = 64
_CLOSE = 1e-7
# What a second of any link costs beside a second of all.
_TRIFLE = 1e-4


@dataclass(frozen=True, slots=True)
class Stream:
    """A part of a delivery on one tree; edges are pairs of NPUs, parents first."""

    delivery: int
    edges: tuple[Edge, ...]
    part: Part


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Streams that run at once, the time of the fullest link, and the bound of all links.

    `makespan_s` leaves latency and store-and-forward aside.
    """

    fabric: FabricLinks
    deliveries: tuple[Delivery, ...]
    streams: tuple[Stream, ...]
    makespan_s: Fraction
    bound: LinkBound

    @property
    def is_optimal(self) -> bool:
        """Whether the bound is reached exactly."""
        return self.makespan_s == self.bound.time_s

    @property
    def gap(self) -> float:
        """How much longer it takes than the bound, as a part of the bound."""
        least = self.bound.time_s
        return float(self.makespan_s / least - 1) if least else 0.0

    def predicted_s(self, chunks: int) -> float:
        """Time with the latency of the longest way, and chunks that are stored on all its links."""
        place = {device: at for at, device in enumerate(self.fabric.devices)}
        latency = self.fabric.topology.latency_s
        hops, waiting = 1, 0.0
        for stream in self.streams:
            depth: dict[int, tuple[int, float]] = {}
            for source, destination in stream.edges:
                route = self.fabric.route((place[source], place[destination]))
                links, time = depth.get(source, (0, 0.0))
                depth[destination] = links + len(route), time + float(latency[route].sum())
            hops = max(hops, *(links for links, _ in depth.values()))
            waiting = max(waiting, *(time for _, time in depth.values()))
        return float(self.makespan_s) * (1 + (hops - 1) / chunks) + waiting


def plan_streams(topology: Topology, units: UnitTasks) -> StreamPlan:
    """Streams of all boxes on a topology. Raises `InputError` for devices without a path."""
    devices = [*units.senders.tolist(), *units.receivers.tolist()]
    fabric = FabricLinks.of(topology, devices)
    deliveries = group_deliveries(units)
    if not deliveries:
        return StreamPlan(fabric, (), (), Fraction(0), LinkBound(Fraction(0), {}))
    search = _Search(fabric, deliveries)
    shares, prices = search.run()
    streams = search.streams(shares)
    bound = find_best_bound(fabric, deliveries, prices)
    makespan = compute_stream_time_s(fabric, deliveries, streams)
    if bound.time_s < makespan:
        # Prices of heuristic trees may prove less than a simple cut.
        found = find_best_bound(fabric, deliveries, generate_cuts(fabric, units.host_of))
        bound = max(bound, found, key=lambda one: one.time_s)
    return StreamPlan(fabric, tuple(deliveries), tuple(streams), makespan, bound)


def compute_stream_time_s(
    fabric: FabricLinks, deliveries: Sequence[Delivery], streams: Sequence[Stream]
) -> Fraction:
    """When the fullest link has carried its bytes, in seconds, exactly."""
    place = {device: at for at, device in enumerate(fabric.devices)}
    load: dict[int, Fraction] = {}
    for stream in streams:
        size = (stream.part[1] - stream.part[0]) * deliveries[stream.delivery].bytes
        uses = fabric.uses([(place[a], place[b]) for a, b in stream.edges])
        for link in np.flatnonzero(uses).tolist():
            load[link] = load.get(link, Fraction(0)) + size * int(uses[link])
    return max((size / fabric.rates[link] for link, size in load.items()), default=Fraction(0))


class _Search:
    """Trees of all deliveries, and how much of each goes along them."""

    def __init__(self, fabric: FabricLinks, deliveries: Sequence[Delivery]) -> None:
        self._fabric, self._deliveries = fabric, deliveries
        place = {device: at for at, device in enumerate(fabric.devices)}
        self._ends = [
            ([place[one] for one in found.senders], [place[one] for one in found.receivers])
            for found in deliveries
        ]
        self._link_s = np.asarray([float(1 / rate) for rate in fabric.rates])
        self._trees: dict[tuple[int, tuple[Edge, ...]], Float64Array] = {}

    def run(self) -> tuple[Float64Array, list[Float64Array]]:
        """(share of every tree, prices of the links of the last rounds)."""
        self._spread()
        prices: list[Float64Array] = []
        while True:
            shares, price, value = self._solve()
            prices.append(price * self._link_s)
            nudged = prices[-1] + _TRIFLE * self._link_s
            if len(prices) > _PRICING_ROUNDS or not self._join(nudged, value):
                return shares, prices[-2:]

    def streams(self, shares: Float64Array) -> list[Stream]:
        """The streams of the trees that have a share, in parts that fill every delivery."""
        devices = self._fabric.devices
        found = []
        for number in range(len(self._deliveries)):
            rows = [at for at, (one, _) in enumerate(self._trees) if one == number]
            begin = Fraction(0)
            for row, share in zip(rows, _round_shares(shares[rows]), strict=True):
                if not share:
                    continue
                _, edges = list(self._trees)[row]
                named = tuple((devices[a], devices[b]) for a, b in edges)
                found.append(Stream(number, named, (begin, begin + share)))
                begin += share
        return found

    def _spread(self) -> None:
        """Trees to begin with: delivery after delivery takes one that avoids full links."""
        load = np.zeros(len(self._link_s))
        rounds = min(_SPREADING_ROUNDS, max(2, _MOST_SPREAD // len(self._deliveries)))
        for _ in range(rounds):
            for number in range(len(self._deliveries)):
                most = load.max() or 1.0
                price = self._link_s * np.exp(8 * load / most)
                best, before = find_cheapest_paths(self._fabric.sum_pair_costs(price))
                edges = build_cheap_tree(best, before, *self._ends[number])
                load += self._add(number, edges)

    def _join(self, price: Float64Array, value: Float64Array) -> bool:
        """Add the trees that are cheaper than what their delivery pays; whether there is one."""
        best, before = find_cheapest_paths(self._fabric.sum_pair_costs(price))
        known = len(self._trees)
        for number, ends in enumerate(self._ends):
            edges = build_cheap_tree(best, before, *ends)
            cost = self._fabric.uses(edges) @ price * self._deliveries[number].bytes
            if cost < value[number] * (1 - _CLOSE):
                self._add(number, edges)
        return len(self._trees) > known

    def _add(self, number: int, edges: tuple[Edge, ...]) -> Float64Array:
        """Add a tree of a delivery; the seconds of every link with all of its bytes."""
        key = number, edges
        if key not in self._trees:
            uses = self._fabric.uses(edges)
            self._trees[key] = uses * self._deliveries[number].bytes * self._link_s
        return self._trees[key]

    def _solve(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """(share of every tree, price of every link, price of every delivery) of the program."""
        # scipy takes half a second.
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix, hstack

        columns = np.stack(list(self._trees.values()), axis=1)
        scale = float(columns.max())
        of_delivery = np.asarray([number for number, _ in self._trees])
        trees = len(of_delivery)
        minus_time = -np.ones((len(self._link_s), 1))
        limits = hstack([csr_matrix(columns / scale), csr_matrix(minus_time)]).tocsr()
        ones = np.ones(trees)
        shape = len(self._deliveries), trees + 1
        whole = csr_matrix((ones, (of_delivery, np.arange(trees))), shape)
        # Of shares that take the same time, those that load other links least.
        objective = np.append(_TRIFLE * columns.sum(axis=0) / scale, 1.0)
        solved = linprog(
            objective,
            A_ub=limits,
            b_ub=np.zeros(len(self._link_s)),
            A_eq=whole,
            b_eq=np.ones(len(self._deliveries)),
            method="highs",
        )
        price = np.maximum(-solved.ineqlin.marginals, 0.0)
        return solved.x[:-1], price, solved.eqlin.marginals * scale


def _round_shares(shares: Float64Array) -> list[Fraction]:
    """Fractions near to some shares whose sum is one."""
    clean = np.where(shares < _CLOSE, 0.0, shares)
    clean = clean / clean.sum()
    simple = [Fraction(share).limit_denominator(_SIMPLE_SHARE) for share in clean.tolist()]
    if sum(simple) == 1 and np.allclose([float(one) for one in simple], clean, atol=_CLOSE):
        return simple
    # The largest takes what rounding leaves.
    whole = [round(share * _SHARE) for share in clean.tolist()]
    whole[int(clean.argmax())] += _SHARE - sum(whole)
    return [Fraction(one, _SHARE) for one in whole]
