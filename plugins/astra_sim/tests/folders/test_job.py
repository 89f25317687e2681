"""A folder whose workload is a whole job is one input; its times are those of ASTRA-sim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_cases import golden
from golden_folders import golden_folder, golden_options

Collhub = Callable[..., Any]


@pytest.mark.once
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
    assert "the folder has a system.json: option splits has no effect" in run.err


@pytest.mark.once
def test_pure_custom_folders_have_exposed_times_and_rendezvous(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    cases = [one for one in golden(corpus) if one["name"].endswith(("_flat_custom", "shipped"))]
    for number, case in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = collhub("simulate", golden_folder(case, folder), *golden_options(case), "--json")
        assert run.report()["rank_exposed_ns"] == case["exposed"], case["name"]


def test_a_pure_custom_folder_is_simulated_with_rendezvous(
    collhub: Collhub, tmp_path: Path
) -> None:
    # From astra-sim.md, 6.1: 20683 = 20031 and 8192 bytes before.
    node = {"id": 0, "t": "COLL", "ct": "AR", "size": 1 << 20}
    message = {"id": 0, "size": 1 << 20, "tag": 0}
    network = {"topology": ["FullyConnected"], "npus_count": [3], "bandwidth": [50.0]}
    case = {
        "sys": {
            "scheduling-policy": "FIFO",
            "preferred-dataset-splits": 1,
            "all-reduce-implementation-custom": ["alg"],
        },
        "net": {**network, "latency": [500.0]},
        "ranks": [[node]] * 3,
        "alg": {
            "alg": [
                [{**message, "t": "SEND", "dst": 1}],
                [{**message, "t": "RECV", "src": 0}],
                [{"id": 0, "t": "COMP", "us": 0}],
            ]
        },
    }
    folder = golden_folder(case, tmp_path)
    run = collhub("simulate", folder, "-O", "rendezvous=true", "--json")
    assert run.report()["rank_finish_ns"] == [20683, 20683, 1]
    assert run.report()["rank_exposed_ns"] == [20683, 20683, 1]
    run = collhub("simulate", folder, "--json")
    assert run.report()["rank_finish_ns"] == [20031, 20031, 1]


def test_rendezvous_inside_a_group(collhub: Collhub, tmp_path: Path) -> None:
    node = {"id": 0, "t": "COLL", "ct": "AR", "size": 1 << 20, "pg": "1"}
    message = {"id": 0, "size": 1 << 20, "tag": 0}
    network = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}
    idle = [{"id": 0, "t": "COMP", "us": 0}]
    case = {
        "sys": {
            "scheduling-policy": "FIFO",
            "preferred-dataset-splits": 1,
            "all-reduce-implementation-custom": ["alg"],
        },
        "net": network,
        "groups": {"1": [1, 3]},
        "ranks": [idle, [node], idle, [node]],
        "alg": {
            "alg": [[{**message, "t": "SEND", "dst": 1}], [{**message, "t": "RECV", "src": 0}]]
        },
    }
    run = collhub("simulate", golden_folder(case, tmp_path), "-O", "rendezvous=true", "--json")
    # Two hops: twice 652 ns for the clearance and twice 20031 ns.
    assert run.report()["rank_finish_ns"] == [41366, 41366]


def test_pure_custom_folders_on_which_the_binary_aborts_have_no_time(
    collhub: Collhub, tmp_path: Path
) -> None:
    node = {"id": 0, "t": "COLL", "ct": "AR", "size": 1 << 20}
    system = {"scheduling-policy": "FIFO", "preferred-dataset-splits": 1}
    for number, (size, kind, is_aborted) in enumerate(
        [(53, "FullyConnected", True), (54, "FullyConnected", False), (1 << 20, "Ring", True)]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        message = {"id": 0, "size": size, "tag": 0}
        network = {"topology": [kind], "npus_count": [2], "bandwidth": [50.0], "latency": [500.0]}
        case = {
            "sys": {**system, "all-reduce-implementation-custom": ["alg"]},
            "net": network,
            "ranks": [[node]] * 2,
            "alg": {
                "alg": [
                    [{**message, "t": "SEND", "dst": 1}],
                    [{**message, "t": "RECV", "src": 0}],
                ]
            },
        }
        run = collhub("simulate", golden_folder(case, folder), "--json")
        assert run.code == is_aborted
        assert (run.report()["time_ns"] is None) == is_aborted
        found = run.report()["diagnostics"]
        assert any("abort" in one["message"] for one in found) == is_aborted
