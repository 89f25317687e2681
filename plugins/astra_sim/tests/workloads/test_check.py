"""`verify` of folders: collectives in an order that hangs, and no findings on jobs that finish."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from golden_cases import golden
from golden_folders import Json, golden_folder

Collhub = Callable[..., Any]
SYSTEM = {
    "scheduling-policy": "FIFO", "preferred-dataset-splits": 1, "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"], "local-mem-bw": 1600,
}  # fmt: skip


def folder_of(
    folder: Path, ranks: Sequence[Sequence[Json]], groups: dict[str, list[int]] | None = None
) -> Path:
    network = {"topology": ["Ring"], "npus_count": [4], "bandwidth": [50.0], "latency": [500.0]}
    case = {"sys": SYSTEM, "net": network, "ranks": ranks}
    return golden_folder(case if groups is None else {**case, "groups": groups}, folder)


def all_reduce(number: int, group: str = "", after: int | None = None) -> dict[str, Any]:
    node = {"id": number, "t": "COLL", "ct": "AR", "size": 1 << 20}
    node |= {"pg": group} if group else {}
    return node if after is None else {**node, "deps": [after]}


@pytest.mark.once
def test_jobs_that_finish_have_no_errors(collhub: Collhub, corpus: Path, tmp_path: Path) -> None:
    wrong = []
    for number, case in enumerate(golden(corpus)):
        # Pure custom collectives are algorithms; the others state options that verify lacks.
        if case["name"].endswith(("_flat_custom", "_ring_shipped")) or "queues" in case:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        run = collhub("verify", golden_folder(case, folder))
        if run.code != (None in case["cycles"]):
            wrong.append((case["name"], run.err))
    assert wrong == []


def test_a_group_beside_all_ranks_is_named_with_its_cure(collhub: Collhub, corpus: Path) -> None:
    folder = corpus / "strangers" / "workload" / "subgroup_order_hang"
    run = collhub("verify", folder)
    assert run.code == 1
    (line,) = run.error_lines
    assert "node 1" in line
    assert "node 0 (all-reduce of process group '2')" in line
    assert "ranks 4-7" in line
    assert "name the group of all ranks of groups.json in these nodes: pg_name '1'" in line
    run = collhub("simulate", folder)
    assert run.code == 1
    # One line for all ranks.
    (line,) = run.error_lines
    assert "the same on rank 1-7" in line


def test_the_cure_cures(collhub: Collhub, tmp_path: Path) -> None:
    hanging = [[all_reduce(0, "1"), all_reduce(1, after=0)]] * 2 + [[all_reduce(1)]] * 2
    (tmp_path / "a").mkdir()
    run = collhub("verify", folder_of(tmp_path / "a", hanging, {"1": [0, 1]}))
    assert run.code == 1
    assert 'add a group of all ranks to groups.json, "2": [0, 1, 2, 3]' in run.err
    cured = [[all_reduce(0, "1"), all_reduce(1, "2", 0)]] * 2 + [[all_reduce(1, "2")]] * 2
    (tmp_path / "b").mkdir()
    groups = {"1": [0, 1], "2": [0, 1, 2, 3]}
    assert collhub("verify", folder_of(tmp_path / "b", cured, groups)).code == 0
    run = collhub("simulate", tmp_path / "b", "--json")
    # Measured with ASTRA-sim, workload.md 7.5.
    assert run.report()["rank_finish_ns"] == [54350, 54860, 55370, 55370]


def test_groups_in_opposite_orders_of_ids_are_named(collhub: Collhub, tmp_path: Path) -> None:
    # No dependencies: the slot of communication takes the smallest id first.
    one, two = "1", "2"
    ranks = [[all_reduce(0, one), all_reduce(1, two)], [all_reduce(0, two), all_reduce(1, one)]]
    ranks += [[{"id": 0, "t": "COMP", "us": 1}]] * 2
    folder = folder_of(tmp_path, ranks, {one: [0, 1], two: [0, 1]})
    run = collhub("verify", folder)
    assert run.code == 1
    assert "rank 1 waits in node 0 (all-reduce of process group '2')" in run.err
    assert "in the same order on all ranks" in run.err


@pytest.mark.parametrize("has_script", [False, True])
def test_a_network_that_aborts_is_found_by_verify(
    collhub: Collhub, tmp_path: Path, has_script: bool
) -> None:
    computation = [{"id": 0, "t": "COMP", "us": 1}]
    network = {"topology": ["Ring"], "npus_count": [2], "bandwidth": [50.0], "latency": [500.0]}
    folder = golden_folder({"sys": SYSTEM, "net": network, "ranks": [computation] * 2}, tmp_path)
    if has_script:
        (folder / "run.sh").write_text("AstraSim_Analytical_Congestion_Aware\n")
    run = collhub("verify", folder, "--json")
    assert run.code == has_script
    assert "Ring of 2" in json.dumps(run.report())
