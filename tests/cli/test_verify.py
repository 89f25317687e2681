"""`collhub verify`: verdicts, first causes with their places, exit codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hub_core import parse_topology
from hub_core.certificates import network_object
from hub_core.model.collectives import Collective
from hub_core.model.kinds import CollectiveKind
from hub_core.transfers import Chunks, Transfers, algorithm_of


def test_a_correct_algorithm_is_exit_0(collhub, ring: Path) -> None:
    run = collhub("verify", ring)
    assert (run.code, run.err) == (0, "")
    assert run.out.startswith(f"{ring}: all-reduce, 4 ranks, 48 steps: correct as claimed\n")


def test_the_report_says_modes_claims_and_verdicts(collhub, ring: Path) -> None:
    report = collhub("verify", ring, "--json").report()
    assert report["ok"] is True
    assert report["modes"]["in_place"] is True
    assert report["claims"] == {"in_place": True, "out_of_place": False}
    assert report["verdicts"]["in_place"] == "ok"
    assert report["diagnostics"] == []


def test_a_race_is_exit_1_and_names_file_line_rank_and_step(collhub, racy: Path) -> None:
    run = collhub("verify", racy)
    assert run.code == 1
    assert run.error_lines[0].startswith("error: ring.xml:")
    assert "rank 0, step" in run.error_lines[0]


def test_the_report_of_a_race_has_the_place_in_fields(collhub, racy: Path) -> None:
    run = collhub("verify", racy, "--json")
    report = run.report()
    assert (run.code, report["ok"], report["modes"]["in_place"]) == (1, False, False)
    assert "race" in report["verdicts"]["in_place"]
    found = report["diagnostics"][0]
    assert (found["severity"], found["file"], found["rank"]) == ("error", "ring.xml", 0)
    assert found["line"] == found["step"] + 1


def test_an_unmatched_send_is_exit_1(collhub, ring: Path, tmp_path: Path) -> None:
    path = tmp_path / "unmatched.json"
    path.write_text(ring.read_text().replace('"peer": [1,3', '"peer": [2,3', 1))
    run = collhub("verify", path)
    assert run.code == 1
    assert run.error_lines


def test_fifo_units_need_a_capacity(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--fifo-units", "2")
    assert (run.code, run.out) == (2, "")


def test_a_fifo_of_one_slot_is_enough_for_a_ring(collhub, ring: Path) -> None:
    assert collhub("verify", ring, "--fifo-capacity", "1").code == 0


def test_a_finding_names_the_file_as_the_user_named_it(collhub, racy: Path) -> None:
    moved = racy.rename(racy.with_name("ring.xml"))
    run = collhub("verify", moved, "--from", "json")
    assert run.error_lines[0].startswith(f"error: {moved}:")


def test_a_root_beside_an_expectation_belongs_to_it(collhub, ring: Path) -> None:
    given = collhub("verify", ring, "--expect", "broadcast", "--root", "1", "--json").report()
    assert (
        given["diagnostics"]
        == collhub("verify", ring, "--expect", "broadcast root 1", "--json").report()["diagnostics"]
    )


def test_an_expectation_that_cannot_be_read_is_exit_2(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--expect", "o[r]=import os")
    assert (run.code, len(run.error_lines)) == (2, 1)


def test_a_root_for_a_reader_that_takes_none_is_exit_2(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--root", "0")
    assert (run.code, len(run.error_lines)) == (2, 1)


@pytest.mark.parametrize("name", ["correct", "wrong"])
def test_text_and_json_agree(collhub, ring: Path, racy: Path, name: str) -> None:
    path = {"correct": ring, "wrong": racy}[name]
    assert collhub("verify", path).code == collhub("verify", path, "--json").code


def test_an_outcome_that_was_not_judged_is_not_called_correct(collhub, corpus: Path) -> None:
    run = collhub("verify", corpus / "chakra" / "astra-sim-custom-ring-8" / "custom_allreduce")
    assert run.code == 0
    assert run.out.splitlines()[0].endswith("nothing wrong found, contents not judged")


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


def test_an_algorithm_without_a_certificate_is_exit_1(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--certificate")
    assert (run.code, len(run.error_lines)) == (1, 1)
    assert "carries no certificate" in run.error_lines[0]


def test_a_topology_belongs_to_a_certificate(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--topology", "ring:4")
    assert (run.code, len(run.error_lines)) == (2, 1)
