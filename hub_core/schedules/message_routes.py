"""Routes of the messages of an algorithm, and the messages that failed links block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array, group_of_entry
from hub_core.model import Algorithm, InputError, placement_of
from hub_core.network import Routes, Topology


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
        """Find the routes of all messages of an algorithm, one per pair of NPUs and plane.

        Ranks are on the NPUs of `placement_of`, else rank r on NPU r; a message uses plane channel
        modulo number of planes. Raises `InputError` for a message without a path.
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


def _pass_npus(topology: Topology, routes: Routes) -> BoolArray:
    """Return which routes pass through an NPU between their ends: bool[routes].

    Routes without links do not.
    """
    is_last = np.zeros(len(routes.links), np.bool_)
    filled = np.flatnonzero(np.diff(routes.indptr))
    is_last[routes.indptr[filled + 1] - 1] = True
    inner = np.flatnonzero(~is_last & (topology.destination[routes.links] < topology.num_npus))
    result = np.zeros(len(routes.indptr) - 1, np.bool_)
    result[group_of_entry(routes.indptr)[inner]] = True
    return result
