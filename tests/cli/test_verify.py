"""`collhub verify`: verdicts, first causes with their places, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest


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


def test_a_topology_belongs_to_a_certificate(collhub, ring: Path) -> None:
    run = collhub("verify", ring, "--topology", "ring:4")
    assert (run.code, len(run.error_lines)) == (2, 1)
