"""`collhub verify --certificate`: what the program says of the check."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hub_core import parse_topology
from hub_core.model import Collective, CollectiveKind
from hub_core.schedules import Chunks, Transfers, algorithm_of, network_object
from hub_core.testing import ring_all_reduce


@pytest.fixture
def certified(save, tmp_path: Path) -> Path:
    """A broadcast of two ranks that carries the proof of its rate."""
    topology = parse_topology("line:2?bandwidth=10GB/s")
    collective = Collective(CollectiveKind.BROADCAST, 2, 1, root=0, in_place=True)
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    transfers = Transfers(zero, zero, one, zero, zero, one, np.zeros(1, np.bool_), one)
    certificate = {
        "schema": "collhub/certificate-1",
        "collective": "broadcast",
        "root": 0,
        "ranks": [0, 1],
        "network": network_object(topology),
        "rate": "10000000000",
        "bound": {"kind": "cut", "nodes": [0], "rate": "10000000000"},
        "is_optimal": True,
        "tree_count": {
            "trees": 1,
            "at_least": 1,
            "status": "optimal",
            "reason": "a packing has a tree",
        },
        "trees": [{"root": 0, "weight": "10000000000", "depth": 1, "parents": [-1, 0]}],
    }
    extensions = {"packer": {"certificate": certificate}}
    return save(
        algorithm_of(collective, Chunks.cut(collective, [1]), transfers, extensions=extensions),
        tmp_path / "c.json",
    )


def test_a_certificate_that_holds_is_exit_0(collhub, certified: Path) -> None:
    run = collhub("verify", certified, "--certificate", "--topology", "line:2?bandwidth=10GB/s")
    assert (run.code, run.err) == (0, "")
    assert "certificate  holds: no algorithm has a higher rate\n" in run.out
    assert "bound        10 GB/s (10000000000 bytes/s)\n" in run.out


def test_a_certificate_for_another_network_is_exit_1(collhub, certified: Path) -> None:
    run = collhub(
        "verify", certified, "--certificate", "--topology", "line:2?bandwidth=11GB/s", "--json"
    )
    report = run.report()
    assert (run.code, report["ok"], report["certificate"]["ok"]) == (1, True, False)
    assert [found["code"] for found in report["certificate"]["diagnostics"]] == [
        "certificate-topology"
    ]


def test_the_report_holds_the_certificate_only_where_it_was_asked_for(
    collhub, certified: Path
) -> None:
    assert "certificate" not in collhub("verify", certified, "--json").report()
    assert (
        collhub("verify", certified, "--json", "--certificate").report()["certificate"][
            "is_optimal"
        ]
        is True
    )


def test_an_algorithm_without_a_certificate_is_exit_1(collhub, save, tmp_path: Path) -> None:
    run = collhub("verify", save(ring_all_reduce(4), tmp_path / "ring.json"), "--certificate")
    assert (run.code, len(run.error_lines)) == (1, 1)
    assert "carries no certificate" in run.error_lines[0]
