"""The rate that the trees carry within the links' capacities, with an equal part for every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from collhub_certificates.claim import Claim
from collhub_certificates.flaws import FlawError, gb_text
from collhub_certificates.traffic import check_traffic
from collhub_certificates.tree_ways import NodePair, TreeWay, ways_of
from hub_core.model import Algorithm
from hub_core.schedules import CertifiedPlane, CertifiedTree, LinkCapacities


def carried_rate(claim: Claim, algorithm: Algorithm | None) -> Fraction:
    """Bytes of the collective per second that the trees of all planes carry together.

    Every link has room for them, every rank gets its part, and with `algorithm`, it sends what they
    do. Raises `FlawError` where not.
    """
    carrying = claim.carrying_planes()
    trees = claim.document["trees"]
    total = Fraction(0)
    for plane in range(len(claim.planes)):
        stated = [tree for tree in trees if tree.get("plane", 0) == plane]
        # One of several planes may be left idle.
        is_idle = len(claim.planes) > 1 and plane not in carrying
        if stated or not is_idle:
            total += _rate_of_plane(claim, plane, stated, carrying, algorithm)
    if any(tree.get("plane", 0) >= len(claim.planes) for tree in trees):
        raise FlawError("planes", "a tree is on a plane that the network does not have")
    return total


def _rate_of_plane(
    claim: Claim,
    plane: int,
    stated: Sequence[CertifiedTree],
    carrying: Mapping[int, CertifiedPlane],
    algorithm: Algorithm | None,
) -> Fraction:
    """The rate of the trees of one plane, which must be what is claimed for it."""
    ways: list[TreeWay] = []
    for tree in stated:
        ways += ways_of(tree, claim)
    rate = _packed_rate(claim, stated, ways, claim.planes[plane])
    claimed, share = rate, Fraction(1)
    if plane in carrying:
        claimed = Fraction(carrying[plane]["rate"])
        share = Fraction(carrying[plane]["share"])
    is_unclaimed = bool(carrying) and plane not in carrying
    if claimed != rate or is_unclaimed:
        message = f"the trees of plane {plane} carry {gb_text(rate)}, not what is claimed"
        raise FlawError("planes", message)
    if algorithm is not None:
        check_traffic(ways, share / rate, algorithm, plane, len(claim.planes))
    return rate


def _packed_rate(
    claim: Claim,
    stated: Sequence[CertifiedTree],
    ways: Sequence[TreeWay],
    capacities: LinkCapacities,
) -> Fraction:
    """The sum of the weights, after loads and parts are checked."""
    _check_loads(ways, capacities)
    rate = sum((Fraction(tree["weight"]) for tree in stated), Fraction(0))
    if not rate:
        raise FlawError("rate", "the trees carry nothing")
    count = len(claim.ranks)
    if claim.may_serve_one:
        # The root's own part goes nowhere.
        rate *= Fraction(count, count - 1)
    if claim.has_parts:
        _check_parts(claim, ways, rate)
    return rate


def _check_loads(ways: Sequence[TreeWay], capacities: LinkCapacities) -> None:
    """Raise `FlawError` for the first link without room for what the trees put on it."""
    for link, load in sorted(_loads(ways).items()):
        # A link that the network does not have carries nothing.
        capacity = capacities.get(link, Fraction(0))
        if load <= capacity:
            continue
        source, destination = link
        name = f"{source} -> {destination} of {gb_text(capacity)}"
        message = f"the trees put {gb_text(load)} on the link {name}"
        raise FlawError("load", message)


def _loads(ways: Sequence[TreeWay]) -> dict[NodePair, Fraction]:
    """The weights of all messages on every link that carries one."""
    loads: dict[NodePair, Fraction] = {}
    for way in ways:
        for link in way.links():
            so_far = loads.get(link, Fraction(0))
            loads[link] = so_far + way.weight
    return loads


def _check_parts(claim: Claim, ways: Sequence[TreeWay], rate: Fraction) -> None:
    """Trees that serve one rank alone - rooted at it, or leading to it - carry its equal part."""
    count = len(claim.ranks)
    part: dict[int, Fraction] = dict.fromkeys(claim.ranks, Fraction(0))
    for way in ways:
        part[way.served] += way.weight
    if claim.root is not None:
        # The root has its own part already.
        part[claim.root] = rate / count
    for rank, carried in part.items():
        if carried * count == rate:
            continue
        equal = f"a {count}th of {gb_text(rate)}"
        message = f"the trees carry {gb_text(carried)} for NPU {rank}, not {equal}"
        raise FlawError("parts", message)
