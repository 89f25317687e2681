"""Collectives of jobs get the algorithms that rules name, for their bytes and their group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hub_core
from hub_core import UsageError, parse_rule, parse_topology
from hub_core.model import (
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Workload,
    message_bytes,
)
from hub_core.testing import ring_all_reduce

Collhub = Callable[..., Any]
MIB = 1 << 20


def job(*rows: tuple[int, JobCollective | None, int, int], groups: int = 0) -> Workload:
    """Collectives (rank, kind, bytes, group) of four ranks, each after the one before it.

    Without a kind a row is a computation of 1 us.
    """
    is_collective = [row[1] is not None for row in rows]
    columns = {
        "rank": [row[0] for row in rows],
        "kind": [int(NodeKind.COLLECTIVE if one else NodeKind.COMPUTE) for one in is_collective],
        "duration_ns": [-1 if one else 1000 for one in is_collective],
        "collective": [-1 if row[1] is None else int(row[1]) for row in rows],
        "bytes": [row[2] for row in rows],
        "group": [row[3] for row in rows],
    }
    edges = [(at, at + 1) for at in range(len(rows) - 1) if rows[at][0] == rows[at + 1][0]]
    data = tuple(zip(*edges, strict=True)) if edges else ((), ())
    halves = (ProcessGroup("1", (0, 1)), ProcessGroup("2", (2, 3)))[:groups]
    return Workload(NodeColumns.from_columns(4, columns, data), groups=halves)


def given(workload: Workload, *texts: str, topology: str = "ring:4") -> Workload:
    registry = hub_core.discover()
    return hub_core.with_algorithms(
        workload,
        [parse_rule(text, ("ring", "direct")) for text in texts],
        parse_topology(topology),
        registry,
        read=lambda name: hub_core.read(name, registry=registry),
        admit=lambda algorithm, name: None,
    )


ALL_REDUCE = JobCollective.ALL_REDUCE
BOTH = job(
    *((rank, kind, MIB, -1) for rank in range(4) for kind in (ALL_REDUCE, JobCollective.ALL_GATHER))
)


def test_the_last_rule_that_matches_chooses() -> None:
    pytest.importorskip("collhub_classic")
    found = given(BOTH, "*=ring", "all-gather=direct")
    assert found.nodes.algorithm.tolist() == [0, 1] * 4
    kinds = [str(one.collective.kind) for one in found.algorithms]
    assert kinds == ["all-reduce", "all-gather"]
    found = given(BOTH, "*=ring", "all-gather=native")
    assert found.nodes.algorithm.tolist() == [0, -1] * 4


def test_equal_groups_share_one_algorithm() -> None:
    pytest.importorskip("collhub_classic")
    rows = [(rank, ALL_REDUCE, MIB, rank // 2) for rank in range(4)]
    found = given(job(*rows, groups=2), "all-reduce=ring")
    assert found.nodes.algorithm.tolist() == [0] * 4
    assert [one.num_ranks for one in found.algorithms] == [2]


def test_a_group_that_others_separate_has_an_algorithm_of_its_members() -> None:
    pytest.importorskip("collhub_classic")
    rows = [(rank, ALL_REDUCE, MIB, 0) for rank in (0, 2)]
    workload = replace(job(*rows, groups=1), groups=(ProcessGroup("1", (0, 2)),))
    # Ranks 0 and 2 of a ring are no neighbours.
    (algorithm,) = given(workload, "all-reduce=direct").algorithms
    assert algorithm.num_ranks == 2
    assert set(algorithm.steps.peer.tolist()) <= {-1, 0, 1}
    # Each rank sends its half and the reduced half.
    total = message_bytes(MIB, algorithm.collective.unit_count, algorithm.steps.count)
    assert total[algorithm.steps.sends].sum() == 2 * MIB


def test_a_rule_without_a_collective_is_refused() -> None:
    with pytest.raises(UsageError, match="all-to-all=ring matches no collective"):
        given(BOTH, "all-to-all=ring")


def test_a_misspelt_synthesizer_is_named_with_the_collective() -> None:
    pytest.importorskip("collhub_classic")
    with pytest.raises(UsageError, match=r"all-reduce of 1 MiB on 4 ranks: .*did you mean 'ring'"):
        given(BOTH, "all-reduce=rinng")


def test_simulate_takes_the_time_of_the_exported_job(collhub: Collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    pytest.importorskip("collhub_classic")
    network = "switch:4?bandwidth=50GiB/s&latency=500ns"
    kinds = (None, ALL_REDUCE, JobCollective.ALL_GATHER)
    workload = job(*((rank, kind, MIB, -1) for rank in range(4) for kind in kinds))
    hub_core.write(workload, tmp_path / "job", format="chakra-workload")
    rules = ("--collective", "all-reduce=direct", "--collective", "all-gather=ring")
    run = collhub("simulate", tmp_path / "job", "--topology", network, *rules, "--json")
    named = given(workload, "all-reduce=direct", "all-gather=ring", topology=network)
    options = {"topology": network}
    hub_core.write(named, tmp_path / "folder", format="astra-sim", options=options)
    exported = collhub("simulate", tmp_path / "folder", "--json").report()
    assert run.report()["rank_finish_ns"] == exported["rank_finish_ns"]
    native = collhub("simulate", tmp_path / "job", "--topology", network, "--json").report()
    assert native["time_ns"] != exported["time_ns"]
    # The network of a folder need not be named again.
    again = collhub("simulate", tmp_path / "folder", "--collective", "all-gather=direct", "--json")
    assert again.report()["time_ns"] < exported["time_ns"]


def test_a_file_is_an_algorithm(collhub: Collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    hub_core.write(ring_all_reduce(4), tmp_path / "ring.json")
    hub_core.write(job(*((rank, ALL_REDUCE, MIB, -1) for rank in range(4))), tmp_path / "job")
    network = "ring:4?bandwidth=50GiB/s&latency=500ns"
    rule = f"--collective=all-reduce={tmp_path / 'ring.json'}"
    run = collhub("simulate", tmp_path / "job", "--topology", network, rule, "--json")
    one = collhub(
        "simulate", tmp_path / "ring.json", "--topology", network, "--size", "1MiB", "--json"
    )
    assert run.report()["time_ns"] == one.report()["time_ns"]


def test_algorithms_have_no_rules(collhub: Collhub, tmp_path: Path) -> None:
    pytest.importorskip("collhub_astra_sim")
    hub_core.write(ring_all_reduce(4), tmp_path / "ring.json")
    run = collhub("simulate", tmp_path / "ring.json", "--collective", "all-reduce=ring")
    assert run.code == 2
    assert "--collective is for workloads" in run.err
