"""Check a certificate of optimality without the program that wrote it.

The rates of the trees and of the declared cut or partition are recomputed from the links, and the
numbers that the certificate claims are compared with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain
from typing import cast

from collhub_certificates.claim import Claim, FlawError, add_planes, format_gb, read_capacities
from collhub_certificates.rates import compute_carried_rate
from hub_core import schema_violations
from hub_core.model import ROOTED, Algorithm, CollectiveKind, Diagnostic, Location, Severity
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions
from hub_core.schedules import (
    Certificate,
    CertifiedBound,
    LinkCapacities,
    directed_partition_rate,
    find_certificate,
    partition_rate,
    spreading_rate,
)


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """The result of a re-check.

    `rate`: bytes of the collective per second that the trees carry, None for invalid or omitted
    trees. `bound`: the rate that the cut or partition allows, None if it is invalid. `unproved`:
    claims that no check proves, by the path of their field.
    """

    rate: Fraction | None
    bound: Fraction | None
    diagnostics: tuple[Diagnostic, ...]
    unproved: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if no checked claim is wrong."""
        return all(finding.severity is not Severity.ERROR for finding in self.diagnostics)

    @property
    def is_optimal(self) -> bool:
        """Return whether the certificate is valid and its rate equals the bound.

        Then no algorithm has a higher rate. False if the rate was not recomputed.
        """
        # Two unknown numbers are not equal.
        if self.rate is None:
            return False
        return self.ok and self.rate == self.bound


_SCHEMA_FILE = "certificate-1.json"


def check_certificate(
    certificate: Mapping[str, object],
    algorithm: Algorithm | None = None,
    topology: Topology | None = None,
) -> CertificateReport:
    """Recompute all claims of a certificate and report the flaws; none is raised.

    With `topology`, the certificate must be for this network; otherwise the network is the
    list of links in the certificate. With `algorithm`, its collective must be that of the
    certificate (any for a custom one), and its traffic between ranks that of the trees. A
    certificate without trees gets a warning, and its rate is None. A document that violates
    the schema is reported with the code `certificate-form`, without rate and bound.
    docs/certificates.md describes the document.
    """
    violations = schema_violations(certificate, _SCHEMA_FILE)
    if violations:
        location = Location("certificate")
        findings = tuple(error.finding(location, "certificate-form") for error in violations)
        return CertificateReport(None, None, findings)
    # The schema has the same members as the type.
    document = cast(Certificate, certificate)
    # Three independent computations: the rate that the cut allows, the loads and the rate of the
    # trees, and the comparison of both with the claimed numbers. All use fractions of the links'
    # bandwidths, so that equality is exact.
    diagnostics: list[Diagnostic] = []
    rate = bound = None
    try:
        claim = Claim(document, read_capacities(document, topology))
        claim.check_ranks(algorithm)
        bound = _try_compute(lambda: compute_allowed_rate(claim), diagnostics)
        if "trees" in document:
            rate = _try_compute(lambda: compute_carried_rate(claim, algorithm), diagnostics)
        else:
            message = "the certificate leaves the trees out, so that only the bound was checked"
            diagnostics.append(Diagnostic("certificate-partial", message, Severity.WARNING))
        compare_numbers(document, rate, bound, algorithm)
    except FlawError as flaw:
        # A flaw of the network, the ranks or the comparison; results so far are still reported.
        diagnostics.append(flaw.diagnostic)
    unproved = list_unproved_claims(document, rate)
    return CertificateReport(rate, bound, tuple(diagnostics), unproved)


def _try_compute(compute: Callable[[], Fraction], findings: list[Diagnostic]) -> Fraction | None:
    """Return the result of `compute`.

    If it raises `FlawError`, append its diagnostic to `findings` and return None, so that the
    caller can also check the other number.
    """
    try:
        return compute()
    except FlawError as flaw:
        findings.append(flaw.diagnostic)
        return None


def check_packing(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check the certificate of an algorithm by recomputing its claims; return the report.

    The network is the topology of the request, otherwise the links in the certificate. Flaws become
    diagnostics, not exceptions. `ok` is True if no diagnostic is an error.

    - Without a certificate, `ok` and `is_applicable` are False, and there are no facts.
    - If it violates the schema, the report has the error `certificate-form` for each violation.
      Rate and bound are None, and nothing else is checked.
    - If it has no trees, the report has a warning. The rate is None, and only the bound is checked.

    The facts are `rate` and `bound` (bytes/s, exact fractions as text, or None), `is_optimal`
    (`ok`, and rate equals bound) and `not_proved` (sorted paths of fields). The details have them
    as text for readers. Raises `AssertionError` if the request has no algorithm.
    """
    assert request.algorithm is not None
    certificate = find_certificate(request.algorithm)
    if certificate is None:
        return CheckReport(ok=False, is_applicable=False)
    report = check_certificate(certificate, request.algorithm, request.topology)
    return CheckReport(
        report.ok,
        _format_verdict(report),
        report.diagnostics,
        # Fractions as text: JSON has no other exact form for them.
        facts={
            "is_optimal": report.is_optimal,
            "rate": _format_fraction(report.rate),
            "bound": _format_fraction(report.bound),
            "not_proved": [*sorted(report.unproved)],
        },
        details={
            "rate": _format_rate(report.rate),
            "bound": _format_rate(report.bound),
            **({"not proved": "; ".join(report.unproved.values())} if report.unproved else {}),
        },
    )


def compare_numbers(
    document: Certificate,
    rate: Fraction | None,
    bound: Fraction | None,
    algorithm: Algorithm | None = None,
) -> None:
    """Raise `FlawError` for the first wrong number of a certificate; codes are in parentheses.

    `rate`, `bound`: recomputed, in bytes of the collective per second; None skips checks with it.

    1. The claimed rate equals `rate` (`rate`), then the claimed bound `bound` (`bound`).
    2. Certificate and algorithm have the same size, if both have one (`collective`).
    3. A claimed lower bound of the time has a size and is at most size / `bound` (`bound`). A
       `bound` of 0 allows any time.
    4. The number of trees fits the other claims (`trees`); not if `rate` is None and trees are
       listed.
    5. Only with `rate`: the depth of each tree is its maximum hops from the root, of both
       directions if it has two (`tree`).
    6. With both: `rate` is at most `bound` (`bound`); `is_optimal` is true if and only if they are
       equal (`optimal`).
    """
    _check_equal("rate", document["rate"], rate)
    _check_equal("bound", document["bound"]["rate"], bound)
    # Raise `FlawError` if certificate and algorithm both state a size and these differ.
    claimed = document.get("collective_bytes")
    size = None if algorithm is None else algorithm.collective_bytes
    if not (claimed is None or size is None or claimed == size):
        raise FlawError(
            "collective", f"the certificate is for {claimed} bytes, the algorithm for {size}"
        )
    if bound is not None:
        _check_lower_bound(document, bound)
    if rate is None and "trees" in document:
        # The trees are wrong, so their numbers are not compared.
        return
    _check_tree_count(document)
    if rate is None:
        return
    for tree in document["trees"]:
        directions = [tree, tree["up"]] if "up" in tree else [tree]
        depth = max(_compute_depth(direction["parents"]) for direction in directions)
        if tree["depth"] != depth:
            message = f"the tree of root {tree['root']} has depth {depth}, not {tree['depth']}"
            raise FlawError("tree", message)
    if bound is not None:
        # Refuse a rate above its bound, and for a wrong claim of optimality.
        is_called_optimal = document["is_optimal"]
        # Both are recomputed, so one of the two computations or the network is wrong.
        if rate > bound:
            excess = f"{format_gb(rate)}, more than the bound of {format_gb(bound)}"
            raise FlawError("bound", f"the trees carry {excess}: one of them is wrong")
        if not is_called_optimal and rate == bound:
            raise FlawError("optimal", "claimed not to be optimal, but the rate equals the bound")
        if is_called_optimal and rate != bound:
            gap = f"{format_gb(rate)} is less than the bound of {format_gb(bound)}"
            raise FlawError("optimal", f"claimed to be optimal, but {gap}")


def compute_allowed_rate(claim: Claim) -> Fraction:
    """Recompute the bound of a certificate: the highest rate over all planes together.

    The unit is bytes of the collective per second. The result is the bound of the
    certificate on the links of all planes (independent networks) together; it is not
    compared with the claim here. If there are several planes, the bound of every entry of a
    plane is recomputed too, and must equal its claimed rate.

    Raise `FlawError`: `planes` if the entries of planes are wrong (`carrying_planes`),
    `bound` if the bound of a plane differs, or if the nodes of a bound prove no bound.
    """
    for plane, declared in claim.carrying_planes().items():
        claimed = Fraction(declared["bound"]["rate"])
        if _compute_bound_rate(claim, declared["bound"], claim.planes[plane]) != claimed:
            message = f"the bound of plane {plane} is not {format_gb(claimed)} as claimed"
            raise FlawError("bound", message)
    return _compute_bound_rate(claim, claim.document["bound"], add_planes(claim.planes))


def list_unproved_claims(document: Certificate, rate: Fraction | None) -> dict[str, str]:
    """Return the claims of a certificate that no check proves: description by path of the field.

    The order of the paths is:

    1. `network.name`.
    2. Only if `rate` is None: `rate`, `is_optimal`, `tree_count.trees`, `planes.share` and
       `planes.rate`, also if the certificate has no planes.
    3. `tree_count.at_least` and `tree_count.reason`.
    4. `tree_count.unit`, if the certificate has it.
    5. `tree_count.status`.

    `rate`: the recomputed rate; None if the trees are left out or wrong. The document must
    be valid against its schema. Long texts are cut.
    """
    count = document["tree_count"]
    unproved = {"network.name": f"the network's name {document['network']['name']!r:.60}"}
    if rate is None:
        unproved["rate"] = f"the rate {format_gb(Fraction(document['rate']))}"
        unproved["is_optimal"] = "that the rate is optimal"
        unproved["tree_count.trees"] = f"that {count['trees']} trees carry it"
        for name in ("share", "rate"):
            unproved[f"planes.{name}"] = f"the {name} of a plane"
    unproved["tree_count.at_least"] = f"that at least {count['at_least']} trees are needed"
    unproved["tree_count.reason"] = f"the reason for that: {count['reason']!r:.80}"
    if "unit" in count:
        unproved["tree_count.unit"] = (
            f"that this holds for multiples of {count['unit']:.40} bytes/s"
        )
    unproved["tree_count.status"] = f"that the number of trees is {count['status']:.20}"
    return unproved


def _format_verdict(report: CertificateReport) -> str:
    """Return the verdict of a report on a certificate as a text of one line.

    The first case that applies decides:

    - The report is not ok: `wrong`.
    - The report is optimal (`is_optimal`): `holds: no algorithm has a higher rate`.
    - The rate or the bound is unknown (None): `holds as far as it was checked`.
    - Otherwise: `holds: at most F times the rate is possible`, where F is bound / rate with four
      significant digits.
    """
    if not report.ok:
        return "wrong"
    if report.is_optimal:
        return "holds: no algorithm has a higher rate"
    if report.rate is None or report.bound is None:
        return "holds as far as it was checked"
    factor = float(report.bound / report.rate)
    return f"holds: at most {factor:.4g} times the rate is possible"


def _format_fraction(rate: Fraction | None) -> str | None:
    """Return bytes per second as an exact fraction, such as `5/2`; None for None."""
    return None if rate is None else str(rate)


def _format_rate(rate: Fraction | None) -> str:
    """Return the rate in GB/s and as an exact fraction of bytes/s; "not known" for None."""
    return "not known" if rate is None else f"{format_gb(rate)} ({rate} bytes/s)"


def _compute_bound_rate(
    claim: Claim, declared: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """Return the highest rate that a declared bound allows, in bytes of the collective per second.

    `capacities`: bytes/s by link. The kinds of bounds:

    - `partition`, `directed-partition`: only for an all-reduce; the rate of its blocks of nodes
      (`_compute_partition_rate`, `_compute_directed_partition_rate`).
    - `ingress-cut` for all-gather and reduce-scatter, `cut` for all others: a set of distinct nodes
      with ranks inside and outside; a root is inside. The rate is the capacity of all links out of
      the set (into it for reduce, gather, reduce-scatter), times a factor. The factor is ranks /
      (ranks outside) for scatter and gather. It is ranks / (ranks inside) for all-gather and
      reduce-scatter, otherwise 1.

    Raises `FlawError` (`bound`) for another kind, an invalid set, and invalid blocks.
    """
    # Only an all-reduce has a bound by partition; a cut bounds every collective.
    if claim.kind is CollectiveKind.ALL_REDUCE:
        if declared["kind"] == "partition":
            return _compute_partition_rate(claim, declared, capacities)
        if declared["kind"] == "directed-partition":
            return _compute_directed_partition_rate(claim, declared, capacities)
    is_by_ingress = claim.has_parts and not claim.may_serve_one
    if declared["kind"] != ("ingress-cut" if is_by_ingress else "cut"):
        message = f"a {declared['kind']} is no bound of a {claim.kind}"
        raise FlawError("bound", message)
    cut = set(declared.get("nodes", []))
    if len(cut) != len(declared.get("nodes", [])):
        raise FlawError("bound", "a node is named twice in the cut")
    inside = len(cut.intersection(claim.ranks))
    outside = len(claim.ranks) - inside
    is_valid = _are_nodes(claim, cut) and inside > 0 and outside > 0
    if claim.kind in ROOTED:
        is_valid = is_valid and claim.root in cut
    if not is_valid:
        raise FlawError("bound", "the cut does not part the ranks as it must")
    # Collected data flow towards the nodes of the cut, all other data away from them.
    leaves = not claim.is_collecting
    across = spreading_rate(sorted(cut), capacities, leaves)
    # Bytes of the collective per byte that crosses: an entire vector crosses the cut, or only the
    # parts of the ranks on one side.
    factor = Fraction(1)
    if claim.may_serve_one:
        factor = Fraction(len(claim.ranks), outside)
    elif claim.has_parts:
        factor = Fraction(len(claim.ranks), inside)
    return across * factor


def _compute_partition_rate(
    claim: Claim, declared: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """Compute the rate of an all-reduce that a partition of the ranks into blocks allows.

    It is `partition_rate` of the declared blocks and `capacities` (bytes/s by link), in
    bytes of the collective per second. Raises `FlawError` (`certificate-bound`) as
    `_check_blocks` does, and if a rank is not in exactly one block. Other nodes may be in
    any number of blocks, also in none.
    """
    blocks = _check_blocks(claim, declared)
    ranks = set(claim.ranks)
    # Switches may be in any number of blocks.
    named_ranks = sorted(node for node in chain(*blocks) if node in ranks)
    if named_ranks != sorted(ranks):
        raise FlawError("bound", "the blocks are no partition of the ranks")
    return partition_rate(blocks, capacities)


def _compute_directed_partition_rate(
    claim: Claim, declared: CertifiedBound, capacities: LinkCapacities
) -> Fraction:
    """Compute the rate of an all-reduce that blocks of nodes and a number of senders allow.

    It is `directed_partition_rate` of the declared blocks and `capacities` (bytes/s by
    link), in bytes of the collective per second. The first `senders` blocks are the sending
    ones; without this number there are none. Blocks need not contain all ranks. Raises
    `FlawError` (`certificate-bound`) as `_check_blocks` does, if a node is in two blocks,
    and if there are more senders than blocks. The schema refuses a negative number.
    """
    blocks, senders = _check_blocks(claim, declared), declared.get("senders", 0)
    named = [*chain(*blocks)]
    if len(set(named)) != len(named):
        raise FlawError("bound", "the blocks of the directed partition are no disjoint sets")
    if senders > len(blocks):
        raise FlawError("bound", f"{senders} of {len(blocks)} blocks cannot be senders")
    return directed_partition_rate(blocks, senders, capacities)


def _check_blocks(claim: Claim, declared: CertifiedBound) -> list[list[int]]:
    """Check that the blocks of a declared bound can be a partition; return them unchanged.

    A block is a list of nodes. Raises `FlawError` (`certificate-bound`) for the first of these
    defects:

    - a switch of the network multicasts or reduces
    - fewer than two blocks (also if none are declared)
    - a number in a block that is not a node of the network, 0 to nodes - 1
    - a block without a rank of the claim

    Blocks may overlap here, and need not contain all ranks; the callers check this.
    """
    network = claim.document["network"]
    if network.get("multicast") or network.get("reduce"):
        message = "where switches multicast or reduce, a partition bounds nothing"
        raise FlawError("bound", message, "state a cut")
    blocks = declared.get("blocks", [])
    if len(blocks) < 2:
        raise FlawError("bound", "a partition has two or more blocks")
    if not _are_nodes(claim, chain(*blocks)):
        raise FlawError("bound", "a block of the partition names a node that does not exist")
    if any(set(claim.ranks).isdisjoint(block) for block in blocks):
        raise FlawError("bound", "a block of the partition holds no rank")
    return blocks


def _are_nodes(claim: Claim, named: Iterable[int]) -> bool:
    """Return whether all these numbers are nodes of the network, 0 to nodes - 1; True for none."""
    nodes = range(claim.document["network"]["nodes"])
    return all(node in nodes for node in named)


def _check_equal(name: str, claimed_text: str, computed: Fraction | None) -> None:
    """Raise `FlawError` unless a claimed fraction (as text) has the computed value.

    Both are in bytes per second. `computed` None means that it was not recomputed, and
    passes. The code is `certificate-` and `name`, which is also in the message. A text that
    is no fraction raises `ValueError`.
    """
    claimed = Fraction(claimed_text)
    if computed is None or computed == claimed:
        return
    raise FlawError(
        name,
        f"the {name} is {format_gb(computed)}, not {format_gb(claimed)} as claimed",
    )


def _check_lower_bound(document: Certificate, bound: Fraction) -> None:
    """Raise `FlawError` (`bound`) if the claimed lower bound of the time is too large.

    It must be at most size / bound. `bound`: highest rate, in bytes of the collective per second; a
    rate of 0, across a cut without links, permits any claimed time. A claimed time without a size
    is an error too. Without a claimed time there is no check.
    """
    claimed = document.get("lower_bound_ns")
    if claimed is None:
        return
    size = document.get("collective_bytes")
    if size is None:
        raise FlawError("bound", "a time is stated, but no size to which it belongs")
    if bound == 0:
        return
    proved = size * 10**9 / bound
    if claimed > proved:
        message = f"the bound proves {float(proved):.6g} ns, not {claimed} ns as claimed"
        raise FlawError("bound", message)


def _check_tree_count(document: Certificate) -> None:
    """Raise `FlawError` (`trees`) if the claim `tree_count` contradicts other claims.

    The claim has a number of trees, `at_least` (a lower bound of that number), a status and
    optionally a unit of weights. `KeyError` without the claim. Checked in this order:

    1. If the document has trees, there are as many as claimed.
    2. `at_least` does not exceed the number.
    3. If the status of the claim is `optimal`, `at_least` equals the number.
    4. Every weight of a tree is a multiple of the unit. Not checked if the unit is missing or 0.

    Whether a packing with fewer trees exists is not checked.
    """
    count = document["tree_count"]
    trees = document.get("trees")
    if trees is not None and len(trees) != count["trees"]:
        message = f"{len(trees)} trees are stated, not {count['trees']} as claimed"
        raise FlawError("trees", message)
    if count["at_least"] > count["trees"]:
        message = (
            f"at least {count['at_least']} trees are claimed to be needed, {count['trees']} do"
        )
        raise FlawError("trees", message)
    if count["status"] == "optimal" and count["at_least"] != count["trees"]:
        message = "the number of trees is called optimal, but fewer are not excluded"
        raise FlawError("trees", message)
    unit = Fraction(count.get("unit", "0"))
    weights = [Fraction(tree["weight"]) for tree in trees or ()]
    if unit and any((weight / unit).denominator > 1 for weight in weights):
        raise FlawError("trees", f"a weight is no multiple of the unit {count['unit']:.40}")


def _compute_depth(parents: Sequence[int]) -> int:
    """Return the depth of a tree: the maximum number of hops from a node to the root.

    `parents[node]` is the parent of a node, negative for the root and for NPUs outside the
    tree. Precondition, not checked: there is no cycle. The depth of a tree without further
    nodes is 0.
    """
    hops: dict[int, int] = {}
    for node in range(len(parents)):
        path = []
        while node not in hops and parents[node] >= 0:
            path.append(node)
            node = parents[node]
        base = hops.setdefault(node, 0)
        for count, visited in enumerate(reversed(path), 1):
            hops[visited] = base + count
    return max(hops.values(), default=0)
