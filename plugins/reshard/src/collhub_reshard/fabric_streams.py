"""Streams: choose trees for the parts of every delivery so that the fullest link finishes earliest.

Column generation on the linear program of the flow: trees that are cheap at the current prices of
links are added until none is cheaper than the trees in use. All streams run at once and share links
in proportion, as packets do. With several receivers the trees are heuristic, but the bound is
proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_linear_programs import LinearProgram, Matrix, solve
from collhub_shardings import UnitTasks

from collhub_reshard.fabric_links import (
    Delivery,
    Edge,
    FabricLinks,
    LinkBound,
    Part,
    build_cheap_tree,
    find_best_bound,
    find_cheapest_paths,
    generate_cuts,
    group_deliveries,
)
from hub_core.columns import Float64Array
from hub_core.network import Topology

# Initial trees: fewer per delivery if there are many deliveries.
_SPREADING_ROUNDS = 12
_MAX_INITIAL_TREES = 1000
_PRICING_ROUNDS = 40
_SHARE = 1 << 20
_SIMPLE_SHARE = 64
_CLOSE = 1e-7
# Price of a second on any link, relative to a second of the makespan.
_LINK_TIME_PRICE = 1e-4


@dataclass(frozen=True, slots=True)
class DeliveryStream:
    """A part of a delivery on one tree; edges are pairs of NPUs, parents first."""

    delivery: int
    edges: tuple[Edge, ...]
    part: Part


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Streams that run at once, the time of the fullest link, and the bound by links.

    `makespan_s` excludes latency and store-and-forward.
    """

    fabric: FabricLinks
    deliveries: tuple[Delivery, ...]
    streams: tuple[DeliveryStream, ...]
    makespan_s: Fraction
    bound: LinkBound

    @property
    def is_optimal(self) -> bool:
        """Whether the fullest link takes exactly the time of the bound, as fractions."""
        return self.makespan_s == self.bound.time_s

    @property
    def gap(self) -> float:
        """Excess of the time over the bound as a fraction of the bound, 0.0 for a bound of 0.

        0.05 means that the streams take 5 % longer than the bound.
        """
        bound_s = self.bound.time_s
        return float(self.makespan_s / bound_s - 1) if bound_s else 0.0

    def predicted_s(self, chunks: int) -> float:
        """Predict the time in seconds, with latencies and the waiting for complete chunks.

        It is makespan_s * (1 + (links - 1) / `chunks`) + latency, because a link forwards a chunk
        only when the entire chunk has arrived. `links` is the number of links on the longest path
        from a root in any stream, at least 1. `latency` is the largest sum of link latencies on any
        such path, possibly another one. A stream is a tree that carries a part of the data; its
        edges must have parents before children. A plan without streams takes 0 s. `chunks` must be
        at least 1.
        """
        position = {device: number for number, device in enumerate(self.fabric.devices)}
        latency = self.fabric.topology.latency_s
        hops, waiting = 1, 0.0
        for stream in self.streams:
            depth: dict[int, tuple[int, float]] = {}
            for source, destination in stream.edges:
                route = self.fabric.route((position[source], position[destination]))
                links, time = depth.get(source, (0, 0.0))
                depth[destination] = links + len(route), time + float(latency[route].sum())
            hops = max(hops, *(links for links, _ in depth.values()))
            waiting = max(waiting, *(time for _, time in depth.values()))
        return float(self.makespan_s) * (1 + (hops - 1) / chunks) + waiting


def plan_streams(topology: Topology, units: UnitTasks) -> StreamPlan:
    """Plan how all boxes are sent at once over trees of a topology, with a lower bound on the time.

    Unit tasks with equal senders and receivers are one delivery (`group_deliveries`); those that
    need no transfer are in none. A stream carries a part of a delivery over one tree. Streams are
    sorted by delivery, and in it by the order in which their trees were found. `makespan_s` is the
    exact time of the busiest link with these streams.

    The bound is the largest one that the link prices of the last two rounds of the search prove. If
    the streams take longer, cuts around each node and each host are tried too, and the larger bound
    is used. Without deliveries, the plan is empty, and its makespan and bound are 0. Raises
    `InputError` if there is no path between any two devices of the unit tasks, also for unit tasks
    that need no transfer.
    """
    devices = [*units.senders.tolist(), *units.receivers.tolist()]
    fabric = FabricLinks.of(topology, devices)
    deliveries = group_deliveries(units)
    if not deliveries:
        return StreamPlan(fabric, (), (), Fraction(0), LinkBound(Fraction(0), {}))
    search = _StreamSearch(fabric, deliveries)
    shares, prices = search.run()
    streams = search.streams(shares)
    bound = find_best_bound(fabric, deliveries, prices)
    makespan = compute_stream_time_s(fabric, deliveries, streams)
    if bound.time_s < makespan:
        # The prices of heuristic trees may prove a smaller bound than a simple cut.
        cut_bound = find_best_bound(fabric, deliveries, generate_cuts(fabric, units.host_of))
        bound = max(bound, cut_bound, key=lambda candidate: candidate.time_s)
    return StreamPlan(fabric, tuple(deliveries), tuple(streams), makespan, bound)


def compute_stream_time_s(
    fabric: FabricLinks, deliveries: Sequence[Delivery], streams: Sequence[DeliveryStream]
) -> Fraction:
    """Return the exact time in seconds after which the busiest link has carried its bytes.

    Each stream carries its part of the delivery over every edge; a link counts it once for each
    edge whose route uses the link. Latencies do not count. The time is 0 without streams.
    """
    position = {device: number for number, device in enumerate(fabric.devices)}
    load: dict[int, Fraction] = {}
    for stream in streams:
        size = (stream.part[1] - stream.part[0]) * deliveries[stream.delivery].bytes
        uses = fabric.count_uses([(position[a], position[b]) for a, b in stream.edges])
        for link in np.flatnonzero(uses).tolist():
            load[link] = load.get(link, Fraction(0)) + size * int(uses[link])
    return max((size / fabric.rates[link] for link, size in load.items()), default=Fraction(0))


class _StreamSearch:
    """The trees of all deliveries, and the share of each delivery that uses them."""

    def __init__(self, fabric: FabricLinks, deliveries: Sequence[Delivery]) -> None:
        self._fabric, self._deliveries = fabric, deliveries
        position = {device: number for number, device in enumerate(fabric.devices)}
        self._ends = [
            (
                [position[device] for device in delivery.senders],
                [position[device] for device in delivery.receivers],
            )
            for delivery in deliveries
        ]
        self._link_s = np.asarray([float(1 / rate) for rate in fabric.rates])
        self._trees: dict[tuple[int, tuple[Edge, ...]], Float64Array] = {}

    def run(self) -> tuple[Float64Array, list[Float64Array]]:
        """Find trees for all deliveries by column generation; return (shares, prices).

        1. In 1000 // deliveries rounds (2 to 12), each delivery gets a cheap tree
           (`build_cheap_tree`). A link costs its seconds per byte times e^(8 * load / largest
           load); the load is that of all trees so far, equal ones included.
        2. Each further round solves the linear program of the known trees. Then each delivery gets
           the cheap tree of the prices, if it is cheaper than the price of the delivery by more
           than the fraction `_CLOSE`. Every link is dearer by 1e-4 times its seconds per byte. The
           last round is one without a new tree, or round `_PRICING_ROUNDS` + 1 (41).

        Shares: float64[trees], the part of its delivery that each known tree carries. Prices:
        float64[links] for each of the last two rounds, the earlier first, or for the only one. A
        link has the price of the linear program times its seconds per byte.
        """
        load = np.zeros(len(self._link_s))
        rounds = min(_SPREADING_ROUNDS, max(2, _MAX_INITIAL_TREES // len(self._deliveries)))
        for _ in range(rounds):
            for number, ends in enumerate(self._ends):
                link_cost = self._link_s * np.exp(8 * load / (load.max() or 1.0))
                best, before = find_cheapest_paths(self._fabric.sum_pair_costs(link_cost))
                load += self._add(number, build_cheap_tree(best, before, *ends))

        prices: list[Float64Array] = []
        while True:
            shares, link_price, delivery_price = self._solve()
            prices.append(link_price * self._link_s)
            if len(prices) > _PRICING_ROUNDS:
                return shares, prices[-2:]
            nudged = prices[-1] + _LINK_TIME_PRICE * self._link_s
            best, before = find_cheapest_paths(self._fabric.sum_pair_costs(nudged))
            known = len(self._trees)
            for number, ends in enumerate(self._ends):
                edges = build_cheap_tree(best, before, *ends)
                cost = self._fabric.count_uses(edges) @ nudged * self._deliveries[number].bytes
                if cost < delivery_price[number] * (1 - _CLOSE):
                    self._add(number, edges)
            if len(self._trees) == known:
                return shares, prices[-2:]

    def streams(self, shares: Float64Array) -> list[DeliveryStream]:
        """Build a stream for every tree that carries a share, delivery by delivery.

        `shares`: float64[trees], the share of its delivery for each known tree. The streams of a
        delivery are in the order in which its trees were added. Each has a part (begin, end) as
        fractions; the parts follow one another from 0 to exactly 1. Edges are pairs of NPU numbers.

        The shares of a delivery are rounded by `_round_shares`. Shares below 1e-7 become 0, and the
        others are scaled to the sum 1. They become fractions with denominators up to 64 if those
        add up to 1 and are close, otherwise multiples of 2^-20. Trees with the share 0 have no
        stream. At least one share of each delivery must be 1e-7 or more; this is not checked.
        """
        devices = self._fabric.devices
        streams = []
        for number in range(len(self._deliveries)):
            rows = [
                row_number
                for row_number, (delivery, _) in enumerate(self._trees)
                if delivery == number
            ]
            begin = Fraction(0)
            for row, share in zip(rows, _round_shares(shares[rows]), strict=True):
                if not share:
                    continue
                _, edges = list(self._trees)[row]
                edge_devices = tuple((devices[a], devices[b]) for a, b in edges)
                streams.append(DeliveryStream(number, edge_devices, (begin, begin + share)))
                begin += share
        return streams

    def _add(self, number: int, edges: tuple[Edge, ...]) -> Float64Array:
        """Add a tree to delivery `number`, unless it is known already.

        Returns the seconds for which each link would be busy if the tree carried all bytes of the
        delivery: float64[links].
        """
        key = number, edges
        if key not in self._trees:
            uses = self._fabric.count_uses(edges)
            self._trees[key] = uses * self._deliveries[number].bytes * self._link_s
        return self._trees[key]

    def _solve(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Solve the linear program: divide each delivery among its trees for the least makespan.

        The makespan is the time for which the busiest link is used. The minimized value is the
        makespan plus 1e-4 times the sum of the busy times of all links. Every delivery must have a
        tree, else `AssertionError`. Nothing is changed. Returns three float64 arrays:

        - for every tree, in the order of `_trees`: the fraction of its delivery. The fractions of
          one delivery add up to 1.
        - for every link of the topology: its price, seconds of makespan per second of load. It is
          at least 0, and 0 for links that do not limit the makespan.
        - for every delivery: its price, i.e. the growth of the minimized value in seconds if the
          entire delivery is sent once more
        """
        columns = np.stack(list(self._trees.values()), axis=1)
        scale = float(columns.max())
        of_delivery = np.asarray([number for number, _ in self._trees])
        links, trees = columns.shape
        link, tree = np.nonzero(columns)
        entries = (
            (link, tree, columns[link, tree] / scale),
            (np.arange(links), np.full(links, trees), np.full(links, -1.0)),
            (links + of_delivery, np.arange(trees), np.ones(trees)),
        )
        rows, variables, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        of_links, of_deliveries = np.zeros(links), np.ones(len(self._deliveries))
        program = LinearProgram(
            # Among solutions with equal makespan, prefer the one with the smallest total load.
            np.append(_LINK_TIME_PRICE * columns.sum(axis=0) / scale, 1.0),
            Matrix(rows, variables, values, links + len(self._deliveries), trees + 1),
            row_lower=np.concatenate([of_links - np.inf, of_deliveries]),
            row_upper=np.concatenate([of_links, of_deliveries]),
            upper=np.full(trees + 1, np.inf),
        )
        solution = solve(program)
        assert solution is not None, "every delivery has a tree, and the makespan has no limit"
        price = np.maximum(-solution.row_prices[:links], 0.0)
        return solution.values[:-1], price, solution.row_prices[links:] * scale


def _round_shares(shares: Float64Array) -> list[Fraction]:
    """Round shares of at least 0 to fractions that add up to exactly 1.

    Shares below 1e-7 (`_CLOSE`) become 0, and all further ones are scaled to a sum of 1; at
    least one share must reach 1e-7. If the nearest fractions with denominators up to
    `_SIMPLE_SHARE` (64) add up to 1, and each differs from its share by at most 1e-7 + 1e-5
    * share, they are returned. Otherwise each share is rounded to a multiple of 1 /
    `_SHARE` (2^-20), and the largest one (the first of equal ones) takes the rounding
    remainder.
    """
    clean = np.where(shares < _CLOSE, 0.0, shares)
    clean = clean / clean.sum()
    simple = [Fraction(share).limit_denominator(_SIMPLE_SHARE) for share in clean.tolist()]
    if sum(simple) == 1 and np.allclose(
        [float(fraction) for fraction in simple], clean, atol=_CLOSE
    ):
        return simple
    # The largest share takes the rounding remainder.
    multiples = [round(share * _SHARE) for share in clean.tolist()]
    multiples[int(clean.argmax())] += _SHARE - sum(multiples)
    return [Fraction(fraction, _SHARE) for fraction in multiples]
