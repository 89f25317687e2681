"""Recompute the rate that the declared cut or partition allows, from the links that cross it."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from collhub_certificates.claim import Claim, FlawError, add_planes, format_gb
from hub_core.model import ROOTED, CollectiveKind
from hub_core.schedules import CertifiedBound, LinkCapacities, partition_rate, spreading_rate


def compute_allowed_rate(claim: Claim) -> Fraction:
    """Compute the bytes of the collective per second that the bound allows over all planes.

    The bound of each plane is compared with its claimed rate. Raises `FlawError` for a wrong rate,
    and for sets of nodes that prove no bound.
    """
    for plane, declared in claim.carrying_planes().items():
        claimed = Fraction(declared["bound"]["rate"])
        if _compute_bound_rate(claim, declared["bound"], claim.planes[plane]) != claimed:
            message = f"the bound of plane {plane} is not {format_gb(claimed)} as claimed"
            raise FlawError("bound", message)
    return _compute_bound_rate(claim, claim.document["bound"], add_planes(claim.planes))


def _compute_bound_rate(
    claim: Claim, declared: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """Compute the bytes per second that a bound allows on links of these capacities."""
    # Only an all-reduce has a bound by partition; a cut bounds every collective.
    if declared["kind"] == "partition" and claim.kind is CollectiveKind.ALL_REDUCE:
        return _compute_partition_rate(claim, declared, capacities)
    is_by_ingress = claim.has_parts and not claim.may_serve_one
    if declared["kind"] != ("ingress-cut" if is_by_ingress else "cut"):
        message = f"a {declared['kind']} is no bound of a {claim.kind}"
        raise FlawError("bound", message)
    return _compute_cut_rate(claim, declared, capacities)


def _compute_partition_rate(
    claim: Claim, declared: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """Compute `partition_rate` after a check: one block per rank, at least one rank per block."""
    blocks = declared.get("blocks", [])
    named: list[int] = []
    for block in blocks:
        named += block
    network = claim.document["network"]
    if network.get("multicast") or network.get("reduce"):
        message = "where switches multicast or reduce, a partition bounds nothing"
        raise FlawError("bound", message, "state a cut")
    # Switches may be in any number of blocks.
    ranks = set(claim.ranks)
    named_ranks = sorted(node for node in named if node in ranks)
    are_parted = len(blocks) >= 2 and named_ranks == sorted(ranks)
    if not are_parted or not _are_nodes(claim, named):
        raise FlawError("bound", "the blocks are no partition of the ranks")
    if any(ranks.isdisjoint(block) for block in blocks):
        raise FlawError("bound", "a block of the partition holds no rank")
    return partition_rate(blocks, capacities)


def _are_nodes(claim: Claim, named: Iterable[int]) -> bool:
    """Check that the network has all of these nodes."""
    nodes = range(claim.document["network"]["nodes"])
    return all(node in nodes for node in named)


def _compute_cut_rate(
    claim: Claim, declared: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """Compute the bandwidth across the cut times the bytes of the collective per crossing byte."""
    cut = set(declared.get("nodes", []))
    if len(cut) != len(declared.get("nodes", [])):
        raise FlawError("bound", "a node is named twice in the cut")
    inside = len(cut.intersection(claim.ranks))
    outside = len(claim.ranks) - inside
    if not _separates_ranks(claim, cut, inside, outside):
        raise FlawError("bound", "the cut does not part the ranks as it must")
    # Collected data flow towards the nodes of the cut, all other data away from them.
    leaves = not claim.is_collecting
    across = spreading_rate(sorted(cut), capacities, leaves)
    return across * _count_bytes_per_crossing(claim, inside, outside)


def _separates_ranks(claim: Claim, cut: set[int], inside: int, outside: int) -> bool:
    """Check that a cut has ranks on both sides, and contains the root, if there is one."""
    if not _are_nodes(claim, cut):
        return False
    if not inside or not outside:
        return False
    if claim.kind not in ROOTED:
        return True
    return claim.root in cut


def _count_bytes_per_crossing(claim: Claim, inside: int, outside: int) -> Fraction:
    """Compute the bytes of the collective per byte that must cross a cut.

    `inside`, `outside`: numbers of ranks on the two sides of the cut.
    """
    total = inside + outside
    if claim.may_serve_one:
        # The parts of the outside ranks cross it.
        return Fraction(total, outside)
    if claim.has_parts:
        # The parts of the inside ranks cross it.
        return Fraction(total, inside)
    # Broadcast, reduce, all-reduce: the entire vector crosses it.
    return Fraction(1)
