"""Check the bound of a flow: bytes times distances divided by prices, in exact arithmetic."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
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
from hub_core.model import Algorithm, CollectiveKind
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import Certificate, LinkCapacities

_KEY = "flow_certificate"
Prices = Mapping[tuple[int, int], int]
Neighbours = Mapping[int, Sequence[tuple[int, int]]]


def check_flow(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Recompute the bound of the flow certificate that an algorithm carries.

    Non-negative prices of links bound the time of any algorithm: for every byte from s to t, the
    sum of price divided by bandwidth over its links is at least the distance of s and t, and no
    link transfers more than its bandwidth (weak duality of the multicommodity flow).
    """
    assert request.algorithm is not None
    document = find_document(request.algorithm, _KEY)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        bound_ns = _compute_bound_ns(document, request.algorithm, request.topology)
        claimed_ns = check_claimed_time(document, bound_ns, "the prices")
    except FlawError as flaw:
        return CheckReport(False, "wrong", (flaw.diagnostic,))
    return CheckReport(
        True,
        f"holds: no algorithm takes less than {claimed_ns} ns",
        facts={"lower_bound_ns": claimed_ns, "not_proved": ["network.name"]},
        details={"lower bound": f"{claimed_ns} ns", "not proved": describe_network_name(document)},
    )


def _compute_bound_ns(
    document: Mapping[str, Any], algorithm: Algorithm, topology: Topology | None
) -> Fraction:
    """Compute the nanoseconds that the prices prove. Raises `FlawError` for an invalid form."""
    try:
        (capacities,) = read_capacities(cast(Certificate, document), topology)
        prices = {(int(a), int(b)): int(price) for a, b, price in document["prices"]}
        pairs = _list_pairs(document)
        share = Fraction(document["collective_bytes"], int(document["parts"]))
        total = sum(prices.values())
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FlawError("form", f"the flow certificate cannot be read: {error!r}") from error
    if total <= 0 or min(prices.values()) < 0 or not set(prices) <= set(capacities):
        raise FlawError("prices", "the prices are not those of links, or negative, or all zero")
    check_same_collective(document, algorithm, "flow certificate")
    return 10**9 * share * _add_distances(pairs, prices, capacities) / total


def _list_pairs(document: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
    """Return every NPU that sends, with its receivers. Raises `ValueError` for other kinds."""
    ranks = [int(npu) for npu in document["ranks"]]
    kind = CollectiveKind(document["collective"])
    if len(set(ranks)) != len(ranks):
        raise ValueError("ranks are named twice")
    givers = takers = ranks
    if kind is CollectiveKind.SCATTER:
        givers = [ranks[document["root"]]]
    elif kind is CollectiveKind.GATHER:
        takers = [ranks[document["root"]]]
    elif kind is not CollectiveKind.ALL_TO_ALL:
        raise ValueError(f"a {kind} is no flow")
    if document["parts"] != len(ranks):
        raise ValueError("a share is the whole by the number of ranks")
    return [(giver, [taker for taker in takers if taker != giver]) for giver in givers]


def _add_distances(
    pairs: Sequence[tuple[int, Sequence[int]]], prices: Prices, capacities: LinkCapacities
) -> Fraction:
    """Add up the shortest distances of all pairs, where a link's length is price by bandwidth."""
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
        total += sum(distance[taker] for taker in takers)
    return Fraction(total, unit)


def _find_distances(start: int, neighbours: Neighbours) -> dict[int, int]:
    """Compute the shortest distance to every reachable node (Dijkstra)."""
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
