"""Wrong jobs are named by the node and the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from collhub_jobs.check import run

import hub_core
from hub_core.model import NODE_DTYPES, NodeColumns, NodeKind, ProcessGroup, Workload
from hub_core.pipeline.checks import find_workload_defects
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


def _find_unmatched_messages(workload: Workload) -> list[str]:
    report = run(CheckRequest(workload=workload), NoOptions())
    assert report.ok is not bool(report.diagnostics)
    return [found.message for found in report.diagnostics]


@pytest.mark.parametrize("name", sample_workloads())
def test_right_jobs_pass(name: str) -> None:
    assert _find_unmatched_messages(sample_workloads()[name]) == []


def test_findings_name_the_file_that_is_checked() -> None:
    workload = _changed(pipeline(), 1, peer=9)
    for finding in find_workload_defects(workload, "job.json", hub_core.discover()):
        assert finding.location.file == "job.json"
        assert str(finding).startswith("job.json: rank ")


def test_a_message_of_another_size_has_no_partner() -> None:
    first, second = _find_unmatched_messages(_changed(pipeline(), 1, bytes=4097))
    assert "node 1 (send): rank 2 receives no such message: 4097 bytes with tag 7" in first
    assert "node 1 (recv): rank 0 sends no such message: 4096 bytes with tag 7" in second


def test_a_peer_that_is_no_rank_is_named() -> None:
    assert (
        "its peer 9 is no other rank"
        in _find_unmatched_messages(_changed(pipeline(), 1, peer=9))[0]
    )


def test_a_collective_of_another_size_is_named_on_both_ranks() -> None:
    (message,) = _find_unmatched_messages(_changed(training_step(), 5, bytes=7))
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


def test_every_finding_names_the_file_of_its_rank(tmp_path: Path) -> None:
    hub_core.write(_changed(pipeline(), 1, bytes=4097), tmp_path / "job")
    request = CheckRequest(workload=hub_core.read_workload(tmp_path / "job"))
    first, second = run(request, NoOptions()).diagnostics
    assert (first.location.file, first.location.rank) == ("job.0.et", 0)
    assert (second.location.file, second.location.rank) == ("job.2.et", 2)


def test_a_missing_collective_is_named() -> None:
    (message,) = _find_unmatched_messages(_changed(training_step(), 7, kind=6, collective=-1))
    assert "collective 2 of the job is missing on rank 1" in message


def test_a_stranger_in_a_group_is_named() -> None:
    found = _find_unmatched_messages(_changed(pipeline(), 2, group=1))
    assert any("rank 0 is no member of process group '2'" in message for message in found)


def test_a_group_of_one_is_named() -> None:
    job = pipeline()
    alone = replace(job, groups=(ProcessGroup("1", (0,)), job.groups[1]))
    nodes = _changed(alone, 5, group=-1, kind=6, collective=-1).nodes
    (message,) = _find_unmatched_messages(replace(alone, nodes=nodes))
    assert "process group '1' has one member" in message


def test_a_cycle_is_named() -> None:
    columns = {"rank": [0, 0], "kind": [0, 0], "duration_ns": [1, 1]}
    job = Workload(NodeColumns.from_columns(1, columns, ([0, 1], [1, 0])))
    assert _find_unmatched_messages(job) == [
        "node 0 (compute): it waits for itself, or for nodes that do"
    ]


def test_findings_are_capped() -> None:
    ranks = list(range(40))
    columns = {"rank": ranks, "kind": [2] * 40, "peer": [-1] * 40, "bytes": [1] * 40}
    found = _find_unmatched_messages(Workload(NodeColumns.from_columns(40, columns)))
    assert len(found) == 9
    assert found[-1] == "32 more of this kind are not listed"


def _rows(workload: Workload) -> CheckRequest:
    return CheckRequest(workload=workload, is_thorough=True)


def _chains(*ranks: list[dict[str, int]], groups: tuple[ProcessGroup, ...] = ()) -> Workload:
    """A job in which every node waits for the one before it on its rank."""
    rows = [{"rank": rank, **row} for rank, own in enumerate(ranks) for row in own]
    names = {name for row in rows for name in row}
    defaults = {"tag": 0, "on_host": 0}
    columns = {name: [row.get(name, defaults.get(name, -1)) for row in rows] for name in names}
    edges = [
        (at, at + 1) for at in range(len(rows) - 1) if rows[at]["rank"] == rows[at + 1]["rank"]
    ]
    data = np.array(edges, np.int64).reshape(-1, 2).T
    nodes = NodeColumns.from_columns(len(ranks), columns, (data[0], data[1]))
    return Workload(nodes, groups=groups)


PAIRS = (ProcessGroup("1", (0, 1)), ProcessGroup("2", (0, 1)), ProcessGroup("3", (1, 2)))


def _all_reduce(group: int) -> dict[str, int]:
    return {"kind": int(NodeKind.COLLECTIVE), "collective": 0, "bytes": 64, "group": group}


def _message(kind: NodeKind, peer: int, tag: int = 0) -> dict[str, int]:
    return {"kind": int(kind), "peer": peer, "bytes": 64, "tag": tag, "group": -1}


def test_groups_in_opposite_orders_are_a_deadlock() -> None:
    one, two = _all_reduce(0), _all_reduce(1)
    report = run(_rows(_chains([one, two], [two, one], [], groups=PAIRS)), NoOptions())
    (found,) = report.diagnostics
    assert found.code == "deadlock"
    assert "rank 0: node 0 (all-reduce) before node 1 (all-reduce)" in found.message
    assert "rank 1: node 0 (all-reduce) before node 1 (all-reduce)" in found.message
    assert run(_rows(_chains([one, two], [one, two], [], groups=PAIRS)), NoOptions()).ok


def test_a_cycle_through_three_ranks_and_a_message_is_a_deadlock() -> None:
    # Rank 0 waits for rank 2 before group 1, rank 1 for group 1 before group 3.
    ranks = (
        [_message(NodeKind.RECV, 2), _all_reduce(0)],
        [_all_reduce(0), _all_reduce(2)],
        [_all_reduce(2), _message(NodeKind.SEND, 0)],
    )
    report = run(_rows(_chains(*ranks, groups=PAIRS)), NoOptions())
    assert [found.code for found in report.diagnostics] == ["deadlock"]
    ranks[2].reverse()
    assert run(_rows(_chains(*ranks, groups=PAIRS)), NoOptions()).ok


def test_messages_of_equal_keys_are_not_judged() -> None:
    # Which of the two receives gets which message is the simulator's decision.
    send, receive = _message(NodeKind.SEND, 1), _message(NodeKind.RECV, 0)
    back, home = _message(NodeKind.RECV, 1, 5), _message(NodeKind.SEND, 0, 5)
    report = run(_rows(_chains([send, back, send], [receive, home, receive])), NoOptions())
    assert report.ok


@pytest.mark.parametrize("name", sample_workloads())
def test_right_jobs_have_no_deadlock(name: str) -> None:
    assert run(_rows(sample_workloads()[name]), NoOptions()).ok


def test_a_later_collective_that_is_ready_hides_no_deadlock() -> None:
    # Rank 1 can call the second collective of a group before the first one, which waits.
    chains = _chains(
        [_all_reduce(0), _all_reduce(0), _all_reduce(1)],
        [_all_reduce(1), _all_reduce(0), _all_reduce(0)],
        [],
        groups=PAIRS,
    )
    columns = {name: getattr(chains.nodes, name) for name in ("rank", "kind", "collective")}
    columns |= {name: getattr(chains.nodes, name) for name in ("bytes", "group", "tag", "on_host")}
    edges = np.array([0, 2, 3]), np.array([2, 1, 4])
    nodes = NodeColumns.from_columns(3, columns, edges)
    report = run(_rows(Workload(nodes, groups=PAIRS)), NoOptions())
    (finding,) = report.diagnostics
    assert "rank 0: node 0 (all-reduce) before node 2 (all-reduce)" in finding.message
    assert "rank 1: node 0 (all-reduce) before node 1 (all-reduce)" in finding.message
