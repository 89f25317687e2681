"""All lower bounds of what was made, and the certificate of the best that can be checked again."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np

from collhub_tacos.bounds.certificate import certain_times, certificate_of
from collhub_tacos.bounds.evacuation import evacuation_of
from collhub_tacos.bounds.lower_bounds import lower_bounds_ps
from collhub_tacos.bounds.time_cuts import TimeCut, are_cuts_counted, tightest_cut
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.phases.candidate import SynthesisCandidate
from collhub_tacos.setting import Setting
from hub_core.model import CollectiveKind, JsonValue
from hub_core.network import lower_bound_ns
from hub_core.plugin_api import ONE_SIZE

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
