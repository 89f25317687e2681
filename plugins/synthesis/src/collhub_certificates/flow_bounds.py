"""The check of a flow's bound: bytes times distances by prices, recomputed in whole numbers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
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
from hub_core.model import Algorithm, CollectiveKind
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import Certificate, LinkCapacities

_KEY = "flow_certificate"
Prices = Mapping[tuple[int, int], int]
Neighbours = Mapping[int, Sequence[tuple[int, int]]]


def check_flow(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Recompute the bound of the flow certificate that an algorithm carries.

    Prices of links that are not negative bound the time of any algorithm: every byte from s to t
    passes links whose prices by their bandwidths add up to the distance of s and t at least, and no
    link passes more than its bandwidth (weak duality of the multicommodity flow).
    """
    assert request.algorithm is not None
    document = extension_document(request.algorithm, _KEY)
    if document is None:
        return CheckReport(ok=False, is_applicable=False)
    try:
        bound_ns = _allowed_ns(document, request.algorithm, request.topology)
        stated = check_stated_time(document, bound_ns, "the prices")
    except FlawError as flaw:
        return CheckReport(False, "wrong", (flaw.diagnostic,))
    return CheckReport(
        True,
        f"holds: no algorithm takes less than {stated} ns",
        facts={"lower_bound_ns": stated, "not_proved": ["network.name"]},
        details={"lower bound": f"{stated} ns", "not proved": network_name(document)},
    )


def _allowed_ns(
    document: Mapping[str, Any], algorithm: Algorithm, topology: Topology | None
) -> Fraction:
    """Nanoseconds that the prices prove. Raises `FlawError` for a form that is not right."""
    try:
        (capacities,) = capacities_of(cast(Certificate, document), topology)
        prices = {(int(a), int(b)): int(price) for a, b, price in document["prices"]}
        pairs = _pairs(document)
        share = Fraction(document["collective_bytes"], int(document["parts"]))
        total = sum(prices.values())
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise FlawError("form", f"the flow certificate cannot be read: {error!r}") from error
    if total <= 0 or min(prices.values()) < 0 or not set(prices) <= set(capacities):
        raise FlawError("prices", "the prices are not those of links, or negative, or all zero")
    check_same_collective(document, algorithm, "flow certificate")
    return 10**9 * share * _total_distance(pairs, prices, capacities) / total


def _pairs(document: Mapping[str, Any]) -> list[tuple[int, list[int]]]:
    """Every NPU that sends, with those to which it does."""
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


def _total_distance(
    pairs: Sequence[tuple[int, Sequence[int]]], prices: Prices, capacities: LinkCapacities
) -> Fraction:
    """Sum of the shortest distances of all pairs; a link is as long as price by bandwidth."""
    lengths = {link: prices.get(link, 0) / rate for link, rate in capacities.items()}
    # In units of the common denominator sums are whole numbers, which are fast.
    unit = math.lcm(*(length.denominator for length in lengths.values()))
    neighbours: dict[int, list[tuple[int, int]]] = {}
    for (tail, head), length in lengths.items():
        neighbours.setdefault(tail, []).append((head, int(length * unit)))
    total = 0
    for giver, takers in pairs:
        distance = _distances(giver, neighbours)
        if not set(takers) <= set(distance):
            raise FlawError("ranks", f"NPU {giver} does not reach every rank")
        total += sum(distance[taker] for taker in takers)
    return Fraction(total, unit)


def _distances(start: int, neighbours: Neighbours) -> dict[int, int]:
    """Shortest distance to every node that is reached (Dijkstra)."""
    done: dict[int, int] = {}
    queue = [(0, start)]
    while queue:
        far, node = heapq.heappop(queue)
        if node in done:
            continue
        done[node] = far
        for head, length in neighbours.get(node, ()):
            if head in done:
                continue
            entry = (far + length, head)
            heapq.heappush(queue, entry)
    return done
