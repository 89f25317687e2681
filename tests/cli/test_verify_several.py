"""`collhub verify` of several inputs: every one gets its verdict, in words and in JSON."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_several_correct_inputs_are_exit_0_with_a_line_each(collhub, ring: Path) -> None:
    copy = ring.with_name("copy.json")
    copy.write_bytes(ring.read_bytes())
    run = collhub("verify", ring, copy)
    assert (run.code, run.err) == (0, "")
    assert run.out.splitlines() == [
        f"{ring}: all-reduce, 4 ranks, 48 steps: correct as claimed",
        f"{copy}: all-reduce, 4 ranks, 48 steps: correct as claimed",
        "2 of 2 inputs pass",
    ]


def test_a_wrong_and_a_missing_input_leave_the_others_their_verdicts(
    collhub, ring: Path, racy: Path
) -> None:
    run = collhub("verify", racy, "missing.json", ring)
    assert run.code == 1
    wrong, missing, right, summary = run.out.splitlines()
    assert wrong.endswith(": not correct as claimed")
    assert missing == "missing.json: not judged"
    assert right.endswith(": correct as claimed")
    assert summary == "1 of 3 inputs pass"
    assert "missing.json: there is no such file" in run.err


def test_the_report_of_several_has_one_result_an_input(collhub, ring: Path, racy: Path) -> None:
    run = collhub("verify", ring, racy, "missing.json", "--json")
    report = run.report()
    assert (run.code, report["ok"]) == (1, False)
    assert [result["source"] for result in report["results"]] == [
        str(ring),
        str(racy),
        "missing.json",
    ]
    assert [result["ok"] for result in report["results"]] == [True, False, False]
    assert report["results"][2]["diagnostics"][0]["code"] == "unreadable-input"


def test_the_report_of_one_input_is_itself(collhub, ring: Path) -> None:
    report = collhub("verify", ring, "--json").report()
    assert report["source"] == str(ring)
    assert "results" not in report


def test_all_files_of_a_set_are_one_input(collhub, ring: Path, tmp_path: Path) -> None:
    assert collhub("convert", ring, "-o", tmp_path / "set").code == 0
    files = sorted(tmp_path.glob("set.*.et"))
    for command in (["verify", *files], ["inspect", *files]):
        run = collhub(*command)
        assert run.code == 0, run.err
        assert run.out.count(str(tmp_path / "set")) == 1
    for command in ("verify", "inspect"):
        run = collhub(command, *files[1:])
        assert run.code == 1
        assert "the file of rank 0 is missing: found 3 files, the last one of rank 3" in run.err
    run = collhub("inspect", files[0], ring)
    assert run.code == 2
    assert "several files are all ranks of one job" in run.err


def test_a_check_that_is_not_there_is_said_once(collhub, ring: Path) -> None:
    run = collhub("verify", ring, ring, "--check", "nonsense")
    assert (run.code, run.out, len(run.error_lines)) == (2, "", 1)


def test_standard_input_is_read_once_alone(collhub) -> None:
    run = collhub("verify", "-", "-")
    assert (run.code, run.out) == (2, "")
    assert "standard input can be read only once" in run.err


def test_a_runtime_judges_several_files(collhub, ring: Path, tmp_path: Path, msccl: None) -> None:
    xml = tmp_path / "ring.xml"
    assert collhub("convert", ring, "-o", xml).code == 0
    run = collhub("verify", xml, ring, "--runtime", "executor")
    assert run.code == 1
    assert run.out.splitlines() == [
        f"{xml}: executor uses it",
        f"{ring}: not applicable: executor reads msccl-xml (MSCCL-IR XML, the programs of the MSCCL"
        " runtimes); the file is json",
        "1 of 2 inputs pass",
    ]
    report = collhub("verify", xml, ring, "--runtime", "executor", "--json").report()
    assert [result["ok"] for result in report["results"]] == [True, False]


@pytest.mark.parametrize("sources", [1, 2])
def test_what_follows_two_dashes_belongs_to_programs(
    collhub, tmp_path: Path, sources: int, msccl: None
) -> None:
    program = tmp_path / "ring.py"
    program.write_text(_RING)
    run = collhub("verify", *[program] * sources, "--", "4")
    assert run.code == 0, run.err
    assert run.out.splitlines()[0].startswith(f"{program}: all-gather, 4 ranks,")
    assert run.out.count(f"{program}: all-gather") == sources


_RING = """
import argparse
from msccl.language import *
from msccl.topologies import *
from msccl.language.collectives import AllGather

parser = argparse.ArgumentParser()
parser.add_argument("ranks", type=int)
ranks = parser.parse_args().ranks
with MSCCLProgram("ring", fully_connected(ranks), AllGather(ranks, 1, True), 1):
    for rank in range(ranks):
        moved = chunk(rank, Buffer.input, 0)
        for step in range(1, ranks):
            moved = moved.copy((rank + step) % ranks, Buffer.output, rank)
    XML()
    Check()
"""
