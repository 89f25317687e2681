"""A network in TACCL's model: equal nodes, pairs of GPUs, and one latency for all links.

TACCL's model (Shah et al., NSDI 2023; `taccl/topologies` of microsoft/taccl 426bd1e): a matrix of
the links of one node, each with the time of a chunk; `copies` of the node, whose GPUs are joined by
connections with equal times that share the network cards of a node; switches, as lists of GPUs
whose ports the pairs share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Float64Array, Int64Array
from hub_core.model import UsageError
from hub_core.network import Topology

_CODE = "inexpressible-topology"
# Relative tolerance: times are sums and quotients.
_RELATIVE_TOLERANCE = 1e-9
_MAX_NPUS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class RemoteConnections:
    """Connections between any two nodes, equally many for each GPU that has one.

    `receivers[i]`: GPUs of another node to which GPU i is joined; `cards`: number of connections
    that can be used at once at full bandwidth.
    """

    receivers: dict[int, list[int]]
    bandwidth_bytes_per_s: float
    latency_s: float
    cards: int


@dataclass(frozen=True, slots=True, eq=False)
class TacclMachine:
    """Matrices of one node by source and destination: [GPUs, GPUs].

    `links`: int64, parallel links of a pair, 0 for none; `bandwidth_bytes_per_s` of one of them and
    `latency_s`: float64; `is_switched`: every pair is connected by switches, with equal bandwidths.
    """

    nodes: int
    links: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    is_switched: bool
    remote: RemoteConnections | None

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs of one node."""
        return len(self.links)

    @property
    def is_uniform(self) -> bool:
        """Check whether each GPU of a node has one link to each other GPU, all equally fast.

        Bandwidths are compared with a relative tolerance of 1e-9, latencies not at all. True
        for a node of one GPU.
        """
        is_pair = ~np.eye(self.gpus_per_node, dtype=np.bool_)
        rates = self.bandwidth_bytes_per_s[is_pair]
        return bool(np.all(self.links[is_pair] == 1) and _is_uniform(rates))


def build_machine(topology: Topology, nodes: int) -> TacclMachine:
    """Convert a network to `nodes` nodes with equally many NPUs each, in the order of the NPUs.

    `nodes` must be at least 1. Values within a node are those of node 0. Two NPUs whose route
    passes another NPU have no link (0). A node counts as switched if it has at least two NPUs, all
    routes between them use switches without passing another NPU, and all have one bandwidth.
    `remote` describes the connections between nodes; it is None for one node.

    Raises `UsageError` for the first reason for which TACCL's model cannot represent the network:

    - It has several planes, or more than 1024 NPUs.
    - `nodes` does not divide the number of NPUs.
    - Parallel links between two NPUs have different bandwidths.
    - A node differs from node 0 in links, bandwidth or latency (beyond a relative tolerance).
    - The connections between nodes are irregular (`_find_remote`).

    Raises `InputError` if a pair of NPUs has no path; this is checked before parallel links.
    """
    npus = topology.num_npus
    if topology.num_planes > 1:
        _refuse(topology, f"it has {topology.num_planes} planes", "write the planes one by one")
    if npus > _MAX_NPUS:
        _refuse(topology, f"{npus} NPUs are more than {_MAX_NPUS}", "choose a smaller network")
    if npus % nodes:
        _refuse(topology, f"{npus} NPUs are no {nodes} nodes", "give nodes= that divides the NPUs")
    pairs = _Pairs.from_topology(topology)
    gpus = npus // nodes
    # All nodes must equal the first one, with the same order of GPUs.
    for matrix in (pairs.links, pairs.bandwidth_bytes_per_s, pairs.latency_s):
        first = matrix[:gpus, :gpus]
        for node in range(1, nodes):
            part = slice(node * gpus, (node + 1) * gpus)
            if not np.allclose(matrix[part, part], first, rtol=_RELATIVE_TOLERANCE, atol=0):
                _refuse(topology, f"node {node} is not like node 0", "state other nodes=")
    within = slice(0, gpus)
    links = pairs.links[within, within]
    rates = pairs.bandwidth_bytes_per_s[within, within]
    is_pair = ~np.eye(gpus, dtype=np.bool_)
    is_joined = pairs.is_switched[within, within][is_pair]
    is_switched = bool(len(is_joined) and np.all(is_joined) and _is_uniform(rates[is_pair]))
    remote = None
    if nodes > 1:
        remote = _find_remote(topology, pairs, gpus)
    return TacclMachine(nodes, links, rates, pairs.latency_s[within, within], is_switched, remote)


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Connection between every two NPUs: [NPUs, NPUs], by source and destination.

    `is_switched`: bool, whether the route uses switches.
    """

    links: Int64Array
    bandwidth_bytes_per_s: Float64Array
    latency_s: Float64Array
    is_switched: BoolArray

    @classmethod
    def from_topology(cls, topology: Topology) -> _Pairs:
        """Describe every ordered pair of NPUs whose route passes no other NPU.

        The route is that of `Topology.routes`. The results are matrices [NPUs, NPUs] by source and
        destination: the bandwidth of the slowest link of the route in bytes/s, its total latency in
        s, the number of parallel direct links (1 through switches), and `is_switched`, True for
        routes through switches. Other pairs, and the diagonal, have 0 or False. Raises `InputError`
        if some pair has no path at all, and `UsageError` for parallel links with different
        bandwidths.
        """
        npus = topology.num_npus
        source, destination = np.divmod(np.arange(npus * npus), npus)
        is_pair = source != destination
        source, destination = source[is_pair], destination[is_pair]
        routes = topology.routes(source, destination)
        length = np.diff(routes.indptr)
        pair = np.repeat(np.arange(len(length)), length)
        # The last link of a route leads to its destination; all other links lead to intermediate
        # nodes.
        is_last = np.zeros(len(pair), np.bool_)
        is_last[routes.indptr[1:] - 1] = True
        passes_npu = (topology.destination[routes.links] < npus) & ~is_last
        is_direct = np.ones(len(length), np.bool_)
        is_direct[pair[passes_npu]] = False
        slowest = np.full(len(length), np.inf)
        np.minimum.at(slowest, pair, topology.bandwidth_bytes_per_s[routes.links])
        total_latency_s = np.bincount(pair, topology.latency_s[routes.links], len(length))
        counts = _count_parallel_links(topology)[source, destination]
        pairs = cls(
            np.zeros((npus, npus), np.int64),
            np.zeros((npus, npus)),
            np.zeros((npus, npus)),
            np.zeros((npus, npus), np.bool_),
        )
        is_direct_pair = source[is_direct], destination[is_direct]
        # Through switches there is one route, independent of parallel links.
        pairs.links[is_direct_pair] = np.maximum(counts[is_direct], 1)
        pairs.bandwidth_bytes_per_s[is_direct_pair] = slowest[is_direct]
        pairs.latency_s[is_direct_pair] = total_latency_s[is_direct]
        pairs.is_switched[is_direct_pair] = counts[is_direct] == 0
        return pairs


def _count_parallel_links(topology: Topology) -> Int64Array:
    """Count the direct links between NPUs: int64[NPUs, NPUs], indexed by source, destination.

    Links to and from switches do not count. Raises `UsageError` for the first pair, by source,
    then destination, whose parallel links have different bandwidths; latencies are not
    compared.
    """
    npus = topology.num_npus
    is_direct = (topology.source < npus) & (topology.destination < npus)
    link_ends = topology.source[is_direct], topology.destination[is_direct]
    rates = topology.bandwidth_bytes_per_s[is_direct]
    counts = np.zeros((npus, npus), np.int64)
    np.add.at(counts, link_ends, 1)
    min_rate, max_rate = np.full((npus, npus), np.inf), np.zeros((npus, npus))
    np.minimum.at(min_rate, link_ends, rates)
    np.maximum.at(max_rate, link_ends, rates)
    differs = np.argwhere((counts > 1) & (max_rate > min_rate))
    if len(differs):
        source, destination = differs[0].tolist()
        reason = f"links from NPU {source} to NPU {destination} have several bandwidths"
        _refuse(topology, reason, "write a network whose parallel links are equal")
    return counts


def _find_remote(topology: Topology, pairs: _Pairs, gpus: int) -> RemoteConnections:
    """Describe the connections between nodes: receivers, bandwidth, latency and network cards.

    A connection is an ordered pair of NPUs in different nodes whose route passes no other NPU.
    `gpus`: NPUs per node, of at least two nodes. `receivers` maps each sending GPU of a node to its
    receivers in another node, ascending numbers within the node; only to its own number if every
    GPU has this receiver. Bandwidth (bytes/s) and latency (s) are those of the first connection.

    Raises `UsageError` for the first violated condition:

    1. Every ordered pair of nodes has the same connections, at least one.
    2. All connections have one bandwidth and one latency (relative tolerance 1e-9).
    3. Every sending GPU has equally many receivers.
    4. The number of cards is a positive integer (`_count_cards`).
    """
    npus = topology.num_npus
    node = np.arange(npus) // gpus
    crosses = (node[:, None] != node[None, :]) & (pairs.links > 0)
    blocks = crosses.reshape(npus // gpus, gpus, npus // gpus, gpus)
    first = blocks[0, :, 1, :]
    blocks_of_pairs = [
        blocks[source_node, :, destination_node, :]
        for source_node in range(npus // gpus)
        for destination_node in range(npus // gpus)
        if source_node != destination_node
    ]
    if not first.any() or any(
        not np.array_equal(first, destination_node) for destination_node in blocks_of_pairs
    ):
        _refuse(topology, "its nodes are not joined alike, each to each", "state other nodes=")
    rates, latencies = pairs.bandwidth_bytes_per_s[crosses], pairs.latency_s[crosses]
    if not (_is_uniform(rates) and _is_uniform(latencies)):
        _refuse(topology, "connections between nodes differ", "state other nodes=")
    # If every GPU is joined to the one with its own number, it has no other receiver.
    if np.all(np.diagonal(first)):
        receivers = {gpu: [gpu] for gpu in range(gpus)}
    else:
        receivers = {
            gpu: np.flatnonzero(row).tolist() for gpu, row in enumerate(first) if np.any(row)
        }
    if len({len(receiver_list) for receiver_list in receivers.values()}) > 1:
        _refuse(topology, "some GPUs have more connections than others", "state other nodes=")
    cards = _count_cards(topology, receivers, gpus, float(rates[0]))
    return RemoteConnections(receivers, float(rates[0]), float(latencies[0]), cards)


def _count_cards(
    topology: Topology, receivers: dict[int, list[int]], gpus: int, bandwidth_bytes_per_s: float
) -> int:
    """Return how many network cards a node has: the number of its connections usable at full rate.

    `receivers`: for each GPU of node 0 the GPUs of node 1 to which it is connected, both by number
    within the node; at least one connection. `gpus`: GPUs per node. `bandwidth_bytes_per_s`: that
    of one connection. A connection uses the links of its route. A link of bandwidth b with k
    connections is slower by the factor k * `bandwidth_bytes_per_s` / b. The result is the number of
    connections divided by the largest factor. For example, 8 connections that share 4 links of
    their bandwidth give 4 cards.

    Raises `UsageError` if the result is below 1 or not an integer (beyond a relative tolerance of
    1e-9).
    """
    pairs = [
        (gpu, gpus + receiver)
        for gpu, receiver_list in receivers.items()
        for receiver in receiver_list
    ]
    source, destination = np.asarray(pairs, np.int64).T
    links = topology.routes(source, destination).links
    load = np.bincount(links, minlength=topology.num_links)
    # Time of one byte on each connection at once, relative to one connection only.
    slower = float((load / topology.bandwidth_bytes_per_s).max()) * bandwidth_bytes_per_s
    cards = len(pairs) / slower
    if abs(cards - round(cards)) > _RELATIVE_TOLERANCE * cards or cards < 1:
        reason = f"{len(pairs)} connections of a node share {cards:.3g} of their bandwidths"
        _refuse(topology, reason, "TACCL needs an integer number of cards: give other nodes=")
    return round(cards)


def _is_uniform(values: Float64Array) -> bool:
    """Whether all values are equal within the tolerance."""
    return not len(values) or bool(np.ptp(values) <= _RELATIVE_TOLERANCE * np.max(values))


def _refuse(topology: Topology, reason: str, cure: str) -> None:
    """Raise `UsageError`, always, because TACCL cannot represent the topology.

    `reason`: clause after the name of the topology, at the end of the message. `cure`: the
    advice.
    """
    message = f"TACCL cannot express topology {topology.name}: {reason}"
    raise UsageError(message, cure=cure, code=_CODE)
