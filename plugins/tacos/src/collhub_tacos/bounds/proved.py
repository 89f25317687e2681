"""Proven lower bounds of an answer, and a certificate of the best verifiable one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np

from collhub_tacos.bounds.lower_bounds import compute_lower_bounds_ps
from collhub_tacos.bounds.time_cuts import (
    TimeCut,
    compute_evacuation_bound,
    find_tightest_cut,
    supports_time_cuts,
)
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.search.candidates import SynthesisCandidate
from collhub_tacos.search.setting import Setting
from hub_core.columns import Int64Array
from hub_core.model import Collective, CollectiveKind, JsonValue
from hub_core.network import Occupancy, Topology, lower_bound_ns
from hub_core.plugin_api import ONE_SIZE
from hub_core.schedules import network_object

# Maximum number of links in a certificate, of which every rank's file has a copy.
_MAX_CERTIFICATE_LINKS = 1 << 13
_PICOSECONDS = 10**12


def compute_exact_times(network: LinkNetwork, chunk_bytes: int, occupancy: Occupancy) -> LinkTimes:
    """Compute message times rounded down to picoseconds with fractions, so that bounds are exact.

    A message has `chunk_bytes`. A link is busy until the arrival with alpha-beta occupancy, else
    only for the sending; the arrival includes the latency. Bandwidths and latencies are the values
    of their shortest decimal text, as in certificates.
    """
    topology, row = network.topology, network.row
    kinds = np.stack([topology.bandwidth_bytes_per_s[row], topology.latency_s[row]])
    # Networks have few kinds of links, and arithmetic with fractions is slow.
    kinds, kind = np.unique(kinds, axis=1, return_inverse=True)
    busy, arrival = [], []
    for bandwidth, latency in kinds.T.tolist():
        sending_ps = _PICOSECONDS * chunk_bytes / Fraction(repr(bandwidth))
        arriving_ps = sending_ps + _PICOSECONDS * Fraction(repr(latency))
        is_busy_until_arrival = occupancy is Occupancy.ALPHA_BETA
        busy.append(math.floor(arriving_ps if is_busy_until_arrival else sending_ps))
        arrival.append(math.floor(arriving_ps))
    kind_of_link = kind.ravel()
    return LinkTimes(
        np.asarray(busy, np.int64)[kind_of_link], np.asarray(arrival, np.int64)[kind_of_link]
    )


def build_certificate(
    cut: TimeCut,
    collective: Collective,
    members: Int64Array,
    topology: Topology,
    collective_bytes: int,
    occupancy: Occupancy,
) -> dict[str, JsonValue]:
    """Build the document that proves that no algorithm with messages of one unit beats the cut.

    docs/certificates.md describes its members. The lower bound is rounded down to ns, negative
    entries of `since_ps` become 0. Links and exact latencies (in s, as fractions) are included up
    to `_MAX_CERTIFICATE_LINKS` (8192) links, a root only if the collective has one.
    """
    is_short = topology.num_links <= _MAX_CERTIFICATE_LINKS
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
    """Bounds by name, and the certificate under the name of its kind, empty if there is none."""

    bounds_ns: dict[str, int]
    proof: dict[str, JsonValue]


def prove_bounds(setting: Setting, best: SynthesisCandidate, time_ns: int) -> ProvedBounds:
    """Compute the lower bounds of an answer in nanoseconds, rounded down, and a certificate.

    `time_ns`: time of the answer. `fluid`, and `ports and distances` if all NPUs take part, hold
    for messages of any sizes. The names of all other bounds end with `ONE_SIZE`: they hold for
    messages of the chosen size. `time-cut` and `evacuation` are listed if they are later than the
    others; the latter is computed only if the answer attains no other bound.
    """
    # Switches are ordinary nodes here: the ingress of an NPU is limited by its links.
    network = LinkNetwork.of(setting.network.topology)
    collective = best.collective
    # If the bytes do not divide evenly, some messages have one byte less, and bounds must assume
    # the smaller size.
    size = max(1, setting.collective_bytes // collective.unit_count)
    bounds = compute_lower_bounds_ps(collective, network, setting.members, size, setting.occupancy)
    times = compute_exact_times(network, size, setting.occupancy)
    largest = max((bound for name, bound in bounds.items() if name != _ANY_SIZE), default=0)
    cut = _find_cut(setting, best, network, times)
    if cut is not None and cut.time_ps // 1000 > largest // 1000:
        bounds["time-cut"] = largest = cut.time_ps
    # If the answer attains another bound, flows cannot improve it.
    if time_ns > -(-largest // 1000) and not setting.has_relays:
        evacuation = compute_evacuation_bound(collective, network, times, best.chunks, largest)
        if evacuation is not None and evacuation.time_ps > largest:
            bounds["evacuation"] = evacuation.time_ps
            cut = _choose_later_cut(cut, evacuation.time_cut(times), collective.kind)
    bounds_ns = {
        (name if name == _ANY_SIZE else f"{name}{ONE_SIZE}"): bound // 1000
        for name, bound in bounds.items()
    }
    bounds_ns |= _bound_by_core(setting)
    return ProvedBounds(bounds_ns, _build_proof(setting, best, cut))


def _bound_by_core(setting: Setting) -> dict[str, int]:
    """Return the core's lower bound in ns, rounded down, under the name "ports and distances".

    Empty unless all NPUs are ranks in order, and for collectives without such a bound.
    """
    topology = setting.network.topology
    if not np.array_equal(setting.members, np.arange(topology.num_npus)):
        return {}
    bound = lower_bound_ns(setting.collective, topology, setting.collective_bytes)
    return {} if bound is None else {"ports and distances": floor(bound)}


def _find_cut(
    setting: Setting, best: SynthesisCandidate, network: LinkNetwork, times: LinkTimes
) -> TimeCut | None:
    """Return the cut in time with the largest bound for the collective of `best`.

    None if the network is too large for the search, or if messages take no time.
    """
    if not supports_time_cuts(network, times):
        return None
    return find_tightest_cut(best.collective, network, times, setting.members)


def _choose_later_cut(
    cut: TimeCut | None, evacuation_cut: TimeCut | None, kind: CollectiveKind
) -> TimeCut | None:
    """Return the later one of the best cut and the cut of an evacuation.

    The first one if they are equal; None if both are None. The cut of an evacuation is reversed for
    a reduce-scatter, whose bound is that of an all-gather on the transposed network.
    """
    if evacuation_cut is None or (cut is not None and cut.time_ps >= evacuation_cut.time_ps):
        return cut
    # The cut of a reduce-scatter was computed on the transposed network, reversed in time.
    return evacuation_cut.reversed if kind is CollectiveKind.REDUCE_SCATTER else evacuation_cut


def _build_proof(
    setting: Setting, best: SynthesisCandidate, cut: TimeCut | None
) -> dict[str, JsonValue]:
    """Return {"bound_certificate": document that proves the bound of the cut}.

    Empty without a cut or with one at time 0.
    """
    if cut is None or not cut.time_ps:
        return {}
    document = build_certificate(
        cut,
        best.collective,
        setting.members,
        setting.network.topology,
        setting.collective_bytes,
        setting.occupancy,
    )
    return {"bound_certificate": document}
