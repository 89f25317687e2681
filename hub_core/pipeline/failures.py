"""Times of an algorithm on a network of which one link after another fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hub_core.columns import BoolArray, Int64Array, group_of_entry
from hub_core.model import Algorithm, InputError, placement_of
from hub_core.network import Routes, Topology, find_separation, list_failures, remove_rows
from hub_core.pipeline.simulation import DEFAULT_SIMULATOR, simulate

if TYPE_CHECKING:
    from hub_core.registry.bind_options import OptionText
    from hub_core.registry.plugins import Registry

USES_LINK = "not possible: uses the link"
"""Reason for a message between NPUs that no switches connect without the link."""


@dataclass(frozen=True, slots=True)
class FailureTime:
    """Time in ns of an algorithm without the link `link`, None with a `reason` if it does not run.

    `is_used`: whether a message uses the link.
    """

    link: str
    time_ns: int | None
    reason: str = ""
    is_used: bool = True


@dataclass(frozen=True, slots=True)
class MessageRoutes:
    """Routes of the pairs of NPUs that exchange messages, on the complete network.

    `sources`, `destinations`, `channels`: int64[pairs], distinct triples, channels modulo the
    planes. `pair_of_message`: int64[sends], the pair of each send of the algorithm in row order.
    """

    topology: Topology
    sources: Int64Array
    destinations: Int64Array
    channels: Int64Array
    routes: Routes
    pair_of_message: Int64Array

    @classmethod
    def of(cls, algorithm: Algorithm, topology: Topology) -> MessageRoutes:
        """Find the routes of all messages; ranks are placed as `placement_of` says.

        Raises `InputError` for a message without a path.
        """
        steps = algorithm.steps
        sends = np.flatnonzero(steps.sends)
        npus = np.asarray(placement_of(algorithm) or range(algorithm.num_ranks), np.int64)
        table = np.stack(
            [
                npus[steps.rank[sends]],
                npus[steps.peer[sends]],
                steps.channel[sends] % topology.num_planes,
            ]
        )
        pairs, pair_of_message = np.unique(table, axis=1, return_inverse=True)
        routes = topology.routes(*pairs)
        return cls(topology, pairs[0], pairs[1], pairs[2], routes, pair_of_message.reshape(-1))

    def using(self, fails: BoolArray) -> Int64Array:
        """Return the pairs whose route has a link where `fails`, bool[links], ascending."""
        used = np.flatnonzero(fails[self.routes.links])
        return np.unique(group_of_entry(self.routes.indptr)[used])

    def blocked(self, failed: Topology, pairs: Int64Array) -> Int64Array:
        """Return those of `pairs` that `failed` connects only through other NPUs, or not at all.

        Pairs that the complete network connects through NPUs as well are not blocked: there, NPUs
        forward messages. `failed`: the same nodes and planes with fewer links.
        """
        if failed.num_planes < self.topology.num_planes:
            # A plane without links is lost, and channels would use other planes.
            return pairs
        ends = (self.sources[pairs], self.destinations[pairs], self.channels[pairs])
        try:
            rerouted = failed.routes(*ends)
        except InputError:
            return pairs
        relayed = _pass_npus(failed, rerouted)
        before = _pass_npus(self.topology, self.routes)[pairs]
        blocked: Int64Array = pairs[relayed & ~before]
        return blocked


def simulate_failures(
    algorithm: Algorithm,
    topology: Topology,
    collective_bytes: int,
    time_ns: int | None,
    *,
    backend: str = DEFAULT_SIMULATOR,
    options: OptionText | None = None,
    registry: Registry,
) -> list[FailureTime]:
    """Simulate an algorithm without each link of a network; return one time per pair of nodes.

    Both directions and parallel links of a pair fail together. `time_ns`: the time on the complete
    network, which is that without an unused link. Messages use the routes that remain; the
    algorithm does not run if a message would have to pass through an NPU that does not forward
    messages on the complete network. Raises `HubError`.
    """
    messages = MessageRoutes.of(algorithm, topology)
    times = []
    for failure in list_failures(topology):
        affected = messages.using(failure.fails)
        if not len(affected):
            times.append(FailureTime(failure.name, time_ns, is_used=False))
            continue
        failed = remove_rows(topology, failure.fails)
        separation = find_separation(topology, failure.fails)
        if separation is not None:
            reason = f"not possible: {separation.message(topology)}"
            times.append(FailureTime(failure.name, None, reason))
            continue
        if len(messages.blocked(failed, affected)):
            times.append(FailureTime(failure.name, None, USES_LINK))
            continue
        result = simulate(
            algorithm, failed, collective_bytes, backend=backend, options=options, registry=registry
        )
        reason = "" if result.time_ns is not None else "never ends"
        times.append(FailureTime(failure.name, result.time_ns, reason))
    return times


def _pass_npus(topology: Topology, routes: Routes) -> BoolArray:
    """Return which routes pass through an NPU between their ends: bool[pairs]."""
    is_last = np.zeros(len(routes.links), np.bool_)
    filled = np.flatnonzero(np.diff(routes.indptr))
    is_last[routes.indptr[filled + 1] - 1] = True
    inner = np.flatnonzero(~is_last & (topology.destination[routes.links] < topology.num_npus))
    result = np.zeros(len(routes.indptr) - 1, np.bool_)
    result[group_of_entry(routes.indptr)[inner]] = True
    return result
