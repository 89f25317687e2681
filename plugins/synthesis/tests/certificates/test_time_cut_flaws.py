"""Flaws of bounds by cuts in time, and of packings on several planes, are named by their cause."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from collhub_certificates.check import check_packing
from collhub_certificates.time_cuts import check_time_cut

import hub_core
from hub_core.model import Algorithm, Collective, CollectiveKind
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions

RING = "ring:4?bandwidth=50GB/s&latency=500ns"


def synthesized(name: str, topology: str, kind: CollectiveKind, **options: str) -> Algorithm:
    network = hub_core.parse_topology(topology)
    collective = Collective(kind, network.num_npus, network.num_npus)
    return hub_core.synthesize(collective, network, 1 << 20, name=name, options=options).algorithm


@pytest.fixture(scope="module")
def all_gather() -> Algorithm:
    """An all-gather on a ring with the certificate of its bound."""
    return synthesized("tacos", RING, CollectiveKind.ALL_GATHER, chunks="1")


def with_changes(algorithm: Algorithm, key: str, change: Callable[[Any], None]) -> Algorithm:
    """The algorithm with a changed certificate."""
    for name, extension in algorithm.extensions.items():
        if isinstance(extension, Mapping) and isinstance(extension.get(key), Mapping):
            document = copy.deepcopy(extension[key])
            change(document)
            extensions = {**algorithm.extensions, name: {**extension, key: document}}
            return replace(algorithm, extensions=extensions)  # type: ignore[arg-type]
    raise AssertionError(f"no {key}")


def messages(report: CheckReport) -> str:
    assert not report.ok
    return "\n".join(one.message for one in report.diagnostics)


def flaw_of(algorithm: Algorithm, change: Callable[[Any], None]) -> str:
    changed = with_changes(algorithm, "bound_certificate", change)
    return messages(check_time_cut(CheckRequest(algorithm=changed), NoOptions()))


def test_ranks_that_share_an_npu_are_named(all_gather: Algorithm) -> None:
    flaw = flaw_of(all_gather, lambda document: document.update(ranks=[0, 0, 2, 3]))
    assert "the ranks are not different NPUs" in flaw


def test_units_of_another_algorithm_are_named(all_gather: Algorithm) -> None:
    def change(document: Any) -> None:
        document["unit_count"] *= 2

    assert "the bound is for 8 units, the algorithm has 4" in flaw_of(all_gather, change)


@pytest.mark.parametrize(("latency", "is_same"), [("500ns", True), ("700ns", False)])
def test_latencies_of_another_topology_are_named(
    all_gather: Algorithm, latency: str, is_same: bool
) -> None:
    topology = hub_core.parse_topology(f"ring:4?bandwidth=50GB/s&latency={latency}")
    report = check_time_cut(CheckRequest(algorithm=all_gather, topology=topology), NoOptions())
    assert report.ok == is_same
    if not is_same:
        assert "the bound is for other latencies than those of" in messages(report)


def test_a_plane_that_carries_data_needs_trees() -> None:
    algorithm = synthesized("blink", "dgx1v+dgx1-pcie", CollectiveKind.ALL_GATHER)
    assert check_packing(CheckRequest(algorithm=algorithm), NoOptions()).ok

    def change(document: Any) -> None:
        document["trees"] = [tree for tree in document["trees"] if tree.get("plane", 0) == 0]

    changed = with_changes(algorithm, "certificate", change)
    assert messages(check_packing(CheckRequest(algorithm=changed), NoOptions()))
