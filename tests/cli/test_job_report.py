"""Where the time of a job goes, on starts and ends that are written by hand."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hub_core.cli.jobs.job_path import critical_path, job_partners
from hub_core.cli.jobs.job_report import job_report
from hub_core.cli.jobs.simulate_job import _merge_findings
from hub_core.model import Diagnostic, Location
from hub_core.testing import pipeline, training_step

# Two ranks of: compute, all-reduce, compute, all-reduce. Rank 1 begins its first all-reduce late.
STEP = training_step(2)
START = np.array([0, 10, 10, 40, 0, 30, 30, 60])
END = np.array([10, 40, 20, 75, 30, 40, 60, 75])


def test_exposed_is_what_no_computation_of_the_rank_covers() -> None:
    report = job_report(STEP, START, END)
    assert report.rank_compute_ns == (20, 60)
    (all_reduce,) = report.spent
    assert (all_reduce.kind, all_reduce.ranks, all_reduce.calls) == ("all-reduce", 2, 4)
    # Rank 0: 30 + 35, of which 10 are covered; rank 1: 10 + 15, of which 10 are covered.
    assert (all_reduce.time_ns, all_reduce.exposed_ns, all_reduce.most_ns) == (90, 70, 55)
    # Rank 0 waits 20 for the first call and 20 for the second.
    assert all_reduce.waiting_ns == 40
    assert [name for name, _ in report.groups] == [""]


def test_the_path_goes_through_the_member_that_began_last() -> None:
    path = critical_path(STEP, START, END)
    assert [(node.row, node.start_ns, node.end_ns) for node in path] == [
        (4, 0, 30), (6, 30, 60), (7, 60, 75),
    ]  # fmt: skip


def test_the_path_accounts_for_all_of_the_time_without_gaps() -> None:
    assert sum(node.duration_ns for node in critical_path(STEP, START, END)) == END.max()


def test_members_of_the_same_call_are_partners() -> None:
    assert job_partners(STEP, START, END).tolist() == [0, 5, 2, 7, 4, 5, 6, 7]


def test_a_receipt_waits_for_its_message() -> None:
    # By rank: compute, message, all-gather; rank 0 sends to 2, rank 1 to 3, and 1 is late.
    job = pipeline()
    start = np.array([0, 10, 15, 0, 50, 55, 0, 10, 15, 0, 10, 55])
    end = np.array([10, 15, 20, 50, 55, 60, 10, 15, 60, 10, 55, 60])
    late = np.where(np.arange(12) == 11, 70, end)
    assert [node.row for node in critical_path(job, start, late)] == [3, 4, 11]
    receipts = [spent for spent in job_report(job, start, end).spent if spent.kind == "recv"]
    # From when the message is sent: 5 ns each, though rank 3 had asked for it at 10.
    assert [(spent.time_ns, spent.waiting_ns) for spent in receipts] == [(10, 40)]


def test_a_job_in_which_nothing_ends_has_no_path() -> None:
    never = np.full(8, -1)
    report = job_report(STEP, never, never)
    assert (report.path, report.spent, report.rank_compute_ns) == ((), (), (0, 0))


@pytest.mark.needs_plugins
def test_times_of_nodes_are_written_as_csv_and_as_a_timeline(
    collhub: Callable[..., Any], tmp_path: Path
) -> None:
    for plugin in ("collhub_astra_sim", "collhub_jobs", "collhub_pictures", "collhub_models"):
        pytest.importorskip(plugin)
    collhub("generate", "transformer", "-o", tmp_path / "job")
    nodes, trace = tmp_path / "nodes.csv", tmp_path / "trace.json"
    files = ("--steps", nodes, "--timeline", trace)
    done = collhub("simulate", tmp_path / "job", "--topology", "ring:2", *files)
    assert done.code == 0
    head, *lines = nodes.read_text("ascii").splitlines()
    assert head == "rank,step,kind,peer,start_ns,end_ns"
    events = json.loads(trace.read_bytes())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(lines)


@pytest.mark.once
@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", ["llama_dp4_tp4_pp4", "llama_fsdp8", "llama_tp4_dp2"])
def test_paths_of_symbolic_traces_account_for_all_of_their_time(
    collhub: Callable[..., Any], corpus: Path, tmp_path: Path, name: str
) -> None:
    pytest.importorskip("collhub_astra_sim")
    pytest.importorskip("collhub_jobs")
    with tarfile.open(corpus / "workload" / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(tmp_path.rglob("w.0.et")).parent
    ranks = len(list(folder.glob("*.et")))
    network = f"switch:{ranks}?bandwidth=50GiB/s&latency=500ns"
    system = ("-O", "peak_tflops=312", "-O", "memory_bandwidth=2039GB/s")
    report = collhub("simulate", folder / "w", "--topology", network, *system, "--json").report()
    # Cycles of configuration A, measured with ASTRA-sim 518bd51.
    truth = json.loads((corpus / "workload" / "truth.json").read_text("utf-8"))[name]["A"]
    assert report["rank_finish_ns"] == truth["cycles"]
    assert sum(report["critical_path"]["ns_by_kind"].values()) == report["time_ns"]


def test_merged_findings_name_every_further_rank() -> None:
    # The first finding has no rank; the rank of the second one must not get lost.
    findings = [
        Diagnostic("slow", "waits", location=Location("job", rank=rank)) for rank in (None, 3, 1)
    ]
    (merged,) = _merge_findings(findings)
    assert merged.message == "waits (the same on rank 1,3)"
    assert merged.location.rank is None
