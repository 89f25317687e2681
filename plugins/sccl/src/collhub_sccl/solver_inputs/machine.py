"""A network as TACCL sees it: nodes that are alike, pairs of GPUs, and one latency for all.

TACCL's model (Shah et al., NSDI 2023; `taccl/topologies` of microsoft/taccl 426bd1e): a matrix of
links of one node, each with the time of a chunk; `copies` of the node, whose GPUs are joined by
connections of one time that share the network cards of a node; switches, as lists of GPUs whose
ports the pairs share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Float64Array, Int64Array

from hub_core.model import UsageError
from hub_core.network import Topology

_CODE = "inexpressible-topology"
# Times that differ by less are equal: they come from sums and quotients.
_ALIKE = 1e-9
_MOST_NPUS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class RemoteConnections:
    """Connections between any two nodes, as many of each GPU that has one.

    `receivers[i]`: the GPUs of another node to which GPU i of a node is joined. `cards`: how many
    can be used at once at the full bandwidth of one.
    """

    receivers: dict[int, list[int]]
    bandwidth_bytes_per_s: float
    latency_s: float
    cards: int


@dataclass(frozen=True, slots=True, eq=False)
class TacclMachine:
    """Matrices of one node by source and destination: [GPUs, GPUs].

    `links`: int64, parallel links of a pair, 0 for none; `bandwidth_bytes_per_s` of one of them and
    `latency_s`: float64. `is_switched`: every pair meets at switches and is like every other.
    """

    nodes: int
    links: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    is_switched: bool
    remote: RemoteConnections | None

    @property
    def gpus_per_node(self) -> int:
        """GPUs of one node."""
        return len(self.links)

    @property
    def is_uniform(self) -> bool:
        """Whether every pair of a node is joined by one link, all alike."""
        is_pair = ~np.eye(self.gpus_per_node, dtype=np.bool_)
        rates = self.bandwidth_bytes_per_s[is_pair]
        return bool(np.all(self.links[is_pair] == 1) and _are_alike(rates))


def machine_of(topology: Topology, nodes: int) -> TacclMachine:
    """The network as `nodes` nodes of as many NPUs each, in the order of the NPUs.

    Raises `UsageError` with the reason for what the model does not have.
    """
    npus = topology.num_npus
    if topology.num_planes > 1:
        _refuse(topology, f"it has {topology.num_planes} planes", "write the planes one by one")
    if npus > _MOST_NPUS:
        _refuse(topology, f"{npus} NPUs are more than {_MOST_NPUS}", "choose a smaller network")
    if npus % nodes:
        _refuse(topology, f"{npus} NPUs are no {nodes} nodes", "state nodes= that divides the NPUs")
    pairs = _Pairs.of(topology)
    gpus = npus // nodes
    # All nodes must be the first one again, in the same order of GPUs.
    for matrix in (pairs.links, pairs.bandwidth_bytes_per_s, pairs.latency_s):
        first = matrix[:gpus, :gpus]
        for node in range(1, nodes):
            part = slice(node * gpus, (node + 1) * gpus)
            if not np.allclose(matrix[part, part], first, rtol=_ALIKE, atol=0):
                _refuse(topology, f"node {node} is not like node 0", "state other nodes=")
    within = slice(0, gpus)
    links = pairs.links[within, within]
    rates = pairs.bandwidth_bytes_per_s[within, within]
    is_pair = ~np.eye(gpus, dtype=np.bool_)
    is_joined = pairs.is_switched[within, within][is_pair]
    is_switched = bool(len(is_joined) and np.all(is_joined) and _are_alike(rates[is_pair]))
    remote = None
    if nodes > 1:
        remote = _remote(topology, pairs, gpus)
    return TacclMachine(nodes, links, rates, pairs.latency_s[within, within], is_switched, remote)


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """What lies between every two NPUs: [NPUs, NPUs], by source and destination.

    `is_switched`: bool, whether their way goes through switches.
    """

    links: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    is_switched: BoolArray

    @classmethod
    def of(cls, topology: Topology) -> _Pairs:
        """Pairs whose shortest way passes no other NPU; the slowest link of it, and all latencies.

        Raises `UsageError` for parallel links that differ.
        """
        npus = topology.num_npus
        source, destination = np.divmod(np.arange(npus * npus), npus)
        apart = source != destination
        source, destination = source[apart], destination[apart]
        routes = topology.routes(source, destination)
        length = np.diff(routes.indptr)
        pair = np.repeat(np.arange(len(length)), length)
        # The last link of a way ends at its destination; any other end is on the way.
        is_last = np.zeros(len(pair), np.bool_)
        is_last[routes.indptr[1:] - 1] = True
        passes_npu = (topology.destination[routes.links] < npus) & ~is_last
        is_near = np.ones(len(length), np.bool_)
        is_near[pair[passes_npu]] = False
        slowest = np.full(len(length), np.inf)
        np.minimum.at(slowest, pair, topology.bandwidth_bytes_per_s[routes.links])
        together_s = np.bincount(pair, topology.latency_s[routes.links], len(length))
        counts = _parallel_links(topology)[source, destination]
        found = cls(
            np.zeros((npus, npus), np.int64),
            np.zeros((npus, npus)),
            np.zeros((npus, npus)),
            np.zeros((npus, npus), np.bool_),
        )
        near = source[is_near], destination[is_near]
        # Through switches there is one way, whatever lies between.
        found.links[near] = np.maximum(counts[is_near], 1)
        found.bandwidth_bytes_per_s[near] = slowest[is_near]
        found.latency_s[near] = together_s[is_near]
        found.is_switched[near] = counts[is_near] == 0
        return found


def _parallel_links(topology: Topology) -> Int64Array:
    """Links from NPU to NPU, int64[NPUs, NPUs]. Raises `UsageError` where they differ."""
    npus = topology.num_npus
    is_direct = (topology.source < npus) & (topology.destination < npus)
    ends = topology.source[is_direct], topology.destination[is_direct]
    rates = topology.bandwidth_bytes_per_s[is_direct]
    counts = np.zeros((npus, npus), np.int64)
    np.add.at(counts, ends, 1)
    least, most = np.full((npus, npus), np.inf), np.zeros((npus, npus))
    np.minimum.at(least, ends, rates)
    np.maximum.at(most, ends, rates)
    differs = np.argwhere((counts > 1) & (most > least))
    if len(differs):
        source, destination = differs[0].tolist()
        reason = f"links from NPU {source} to NPU {destination} have several bandwidths"
        _refuse(topology, reason, "write a network whose parallel links are alike")
    return counts


def _remote(topology: Topology, pairs: _Pairs, gpus: int) -> RemoteConnections:
    """Connections between nodes, the same between any two. Raises `UsageError` otherwise."""
    npus = topology.num_npus
    node = np.arange(npus) // gpus
    crosses = (node[:, None] != node[None, :]) & (pairs.links > 0)
    blocks = crosses.reshape(npus // gpus, gpus, npus // gpus, gpus)
    first = blocks[0, :, 1, :]
    others = [
        blocks[one, :, other, :]
        for one in range(npus // gpus)
        for other in range(npus // gpus)
        if one != other
    ]
    if not first.any() or any(not np.array_equal(first, other) for other in others):
        _refuse(topology, "its nodes are not joined alike, each to each", "state other nodes=")
    rates, latencies = pairs.bandwidth_bytes_per_s[crosses], pairs.latency_s[crosses]
    if not (_are_alike(rates) and _are_alike(latencies)):
        _refuse(topology, "connections between nodes differ", "state other nodes=")
    receivers = _receivers(first)
    if len({len(some) for some in receivers.values()}) > 1:
        _refuse(topology, "some GPUs have more connections than others", "state other nodes=")
    cards = _cards(topology, receivers, gpus, float(rates[0]))
    return RemoteConnections(receivers, float(rates[0]), float(latencies[0]), cards)


def _receivers(is_joined: BoolArray) -> dict[int, list[int]]:
    """Each GPU with the one of its own number where all have such a connection, else with all."""
    if np.all(np.diagonal(is_joined)):
        return {gpu: [gpu] for gpu in range(len(is_joined))}
    return {gpu: np.flatnonzero(row).tolist() for gpu, row in enumerate(is_joined) if np.any(row)}


def _cards(
    topology: Topology, receivers: dict[int, list[int]], gpus: int, bandwidth_bytes_per_s: float
) -> int:
    """Connections of a node that are used at once at full bandwidth, by the fullest link."""
    pairs = [(gpu, gpus + other) for gpu, others in receivers.items() for other in others]
    source, destination = np.asarray(pairs, np.int64).T
    links = topology.routes(source, destination).links
    load = np.bincount(links, minlength=topology.num_links)
    # Seconds of a byte of each connection, all at once, by those of one alone.
    slower = float((load / topology.bandwidth_bytes_per_s).max()) * bandwidth_bytes_per_s
    cards = len(pairs) / slower
    if abs(cards - round(cards)) > _ALIKE * cards or cards < 1:
        reason = f"{len(pairs)} connections of a node share {cards:.3g} of their bandwidths"
        _refuse(topology, reason, "TACCL takes whole network cards: state other nodes=")
    return round(cards)


def _are_alike(values: Float64Array) -> bool:
    return not len(values) or bool(np.ptp(values) <= _ALIKE * np.max(values))


def _refuse(topology: Topology, reason: str, cure: str) -> None:
    message = f"TACCL cannot express topology {topology.name}: {reason}"
    raise UsageError(message, cure=cure, code=_CODE)
