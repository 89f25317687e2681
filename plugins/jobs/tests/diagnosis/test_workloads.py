"""`collhub diagnose WORKLOAD`: the verdict on jobs that are not executed yet, by the same engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from collhub_diagnosis.nccl_evidence import combine_evidence
from collhub_diagnosis.read_evidence import Evidence
from collhub_diagnosis.verdict import JobVerdict, diagnose_evidence
from collhub_job_traces import writing
from collhub_jobs import documents
from collhub_pytorch.samples import execution_traces, profiles
from collhub_waits.workloads import record_job

from hub_core.model import JobCollective, NodeColumns, NodeKind, ProcessGroup, Workload
from hub_core.plugin_api import NoOptions
from hub_core.testing import training_step

SUM, GATHER = JobCollective.ALL_REDUCE, JobCollective.ALL_GATHER
Step = tuple[object, ...]


def job(programs: Sequence[Sequence[Step]], groups: Sequence[Sequence[int]] = ()) -> Workload:
    """A job whose ranks execute their programs one step after another.

    Steps: ("compute",), (collective, group, bytes), ("send", peer, bytes[, tag]), ("recv", ...).
    """
    rows: list[dict[str, int]] = []
    edges = []
    for rank, program in enumerate(programs):
        for position, (action, *values) in enumerate(program):
            row = {"rank": rank, "kind": int(NodeKind.COMPUTE), "duration_ns": 1000}
            numbers = [int(str(value)) for value in values]
            if isinstance(action, JobCollective):
                row |= {"kind": int(NodeKind.COLLECTIVE), "collective": int(action)}
                row |= {"group": numbers[0], "bytes": numbers[1], "duration_ns": -1}
            elif action in ("send", "recv"):
                kind = NodeKind.SEND if action == "send" else NodeKind.RECV
                row |= {"kind": int(kind), "peer": numbers[0], "bytes": numbers[1]}
                row |= {"tag": numbers[2] if len(numbers) > 2 else 0, "duration_ns": -1}
            if position:
                edges.append((len(rows) - 1, len(rows)))
            rows.append(row)
    defaults = {"collective": -1, "group": -1, "bytes": -1, "peer": -1, "tag": 0}
    columns = {
        name: np.array([({**defaults, **row})[name] for row in rows], np.int64)
        for name in ("rank", "kind", "duration_ns", *defaults)
    }
    sides = np.array(edges, np.int64).reshape(-1, 2).T
    nodes = NodeColumns.from_columns(len(programs), columns, (sides[0], sides[1]))
    named = tuple(ProcessGroup(f"g{number}", tuple(each)) for number, each in enumerate(groups))
    return Workload(nodes, groups=named)


def verdict(workload: Workload) -> JobVerdict:
    return diagnose_evidence(Evidence(record_job(workload), combine_evidence((), ())))


def summary(workload: Workload) -> tuple[str, list[int], list[int]]:
    result = verdict(workload)
    return result.kind, list(result.culprits), list(result.waiting)


def test_a_correct_job_has_no_fault() -> None:
    assert summary(training_step()) == ("none", [], [])
    pipeline = [[("send", 1, 8)], [("recv", 0, 8), ("send", 2, 8)], [("recv", 1, 8)]]
    assert summary(job(pipeline)) == ("none", [], [])


def test_a_rank_that_lacks_a_collective_is_late() -> None:
    whole = [("compute",), (SUM, -1, 8), (SUM, -1, 16)]
    workload = job([whole, whole, whole[:2], whole])
    assert summary(workload) == ("late", [2], [0, 1, 3])
    result = verdict(workload)
    assert (result.group, result.sequence) == ((0, 1, 2, 3), 2)


def test_the_late_rank_is_followed_through_groups() -> None:
    groups = [(0, 1), (2, 3), (0, 2), (1, 3)]
    programs = [
        [(SUM, 0, 8), (SUM, 2, 8)],
        [(SUM, 0, 8), (SUM, 3, 8)],
        [(SUM, 1, 8), (SUM, 2, 8)],
        [("compute",), (SUM, 3, 8)],
    ]
    # Rank 3 lacks the all-reduce with rank 2, for which rank 0 waits.
    assert summary(job(programs, groups)) == ("late", [3], [0, 2])


def test_opposite_orders_of_two_groups_are_a_deadlock() -> None:
    groups = [(0, 1), (0, 1)]
    programs = [[(SUM, 0, 8), (SUM, 1, 8)], [(SUM, 1, 8), (SUM, 0, 8)]]
    assert summary(job(programs, groups)) == ("order", [0, 1], [])


def test_a_deadlock_of_two_ranks_names_no_third_one() -> None:
    groups = [(0, 1), (0, 1, 2)]
    programs = [
        [(SUM, 0, 8), (SUM, 1, 8)],
        [(SUM, 1, 8), (SUM, 0, 8)],
        [(SUM, 1, 8)],
    ]
    assert summary(job(programs, groups)) == ("order", [0, 1], [2])


def test_a_collective_before_the_message_that_another_rank_awaits() -> None:
    programs = [[(SUM, -1, 8), ("send", 1, 8)], [("recv", 0, 8), (SUM, -1, 8)]]
    assert summary(job(programs)) == ("order", [0, 1], [])


@pytest.mark.parametrize(("call", "kind"), [((GATHER, -1, 8), "type"), ((SUM, -1, 16), "size")])
def test_a_different_call_names_the_minority_and_the_others_wait(call: Step, kind: str) -> None:
    right: list[Step] = [("compute",), (SUM, -1, 8), (SUM, -1, 4)]
    wrong = [right[0], call, right[2]]
    assert summary(job([right, right, wrong, right])) == (kind, [2], [0, 1, 3])


def test_sizes_of_an_all_to_all_may_differ() -> None:
    exchange = JobCollective.ALL_TO_ALL
    assert summary(job([[(exchange, -1, 8)], [(exchange, -1, 16)]])) == ("none", [], [])


def test_a_receive_without_its_send_waits_for_the_sender() -> None:
    programs = [[("compute",)], [("recv", 0, 8), ("send", 2, 8)], [("recv", 1, 8)]]
    assert summary(job(programs)) == ("late", [0], [1, 2])


def test_a_send_without_its_receive_waits_for_the_receiver() -> None:
    assert summary(job([[("send", 1, 8)], [("compute",)]])) == ("late", [1], [0])


def test_a_message_of_another_size_names_both_ends() -> None:
    programs = [[("send", 1, 8)], [("recv", 0, 16)], [("compute",)]]
    assert summary(job(programs)) == ("size", [0, 1], [])


def test_messages_of_different_tags_do_not_match() -> None:
    programs = [[("send", 1, 8, 1), ("send", 1, 8, 2)], [("recv", 0, 8, 2), ("recv", 0, 8, 1)]]
    assert summary(job(programs)) == ("none", [], [])


def test_a_cycle_within_a_rank_makes_the_rank_late() -> None:
    workload = job([[("compute",), (SUM, -1, 8)], [(SUM, -1, 8)]])
    nodes = workload.nodes
    columns = {name: getattr(nodes, name) for name in ("rank", "kind", "bytes", "collective")}
    looped = NodeColumns.from_columns(2, columns, ([0, 1], [1, 0]))
    assert summary(Workload(looped)) == ("late", [0], [1])


def test_the_finding_names_the_node() -> None:
    result = verdict(job([[(SUM, -1, 8)], [("compute",)]]))
    assert result.findings[0].operation == "all_reduce"
    assert result.findings[0].frames == ("node (:0)",)


@pytest.mark.parametrize("kind", ["chakra", "document"])
def test_files_of_a_workload_are_diagnosed(collhub, tmp_path: Path, kind: str) -> None:
    workload = job([[(SUM, 0, 8), (SUM, 1, 8)], [(SUM, 1, 8), (SUM, 0, 8)]], [(0, 1), (0, 1)])
    name = "job.json" if kind == "document" else "job"
    write = documents.write if kind == "document" else writing.write
    for artifact in write(workload, NoOptions()).artifacts:
        (tmp_path / f"{name}{artifact.name}").write_bytes(artifact.content())
    run = collhub("diagnose", tmp_path / name, "--json")
    assert run.code == 1, run.err
    report = run.report()
    assert (report["kind"], report["culprits"], report["dumps"]) == ("order", [0, 1], 2)
    picture = collhub("diagnose", tmp_path / name, "--picture", tmp_path / "waits.svg")
    assert picture.code in (1, 3)


@pytest.mark.parametrize("source", ["profile", "execution trace"])
def test_profiles_and_execution_traces_are_diagnosed(collhub, tmp_path: Path, source: str) -> None:
    parts = (profiles() if source == "profile" else execution_traces())[0].parts
    files = []
    for part in parts:
        files.append(tmp_path / part.name)
        files[-1].write_bytes(part.load())
    assert collhub("diagnose", *files, "--json").report()["kind"] == "none"
    # Rank 1 calls another size.
    text = files[1].read_text().replace("1000", "999")
    files[1].write_text(text)
    report = collhub("diagnose", *files, "--json").report()
    assert (report["kind"], report["culprits"]) == ("size", [0, 1])


def test_a_file_of_no_known_format_is_refused_as_a_dump(collhub, tmp_path: Path) -> None:
    (tmp_path / "rank_0.json").write_text(json.dumps({"some": 1}))
    run = collhub("diagnose", tmp_path / "rank_0.json")
    assert "this is not a Flight Recorder dump" in run.err


def test_collectives_of_unknown_kind_are_matched_as_one_kind() -> None:
    columns = {"rank": [0, 1], "kind": [int(NodeKind.COLLECTIVE)] * 2, "bytes": [64, 64]}
    nodes = NodeColumns.from_columns(2, {**columns, "collective": [-1, -1]})
    assert summary(Workload(nodes)) == ("none", [], [])
