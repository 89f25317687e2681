"""Devices on a topology: the links of their messages, cheapest paths, and required deliveries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from collhub_shardings import UnitTasks

from collhub_reshard.scheduling.host_tasks import parse_exact_rate
from hub_core.columns import Float64Array, Int64Array, group_of_entry
from hub_core.network import Topology

Edge = tuple[int, int]
# The closure of pairs takes the cube of them.
_MOST_DEVICES = 128


@dataclass(frozen=True, slots=True)
class FabricLinks:
    """Links between devices, by the routes of a topology.

    `devices`: NPUs, ascending; an edge is a pair of places in it. `rates`: bytes per second of
    every link of the topology, exactly. `indptr`, `links`: rows of links on the route from place a
    to place b are `links[indptr[i]:indptr[i + 1]]`, i = a * len(devices) + b.
    """

    topology: Topology
    devices: tuple[int, ...]
    rates: tuple[Fraction, ...]
    indptr: Int64Array
    links: Int64Array

    @classmethod
    def of(cls, topology: Topology, devices: Iterable[int]) -> FabricLinks:
        """The links between some NPUs. Raises `InputError` for NPUs without a path."""
        places = np.asarray(sorted(set(devices)), np.int64)
        count = len(places)
        routes = topology.routes(np.repeat(places, count), np.tile(places, count))
        known = {
            rate: parse_exact_rate(rate) for rate in set(topology.bandwidth_bytes_per_s.tolist())
        }
        rates = tuple(known[rate] for rate in topology.bandwidth_bytes_per_s.tolist())
        return cls(topology, tuple(places.tolist()), rates, routes.indptr, routes.links)

    def route(self, edge: Edge) -> Int64Array:
        """Rows of the links that a message between two places takes, in order."""
        pair = edge[0] * len(self.devices) + edge[1]
        return self.links[self.indptr[pair] : self.indptr[pair + 1]]

    def uses(self, edges: Iterable[Edge]) -> Int64Array:
        """How often some messages together take every link: int64[links]."""
        rows = [self.route(edge) for edge in edges]
        return np.bincount(np.concatenate(rows), minlength=len(self.rates))

    def sum_pair_costs(self, weights: Float64Array) -> Float64Array:
        """The sum of the weights of links on every route: float64[places, places]."""
        count = len(self.devices)
        pair = group_of_entry(self.indptr)
        costs = np.bincount(pair, weights[self.links], minlength=count * count)
        return costs.astype(np.float64).reshape(count, count)


def can_plan_streams(topology: Topology, devices: Iterable[int]) -> bool:
    """Whether streams are planned on a topology: one plane, and not too many devices."""
    # Messages of other planes would need a channel each.
    return topology.num_planes == 1 and len(set(devices)) <= _MOST_DEVICES


def find_cheapest_paths(costs: Float64Array) -> tuple[Float64Array, Int64Array]:
    """(cost, place before the last) of the cheapest way between all places (Floyd 1962)."""
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
    """Edges from senders to all receivers, parents first: the nearest receiver joins first.

    The shortest-path heuristic of Takahashi and Matsuyama (1980); with one receiver it is exact.
    """
    reached = list(senders)
    waiting = list(receivers)
    edges: list[Edge] = []
    while waiting:
        costs = best[np.ix_(reached, waiting)]
        start, end = np.unravel_index(int(costs.argmin()), costs.shape)
        goal = waiting[int(end)]
        way: list[Edge] = []
        # A place on the way may be in the tree already, over another one of its nodes.
        while goal not in reached:
            parent = int(before[reached[int(start)], goal])
            way.append((parent, goal))
            goal = parent
        edges += reversed(way)
        reached += [child for _, child in reversed(way)]
        waiting = [one for one in waiting if one not in reached]
    return tuple(edges)


Part = tuple[Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Boxes that any of `senders` gives to all of `receivers`, one behind the other.

    Senders and receivers are NPUs in the order of their meshes; receivers lack the boxes. `rows`:
    unit tasks; `ends`: bytes of the boxes up to and with each of them.
    """

    senders: tuple[int, ...]
    receivers: tuple[int, ...]
    rows: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all boxes."""
        return self.ends[-1]

    def boxes(self, part: Part) -> Iterator[tuple[int, Part]]:
        """(unit task, part of its box) of a part of the bytes, both from 0 to 1."""
        low, high = part[0] * self.bytes, part[1] * self.bytes
        begin = 0
        for row, end in zip(self.rows, self.ends, strict=True):
            first, last = max(low, Fraction(begin)), min(high, Fraction(end))
            if first < last:
                size = end - begin
                yield row, ((first - begin) / size, (last - begin) / size)
            begin = end


def group_deliveries(units: UnitTasks) -> list[Delivery]:
    """All deliveries; boxes that every receiver has already need none."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for row in range(len(units)):
        senders = tuple(units.senders_of(row).tolist())
        wanted = units.receivers_of(row).tolist()
        receivers = tuple(device for device in wanted if device not in senders)
        if receivers and units.bytes[row]:
            found.setdefault((senders, receivers), []).append(row)
    sizes: Mapping[int, int] = dict(enumerate(units.bytes.tolist()))
    made = []
    for (senders, receivers), rows in found.items():
        ends, total = [], 0
        for row in rows:
            total += sizes[row]
            ends.append(total)
        made.append(Delivery(senders, receivers, tuple(rows), tuple(ends)))
    return made
