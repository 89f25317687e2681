"""Certificate of a bound: a cut in time, which anybody can count messages across again."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from collhub_tacos.bounds.time_cuts import TimeCut
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import Int64Array
from hub_core.model import Collective, JsonValue
from hub_core.network import Occupancy, Topology
from hub_core.schedules import network_object

# Links that a certificate states; every rank's file holds a copy.
_MOST_LINKS = 1 << 13
_PICOSECONDS = 10**12


def certain_times(network: LinkNetwork, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
    """Times of a message rounded down to picoseconds from fractions: bounds by them hold exactly.

    Numbers are those of their shortest decimal text, as certificates state them.
    """
    topology, row = network.topology, network.row
    kinds = np.stack([topology.bandwidth_bytes_per_s[row], topology.latency_s[row]])
    # Networks have few kinds of links, and fractions are slow.
    kinds, kind = np.unique(kinds, axis=1, return_inverse=True)
    busy, arrival = [], []
    for bandwidth, latency in kinds.T.tolist():
        sent_ps = _PICOSECONDS * chunk_bytes / Fraction(repr(bandwidth))
        arrived_ps = sent_ps + _PICOSECONDS * Fraction(repr(latency))
        is_busy_until = occupancy is Occupancy.ALPHA_BETA
        busy.append(math.floor(arrived_ps if is_busy_until else sent_ps))
        arrival.append(math.floor(arrived_ps))
    place = kind.ravel()
    return LinkTimes(np.asarray(busy, np.int64)[place], np.asarray(arrival, np.int64)[place])


def certificate_of(
    cut: TimeCut,
    collective: Collective,
    members: Int64Array,
    topology: Topology,
    collective_bytes: int,
    occupancy: Occupancy,
) -> dict[str, JsonValue]:
    """Document that proves: no algorithm in messages of one unit ends before the cut does.

    docs/certificates.md tells its members.
    """
    is_short = topology.num_links <= _MOST_LINKS
    latencies: list[JsonValue] = [
        str(Fraction(repr(latency))) for latency in topology.latency_s.tolist()
    ]
    document: dict[str, JsonValue] = {
        "collective": str(collective.kind),
        "ranks": members.tolist(),
        "collective_bytes": collective_bytes,
        "unit_count": collective.unit_count,
        "occupancy": str(occupancy),
        "lower_bound_ns": cut.time_ps // 1000,
        "network": network_object(topology, with_links=is_short),
        "since_ps": np.maximum(cut.since_ps, 0).tolist(),
    }
    if is_short:
        document["latencies_s"] = latencies
    if collective.root is not None:
        document["root"] = collective.root
    return document
