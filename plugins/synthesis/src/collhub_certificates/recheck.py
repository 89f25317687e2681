"""Check a certificate of optimality without the program that wrote it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import cast

from collhub_certificates.bounds import allowed_rate
from collhub_certificates.capacities import capacities_of
from collhub_certificates.claim import Claim
from collhub_certificates.comparison import compare, unproved_claims
from collhub_certificates.flaws import FlawError
from collhub_certificates.rates import carried_rate
from collhub_certificates.report import CertificateReport
from hub_core import schema_violations
from hub_core.model import Algorithm, Diagnostic, Location, Severity
from hub_core.network import Topology
from hub_core.schedules import Certificate

_SCHEMA_FILE = "certificate-1.json"


def check_certificate(
    certificate: Mapping[str, object],
    algorithm: Algorithm | None = None,
    topology: Topology | None = None,
) -> CertificateReport:
    """Recompute everything that a certificate claims.

    With `topology`, the certificate must be for this network; without, for links that it states.
    With `algorithm`, what the algorithm sends over every link must be what the trees send. Nothing
    is trusted but the topology. docs/certificates.md describes the document.
    """
    violations = schema_violations(certificate, _SCHEMA_FILE)
    if violations:
        place = Location("certificate")
        findings = tuple(one.finding(place, "certificate-form") for one in violations)
        return CertificateReport(None, None, findings)
    # The schema has the same members as the type.
    return _recomputed(cast(Certificate, certificate), algorithm, topology)


def _recomputed(
    certificate: Certificate, algorithm: Algorithm | None, topology: Topology | None
) -> CertificateReport:
    # Three independent computations: what the cut lets through, what the trees put on the links
    # and carry together, and whether these are the numbers that are stated. All in fractions of
    # the links' bandwidths, so that "equal" means equal.
    found: list[Diagnostic] = []
    rate = bound = None
    try:
        claim = Claim(certificate, capacities_of(certificate, topology))
        claim.check_ranks(algorithm)
        bound = _attempted(lambda: allowed_rate(claim), found)
        if "trees" in certificate:
            rate = _attempted(lambda: carried_rate(claim, algorithm), found)
        else:
            found.append(_without_trees())
        compare(certificate, rate, bound, algorithm)
    except FlawError as flaw:
        # Of the network, the ranks or the comparison: what was computed so far is still told.
        found.append(flaw.diagnostic)
    unproved = unproved_claims(certificate, rate)
    return CertificateReport(rate, bound, tuple(found), unproved)


def _attempted(compute: Callable[[], Fraction], found: list[Diagnostic]) -> Fraction | None:
    """The result, or None and one finding more: a flaw of the one number leaves the other."""
    try:
        return compute()
    except FlawError as flaw:
        found.append(flaw.diagnostic)
        return None


def _without_trees() -> Diagnostic:
    message = "the certificate leaves the trees out, so that only the bound was checked"
    return Diagnostic("certificate-partial", message, Severity.WARNING)
