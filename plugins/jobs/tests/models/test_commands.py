"""`collhub generate`: jobs are made, checked and written, and can be simulated and transformed."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

Collhub = Callable[..., Any]
SCHEMAS = importlib.resources.files("hub_core.schemas")


def conforms(report: dict[str, Any]) -> bool:
    name = report["schema"].removeprefix("collhub/")
    jsonschema.validate(report, json.loads(SCHEMAS.joinpath(f"{name}.json").read_text("utf-8")))
    return True


@pytest.fixture
def job(collhub: Collhub, tmp_path: Path) -> Path:
    """The traces of a small step of four ranks."""
    options = ("-O", "layers=2", "-O", "tensor=2", "-O", "batch=4")
    assert collhub("generate", "transformer", *options, "-o", tmp_path / "job").code == 0
    return tmp_path / "job"


def test_generate_writes_what_it_reports(collhub: Collhub, tmp_path: Path) -> None:
    run = collhub("generate", "dlrm", "-O", "ranks=4", "-o", tmp_path / "job", "--json")
    report = run.report()
    assert conforms(report)
    assert (report["generator"], report["num_ranks"], report["nodes"]) == ("dlrm", 4, 48)
    assert all(Path(path).is_file() for path in report["artifacts"])
    assert len(report["artifacts"]) == 4
    assert collhub("verify", tmp_path / "job").code == 0


def test_a_misspelt_generator_gets_the_closest(collhub: Collhub, tmp_path: Path) -> None:
    run = collhub("generate", "dlmr", "-o", tmp_path / "job")
    assert run.code == 2
    assert "there is no workload generator 'dlmr'; did you mean 'dlrm'?" in run.err


def test_degrees_that_do_not_fit_write_nothing(collhub: Collhub, tmp_path: Path) -> None:
    run = collhub(
        "generate", "transformer", "-O", "layers=3", "-O", "pipeline=2", "-o", tmp_path / "job"
    )
    assert (run.code, list(tmp_path.iterdir())) == (2, [])
    assert "layers 3 is no multiple of pipeline 2" in run.err


def test_simulate_reports_where_the_time_goes(collhub: Collhub, job: Path) -> None:
    report = collhub("simulate", job, "--topology", "switch:4", "--overlap", "--json").report()
    assert conforms(report)
    assert report["unlimited_time_ns"] <= report["time_ns"]
    assert sum(report["critical_path"]["ns_by_kind"].values()) == report["time_ns"]
    exposed = [
        finish - compute
        for finish, compute in zip(report["rank_finish_ns"], report["rank_compute_ns"], strict=True)
    ]
    # With one computation at a time the simulator's sums are those of the union.
    assert exposed == report["rank_exposed_ns"]
    text = collhub("simulate", job, "--topology", "switch:4").out
    assert "sorts of communication, exposed most first:" in text
    assert "critical path, " in text


def test_transform_takes_jobs(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    passes = ("--pass", "scale-compute", "--pass", "split-collectives", "-O", "factor=3")
    run = collhub("transform", job, *passes, "-o", tmp_path / "other", "--json")
    assert conforms(run.report())
    assert [change["pass"] for change in run.report()["changes"]] == [
        "scale-compute",
        "split-collectives",
    ]
    assert collhub("verify", tmp_path / "other").code == 0


def test_a_pass_over_algorithms_takes_no_job(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    run = collhub("transform", job, "--pass", "relabel", "-o", tmp_path / "other")
    assert run.code == 2
    assert "the pass relabel takes one algorithm, not one workload" in run.err


def test_overlap_is_refused_where_it_has_no_meaning(collhub: Collhub, job: Path) -> None:
    run = collhub("simulate", job, "--topology", "switch:4", "--overlap", "-O", "slots=unlimited")
    assert (run.code, "--overlap has no meaning" in run.err) == (2, True)
