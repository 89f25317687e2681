"""Folders of whole jobs are written so that they take as long as what they were made from."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collhub_astra_sim.folders.job_preparation import carry_host_times
from collhub_astra_sim.options import JobOptions
from collhub_astra_sim.workloads.simulator import simulate
from golden_cases import golden
from golden_folders import golden_folder, golden_options
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hub_core
from hub_core.chakra import decoded_records
from hub_core.model import (
    Algorithm,
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Workload,
)
from hub_core.plugin_api import WorkloadRequest, WorkloadTimes
from hub_core.testing import ring_all_reduce

Collhub = Callable[..., Any]
MIB = 1 << 20


def times(workload: Workload, topology: str | None = None, **options: Any) -> WorkloadTimes:
    network = None if topology is None else hub_core.read_topology(topology)
    return simulate(WorkloadRequest(workload, network), JobOptions(**options))


def written(workload: Workload, folder: Path, **options: str) -> Workload:
    hub_core.write(workload, folder, format="astra-sim", options=options)
    return hub_core.read_workload(str(folder), format="astra-sim-job")


def job(
    num_ranks: int,
    *rows: dict[str, int],
    groups: tuple[ProcessGroup, ...] = (),
    algorithms: tuple[Algorithm, ...] = (),
) -> Workload:
    """A chain a rank: every node waits for the one before it on its rank."""
    names = sorted({name for row in rows for name in row} | {"rank", "kind"})
    columns = {name: [row.get(name, -1) for row in rows] for name in names}
    before: dict[int, int] = {}
    edges = []
    for number, row in enumerate(rows):
        if row["rank"] in before:
            edges.append((before[row["rank"]], number))
        before[row["rank"]] = number
    data = tuple(zip(*edges, strict=True)) if edges else ((), ())
    nodes = NodeColumns.from_columns(num_ranks, columns, data)
    return Workload(nodes, groups=groups, algorithms=algorithms)


def computation(rank: int, duration_ns: int) -> dict[str, int]:
    kind = int(NodeKind.COMPUTE)
    return {"rank": rank, "kind": kind, "duration_ns": duration_ns, "on_host": 0, "tag": 0}


def collective(rank: int, kind: JobCollective, size: int, **others: int) -> dict[str, int]:
    node = {"rank": rank, "kind": int(NodeKind.COLLECTIVE), "collective": int(kind)}
    return {**node, "bytes": size, "on_host": 0, "tag": 0, **others}


@pytest.mark.once
@pytest.mark.parametrize("part", range(4))
def test_what_was_read_from_a_folder_is_written_back(
    corpus: Path, tmp_path: Path, part: int
) -> None:
    different = []
    for number, case in enumerate(golden(corpus)):
        if number % 4 != part or case["name"].endswith(("_flat_custom", "_ring_shipped")):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        workload = hub_core.read_workload(str(golden_folder(case, folder)))
        again = written(workload, tmp_path / f"{number}_again")
        stated = dict(word.split("=") for word in golden_options(case)[1::2])
        options = stated | {"queues": int(stated.get("queues", 1))}
        options |= {"rendezvous": bool(stated.get("rendezvous"))}
        found = times(again, **options)
        if [*found.rank_finish_ns] != case["cycles"] or [*found.rank_exposed_ns] != case["exposed"]:
            different.append(case["name"])
    assert different == []


def test_odd_nanoseconds_are_exact(tmp_path: Path) -> None:
    workload = job(2, computation(0, 1234), computation(0, 5), computation(1, 7000))
    again = written(workload, tmp_path / "folder")
    # Of the roofline that the folder states: ASTRA-sim reads durations as whole microseconds.
    assert again.nodes.operations.tolist() == [2469, 11, 14001]
    assert times(again).rank_finish_ns == (1239, 7000)


@pytest.mark.parametrize("groups", [("1", "7"), ("data", "model"), ("01", "model")])
def test_groups_are_numbered_and_beside_them_all_ranks_are_one(
    tmp_path: Path, groups: tuple[str, str]
) -> None:
    small = (ProcessGroup(groups[0], (0, 1)), ProcessGroup(groups[1], (2, 3)))
    rows = [collective(rank, JobCollective.ALL_REDUCE, MIB) for rank in range(4)]
    inner = [collective(rank, JobCollective.ALL_REDUCE, MIB, group=0) for rank in (0, 1)]
    workload = job(4, *inner, *rows, groups=small)
    # Without the group of all ranks, they would wait for ever.
    assert times(workload, "ring:4").time_ns is None
    again = written(workload, tmp_path / "folder", topology="ring:4")
    assert times(again).time_ns is not None
    assert all(group.name.isdecimal() for group in again.groups)
    assert len({int(group.name) for group in again.groups}) == 3


def test_single_collectives_run_the_algorithms_that_they_name(tmp_path: Path) -> None:
    ring = ring_all_reduce(4)
    rows = [collective(rank, JobCollective.ALL_REDUCE, MIB, algorithm=0) for rank in range(4)]
    native = [collective(rank, JobCollective.ALL_REDUCE, MIB) for rank in range(4)]
    workload = job(4, *rows, *native, algorithms=(ring,))
    again = written(workload, tmp_path / "folder", topology="ring:4")
    assert (tmp_path / "folder" / "algorithms.yml").read_text() == "0: traces/all-reduce-0\n"
    alone = written(job(4, *rows, algorithms=(ring,)), tmp_path / "alone", form="workload")
    assert times(again).time_ns is not None
    assert len(alone.algorithms) == 1


def test_a_number_means_one_algorithm(tmp_path: Path) -> None:
    groups = (ProcessGroup("1", (0, 1)), ProcessGroup("2", (2, 3)))
    rows = [
        collective(rank, JobCollective.ALL_REDUCE, MIB, algorithm=rank // 2, group=rank // 2)
        for rank in range(4)
    ]
    algorithms = (ring_all_reduce(2), replace(ring_all_reduce(2), collective_bytes=MIB))
    workload = job(4, *rows, groups=groups, algorithms=algorithms)
    again = written(workload, tmp_path / "folder", topology="ring:4")
    assert sorted(again.nodes.identity.tolist()) == [0, 1, 2, 3]
    assert len(again.algorithms) == 2


def test_a_last_computation_follows_memory(tmp_path: Path) -> None:
    load = {"rank": 0, "kind": int(NodeKind.LOAD), "bytes": 64, "on_host": 0, "tag": 0}
    workload = job(2, load, computation(1, 1000))
    result = hub_core.write(workload, tmp_path / "folder", format="astra-sim")
    assert any("last computation" in note for note in result.notes)
    kinds = hub_core.read_workload(str(tmp_path / "folder")).nodes.kind.tolist()
    assert kinds == [NodeKind.LOAD, NodeKind.COMPUTE, NodeKind.COMPUTE]


def test_a_flat_job_is_one_custom_algorithm(tmp_path: Path) -> None:
    send = {"rank": 0, "kind": int(NodeKind.SEND), "peer": 1, "bytes": MIB, "tag": 3}
    receive = {"rank": 1, "kind": int(NodeKind.RECV), "peer": 0, "bytes": MIB, "tag": 3}
    workload = job(2, *({**row, "on_host": 0} for row in (send, receive)), computation(1, 2000))
    hub_core.write(workload, tmp_path / "c", format="astra-sim", options={"form": "custom"})
    algorithm = hub_core.read(str(tmp_path / "c"))
    network = hub_core.read_topology(str(tmp_path / "c" / "network.yml"))
    time_ns = hub_core.simulate(algorithm, network, algorithm.collective_bytes or MIB).time_ns
    assert time_ns == times(workload, "fully-connected:2?bandwidth=50GiB/s&latency=500ns").time_ns


def test_what_a_custom_algorithm_cannot_say_is_refused(tmp_path: Path) -> None:
    for row, says in (
        (collective(0, JobCollective.ALL_REDUCE, MIB), "no nodes of kind collective"),
        (computation(0, 1234), "cannot take 1234 ns"),
    ):
        with pytest.raises(hub_core.UsageError, match=says):
            hub_core.write(
                job(2, row), tmp_path / "c", format="astra-sim", options={"form": "custom"}
            )


def test_hazards_are_losses_and_found_by_verify(collhub: Collhub, tmp_path: Path) -> None:
    kind = JobCollective.REDUCE
    workload = job(2, *(collective(rank, kind, MIB) for rank in range(2)))
    result = hub_core.write(workload, tmp_path / "folder", format="astra-sim")
    assert [loss.feature for loss in result.losses] == ["hazard h6"]
    run = collhub("verify", tmp_path / "folder")
    assert run.code == 1
    assert any("never finishes" in line for line in run.error_lines)


def test_traces_of_a_real_job_become_a_folder_of_the_known_time(
    collhub: Collhub, corpus: Path, tmp_path: Path
) -> None:
    with tarfile.open(corpus / "workload" / "llama_dp2_tp2_pp2.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    traces = tmp_path / "llama_dp2_tp2_pp2"
    options = {
        "topology": "switch:8?bandwidth=50GiB/s&latency=500ns",
        "groups": (traces / "groups.json").read_text(),
        "all_to_all": "direct",
        "memory_bandwidth": "2039GB/s",
        "peak_tflops": "312",
    }
    words = [word for pair in options.items() for word in ("-O", "=".join(pair))]
    out = tmp_path / "folder"
    assert collhub("convert", traces / "w", "--to", "astra-sim", "-o", out, *words).code == 0
    # Configuration A of the corpus.
    assert collhub("simulate", out, "--json").report()["time_ns"] == 8502231


def test_host_times_are_whole_microseconds_and_the_rest_is_a_loss(tmp_path: Path) -> None:
    rows = [{**computation(0, duration), "on_host": 1} for duration in (15300, 50900, 9300)]
    workload = job(2, *rows, computation(1, 7000))
    result = hub_core.write(workload, tmp_path / "folder", format="astra-sim")
    again = hub_core.read_workload(str(tmp_path / "folder"))
    # A last computation of 1 ns follows: the three take 15, 50 and 9 us.
    assert times(again).rank_finish_ns == (74001, 7000)
    (loss,) = (loss for loss in result.losses if loss.feature == "duration_ns")
    assert "1500 of 75500 ns" in loss.consequence


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=12))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_carried_rests_keep_the_sum_of_a_rank(tmp_path: Path, durations: list[int]) -> None:
    rows = [{**computation(0, duration), "on_host": 1} for duration in durations]
    workload = job(2, *rows, {**computation(1, 2700), "on_host": 1})
    carried = carry_host_times(workload).nodes.duration_ns
    assert not (carried % 1000).any()
    assert 0 <= sum(durations) - carried[:-1].sum() < 1000
    assert carried[-1] == 2000


def test_only_attributes_that_the_binary_reads_are_written(tmp_path: Path) -> None:
    kind = JobCollective.BROADCAST
    rows = [collective(rank, kind, MIB, root=0, duration_ns=1700) for rank in range(2)]
    host = [{**computation(rank, 1234), "on_host": 1} for rank in range(2)]
    device = [computation(rank, 1234) for rank in range(2)]
    # As the hub's own traces state it: in ns.
    hub_core.write(job(2, *host, *device, *rows), tmp_path / "job", format="chakra-workload")
    workload = hub_core.read_workload(str(tmp_path / "job"))
    result = hub_core.write(workload, tmp_path / "folder", format="astra-sim")
    names: set[str] = set()
    for rank in range(2):
        content = (tmp_path / "folder" / f"workload.{rank}.et").read_bytes()
        nodes: list[Any] = list(decoded_records(content, ""))[1:]
        names |= {attribute.name for node in nodes for attribute in node.attr}
        assert next(node.duration_micros for node in nodes if node.type == 4) == 1
    assert names == {"is_cpu_op", "num_ops", "tensor_size", "comm_type", "comm_size"}
    assert {"duration_ns", "root"} <= {loss.feature for loss in result.losses}


def test_markers_are_bridged_and_the_result_finishes(tmp_path: Path) -> None:
    marker = {"kind": int(NodeKind.MARKER), "on_host": 0, "tag": 0}
    rows = [
        row
        for rank in range(2)
        for row in (
            computation(rank, 1000),
            {"rank": rank, **marker},
            {"rank": rank, **marker},
            computation(rank, 2000),
        )
    ]
    result = hub_core.write(job(2, *rows), tmp_path / "folder", format="astra-sim")
    again = hub_core.read_workload(str(tmp_path / "folder"))
    assert again.nodes.kind.tolist() == [NodeKind.COMPUTE] * 4
    assert times(again).rank_finish_ns == (3000, 3000)
    assert not result.losses
    # The job itself takes as long.
    assert times(job(2, *rows), "ring:2").rank_finish_ns == (3000, 3000)


def test_a_job_that_never_finishes_is_a_loss(tmp_path: Path) -> None:
    receive = {"rank": 0, "kind": int(NodeKind.RECV), "peer": 1, "bytes": MIB, "tag": 0}
    workload = job(2, {**receive, "on_host": 0}, computation(1, 1000))
    for form in ("workload", "custom"):
        result = hub_core.write(
            workload, tmp_path / form, format="astra-sim", options={"form": form}
        )
        (loss,) = result.losses
        assert (loss.feature, loss.where) == ("simulation", "ranks 0")


def test_high_ids_of_nodes_with_algorithms_are_numbered_anew(tmp_path: Path) -> None:
    rows = [
        collective(rank, JobCollective.ALL_REDUCE, MIB, algorithm=0, identity=1 << 40)
        for rank in range(4)
    ]
    workload = job(4, *rows, algorithms=(ring_all_reduce(4),))
    again = written(workload, tmp_path / "folder", topology="ring:4")
    assert again.nodes.identity.max() < 1 << 31
    assert times(again).time_ns is not None
