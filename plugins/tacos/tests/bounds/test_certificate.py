"""The certificate of a bound is checked without the synthesizer, and refused where it is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import tacos_networks
from collhub_certificates.time_bounds import check_time_cut

import hub_core
from hub_core import parse_topology
from hub_core.model import STANDARD_KINDS, Algorithm, Collective, CollectiveKind, JsonValue
from hub_core.network import Topology
from hub_core.plugin_api import ONE_SIZE, CheckReport, CheckRequest, NoOptions

KINDS = list(STANDARD_KINDS)
_NAME = "collhub-tacos"


def _made(
    topology: Topology, kind: CollectiveKind = CollectiveKind.ALL_GATHER, **options: str
) -> Algorithm:
    ranks = topology.num_npus
    root = 1 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, kind.traits.parts(ranks), root=root, in_place=True)
    return hub_core.synthesize(
        collective, topology, 1_000_001, name="tacos", options={"seeds": "1", **options}
    ).algorithm


def _certificate(algorithm: Algorithm) -> dict[str, JsonValue]:
    extension = algorithm.extensions[_NAME]
    assert isinstance(extension, dict)
    certificate = extension["bound_certificate"]
    assert isinstance(certificate, dict)
    return certificate


def _changed(algorithm: Algorithm, **values: JsonValue) -> Algorithm:
    other: Mapping[str, JsonValue] = {
        _NAME: {"bound_certificate": {**_certificate(algorithm), **values}}
    }
    return replace(algorithm, extensions=other)


def _checked(algorithm: Algorithm, topology: Topology | None = None) -> CheckReport:
    return check_time_cut(CheckRequest(algorithm=algorithm, topology=topology), NoOptions())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["ring:3?bandwidth=33GB/s&latency=333ns", "switch:4"])
def test_certificates_hold(text: str, kind: CollectiveKind) -> None:
    topology = parse_topology(text)
    algorithm = _made(topology, kind, chunks="2")
    assert _checked(algorithm, topology).ok
    # The links stand in the document, too.
    assert _checked(algorithm).ok


@pytest.mark.parametrize("seed", range(4))
def test_certificates_of_unequal_links_hold(seed: int) -> None:
    topology = tacos_networks.drawn(seed, 6)
    assert _checked(_made(topology), topology).ok


# The links of its heads hold one all-gather back that no cut in two does.
def test_an_evacuation_is_proved_forwards_and_backwards() -> None:
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        algorithm = _made(parse_topology("mesh:3x3"), kind, chunks="1")
        assert _checked(algorithm).ok
        extension = algorithm.extensions[_NAME]
        assert isinstance(extension, dict)
        bounds = extension["bounds_ns"]
        assert isinstance(bounds, dict)
        stated = _certificate(algorithm)["lower_bound_ns"]
        assert stated == max(time for name, time in bounds.items() if name.endswith(ONE_SIZE))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"lower_bound_ns": 10**9}, "certificate-bound"),
        ({"since_ps": [0, 0, 0, 10**9]}, "certificate-bound"),
        ({"since_ps": [0, 0]}, "certificate-form"),
        ({"since_ps": "none"}, "certificate-form"),
        ({"latencies_s": ["1"]}, "certificate-form"),
        ({"collective_bytes": 1 << 30}, "certificate-collective"),
        ({"collective": "all-to-all"}, "certificate-collective"),
        ({"collective": "all"}, "certificate-form"),
        ({"unit_count": 8}, "certificate-collective"),
        ({"occupancy": "none"}, "certificate-form"),
        ({"ranks": [0, 1, 2, 2]}, "certificate-ranks"),
        ({"ranks": [0, 1, 2, 9]}, "certificate-ranks"),
    ],
)
def test_what_is_wrong_is_refused(change: dict[str, JsonValue], code: str) -> None:
    report = _checked(_changed(_made(parse_topology("ring:4"), chunks="1"), **change))
    assert not report.ok
    assert report.diagnostics[0].code == code


def test_another_network_is_refused() -> None:
    algorithm = _made(parse_topology("ring:4"))
    report = _checked(algorithm, parse_topology("ring:4?bandwidth=1GB/s"))
    assert report.diagnostics[0].code == "certificate-topology"


# The hash of a network has no latencies: those of the named one count, so the bound does not hold.
def test_latencies_of_the_named_network_count() -> None:
    algorithm = _made(parse_topology("ring:4?latency=9us"))
    report = _checked(algorithm, parse_topology("ring:4?latency=1us"))
    assert report.diagnostics[0].code in ("certificate-bound", "certificate-topology")


def test_an_algorithm_without_one_is_not_judged() -> None:
    algorithm = replace(_made(parse_topology("ring:3")), extensions={})
    assert not _checked(algorithm).is_applicable
