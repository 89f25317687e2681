"""Output of NCCL's RAS and Inspector as evidence, alone and together with dumps."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from collhub_diagnosis.read_evidence import read_evidence
from collhub_diagnosis.verdict import JobVerdict, diagnose_evidence
from simulated_job import STOP, Call, SimulatedJob

pytestmark = pytest.mark.once

COUNTS = {"Broadcast": 1, "Reduce": 0, "AllGather": 5, "ReduceScatter": 5}
STATUS = {"init_state": 0, "async_error": 0, "abort_flag": False}


def rank_entry(rank: int, process: int, **fields: Any) -> dict[str, Any]:
    return {"rank": rank, "host": "10.0.0.1", "pid": 10 + process, "cuda_dev": process} | fields


def communicator(
    name: str, counts: Mapping[int, int], processes: Sequence[int] = (), missing: Sequence[int] = ()
) -> dict[str, Any]:
    """A communicator whose ranks issued some all-reduces; `processes`: by rank, else the rank."""
    process = dict(enumerate(processes or range(len(counts) + len(missing))))
    return {
        "hash": name,
        "size": len(counts) + len(missing),
        "ranks": [
            rank_entry(
                rank, process[rank], status=STATUS, collective_counts=COUNTS | {"AllReduce": n}
            )
            for rank, n in counts.items()
        ],
        "missing_ranks": [
            rank_entry(rank, process[rank], status={"unresponsive": True}) for rank in missing
        ],
    }


def write_queries(folder: Path, *reports: Sequence[dict[str, Any]]) -> list[str]:
    """Write one file per query of RAS, and return their paths."""
    files = [folder / f"query{number}.json" for number in range(len(reports))]
    for file, report in zip(files, reports, strict=True):
        file.write_text(json.dumps({"nccl_version": "2.29.1", "communicators": report}))
    return [str(file) for file in files]


def diagnose(folder: Path, *reports: Sequence[dict[str, Any]]) -> JobVerdict:
    """Diagnose queries of RAS, together with the dumps in the folder if there are any."""
    paths = [str(folder / "dumps")] if (folder / "dumps").is_dir() else []
    return diagnose_evidence(read_evidence([*paths, *write_queries(folder, *reports)]))


def hanging_job(folder: Path, stopped: int, without: Sequence[int] = ()) -> None:
    """Write the dumps of a job of four ranks of which one issues no all-reduce."""
    (folder / "dumps").mkdir()
    programs = [[STOP] if rank == stopped else [Call("all_reduce")] for rank in range(4)]
    groups = {"0": ("default_pg", (0, 1, 2, 3))}
    SimulatedJob(groups, programs).write(folder / "dumps", without=without)


def test_the_sample_of_the_corpus_names_the_process_that_does_not_respond(
    collhub, corpus: Path
) -> None:
    file = corpus / "evidence" / "nccl" / "ras_missing.json"
    if not file.is_file():
        pytest.skip("the corpus has no output of RAS")
    run = collhub("diagnose", file, "--json")
    report = run.report()
    assert (run.code, report["kind"], report["culprits"]) == (1, "late", [2])
    assert "rank 2: the process 12 on 10.0.0.1 does not respond" in report["findings"][0]["text"]
    # One collective less in one query is no fault.
    assert any("rank 3 by 1" in note for note in report["notes"])


def test_ras_decides_what_a_missing_dump_leaves_open(tmp_path: Path) -> None:
    hanging_job(tmp_path, stopped=2, without=[2])
    assert diagnose(tmp_path).kind == "undecided"
    verdict = diagnose(tmp_path, [communicator("0xa", {0: 1, 1: 1, 3: 1}, missing=[2])])
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("late", (2,), (0, 1, 3))


def test_a_dead_peer_is_the_culprit_of_a_collective_that_all_ranks_are_in(tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    groups = {"0": ("default_pg", (0, 1, 2, 3))}
    programs = [[Call("all_reduce")]] * 4
    job = SimulatedJob(groups, programs, broken_network=frozenset([("0", 1)]))
    job.write(tmp_path / "dumps")
    assert diagnose(tmp_path).culprits == ()
    verdict = diagnose(tmp_path, [communicator("0xa", {0: 1, 1: 1, 2: 1}, missing=[3])])
    assert verdict.culprits == (3,)
    assert verdict.waiting == (0, 1, 2)


def test_a_missing_process_that_ras_does_not_know_is_the_rank_of_the_largest_communicator(
    tmp_path: Path,
) -> None:
    hanging_job(tmp_path, stopped=2, without=[2])
    world = communicator("0xa", {0: 1, 1: 1}, missing=[2, 3])
    pair = communicator("0xb", {0: 1}, processes=[1, 2], missing=[1])
    for entry in (*world["missing_ranks"], *pair["missing_ranks"]):
        # NCCL writes this if it has no information about the process.
        entry |= {"host": "unknown", "pid": -1, "cuda_dev": 0}
        entry["status"] = {"unresponsive": True, "considered_dead": True}
    evidence = read_evidence(write_queries(tmp_path, [world, pair]))
    reason = "its process, which RAS does not know, is considered dead"
    assert evidence.nccl.unresponsive == {2: reason, 3: reason}


def test_the_json_of_nccl_2_28_without_a_comma_is_read(tmp_path: Path) -> None:
    hanging_job(tmp_path, stopped=2, without=[2])
    world = communicator("0xa", {0: 1, 1: 1, 3: 1}, missing=[2])
    del world["missing_ranks"][0]["status"]
    world["missing_ranks"][0] |= {"nvml_dev": 2, "status": {"unresponsive": True}}
    (path,) = write_queries(tmp_path, [world])
    text = json.dumps(json.loads(Path(path).read_text()), indent=2)
    assert '"nvml_dev": 2,\n' in text
    Path(path).write_text(text.replace('"nvml_dev": 2,\n', '"nvml_dev": 2\n'))
    verdict = diagnose_evidence(read_evidence([str(tmp_path / "dumps"), path]))
    assert (verdict.kind, verdict.culprits) == ("late", (2,))


@pytest.mark.parametrize(
    "head", ["OK\nOK\n", "RCCL version 2.28.7 compiled with ROCm 7.1\n\nJob summary\n\n"]
)
def test_lines_of_the_socket_before_the_json_of_ras_are_ignored(collhub, tmp_path: Path, head: str):
    (path,) = write_queries(tmp_path, [communicator("0xa", {0: 5, 1: 4, 2: 5})])
    Path(path).write_text(head + Path(path).read_text())
    run = collhub("diagnose", path)
    assert run.code == 0
    assert "rank 1 by 1" in run.err


def test_the_text_of_ras_is_refused_with_the_command_for_its_json(collhub, tmp_path: Path) -> None:
    file = tmp_path / "ras.txt"
    file.write_text("NCCL version 2.26.2 compiled with CUDA 12.6\n\nJob summary\n===========\n")
    (line,) = collhub("diagnose", file).error_lines
    assert "this is the text of NCCL's RAS" in line
    assert "ncclras -v -f json" in line


def test_unequal_counts_in_one_query_are_no_fault(tmp_path: Path) -> None:
    verdict = diagnose(tmp_path, [communicator("0xa", {0: 5, 1: 4, 2: 5})])
    assert (verdict.kind, verdict.has_fault) == ("undecided", False)
    assert "rank 1 by 1" in verdict.notes[0]


def test_equal_unequal_counts_in_two_queries_name_the_rank_behind(tmp_path: Path) -> None:
    report = [communicator("0xa", {0: 5, 1: 4, 2: 5})]
    verdict = diagnose(tmp_path, report, report)
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("late", (1,), (0, 2))
    moved = [communicator("0xa", {0: 6, 1: 5, 2: 6})]
    assert diagnose(tmp_path, report, moved).kind == "undecided"


def test_a_rank_that_waits_in_another_communicator_is_no_culprit(tmp_path: Path) -> None:
    # Ranks 0 and 1 wait for rank 2, which waits for rank 3.
    world = communicator("0xa", {0: 5, 1: 5, 2: 4, 3: 4})
    pair = communicator("0xb", {0: 2, 1: 1}, processes=[2, 3])
    verdict = diagnose(tmp_path, [world, pair], [world, pair])
    assert (verdict.kind, verdict.culprits, verdict.waiting) == ("late", (3,), (0, 1, 2))


def test_the_inspector_gives_the_last_completed_collectives(collhub, corpus: Path) -> None:
    folder = corpus / "evidence" / "nccl"
    if not folder.is_dir():
        pytest.skip("the corpus has no output of the Inspector")
    run = collhub("diagnose", folder / "inspector_ok.log")
    assert run.code == 0
    assert "all 2 recorded ranks completed collective 2" in run.err
    run = collhub("diagnose", folder / "inspector_cut.log")
    assert "inspector_cut.log:2: the line is not a JSON object; it may be truncated" in run.err


def test_inspector_files_in_a_folder_are_read_with_its_dumps(tmp_path: Path) -> None:
    hanging_job(tmp_path, stopped=2)
    lines = [
        {
            "header": {"id": "0x7", "rank": rank, "n_ranks": 4, "nnodes": 1},
            "metadata": {"hostname": "h", "pid": rank},
            "coll_perf": {"coll": "AllReduce", "coll_sn": 7 - (rank == 2)},
        }
        for rank in range(4)
    ]
    text = "\n".join(map(json.dumps, lines))
    (tmp_path / "dumps" / "host-pid9.log").write_text(text)
    verdict = diagnose(tmp_path)
    assert (verdict.kind, verdict.culprits) == ("late", (2,))
    assert "the last recorded collective is 6 on ranks 2, else up to 7" in verdict.notes[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"communicators": [3]}, "communicators: it is not a list of objects"),
        ({"communicators": [{"hash": 1}]}, r"communicators\[0\].hash: it is not a text"),
        ({"communicators": [{"hash": "a", "size": -1}]}, "size: -1 is not an integer"),
        (
            {"communicators": [{"hash": "a", "size": 2**62}]},
            r"is not an integer from 0 to 2\^62 - 1",
        ),
        (
            {"communicators": [{"hash": "a", "ranks": [{"rank": "0"}]}]},
            r"communicators\[0\].ranks\[0\].rank: '0' is not an integer",
        ),
        (
            {"communicators": [{"hash": "a", "ranks": [rank_entry(0, 0), rank_entry(0, 1)]}]},
            "rank 0 appears twice",
        ),
    ],
)
def test_wrong_fields_of_ras_are_refused_with_their_place(
    collhub, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "ras.json"
    file.write_text(json.dumps({"nccl_version": "2.29"} | change))
    run = collhub("diagnose", file)
    assert run.code == 1
    (line,) = run.error_lines
    assert "ras.json: " in line
    assert message.replace("\\", "") in line


@pytest.mark.once
def test_mutated_output_of_ras_is_read_or_refused(collhub, tmp_path: Path) -> None:
    content = json.dumps({"communicators": [communicator("0xa", {0: 5, 1: 4}, missing=[2])]})
    generator = random.Random(5)
    file = tmp_path / "ras.json"
    for _ in range(200):
        changed = bytearray(content.encode())
        for _ in range(generator.randrange(1, 4)):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
        file.write_bytes(changed)
        run = collhub("diagnose", file, "--json")
        assert run.code in (0, 1)
        assert run.out or len(run.error_lines) == 1
