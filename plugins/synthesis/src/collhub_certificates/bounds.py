"""The rate that the stated cut or partition allows, added up from the links that cross it."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from collhub_certificates.capacities import united
from collhub_certificates.claim import Claim
from collhub_certificates.flaws import FlawError, gb_text
from hub_core.model import ROOTED, CollectiveKind
from hub_core.schedules import CertifiedBound, LinkCapacities, partition_rate, spreading_rate


def allowed_rate(claim: Claim) -> Fraction:
    """Bytes of the collective per second that the bound allows over all planes.

    The bounds of single planes are held against what they claim. Raises `FlawError` for nodes that
    prove nothing.
    """
    for plane, stated in claim.carrying_planes().items():
        claimed = Fraction(stated["bound"]["rate"])
        if _rate_of(claim, stated["bound"], claim.planes[plane]) != claimed:
            message = f"the bound of plane {plane} is not {gb_text(claimed)} as claimed"
            raise FlawError("bound", message)
    return _rate_of(claim, claim.document["bound"], united(claim.planes))


def _rate_of(claim: Claim, stated: CertifiedBound, capacities: LinkCapacities) -> Fraction:
    """Bytes per second that a stated bound allows on links of these capacities."""
    # Only an all-reduce has a bound by partition; a cut bounds everything.
    if stated["kind"] == "partition" and claim.kind is CollectiveKind.ALL_REDUCE:
        return _rate_by_partition(claim, stated, capacities)
    is_by_ingress = claim.has_parts and not claim.may_serve_one
    if stated["kind"] != ("ingress-cut" if is_by_ingress else "cut"):
        message = f"a {stated['kind']} is no bound of a {claim.kind}"
        raise FlawError("bound", message)
    return _rate_by_cut(claim, stated, capacities)


def _rate_by_partition(
    claim: Claim, stated: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """See `partition_rate`; every rank must be in one block, and no block without a rank."""
    blocks = stated.get("blocks", [])
    named: list[int] = []
    for block in blocks:
        named += block
    network = claim.document["network"]
    if network.get("multicast") or network.get("reduce"):
        message = "where switches multicast or reduce, a partition bounds nothing"
        raise FlawError("bound", message, "state a cut")
    # Other switches may be in any number of blocks.
    ranks = set(claim.ranks)
    named_ranks = sorted(node for node in named if node in ranks)
    are_parted = len(blocks) >= 2 and named_ranks == sorted(ranks)
    if not are_parted or not _are_nodes(claim, named):
        raise FlawError("bound", "the blocks are no partition of the ranks")
    if any(ranks.isdisjoint(block) for block in blocks):
        raise FlawError("bound", "a block of the partition holds no rank")
    return partition_rate(blocks, capacities)


def _are_nodes(claim: Claim, named: Iterable[int]) -> bool:
    """Whether the network has all of these nodes."""
    nodes = range(claim.document["network"]["nodes"])
    return all(node in nodes for node in named)


def _rate_by_cut(claim: Claim, stated: CertifiedBound, capacities: LinkCapacities) -> Fraction:
    """What crosses the cut, times the bytes of the collective per byte that must cross it."""
    cut = set(stated.get("nodes", []))
    if len(cut) != len(stated.get("nodes", [])):
        raise FlawError("bound", "a node is named twice in the cut")
    inside = len(cut.intersection(claim.ranks))
    outside = len(claim.ranks) - inside
    if not _parts_the_ranks(claim, cut, inside, outside):
        raise FlawError("bound", "the cut does not part the ranks as it must")
    # What is collected flows towards the nodes, everything else away from them.
    leaves = not claim.is_collecting
    across = spreading_rate(sorted(cut), capacities, leaves)
    return across * _bytes_per_crossing(claim, inside, outside)


def _parts_the_ranks(claim: Claim, cut: set[int], inside: int, outside: int) -> bool:
    """Whether a cut of nodes has ranks on both sides, with the root among its nodes."""
    if not _are_nodes(claim, cut):
        return False
    if not inside or not outside:
        return False
    if claim.kind not in ROOTED:
        return True
    return claim.root in cut


def _bytes_per_crossing(claim: Claim, inside: int, outside: int) -> Fraction:
    """Bytes of the collective per byte that must cross a cut with so many ranks on each side."""
    total = inside + outside
    if claim.may_serve_one:
        # The parts of the ranks outside cross it.
        return Fraction(total, outside)
    if claim.has_parts:
        # The parts of the ranks inside do.
        return Fraction(total, inside)
    # Broadcast, reduce, all-reduce: the whole vector does.
    return Fraction(1)
