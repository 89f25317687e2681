"""`collhub compare JOB`: an entire job with several algorithms on several networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core.testing import training_step
from hub_core.testing.samples import ring_all_reduce

Collhub = Callable[..., Any]
RING = "ring:4?bandwidth=50GiB/s&latency=500ns"
SWITCH = "switch:4?bandwidth=50GiB/s&latency=500ns"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A training step of four ranks with all-reduces, as traces."""
    for module in ("collhub_astra_sim", "collhub_classic", "collhub_jobs"):
        pytest.importorskip(module)
    hub_core.write(training_step(), tmp_path / "job", format="chakra-workload")
    return tmp_path / "job"


@pytest.mark.once
def test_every_candidate_is_simulated_on_every_network(collhub: Collhub, job: Path) -> None:
    networks = ("--topology", RING, "--topology", SWITCH)
    candidates = ("--with", "native", "--with", "direct")
    run = collhub("compare", job, *networks, *candidates, "--json")
    report = run.report()
    assert run.code == 0
    places = [(one["algorithms"], one["topology"]) for one in report["results"]]
    assert places == [("native", RING), ("direct", RING), ("native", SWITCH), ("direct", SWITCH)]
    for one in report["results"]:
        rules = () if one["algorithms"] == "native" else ("--collective", "all-reduce=direct")
        single = collhub("simulate", job, "--topology", one["topology"], *rules, "--json").report()
        assert one["time_ns"] == single["time_ns"]
        assert one["rank_finish_ns"] == single["rank_finish_ns"]
        assert one["exposed_ns"] == max(single["rank_exposed_ns"])
        assert one["speedup"] == report["results"][0]["time_ns"] / one["time_ns"]
    best = min(report["results"], key=lambda one: one["time_ns"])
    assert report["fastest"] == {key: best[key] for key in ("algorithms", "topology")}


def test_the_baseline_is_chosen_and_added(collhub: Collhub, job: Path) -> None:
    run = collhub(
        "compare", job, "--topology", RING, "--with", "direct", "--baseline", "native", "--json"
    )
    report = run.report()
    assert report["baseline"] == {"algorithms": "native", "topology": RING}
    speedups = {one["algorithms"]: one["speedup"] for one in report["results"]}
    assert speedups["native"] == 1
    assert speedups["direct"] != 1
    table = collhub(
        "compare", job, "--topology", RING, "--with", "direct", "--baseline", "native"
    ).out
    assert "baseline" in table.splitlines()[1]


def test_rules_are_candidates(collhub: Collhub, job: Path) -> None:
    rules = "all-reduce@>1GiB=ring;all-reduce@<=1GiB=direct"
    one = collhub("compare", job, "--topology", RING, "--with", "all-reduce=direct", "--json")
    run = collhub("compare", job, "--topology", RING, "--with", rules, "--json")
    # The first of the rules matches no collective of this job.
    assert run.code == 1
    assert "matches no collective" in run.report()["results"][0]["failure"]
    assert one.report()["results"][0]["time_ns"] is not None


def test_a_candidate_that_fails_is_reported_beside_the_others(collhub: Collhub, job: Path) -> None:
    candidates = ("--with", "native", "--with", "rinng")
    run = collhub("compare", job, "--topology", RING, *candidates)
    assert run.code == 0
    assert "rinng on" in run.err
    assert "did you mean 'ring'" in run.err


def test_variations_of_networks_are_networks(collhub: Collhub, job: Path) -> None:
    run = collhub("compare", job, "--topology", RING, "--without-link", "0-1", "--json")
    times = [one["time_ns"] for one in run.report()["results"]]
    assert len(times) == 2
    assert times[0] < times[1]


def test_a_folder_states_its_network(collhub: Collhub, job: Path, tmp_path: Path) -> None:
    workload = hub_core.read_workload(job)
    hub_core.write(workload, tmp_path / "folder", format="astra-sim", options={"topology": RING})
    report = collhub("compare", tmp_path / "folder", "--json").report()
    single = collhub("simulate", tmp_path / "folder", "--json").report()
    assert [one["time_ns"] for one in report["results"]] == [single["time_ns"]]
    assert collhub("compare", job).code == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--size", "1MiB"), "--size has no meaning for a job"),
        (("--collective", "all-reduce"), "--collective has no meaning for a job"),
        (("--csv", "x.csv"), "--csv has no meaning for a job"),
    ],
)
def test_options_of_single_collectives_are_refused(
    collhub: Collhub, job: Path, words: tuple[str, ...], says: str
) -> None:
    run = collhub("compare", job, "--topology", RING, *words)
    assert run.code == 2
    assert says in run.err


def test_an_algorithm_in_place_of_a_job_is_refused_with_the_commands_that_take_it(
    collhub: Collhub, tmp_path: Path
) -> None:
    """Users name the files that they compare; algorithms are given by --with."""
    file = tmp_path / "algorithm.json"
    hub_core.write(ring_all_reduce(4), file)
    run = collhub("compare", file, "--topology", RING)
    assert run.code == 1
    assert "is an algorithm, not a workload; inspect, verify, simulate and convert" in run.err
    run = collhub("compare", file, "--topology", RING, "--size", "1MiB")
    assert run.code == 2
    assert "give algorithms in files by --with instead of a JOB" in run.err


def test_a_collective_is_compared_on_one_network(collhub: Collhub) -> None:
    asked = ("compare", "--collective", "all-reduce", "--size", "1MiB")
    run = collhub(*asked, "--topology", RING, "--topology", SWITCH)
    assert run.code == 2
    assert "several networks are for jobs" in run.err
    assert collhub(*asked).code == 2
    run = collhub(*asked, "--topology", RING, "--baseline", "ring")
    assert "--baseline is for jobs" in run.err
