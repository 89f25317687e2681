"""Requests that the tests share, and what every result must hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collhub_certificates import CertificateReport, check_certificate

import hub_core
from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SynthesisResult
from hub_core.schedules import find_certificate

KINDS = ("broadcast", "reduce", "all-reduce", "all-gather", "reduce-scatter", "scatter", "gather")
MIB = 1 << 20


def synthesized(
    kind: str,
    topology: Topology | str,
    size: int = MIB,
    *,
    root: int = 0,
    npus: Sequence[int] | None = None,
    occupancy: str = "serialization",
    wanted: Sequence[int] | None = None,
    backend: str = "analytical",
    **options: object,
) -> SynthesisResult:
    """What blink makes; with `npus` all others may relay."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    ranks = network.num_npus if npus is None else len(npus)
    wished = CollectiveKind(kind)
    collective = Collective(
        wished,
        ranks,
        wished.traits.parts(ranks),
        root=root if wished.traits.is_rooted else None,
        in_place=True,
    )
    given = {name: str(value) for name, value in options.items()}
    return hub_core.synthesize(
        collective,
        network,
        size,
        name="blink",
        options=given,
        npus=npus,
        occupancy=Occupancy(occupancy),
        wanted=wanted,
        backend=backend,
    )


def checked(result: SynthesisResult, topology: Topology | str) -> CertificateReport:
    """Verify contents and certificate; return the recomputed rates."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    assert hub_core.verify(result.algorithm).ok
    certificate = find_certificate(result.algorithm)
    assert certificate is not None
    report = check_certificate(certificate, result.algorithm, network)
    assert report.diagnostics == ()
    return report


def build_certificate(result: SynthesisResult) -> dict[str, Any]:
    """The certificate that a result carries."""
    found = find_certificate(result.algorithm)
    assert found is not None
    return found
