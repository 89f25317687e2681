"""A folder whose workload is a whole job is one input; its times are those of ASTRA-sim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_cases import golden
from golden_folders import golden_folder, golden_options

Collhub = Callable[..., Any]


@pytest.mark.parametrize("part", range(4))
def test_simulate_takes_the_folder_alone(
    collhub: Collhub, corpus: Path, tmp_path: Path, part: int
) -> None:
    different = []
    for number, case in enumerate(golden(corpus)):
        # A job of custom collectives alone is read as their algorithm, without a workload layer.
        if number % 4 != part or case["name"].endswith(("_flat_custom", "_ring_shipped")):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        run = collhub("simulate", golden_folder(case, folder), *golden_options(case), "--json")
        report = run.report()
        found = report["rank_finish_ns"], report["rank_exposed_ns"]
        if found != (case["cycles"], case["exposed"]) or run.code != (None in case["cycles"]):
            different.append(case["name"])
    assert different == []


def test_a_job_of_custom_collectives_alone_is_an_algorithm(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    cases = [one for one in golden(corpus) if one["name"].endswith("_flat_custom")]
    assert len(cases) >= 6
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = collhub("simulate", golden_folder(case, folder), *golden_options(case), "--json")
        assert run.report()["rank_finish_ns"] == case["cycles"], case["name"]


def test_the_network_of_the_folder_may_be_replaced(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    case = next(one for one in golden(corpus) if one["name"] == "dp8_overlap")
    folder = golden_folder(case, tmp_path)
    slow = collhub(
        "simulate", folder, "--topology", "ring:8?bandwidth=5GiB/s&latency=500ns", "--json"
    )
    assert slow.report()["time_ns"] > case["cycles"][0]


def test_options_of_the_system_are_refused_where_the_folder_states_it(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    case = next(one for one in golden(corpus) if one["name"] == "dp8_overlap")
    run = collhub("simulate", golden_folder(case, tmp_path), "-O", "splits=4")
    assert run.code == 2
    assert "the folder states its system: option splits has no meaning" in run.err
