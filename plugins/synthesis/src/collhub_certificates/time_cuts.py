"""The check of a cut in time: the messages that can cross it are counted anew, in fractions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from collhub_certificates.capacities import capacities_of
from collhub_certificates.extensions import (
    check_same_collective,
    check_stated_time,
    extension_document,
    network_name,
)
from collhub_certificates.flaws import FlawError
from hub_core.model import ROOTED, Algorithm, CollectiveKind
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import Certificate, LinkCapacities

_KEY = "bound_certificate"
_PICOSECONDS = 10**12
Latencies = Mapping[tuple[int, int], Fraction]


def check_time_cut(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Recount the messages across the cut in time that an algorithm carries.

    A node v is beyond the cut from `since_ps[v]` on. What is at first at nodes that are beyond it
    then, and is needed where that is never so before the end, crosses by messages that begin beyond
    the cut and arrive before it. Where links carry fewer of these, nothing ends before the cut.
    """
    assert request.algorithm is not None
    document = extension_document(request.algorithm, _KEY)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        cut = _read(document, request.topology)
        check_same_collective(document, request.algorithm, "bound certificate")
        _check_units(document, request.algorithm)
        crossing = _check_count(cut)
        stated = check_stated_time(document, Fraction(cut.end, 1000), "the times of the cut")
    except FlawError as flaw:
        return CheckReport(False, "wrong", (flaw.diagnostic,))
    latencies = {"latencies_s": "the latencies of the links: give --topology"}
    without_topology = latencies if request.topology is None else {}
    counted = f"{crossing} messages can cross, {cut.needed()} must"
    return CheckReport(
        True,
        f"holds: nothing in such messages takes less than {stated} ns",
        facts={"lower_bound_ns": stated, "not_proved": ["network.name", *without_topology]},
        details={
            "lower bound": f"{stated} ns",
            "cut in time": counted,
            "link model": str(document["occupancy"]),
            "not proved": "; ".join([network_name(document), *without_topology.values()]),
        },
    )


@dataclass(frozen=True, slots=True)
class _StatedCut:
    """Cut in time, and the collective and the links that it is for; `busy`, `arrival` in ps."""

    kind: CollectiveKind
    ranks: Sequence[int]
    root: int | None
    share: int
    since: Sequence[int]
    busy: Latencies
    arrival: Latencies

    @property
    def end(self) -> int:
        """When the last node is beyond the cut."""
        return max(self.since)

    def crossing(self) -> int:
        """Messages that can begin beyond the cut and arrive before it, over all links."""
        return sum(self._crossing_on(link) for link in self.busy)

    def _crossing_on(self, link: tuple[int, int]) -> int:
        tail, head = link
        window = self.since[head] - self.since[tail] - self.arrival[link]
        return max(0, math.ceil(window / self.busy[link]))

    def needed(self) -> int:
        """Messages that must cross."""
        givers = [npu for npu in self.ranks if self.since[npu] <= 0]
        takers = [npu for npu in self.ranks if self.since[npu] >= self.end]
        traits = self.kind.traits
        if self.kind in ROOTED:
            # Only the root takes, or only it gives.
            ends = takers if traits.to_root else givers
            ends[:] = [npu for npu in ends if npu == self.root]
        if not givers or not takers:
            return 0
        if self.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
            return len(givers) * self.share
        if self.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER):
            return len(takers) * self.share
        if self.kind is CollectiveKind.ALL_TO_ALL:
            return len(givers) * len(takers) * self.share
        # Of the others each unit goes once, for whoever needs it or has a part of it.
        return self.share


def _read(document: Mapping[str, Any], topology: Topology | None) -> _StatedCut:
    """Raises `FlawError` for a form that is not right, and for another network."""
    try:
        (capacities,) = capacities_of(cast(Certificate, document), topology)
        latencies = _latencies(document, topology)
        ranks = [int(npu) for npu in document["ranks"]]
        since = [int(time) for time in document["since_ps"]]
        kind = CollectiveKind(document["collective"])
        busy, arrival = _times(document, capacities, latencies)
        nodes = int(document["network"]["nodes"])
        share = Fraction(int(document["unit_count"]), kind.traits.parts(len(ranks)))
        root = ranks[document["root"]] if kind in ROOTED else None
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        message = f"the bound certificate cannot be read: {error!r}"
        raise FlawError("form", message) from error
    if len(since) != nodes or share.denominator != 1 or kind is CollectiveKind.CUSTOM:
        raise FlawError("form", "the bound certificate has not a time for every node, or no units")
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(nodes)):
        raise FlawError("ranks", "the ranks are not different NPUs")
    return _StatedCut(kind, ranks, root, int(share), since, busy, arrival)


def _latencies(document: Mapping[str, Any], topology: Topology | None) -> Latencies:
    """Seconds of every link, of parallel links the first; a given topology must have the same."""
    stated = [Fraction(latency) for latency in document.get("latencies_s", ())]
    if topology is None:
        ends = [(int(link[0]), int(link[1])) for link in document["network"]["links"]]
    else:
        links = list(topology.links())
        ends = [(link.source, link.destination) for link in links]
        real = [Fraction(repr(link.latency_s)) for link in links]
        # They are left out where links are many.
        if "latencies_s" in document and stated != real:
            message = f"the bound is for other latencies than those of {topology.name}"
            raise FlawError("topology", message)
        stated = real
    found: dict[tuple[int, int], Fraction] = {}
    for link, latency in zip(ends, stated, strict=True):
        found.setdefault(link, latency)
    return found


def _times(
    document: Mapping[str, Any], capacities: LinkCapacities, latencies: Latencies
) -> tuple[Latencies, Latencies]:
    """Picoseconds for which a message of one unit keeps links busy, and after which it arrives."""
    # The smallest unit, where the bytes do not divide evenly.
    size = max(1, int(document["collective_bytes"]) // int(document["unit_count"]))
    is_busy_until = Occupancy(document["occupancy"]) is Occupancy.ALPHA_BETA
    busy, arrival = {}, {}
    for link, rate in capacities.items():
        sent = _PICOSECONDS * size / rate
        arrival[link] = sent + _PICOSECONDS * latencies[link]
        busy[link] = arrival[link] if is_busy_until else sent
    return busy, arrival


def _check_units(document: Mapping[str, Any], algorithm: Algorithm) -> None:
    """Refuse a bound for other messages than those of the algorithm."""
    made = algorithm.collective.unit_count
    stated = document["unit_count"]
    if made == stated:
        return
    message = f"the bound is for {stated} units, the algorithm has {made}"
    raise FlawError("collective", message)


def _check_count(cut: _StatedCut) -> int:
    """Messages that can cross. Raises `FlawError` where they are enough for all that must."""
    crossing, needed = cut.crossing(), cut.needed()
    if crossing < needed:
        return crossing
    message = f"{crossing} messages can cross the cut in time, and only {needed} must"
    raise FlawError("bound", message)
