"""Wrong jobs are named by the node and the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_jobs.check import run

import hub_core
from hub_core.model import NODE_DTYPES, NodeColumns, ProcessGroup, Workload
from hub_core.plugin_api import CheckRequest, NoOptions
from hub_core.testing import pipeline, sample_workloads, training_step


def _changed(workload: Workload, row: int, **values: int) -> Workload:
    """The same job with other values in a row; a row of kind 6 is a marker that does nothing."""
    nodes = workload.nodes
    columns = {name: getattr(nodes, name).copy() for name in NODE_DTYPES}
    for name, value in values.items():
        columns[name][row] = value
    children = np.repeat(np.arange(len(nodes)), np.diff(nodes.data_indptr))
    edges = (nodes.data_indices, children)
    return replace(workload, nodes=NodeColumns.from_columns(nodes.num_ranks, columns, edges))


def _messages(workload: Workload) -> list[str]:
    report = run(CheckRequest(workload=workload), NoOptions())
    assert report.ok is not bool(report.diagnostics)
    return [found.message for found in report.diagnostics]


@pytest.mark.parametrize("name", sample_workloads())
def test_right_jobs_pass(name: str) -> None:
    assert _messages(sample_workloads()[name]) == []


def test_a_message_of_another_size_has_no_partner() -> None:
    first, second = _messages(_changed(pipeline(), 1, bytes=4097))
    assert "node 1 (send): rank 2 receives no such message: 4097 bytes with tag 7" in first
    assert "node 1 (recv): rank 0 sends no such message: 4096 bytes with tag 7" in second


def test_a_peer_that_is_no_rank_is_named() -> None:
    assert "its peer 9 is no other rank" in _messages(_changed(pipeline(), 1, peer=9))[0]


def test_a_collective_of_another_size_is_named_on_both_ranks() -> None:
    (message,) = _messages(_changed(training_step(), 5, bytes=7))
    assert message == (
        "node 1 (all-reduce): collective 1 of the job has 7 bytes,"
        " on rank 0 it is node 1 (all-reduce) of 65536 bytes"
    )


def test_both_files_of_a_difference_are_named(tmp_path: Path) -> None:
    hub_core.write(_changed(training_step(), 5, bytes=7), tmp_path / "job")
    request = CheckRequest(workload=hub_core.read_workload(tmp_path / "job"))
    (found,) = run(request, NoOptions()).diagnostics
    assert found.location.file == "job.1.et"
    assert "on rank 0 (job.0.et) it is node 1" in found.message


def test_a_missing_collective_is_named() -> None:
    (message,) = _messages(_changed(training_step(), 7, kind=6, collective=-1))
    assert "collective 2 of the job is missing on rank 1" in message


def test_a_stranger_in_a_group_is_named() -> None:
    found = _messages(_changed(pipeline(), 2, group=1))
    assert any("rank 0 is no member of process group '2'" in message for message in found)


def test_a_group_of_one_is_named() -> None:
    job = pipeline()
    alone = replace(job, groups=(ProcessGroup("1", (0,)), job.groups[1]))
    nodes = _changed(alone, 5, group=-1, kind=6, collective=-1).nodes
    (message,) = _messages(replace(alone, nodes=nodes))
    assert "process group '1' has one member" in message


def test_a_cycle_is_named() -> None:
    columns = {"rank": [0, 0], "kind": [0, 0], "duration_ns": [1, 1]}
    job = Workload(NodeColumns.from_columns(1, columns, ([0, 1], [1, 0])))
    assert _messages(job) == ["node 0 (compute): it waits for itself, or for nodes that do"]


def test_findings_are_capped() -> None:
    ranks = list(range(40))
    columns = {"rank": ranks, "kind": [2] * 40, "peer": [-1] * 40, "bytes": [1] * 40}
    found = _messages(Workload(NodeColumns.from_columns(40, columns)))
    assert len(found) == 9
    assert found[-1] == "32 more of this kind are not listed"
