"""Check certificates of lower bounds in time, in exact arithmetic: prices of a flow, cuts in time.

The bound of a flow is: bytes times distances divided by prices. For a cut in time, the messages
that can cross it are counted again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, cast

from collhub_certificates.claim import (
    FlawError,
    check_claimed_time,
    check_same_collective,
    describe_network_name,
    find_document,
    read_capacities,
)
from hub_core.model import (
    ROOTED,
    CollectiveKind,
    InputError,
    UnitCounts,
    has_equal_counts,
)
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import Certificate, LinkCapacities

_FLOW_KEY = "flow_certificate"
Prices = Mapping[tuple[int, int], int]
Neighbours = Mapping[int, Sequence[tuple[int, int]]]


_CUT_KEY = "bound_certificate"


_PICOSECONDS = 10**12


Latencies = Mapping[tuple[int, int], Fraction]


def check_flow(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check that the link prices of a flow certificate prove its claimed lower bound of the time.

    The length of a link is price / bandwidth (bytes/s). A part has `collective_bytes` / `parts`
    bytes. The proved time in seconds is the bytes of a part, times the sum over all parts of the
    shortest distance from sender to receiver, divided by the sum of all prices.

    - Without a certificate, the report is not applicable and not ok.
    - If the claim is an integer of ns from 0 to the proved time, the report is ok. Its facts have
      `lower_bound_ns`, and `not_proved` with the name of the network.
    - Otherwise it is not ok, with one diagnostic (prefix `certificate-`) for the first defect:
      network (`topology`), unreadable certificate (`form`), prices that are negative, all 0 or of
      no link (`prices`), another collective or other counts than those of the algorithm
      (`collective`), a sender that does not reach a receiver (`ranks`), a wrong claim (`bound`).
    """
    assert request.algorithm is not None
    document = find_document(request.algorithm, _FLOW_KEY)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        # Compute the nanoseconds that the prices prove.
        try:
            (capacities,) = read_capacities(cast(Certificate, document), request.topology)
            prices = {(int(a), int(b)): int(price) for a, b, price in document["prices"]}
            pairs = _list_pairs(document)
            share = Fraction(document["collective_bytes"], int(document["parts"]))
            total = sum(prices.values())
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise FlawError("form", f"the flow certificate cannot be read: {error!r}") from error
        if total <= 0 or min(prices.values()) < 0 or not set(prices) <= set(capacities):
            raise FlawError("prices", "the prices are not those of links, or negative, or all zero")
        check_same_collective(document, request.algorithm, "flow certificate")
        # Counts that differ by a common factor, the size of a unit, are equal.
        counts = request.algorithm.collective.counts
        if counts is not None and not has_equal_counts(_read_counts(document), counts):
            raise FlawError("collective", "the flow certificate is for other counts")
        bound_ns = 10**9 * share * _add_distances(pairs, prices, capacities) / total
        claimed_ns = check_claimed_time(document, bound_ns, "the prices")
    except FlawError as flaw:
        return CheckReport(False, "wrong", (flaw.diagnostic,))
    return CheckReport(
        True,
        f"holds: no algorithm takes less than {claimed_ns} ns",
        facts={"lower_bound_ns": claimed_ns, "not_proved": ["network.name"]},
        details={"lower bound": f"{claimed_ns} ns", "not proved": describe_network_name(document)},
    )


def check_time_cut(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check an algorithm's lower bound of the time by counting messages across a cut in time.

    Node v is after the cut from `since_ps[v]` (ps) on, before it otherwise. The end of the cut is
    the latest of these times. Some messages must cross the cut: from nodes after it at time 0 to
    nodes before it. If fewer messages can cross than must, no algorithm finishes before the end.

    Without such a certificate the report is neither ok nor applicable. It is ok, with
    `lower_bound_ns`, if all rules hold; otherwise it has the flaw of the first broken one:

    1. The document, its network and ranks are valid.
    2. Its size, kind, ranks, root, then number of units are the algorithm's (`collective`).
    3. Fewer messages can cross than must (`bound`).
    4. The claim is an integer from 0 to the end of the cut in ns (`bound`).

    Never proved: the network's name and, without `request.topology`, the latencies (`not_proved`).
    """
    assert request.algorithm is not None
    document = find_document(request.algorithm, _CUT_KEY)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        cut = _read_cut(document, request.topology)
        check_same_collective(document, request.algorithm, "bound certificate")
        # Refuse another number of units than that of the algorithm.
        actual = request.algorithm.collective.unit_count
        declared = document["unit_count"]
        if actual != declared:
            message = f"the bound is for {declared} units, the algorithm has {actual}"
            raise FlawError("collective", message)
        possible, required = cut.count_possible(), cut.count_required()
        if possible >= required:
            message = f"{possible} messages can cross the cut in time, and only {required} must"
            raise FlawError("bound", message)
        claimed_ns = check_claimed_time(document, Fraction(cut.end, 1000), "the times of the cut")
    except FlawError as flaw:
        return CheckReport(False, "wrong", (flaw.diagnostic,))
    latencies = {"latencies_s": "the latencies of the links: give --topology"}
    without_topology = latencies if request.topology is None else {}
    counted = f"{possible} messages can cross, {required} must"
    return CheckReport(
        True,
        f"holds: nothing in such messages takes less than {claimed_ns} ns",
        facts={"lower_bound_ns": claimed_ns, "not_proved": ["network.name", *without_topology]},
        details={
            "lower bound": f"{claimed_ns} ns",
            "cut in time": counted,
            "link model": str(document["occupancy"]),
            "not proved": "; ".join([describe_network_name(document), *without_topology.values()]),
        },
    )


def _list_pairs(document: Mapping[str, Any]) -> list[tuple[int, dict[int, int]]]:
    """List the parts that each rank sends to each other rank, for the collective of a certificate.

    An entry is (sending NPU, number of parts by receiving NPU). The NPUs are those in `ranks`, in
    that order; a sender is none of its receivers. The kinds:

    - all-to-all: every rank sends one part to every other rank.
    - scatter: the only entry is that of the root, with one part for every other rank.
    - gather: one entry per rank with one part for the root; the entry of the root is empty.
    - all-to-all-v: one entry per rank. A receiver gets its number of units in `counts`; receivers
      of 0 units are left out.

    `root` is a position in `ranks`. Raises `ValueError` for repeated ranks, another or unknown
    kind, invalid counts, and counts of another number of ranks. It is also raised if `parts` is
    not the number of ranks (all-to-all-v: the sum of all counts, including those of a rank for
    itself). Missing or ill-typed members raise `KeyError`, `TypeError` or `IndexError`.
    """
    ranks = [int(npu) for npu in document["ranks"]]
    kind = CollectiveKind(document["collective"])
    if len(set(ranks)) != len(ranks):
        raise ValueError("ranks are named twice")
    if kind is CollectiveKind.ALL_TO_ALL_V:
        counts = _read_counts(document)
        if document["parts"] != counts.total or counts.num_ranks != len(ranks):
            raise ValueError("a part is the whole by the sum of the counts of all ranks")
        rows = [dict(zip(ranks, row, strict=True)) for row in counts.table.tolist()]
        return [
            (giver, {taker: units for taker, units in row.items() if units and taker != giver})
            for giver, row in zip(ranks, rows, strict=True)
        ]
    givers = takers = ranks
    if kind is CollectiveKind.SCATTER:
        givers = [ranks[document["root"]]]
    elif kind is CollectiveKind.GATHER:
        takers = [ranks[document["root"]]]
    elif kind is not CollectiveKind.ALL_TO_ALL:
        raise ValueError(f"a {kind} is no flow")
    if document["parts"] != len(ranks):
        raise ValueError("a share is the whole by the number of ranks")
    return [(giver, {taker: 1 for taker in takers if taker != giver}) for giver in givers]


def _read_counts(document: Mapping[str, Any]) -> UnitCounts:
    """Return the table of units per pair of ranks that a certificate has under `counts`.

    Raises `ValueError` if it is not a valid table, and `KeyError` if it is missing.
    """
    try:
        return UnitCounts.from_table(document["counts"], is_per_pair=True)
    except InputError as error:
        raise ValueError(str(error)) from error


def _add_distances(
    pairs: Sequence[tuple[int, Mapping[int, int]]], prices: Prices, capacities: LinkCapacities
) -> Fraction:
    """Add up the shortest distances of all pairs, each times its number of parts.

    `pairs`: (sender, parts for each of its receivers). The length of a link is its price /
    bandwidth, 0 without a price; links are those with a capacity, which must be positive. The
    sum is an exact fraction. Raises `FlawError` (`ranks`) if a receiver is unreachable.
    """
    lengths = {link: prices.get(link, 0) / rate for link, rate in capacities.items()}
    # Integers in units of the common denominator are faster than fractions.
    unit = math.lcm(*(length.denominator for length in lengths.values()))
    neighbours: dict[int, list[tuple[int, int]]] = {}
    for (tail, head), length in lengths.items():
        neighbours.setdefault(tail, []).append((head, int(length * unit)))
    total = 0
    for giver, takers in pairs:
        distance = _find_distances(giver, neighbours)
        if not set(takers) <= set(distance):
            raise FlawError("ranks", f"NPU {giver} does not reach every rank")
        total += sum(distance[taker] * parts for taker, parts in takers.items())
    return Fraction(total, unit)


def _find_distances(start: int, neighbours: Neighbours) -> dict[int, int]:
    """Compute the shortest distance from a node to every reachable node (Dijkstra).

    `neighbours`: (head, length) of the links of every node, with lengths of at least 0. A node
    without an entry has no links. The result includes `start` with 0. Unreachable nodes are
    missing. It is in ascending order of distance.
    """
    done: dict[int, int] = {}
    queue = [(0, start)]
    while queue:
        distance, node = heapq.heappop(queue)
        if node in done:
            continue
        done[node] = distance
        for head, length in neighbours.get(node, ()):
            if head in done:
                continue
            entry = (distance + length, head)
            heapq.heappush(queue, entry)
    return done


@dataclass(frozen=True, slots=True)
class _TimeCut:
    """Cut in time with its collective and links; `since`, `busy`, `arrival` in picoseconds."""

    kind: CollectiveKind
    ranks: Sequence[int]
    root: int | None
    share: int
    since: Sequence[int]
    busy: Latencies
    arrival: Latencies

    @property
    def end(self) -> int:
        """The time at which the last node is after the cut: the maximum of `since`."""
        return max(self.since)

    def count_possible(self) -> int:
        """Count the messages over all links that can start after the cut and arrive before it."""
        count = 0
        for (tail, head), busy in self.busy.items():
            window = self.since[head] - self.since[tail] - self.arrival[tail, head]
            count += max(0, math.ceil(window / busy))
        return count

    def count_required(self) -> int:
        """Return the number of one-unit messages that must cross the cut before its end.

        A node is before the cut until its time `since`, and after it from then on. Senders are the
        ranks with `since` 0 or less. Receivers are the ranks whose `since` is `end`, the largest of
        all. In a rooted collective only the root counts as sender, or as receiver if data go to the
        root.

        The result is 0 without senders or without receivers. Otherwise it is `share` (units) times:
        the number of senders for an all-gather or gather; the number of receivers for a
        reduce-scatter or scatter; the product of both numbers for an all-to-all; 1 for all other
        collectives.
        """
        givers = [npu for npu in self.ranks if self.since[npu] <= 0]
        takers = [npu for npu in self.ranks if self.since[npu] >= self.end]
        traits = self.kind.traits
        if self.kind in ROOTED:
            # Only the root receives, or only the root sends.
            rooted = takers if traits.to_root else givers
            rooted[:] = [npu for npu in rooted if npu == self.root]
        if not givers or not takers:
            return 0
        if self.kind in (CollectiveKind.ALL_GATHER, CollectiveKind.GATHER):
            return len(givers) * self.share
        if self.kind in (CollectiveKind.REDUCE_SCATTER, CollectiveKind.SCATTER):
            return len(takers) * self.share
        if self.kind is CollectiveKind.ALL_TO_ALL:
            return len(givers) * len(takers) * self.share
        # In all other collectives, each unit must cross at least once.
        return self.share


def _read_cut(document: Mapping[str, Any], topology: Topology | None) -> _TimeCut:
    """Parse the document of a cut in time, with link times in picoseconds for a one-unit message.

    - A unit has collective bytes / units bytes, rounded down, but at least 1. A message takes size
      / bandwidth to send, and arrives after that and the latency of the link. A link is busy until
      the arrival with ALPHA_BETA, else while sending. Times are exact fractions.
    - `share`: units per part of the collective. `root`: the NPU of its root, None without one.
    - Links are those of the topology, else of the document. Of parallel links the first counts.

    Raises `FlawError`: `topology` if the topology is not the document's network or has other
    latencies, if links are missing without a topology or have a wrong digest, or if planes are not
    numbered in order; then `form` if a field is missing or invalid, the network has several planes,
    `since_ps` has not one time per node, units do not divide evenly among the parts, or the
    collective is custom; then `ranks` if the ranks are not different nodes.
    """
    try:
        (capacities,) = read_capacities(cast(Certificate, document), topology)
        latencies = _read_latencies(document, topology)
        ranks = [int(npu) for npu in document["ranks"]]
        since = [int(time) for time in document["since_ps"]]
        kind = CollectiveKind(document["collective"])
        # The picoseconds for which a message of one unit occupies a link, and until arrival.
        # The size of the smallest unit if the bytes do not divide evenly.
        size = max(1, int(document["collective_bytes"]) // int(document["unit_count"]))
        is_busy_until = Occupancy(document["occupancy"]) is Occupancy.ALPHA_BETA
        busy, arrival = {}, {}
        for link, rate in capacities.items():
            sent = _PICOSECONDS * size / rate
            arrival[link] = sent + _PICOSECONDS * latencies[link]
            busy[link] = arrival[link] if is_busy_until else sent
        nodes = int(document["network"]["nodes"])
        share = Fraction(int(document["unit_count"]), kind.traits.parts(len(ranks)))
        root = ranks[document["root"]] if kind in ROOTED else None
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        message = f"the bound certificate cannot be read: {error!r}"
        raise FlawError("form", message) from error
    if len(since) != nodes or share.denominator != 1 or kind is CollectiveKind.CUSTOM:
        raise FlawError("form", "the bound certificate has not a time for every node, or no units")
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(nodes)):
        raise FlawError("ranks", "the ranks are not different NPUs")
    return _TimeCut(kind, ranks, root, int(share), since, busy, arrival)


def _read_latencies(document: Mapping[str, Any], topology: Topology | None) -> Latencies:
    """Return the latency of every link in seconds, as exact fractions by (source, destination).

    Of parallel links the first counts.

    - With a topology: the latencies of its links, as the fraction of their shortest decimal form.
      If the document has `latencies_s`, all its values must be equal to them, in the order of the
      links. Otherwise `FlawError` (`topology`) is raised.
    - Without: the `latencies_s` of the document, in the order of its links. `ValueError` is raised
      if there are more or fewer values than links, also if `latencies_s` is missing.

    A value in `latencies_s` that is no number raises `ValueError` or `TypeError` in both cases.
    """
    declared = [Fraction(latency) for latency in document.get("latencies_s", ())]
    if topology is None:
        pairs = [(int(link[0]), int(link[1])) for link in document["network"]["links"]]
    else:
        links = list(topology.links())
        pairs = [(link.source, link.destination) for link in links]
        actual = [Fraction(repr(link.latency_s)) for link in links]
        # Documents of networks with many links omit the latencies.
        if "latencies_s" in document and declared != actual:
            message = f"the bound is for other latencies than those of {topology.name}"
            raise FlawError("topology", message)
        declared = actual
    latencies: dict[tuple[int, int], Fraction] = {}
    for link, latency in zip(pairs, declared, strict=True):
        latencies.setdefault(link, latency)
    return latencies
