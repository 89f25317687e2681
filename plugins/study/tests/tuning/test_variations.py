"""`--vary` and `--without-link`: networks that differ in one thing, and how robust a choice is."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from collhub_tuning.comparison_report import ComparisonOutcome
from collhub_tuning.questions import AlgorithmAtSize, ComparisonQuestion
from collhub_tuning.variations import (
    VariedOutcome,
    create_variations,
    evaluate_robustness,
    sensitivity_lines,
    sensitivity_rows,
)

import hub_core
from hub_core.model import UsageError
from hub_core.network import Links
from hub_core.plugin_api import Simulator, Synthesizer

pytestmark = pytest.mark.once

RING = hub_core.parse_topology("ring:4?bandwidth=50GB/s&latency=500ns")
QUESTION = ComparisonQuestion("all-reduce", None, "ring:4", 4, (1024,), "analytical")


def test_a_range_doubles_and_includes_both_ends() -> None:
    found = create_variations(RING, ["bandwidth=10GB/s..50GB/s"], [])
    assert [one.name for one in found] == [f"bandwidth={rate} GB/s" for rate in (10, 20, 40, 50)]
    assert [set(one.topology.bandwidth_bytes_per_s.tolist()) for one in found] == [
        {1e10},
        {2e10},
        {4e10},
        {5e10},
    ]
    assert found[0].topology.dimensions[0].bandwidth_bytes_per_s == 1e10


def test_links_keep_their_ratio_to_the_fastest_and_the_slowest() -> None:
    ends = np.asarray([0, 1]), np.asarray([1, 0])
    uneven = Links(*ends, np.asarray([1e9, 4e9]), np.asarray([1e-6, 2e-6]))
    topology = uneven.topology("uneven", 2, 2)
    faster, later = create_variations(topology, ["bandwidth=8GB/s", "latency=1us"], [])
    assert faster.topology.bandwidth_bytes_per_s.tolist() == [2e9, 8e9]
    assert later.topology.latency_s.tolist() == [5e-7, 1e-6]
    assert faster.topology.latency_s.tolist() == topology.latency_s.tolist()


def test_where_all_latencies_are_0_all_links_get_the_new_one() -> None:
    (found,) = create_variations(hub_core.parse_topology("ring:4?latency=0ns"), ["latency=1us"], [])
    assert set(found.topology.latency_s.tolist()) == {1e-6}
    assert found.topology.dimensions[0].latency_s == 1e-6


@pytest.mark.parametrize(
    ("text", "fewer"), [("0-1", 2), ("0->1", 1), ("1->0", 1), ("0->1,1->2", 2)]
)
def test_a_failed_link_is_gone_in_both_directions_or_in_one(text: str, fewer: int) -> None:
    (found,) = create_variations(RING, [], [text])
    assert found.name == f"without {text}"
    assert RING.num_links - found.topology.num_links == fewer
    assert found.topology.dimensions == ()


def test_nodes_of_failed_links_go_by_name_with_any_sign_in_it() -> None:
    ends = np.asarray([0, 1, 1, 2, 2, 0]), np.asarray([1, 0, 2, 1, 0, 2])
    topology = Links.uniform(*ends, 1e9, 0.0).topology(
        "named", 3, 3, node_names=("gpu-0", "gpu-1", "nic-a")
    )
    (found,) = create_variations(topology, [], ["gpu-0-gpu-1"])
    assert found.topology.num_links == 4


@pytest.mark.parametrize(
    ("ranges", "failures", "says"),
    [
        (["speed=1GB/s"], [], "varies neither bandwidth nor latency"),
        (["bandwidth"], [], "varies neither bandwidth nor latency"),
        (["bandwidth=10GB/s..5GB/s"], [], "ends below its start"),
        (["latency=0ns..1us"], [], "begins at 0"),
        (["latency=1GB/s"], [], "unknown unit"),
        ([], ["0-2"], "ring:4.* has no such link"),
        ([], ["0-9"], "names no two nodes"),
        ([], ["0"], "names no two nodes"),
        ([], ["0-1,2-3"], "not connected without it: 0 does not reach 1"),
    ],
)
def test_wrong_variations_are_refused(ranges: list[str], failures: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        create_variations(RING, ranges, failures)


def test_a_network_is_the_same_in_another_process() -> None:
    topology = hub_core.parse_topology("dgx1v")
    content = hub_core.topology_to_json(pickle.loads(pickle.dumps(topology)))
    assert content == hub_core.topology_to_json(topology)


def outcome(ring: int | None, tree: int | None) -> ComparisonOutcome:
    found = [AlgorithmAtSize("ring", 1024, ring), AlgorithmAtSize("tree", 1024, tree)]
    return ComparisonOutcome(QUESTION, RING, found)


BASE = outcome(100, 110)


def varied(**outcomes: ComparisonOutcome) -> list[VariedOutcome]:
    return [VariedOutcome(name, one) for name, one in outcomes.items()]


def test_the_worst_ratio_of_the_choice_is_that_over_all_variations() -> None:
    found = varied(a=outcome(100, 110), b=outcome(112, 100), c=outcome(105, 100))
    kept = evaluate_robustness(BASE, found, 1024)
    assert kept is not None
    assert (kept.winner, kept.wins, kept.worst_ratio, kept.worst_variation) == (
        "ring",
        1,
        1.12,
        "b",
    )
    assert sensitivity_lines(BASE, found) == [
        "1 KiB: ring wins in 1 of 3, at most 12.0 % behind (b)"
    ]


def test_of_equal_times_the_choice_wins() -> None:
    tied = varied(a=outcome(100, 100))
    assert sensitivity_rows(outcome(110, 100), tied) == [["1 KiB", "tree", "tree"]]
    assert sensitivity_lines(outcome(110, 100), tied) == ["1 KiB: tree wins in 1 of 1"]


def test_a_choice_that_is_slightly_faster_than_the_winner_wins_too() -> None:
    """The winner of a variation has the fewest messages within 1 %, and may be slower."""
    found = [
        AlgorithmAtSize("ring", 1024, 1000, messages=9),
        AlgorithmAtSize("tree", 1024, 1005, messages=2),
    ]
    faster = varied(a=ComparisonOutcome(QUESTION, RING, found))
    assert faster[0].outcome.ranking(1024)[0].algorithm == "tree"
    assert sensitivity_lines(BASE, faster) == ["1 KiB: ring wins in 1 of 1"]
    assert sensitivity_rows(BASE, faster) == [["1 KiB", "ring", "ring"]]


def test_where_the_choice_has_no_time_is_said() -> None:
    missing = varied(a=outcome(None, 100))
    assert sensitivity_rows(BASE, missing) == [["1 KiB", "ring", "tree"]]
    assert sensitivity_lines(BASE, missing) == [
        "1 KiB: ring wins in 0 of 1, does not take part in a"
    ]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own, and what is compared."""
    registry = hub_core.discover()
    if "analytical" not in {found.name for found in registry.all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    if not {"ring", "direct"} <= {found.name for found in registry.all(Synthesizer)}:
        pytest.skip("the synthesizers of collhub-synthesis are not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


ASKED = ("compare", "--collective", "all-reduce", "--topology", "ring:4", "--size", "1MiB")
NAMED = ("--with", "ring", "--with", "direct", "--jobs", "1")


@pytest.mark.usefixtures("installed")
def test_json_has_every_variation_with_its_own_times(collhub) -> None:
    asked = (*ASKED, *NAMED, "--vary", "bandwidth=25GB/s..50GB/s", "--json")
    report = collhub(*asked).report()
    slow, given = report["variations"]
    assert [slow["name"], given["name"]] == ["bandwidth=25 GB/s", "bandwidth=50 GB/s"]
    alone = collhub(*ASKED[:4], "ring:4?bandwidth=25GB/s", *ASKED[5:], *NAMED, "--json").report()
    assert slow["results"] == alone["results"]
    assert report["robustness"][0]["winner"] == report["winners"][0]
    # From the cache, the second time.
    assert collhub(*asked).report() == report


@pytest.mark.usefixtures("installed")
def test_processes_measure_variations_as_one_does(collhub) -> None:
    asked = (*ASKED, *NAMED[:-1])
    rest = ("--without-link", "0-1", "--no-cache", "--json")
    assert collhub(*asked, "1", *rest).report() == collhub(*asked, "2", *rest).report()


@pytest.mark.usefixtures("installed")
def test_a_network_that_falls_apart_is_one_line(collhub) -> None:
    run = collhub(*ASKED, *NAMED, "--without-link", "0-1,2-3")
    assert (run.code, run.out) == (2, "")
    assert ["not connected" in line for line in run.error_lines] == [True]
