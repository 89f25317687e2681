"""`collhub compare --seeds`: bands of times, texts that depend on a seed, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collhub_models.moe import generate
from collhub_models.plugin import MoeOptions
from collhub_tuning.seed_bands import CandidateAlgorithms, SeedTimes, parse_seeds, seeded_text

import hub_core
from hub_core import UsageError

Collhub = Callable[..., Any]


@pytest.mark.parametrize(("text", "seeds"), [("0..2", [0, 1, 2]), ("5,1", [5, 1]), ("7", [7])])
def test_ranges_and_lists_of_seeds(text, seeds) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    "text", ["", "2..1", "0..1000", "1,1", "-1", "a", "1..", "0..9999999999", f"0..{10**40}"]
)
def test_other_texts_are_no_seeds(text) -> None:
    with pytest.raises(UsageError, match="no range or list of 1 to 1000 different seeds"):
        parse_seeds(text)


def test_counts_of_generators_get_the_seed_and_names_replace_it() -> None:
    assert seeded_text("--counts", "zipf:1.2", 3) == "zipf:1.2,seed=3"
    assert seeded_text("--counts", "table-{seed}.csv", 3) == "table-3.csv"
    assert seeded_text("JOB", "moe-{seed}", 3) == "moe-3"
    for option, text in (("JOB", "zipf:1"), ("--counts", "zipf:1,seed=2"), ("--counts", None)):
        with pytest.raises(UsageError, match="does not depend on the seed"):
            seeded_text(option, text, 3)


def test_bands_have_the_lower_median_and_count_wins_by_network() -> None:
    fast, slow, far = (
        CandidateAlgorithms("fast", "a", None),
        CandidateAlgorithms("slow", "a", None),
        CandidateAlgorithms("slow", "b", None),
    )
    times = SeedTimes([{fast: 4, slow: 6, far: 9}, {fast: 8, slow: 5, far: None}])
    bands = {(each.algorithms, each.topology): each for each in times.list_bands()}
    assert bands["fast", "a"].median_ns == 4
    assert bands["fast", "a"].maximum_ns == 8
    assert [each.fastest_for for each in bands.values()] == [1, 1, 1]
    assert bands["slow", "b"].times_ns == [9, None]


def test_jobs_of_all_seeds_are_compared(collhub: Collhub, tmp_path: Path) -> None:
    options = MoeOptions(ranks=4, node_ranks=2, experts=8, top_k=2, tokens=32, hidden=64)
    for seed in (3, 4):
        job = generate(replace(options, seed=seed))
        hub_core.write(job, str(tmp_path / f"moe-{seed}.json"))
    pattern = tmp_path / "moe-{seed}.json"
    arguments = ("compare", pattern, "--seeds", "3,4", "--topology", "switch:4", "--with", "native")
    report = collhub(*arguments, "--json").report()
    assert report["seeds"] == [3, 4]
    (band,) = report["results"]
    single = [
        collhub("simulate", tmp_path / f"moe-{seed}.json", "--topology", "switch:4", "--json")
        for seed in (3, 4)
    ]
    assert band["times_ns"] == [run.report()["time_ns"] for run in single]
    assert band["minimum_ns"] == min(band["times_ns"])


@pytest.mark.once
def test_bands_over_seeds_are_those_of_single_comparisons(collhub: Collhub) -> None:
    arguments = ("compare", "--collective", "all-to-all-v", "--topology", "ring:4", "--jobs", "1")
    asked = (*arguments, "--size", "1MiB", "--with", "direct", "--with", "flows", "--with", "ring")
    singles = [
        {
            one["algorithm"]: one["time_ns"]
            for one in collhub(*asked, "--counts", f"zipf:1.2,seed={seed}", "--json").report()[
                "results"
            ]
        }
        for seed in (3, 4, 5)
    ]
    run = collhub(*asked, "--counts", "zipf:1.2", "--seeds", "3..5", "--json")
    bands = {one["algorithms"]: one for one in run.report()["results"]}
    for name in ("direct", "flows"):
        times = [single[name] for single in singles]
        assert bands[name]["times_ns"] == times
        assert bands[name]["minimum_ns"] == min(times)
        assert bands[name]["median_ns"] == sorted(times)[1]
        assert bands[name]["maximum_ns"] == max(times)
    fastest = [min(single["direct"], single["flows"]) for single in singles]
    wins = sum(single["flows"] == best for single, best in zip(singles, fastest, strict=True))
    assert bands["flows"]["fastest_for"] == wins
    # A reason that holds for all seeds is stated once, and the table has no row without a time.
    text = collhub(*asked, "--counts", "zipf:1.2", "--seeds", "3..5")
    assert text.err.count("ring does not take part") == 1
    assert "ring  " not in text.out.replace("ring:4", "")
    refused = collhub(*asked, "--counts", "uniform", "--seeds", "3..5")
    assert "does not depend on the seed" in refused.err


def test_outputs_of_one_comparison_are_refused(collhub: Collhub, tmp_path: Path) -> None:
    run = collhub("compare", "moe-{seed}", "--seeds", "0..2", "--view", tmp_path / "page.html")
    assert run.code == 2
    assert "--view has no meaning with --seeds" in run.err
