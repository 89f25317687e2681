"""The flow certificate is recomputed without the synthesizer, and refused where it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from collhub_certificates.time_bounds import check_flow

import hub_core
from hub_core import parse_topology
from hub_core.model import Algorithm, Collective, CollectiveKind, JsonValue
from hub_core.network import Topology
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

_NAME = "collhub-flows"


def made(topology: Topology, kind: CollectiveKind = CollectiveKind.ALL_TO_ALL) -> Algorithm:
    ranks = topology.num_npus
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, ranks, root=root, in_place=True)
    return hub_core.synthesize(collective, topology, 1 << 20, name="flows").algorithm


def changed(algorithm: Algorithm, **values: JsonValue) -> Algorithm:
    extension = algorithm.extensions[_NAME]
    assert isinstance(extension, dict)
    certificate = extension["flow_certificate"]
    assert isinstance(certificate, dict)
    other: Mapping[str, JsonValue] = {
        _NAME: {**extension, "flow_certificate": {**certificate, **values}}
    }
    return replace(algorithm, extensions=other)


def checked(algorithm: Algorithm, topology: Topology | None = None) -> CheckReport:
    return check_flow(CheckRequest(algorithm=algorithm, topology=topology), NoOptions())


@pytest.mark.parametrize("text", ["ring:5", "mesh:3x3", "switch:4", "dgx1v"])
@pytest.mark.parametrize("kind", ["all-to-all", "scatter", "gather"])
def test_certificate_holds(text: str, kind: str) -> None:
    topology = parse_topology(text)
    algorithm = made(topology, CollectiveKind(kind))
    assert checked(algorithm, topology).ok
    # The links stand in the document, too.
    assert checked(algorithm).ok


def test_larger_bound_is_refused() -> None:
    algorithm = made(parse_topology("ring:4"))
    report = checked(changed(algorithm, lower_bound_ns=10**9))
    assert not report.ok
    assert "not 1000000000 ns as claimed" in report.diagnostics[0].message


@pytest.mark.parametrize(
    "prices", [[[0, 1, -1]], [[0, 2, 5]], [[0, 1, 0]], "none", [[0, 1]]], ids=str
)
def test_prices_that_prove_nothing_are_refused(prices: JsonValue) -> None:
    algorithm = made(parse_topology("ring:4"))
    assert not checked(changed(algorithm, prices=prices)).ok


def test_other_topology_is_refused() -> None:
    algorithm = made(parse_topology("ring:4"))
    report = checked(algorithm, parse_topology("ring:4?bandwidth=1GB/s"))
    assert report.diagnostics[0].code == "certificate-topology"


def test_certificate_of_another_size_is_refused() -> None:
    algorithm = made(parse_topology("ring:4"))
    assert not checked(changed(algorithm, collective_bytes=1 << 21)).ok


def test_algorithm_without_one_is_not_judged() -> None:
    algorithm = replace(made(parse_topology("ring:4")), extensions={})
    assert not checked(algorithm).is_applicable
