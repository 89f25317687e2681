"""Modules of JAX 0.10.2 and in the style of XLA:GPU: the truths of the specification, section 4."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_hlo.plugin import HloOptions
from collhub_hlo.read import read
from collhub_hlo.samples import source_of

from hub_core.model import InputError, JobCollective, NodeKind, Workload

AR, AG = JobCollective.ALL_REDUCE, JobCollective.ALL_GATHER
RS, A2A = JobCollective.REDUCE_SCATTER, JobCollective.ALL_TO_ALL
FOURS = {(0, 1, 2, 3), (4, 5, 6, 7)}
TWOS = {(0, 4), (1, 5), (2, 6), (3, 7)}
RING = [(0, 1), (1, 2), (2, 3), (3, 0), (4, 5), (5, 6), (6, 7), (7, 4)]


@pytest.fixture
def modules(corpus: Path) -> Path:
    folder = corpus / "evidence" / "hlo"
    if not folder.is_dir():
        pytest.skip("the corpus has no HLO modules")
    return folder


def load(path: Path, **options: Any) -> Workload:
    return read(source_of(path.name, path.read_text()), HloOptions(**options))


def collectives(workload: Workload, rank: int) -> list[tuple[int, int, int]]:
    """Kind, bytes and group size of the collectives of a rank, in order."""
    nodes = workload.nodes
    rows = np.flatnonzero((nodes.rank == rank) & (nodes.kind == NodeKind.COLLECTIVE))
    return [
        (nodes.collective[row], nodes.bytes[row], len(workload.members(nodes.group[row])))
        for row in rows.tolist()
    ]


def groups(workload: Workload, kind: JobCollective, size: int) -> set[tuple[int, ...]]:
    nodes = workload.nodes
    rows = np.flatnonzero((nodes.collective == kind) & (nodes.bytes == size))
    return {workload.members(int(nodes.group[row])) for row in rows}


def messages(workload: Workload, kind: NodeKind) -> list[tuple[int, int, int]]:
    """Rank, peer and bytes of the messages of a kind."""
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.kind == kind)
    return [(int(nodes.rank[row]), int(nodes.peer[row]), int(nodes.bytes[row])) for row in rows]


def facts(workload: Workload) -> dict[str, Any]:
    value = workload.extensions["hlo"]
    assert isinstance(value, dict)
    return value


def test_each_collective_of_a_sharded_map_occurs_once(modules: Path) -> None:
    workload = load(modules / "coll_jax0.10_cpu8.hlo.txt")
    assert workload.num_ranks == 8
    for rank in range(8):
        assert sorted(collectives(workload, rank)) == sorted(
            [(AR, 256, 4), (AG, 256, 2), (RS, 512, 2), (A2A, 256, 4)]
        )
    assert groups(workload, AR, 256) == groups(workload, A2A, 256) == FOURS
    assert groups(workload, AG, 256) == groups(workload, RS, 512) == TWOS
    sends = messages(workload, NodeKind.SEND)
    assert sends == [(source, target, 256) for source, target in RING]
    assert sorted(messages(workload, NodeKind.RECV)) == sorted(
        (target, source, 256) for source, target in RING
    )
    sizes = {one["kind"]: one["result_bytes"] for one in facts(workload)["collectives"]}
    assert sizes["all-gather"] == 512
    assert sizes["reduce-scatter"] == 256


def test_loops_of_a_training_step_count_by_their_trip_counts(modules: Path) -> None:
    workload = load(modules / "step_jax0.10_cpu8.hlo.txt")
    for rank in range(8):
        calls = collectives(workload, rank)
        assert calls.count((AR, 8192, 4)) == 6
        assert calls.count((AR, 65536, 2)) == 3
        assert calls.count((AR, 4, 2)) == 1
        assert len(calls) == 10
    assert groups(workload, AR, 8192) == FOURS
    assert groups(workload, AR, 65536) == groups(workload, AR, 4) == TWOS
    assert facts(workload)["products"] == 18
    assert facts(workload)["product_operations"] == 4_718_592


def test_asynchronous_collectives_overlap_and_their_wrappers_count_once(modules: Path) -> None:
    workload = load(modules / "async_gpu_style.hlo.txt")
    for rank in range(8):
        assert collectives(workload, rank) == [(AG, 2048, 8), (RS, 16384, 4)]
    assert groups(workload, RS, 16384) == {(0, 2, 4, 6), (1, 3, 5, 7)}
    assert messages(workload, NodeKind.SEND) == [
        (0, 1, 4096), (1, 2, 4096), (2, 3, 4096), (3, 0, 4096)
    ]  # fmt: skip
    assert facts(workload)["product_operations"] == 131_072
    gather = facts(workload)["collectives"][0]
    assert gather["operand_bytes"] * 8 == 16384
    assert (gather["dtype"], gather["groups"]) == ("bf16", "1 groups of 8")


def test_an_id_in_two_groups_is_refused_with_its_line(modules: Path) -> None:
    with pytest.raises(InputError, match="id 1 occurs twice; correct its groups") as caught:
        load(modules / "bad_groups.hlo.txt")
    assert caught.value.diagnostics[0].location.line == 9


@pytest.mark.parametrize(
    "name", ["coll_jax0.10_cpu8.hlo.txt", "step_jax0.10_cpu8.hlo.txt", "async_gpu_style.hlo.txt"]
)
@pytest.mark.parametrize("order", ["schedule", "data"])
def test_modules_are_verified_simulated_and_converted(
    modules: Path, name: str, order: str, tmp_path: Path, collhub: Callable[..., Any]
) -> None:
    path, option = str(modules / name), f"order={order}"
    document = str(tmp_path / "job.json")
    assert "nothing wrong found" in collhub("verify", path, "-O", option).out
    run = collhub("simulate", path, "--topology", "switch:8?bandwidth=100GB/s", "-O", option)
    assert (run.code, "8 ranks" in run.out) == (0, True)
    assert collhub("convert", path, "-O", option, "-o", document).code == 0
    assert "nothing wrong found" in collhub("verify", document).out


def test_merging_computations_keeps_work_and_communication(modules: Path) -> None:
    path = modules / "step_jax0.10_cpu8.hlo.txt"
    each, merged = load(path), load(path, merge_compute=True)
    assert len(merged.nodes) < len(each.nodes) / 3
    for rank in range(8):
        assert collectives(each, rank) == collectives(merged, rank)
    computes = [one.nodes.kind == NodeKind.COMPUTE for one in (each, merged)]
    assert each.nodes.operations[computes[0]].sum() == merged.nodes.operations[computes[1]].sum()
    assert each.nodes.bytes[computes[0]].sum() == merged.nodes.bytes[computes[1]].sum()
