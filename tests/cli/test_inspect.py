"""`collhub inspect`: what a file is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hub_core.cli.jobs.workloads import print_workload
from hub_core.testing.workloads import training_step


def test_the_report_counts_what_a_ring_is(collhub, ring: Path) -> None:
    report = collhub("inspect", ring, "--json").report()
    assert (report["collective"], report["num_ranks"], report["unit_count"]) == ("all-reduce", 4, 4)
    assert report["steps_by_kind"] == {
        "send": 24,
        "recv": 12,
        "recv-reduce": 12,
        "copy": 0,
        "reduce": 0,
        "compute": 0,
    }
    assert (report["channels"], report["lanes"]) == (1, 1)
    assert (report["longest_lane"], report["fused_steps"]) == (12, 0)
    assert report["units_by_link"] == {"0->1": 6, "1->2": 6, "2->3": 6, "3->0": 6}
    assert report["critical_path"] == {"steps": 12, "messages": 6}
    assert report["bytes_by_link"] is None


def test_a_size_turns_units_into_bytes(collhub, ring: Path) -> None:
    report = collhub("inspect", ring, "--size", "1MiB", "--json").report()
    assert report["bytes_by_link"]["0->1"] == 6 * 2**20 // 4


def test_the_text_names_collective_modes_and_links(collhub, ring: Path) -> None:
    run = collhub("inspect", ring)
    assert (run.code, run.err) == (0, "")
    assert "all-reduce, in place" in run.out
    assert "heaviest of 4 pairs of ranks:" in run.out


def test_traces_are_inspected_by_their_prefix(collhub, ring: Path, tmp_path: Path) -> None:
    assert collhub("convert", ring, "-o", tmp_path / "t").code == 0
    report = collhub("inspect", tmp_path / "t", "--json").report()
    assert (report["format"], report["collective"], report["has_contents"]) == (
        "chakra",
        "all-reduce",
        True,
    )


def test_a_workload_trace_is_surveyed(collhub, corpus: Path) -> None:
    folder = corpus / "chakra" / "astra-sim-workload-all-reduce-8npus-1MB"
    report = collhub("--no-plugins", "inspect", folder, "--json").report()
    assert (report["schema"], report["dialect"], report["num_ranks"]) == (
        "collhub/report-survey-1",
        "workload",
        8,
    )
    assert report["nodes_by_type"] == {"COMM_COLL_NODE": 8}
    run = collhub("--no-plugins", "inspect", folder)
    assert (run.code, run.out.splitlines()[1]) == (0, "dialect       workload")


def test_a_size_that_a_workload_does_not_state_is_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = training_step()
    unstated = replace(step, nodes=replace(step.nodes, bytes=np.full_like(step.nodes.bytes, -1)))
    print_workload("job", "form", unstated, (), as_json=False)
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "all-reduce", "4", "unknown", "1", "8",
    ]  # fmt: skip


def test_every_trace_set_of_the_corpus_can_be_inspected(collhub, corpus: Path) -> None:
    members = sorted((corpus / "chakra").glob("*/*.0.et"))
    assert len(members) > 20
    runs = {member.name: collhub("inspect", member, "--json") for member in members}
    assert {name: run.code for name, run in runs.items()} == dict.fromkeys(runs, 0)
    # What does not stop the command is a warning.
    assert [run.err for run in runs.values() if "error:" in run.err] == []


@pytest.mark.needs_plugins
def test_what_a_solver_claims_is_shown(collhub, corpus: Path) -> None:
    schedule = corpus / "teccl" / "ndv2_2ch_alltoall_slow_64kb.json"
    (shown,) = [line for line in collhub("inspect", schedule).out.splitlines() if "epochs" in line]
    # Values of the file itself.
    assert shown.split()[0] == "teccl"
    assert "epochs 73, finish time s 2.336e-05" in shown
    report = collhub("inspect", schedule, "--json").report()
    assert report["stated"]["teccl"]["epochs"] == 73


def test_a_size_without_unit_is_refused(collhub, ring: Path) -> None:
    run = collhub("inspect", ring, "--size", "1024")
    assert (run.code, run.error_lines) == (
        2,
        [
            "error: size '1024' has no unit; use one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, for example 1MiB"
        ],
    )
