"""Certificate of a bound: a cut in time, which anybody can count messages across again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.bounds.time_cuts import TimeCut, are_cuts_counted, evacuation_of, tightest_cut
from collhub_tacos.candidates import SynthesisCandidate
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.setting import Setting
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, JsonValue
from hub_core.network import Occupancy, Topology, lower_bound_ns
from hub_core.plugin_api import ONE_SIZE
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


_ANY_SIZE = "fluid"


@dataclass(frozen=True, slots=True)
class ProvedBounds:
    """Bounds by name, and a certificate under the name of its kind, or nothing for large ones."""

    bounds_ns: dict[str, int]
    proof: dict[str, JsonValue]


def proved_bounds(setting: Setting, best: SynthesisCandidate, time_ns: int) -> ProvedBounds:
    """Lower bounds, rounded down.

    `fluid`, and `ports and distances` where all NPUs take part, hold for messages of any sizes. The
    names of all others end with `ONE_SIZE`: they hold for messages of the size that was chosen;
    `time-cut` and `evacuation` are listed where they are later than others.
    """
    # Switches are nodes like others: no NPU gets more than its links bring.
    network = LinkNetwork.of(setting.network.topology)
    collective = best.collective
    # Where the bytes do not divide evenly, some messages have a byte less: no bound may count it.
    size = max(1, setting.collective_bytes // collective.unit_count)
    bounds = lower_bounds_ps(collective, network, setting.members, size, setting.occupancy)
    times = certain_times(network, size, setting.occupancy)
    largest = max((bound for name, bound in bounds.items() if name != _ANY_SIZE), default=0)
    cut = _cut(setting, best, network, times)
    if cut is not None and cut.time_ps // 1000 > largest // 1000:
        bounds["time-cut"] = largest = cut.time_ps
    # Where another bound is attained, flows could only say the same.
    if time_ns > -(-largest // 1000) and not setting.has_relays:
        evacuation = evacuation_of(collective, network, times, best.chunks, largest)
        if evacuation is not None and evacuation.time_ps > largest:
            bounds["evacuation"] = evacuation.time_ps
            cut = _later(cut, evacuation.time_cut(times), collective.kind)
    in_ns = {_full_name(name): bound // 1000 for name, bound in bounds.items()}
    in_ns |= _ports_and_distances(setting)
    return ProvedBounds(in_ns, _proof(setting, best, cut))


def _full_name(name: str) -> str:
    """The name that tells for which messages the bound holds."""
    return name if name == _ANY_SIZE else f"{name}{ONE_SIZE}"


def _ports_and_distances(setting: Setting) -> dict[str, int]:
    """The bound of the core, which needs all NPUs as numbered, or nothing."""
    topology = setting.network.topology
    if not np.array_equal(setting.members, np.arange(topology.num_npus)):
        return {}
    bound = lower_bound_ns(setting.collective, topology, setting.collective_bytes)
    return {} if bound is None else {"ports and distances": floor(bound)}


def _cut(
    setting: Setting, best: SynthesisCandidate, network: LinkNetwork, times: LinkTimes
) -> TimeCut | None:
    """The best cut in time, None where that takes long or messages take no time."""
    if not are_cuts_counted(network, times):
        return None
    return tightest_cut(best.collective, network, times, setting.members)


def _later(cut: TimeCut | None, other: TimeCut | None, kind: CollectiveKind) -> TimeCut | None:
    """The later of the best cut and that of an evacuation."""
    if other is None or (cut is not None and cut.time_ps >= other.time_ps):
        return cut
    # Its network was the transposed one: time goes backwards there.
    return other.reversed if kind is CollectiveKind.REDUCE_SCATTER else other


def _proof(setting: Setting, best: SynthesisCandidate, cut: TimeCut | None) -> dict[str, JsonValue]:
    if cut is None or not cut.time_ps:
        return {}
    document = certificate_of(
        cut,
        best.collective,
        setting.members,
        setting.network.topology,
        setting.collective_bytes,
        setting.occupancy,
    )
    return {"bound_certificate": document}
