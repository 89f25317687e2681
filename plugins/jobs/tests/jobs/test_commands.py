"""The commands take a job wherever they take an algorithm, and say which it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core.model import ProcessGroup
from hub_core.testing import pipeline, ring_all_reduce, training_step

Collhub = Callable[..., Any]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The traces of a training step of four ranks."""
    hub_core.write(training_step(), tmp_path / "job")
    return tmp_path / "job"


def test_inspect_counts_nodes_and_collectives(collhub: Collhub, job: Path) -> None:
    report = collhub("inspect", job, "--json").report()
    assert report["schema"] == "collhub/report-inspect-workload-1"
    assert (report["num_ranks"], report["nodes"], report["stated_compute_ns"]) == (4, 16, 20000)
    assert report["collectives"] == [
        {"collective": "all-reduce", "ranks": 4, "bytes": 65536, "groups": 1, "calls": 8}
    ]
    text = collhub("inspect", job).out
    assert "4 ranks, 16 nodes" in text
    assert "8 compute, 8 collective" in text


def test_verify_judges_a_job(collhub: Collhub, job: Path) -> None:
    run = collhub("verify", job)
    assert (run.code, run.out) == (
        0,
        f"{job}: workload, 4 ranks, 16 nodes: nothing wrong found\n",
    )
    assert collhub("verify", job, "--json").report()["checks"]["workload"]["ok"]


def test_verify_names_what_is_wrong(collhub: Collhub, tmp_path: Path) -> None:
    alone = replace(pipeline(), groups=(ProcessGroup("1", (0,)), ProcessGroup("2", (2, 3))))
    hub_core.write(alone, tmp_path / "job")
    run = collhub("verify", tmp_path / "job")
    assert run.code == 1
    assert "rank 1 is no member of process group '1'" in run.err
    report = collhub("verify", tmp_path / "job", "--json").report()
    assert not report["ok"]
    out = tmp_path / "out" / "job"
    refused = collhub("convert", tmp_path / "job", "-o", out)
    assert (refused.code, out.parent.exists()) == (1, False)
    assert collhub("convert", tmp_path / "job", "-o", out, "--verify", "warn").code == 0


def test_convert_writes_the_same_bytes(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    assert collhub("convert", job, "-o", tmp_path / "copy").code == 0
    for rank in range(4):
        name = f"{rank}.et"
        assert (tmp_path / f"copy.{name}").read_bytes() == (tmp_path / f"job.{name}").read_bytes()


def test_algorithms_stay_algorithms(collhub: Collhub, tmp_path: Path) -> None:
    hub_core.write(ring_all_reduce(4), tmp_path / "ring")
    assert collhub("inspect", tmp_path / "ring", "--json").report()["collective"] == "all-reduce"


def test_what_wants_an_algorithm_says_that_this_is_a_job(collhub: Collhub, job: Path) -> None:
    run = collhub("diff", job, job)
    assert run.code == 1
    assert "is a workload, not an algorithm" in run.err
