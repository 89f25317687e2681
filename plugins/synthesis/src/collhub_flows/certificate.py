"""Certificate of the bound: prices of the links, which anybody can turn into the bound again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_flows.demand import FlowDemand
from collhub_flows.linear_program import Flow
from collhub_flows.network import FlowNetwork
from hub_core.columns import csr
from hub_core.model import JsonValue
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import network_object

# Links that a certificate states; every rank's file holds a copy.
_MOST_LINKS = 1 << 13
# Whole numbers, so that the check is exact.
_PRICE_SCALE = 10**9
_SAFETY = 1e-9


@dataclass(frozen=True, slots=True)
class FlowCertificate:
    """Lower bound in nanoseconds, and the document that proves it."""

    bound_ns: int
    document: dict[str, JsonValue]


def flow_certificate(
    network: FlowNetwork, demand: FlowDemand, flow: Flow, request: SynthesisRequest
) -> FlowCertificate:
    """Bound of a flow's prices, over all routes: messages may take other ones than simulators do.

    A link's length is its price by its bandwidth; bytes times distances by the sum of prices.
    """
    # Imported here: numba takes a second.
    from collhub_flows.kernels import total_distance

    topology = network.topology
    # Of parallel links the first in link order stands, as simulators use no other.
    key = topology.source * topology.num_nodes + topology.destination
    _, rows = np.unique(key, return_index=True)
    source, destination = topology.source[rows], topology.destination[rows]
    largest = float(flow.prices.max(initial=0.0)) or 1.0
    prices = np.rint(flow.prices[rows] / largest * _PRICE_SCALE).astype(np.int64)
    indptr, links = csr(source, np.arange(len(rows)), topology.num_nodes)
    length = prices / topology.bandwidth_bytes_per_s[rows]
    wants, sources = demand.wants, demand.sources
    total = total_distance(sources, wants, indptr, links, destination, length)
    collective = request.collective
    parts = collective.kind.traits.parts(collective.num_ranks)
    bound_s = request.collective_bytes / parts * total / max(int(prices.sum()), 1)
    # Sums of floats err in the last digits: the bound gives way.
    bound_ns = int(bound_s * 1e9 * (1.0 - _SAFETY))
    is_short = topology.num_links <= _MOST_LINKS
    document: dict[str, JsonValue] = {
        "collective": str(collective.kind),
        "ranks": list(request.npus),
        "collective_bytes": request.collective_bytes,
        "parts": parts,
        "lower_bound_ns": bound_ns,
        "network": network_object(topology, with_links=is_short),
    }
    if collective.root is not None:
        document["root"] = collective.root
    # Links of no price add nothing.
    priced = np.flatnonzero(prices)
    table = np.stack([source[priced], destination[priced], prices[priced]], axis=1)
    document["prices"] = table.tolist()
    return FlowCertificate(bound_ns, document)
