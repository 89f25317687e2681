"""Traces of real jobs: the truths that were computed from the files by other means.

They stand in section 3 of the specification that comes with the files, which are of
facebookresearch/param and facebookresearch/HolisticTraceAnalysis.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from collhub_pytorch import read_profiles
from collhub_pytorch.analysis import (
    match_communications,
    measure_rank_times,
    measure_waiting,
    measured_timeline,
)
from collhub_pytorch.execution_trace import workload_of as read_traces
from collhub_pytorch.findings import IdleTime, collect_findings
from collhub_pytorch.formats import ProfileOptions, RankOptions
from collhub_pytorch.replay import measured, replay_job
from collhub_pytorch.trace_files import list_files

from hub_core.model import JobCollective, NodeKind, Provenance, Workload

A2A, AR, BC = JobCollective.ALL_TO_ALL, JobCollective.ALL_REDUCE, JobCollective.BROADCAST
DLRM = [
    (A2A, 6144 * 4), (A2A, 24 * 8), (A2A, 384 * 4), (A2A, 3392 * 4), (AR, 394241 * 4),
    (A2A, 6144 * 4), (AR, 112 * 4), (AR, 226960 * 4),
]  # fmt: skip
DLRM_SPANS_US = [13009, 18749, 11350, 18853, 16589, 16392, 11410, 10967]
RESNET_STEP = [
    (BC, 53120 * 4), (BC, 53 * 8), (AR, 2049000 * 4), (AR, 7875584 * 4), (AR, 6563840 * 4),
    (AR, 6637568 * 4), (AR, 2431040 * 4),
]  # fmt: skip
# Of HolisticTraceAnalysis 0.5.0 on the same files: get_comm_comp_overlap, get_temporal_breakdown.
HTA_OVERLAP_PERCENT = [4.50, 2.47, 7.88, 3.31, 0.56, 0.64, 7.56, 9.51]
HTA_IDLE_US = [6419, 6428, 7046, 8145, 8887, 9121, 7051, 8308]
HTA_COMPUTE_US = [1034, 1246, 1068, 1240, 1126, 1041, 1051, 1059]
README = Path(__file__).resolve().parents[2] / "docs" / "pytorch.md"


def names(folder: Path) -> list[str]:
    if not folder.is_dir():
        pytest.skip("the corpus has no PyTorch traces")
    return [str(path) for path in sorted(folder.glob("*.gz"))]


def exchange_us(path: str) -> int:
    """The time of the kernels of all-to-alls in a file."""
    events = json.loads(gzip.decompress(Path(path).read_bytes()))["traceEvents"]
    return sum(one["dur"] for one in events if "SendRecv" in one.get("name", ""))


def read_kineto(paths: Sequence[str], **options: object) -> Workload:
    return read_profiles(paths, ProfileOptions(**options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def dlrm(corpus: Path) -> Workload:
    return read_kineto(names(corpus / "pytorch" / "dlrm-kineto-8"))


@pytest.fixture(scope="module")
def resnet(corpus: Path) -> Workload:
    files = names(corpus / "pytorch" / "resnet-2")
    return read_kineto([one for one in files if ".pt." in one], ranks_missing="assume-same")


def collectives(workload: Workload, rank: int) -> list[tuple[int, int]]:
    nodes = workload.nodes
    own = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.rank == rank))
    return list(zip(nodes.collective[own].tolist(), nodes.bytes[own].tolist(), strict=True))


def other_device_work(workload: Workload, rank: int) -> np.ndarray:
    nodes = workload.nodes
    is_work = nodes.is_kind(NodeKind.COMPUTE) & ~nodes.on_host & (nodes.rank == rank)
    return nodes.duration_ns[is_work]


@pytest.mark.parametrize("rank", range(8))
def test_collectives_of_the_recommendation_job(dlrm: Workload, rank: int) -> None:
    assert collectives(dlrm, rank) == DLRM


def test_device_work_of_the_recommendation_job(dlrm: Workload) -> None:
    work = [other_device_work(dlrm, rank) for rank in range(8)]
    assert [len(one) for one in work] == [253, 318, 254, 329, 265, 253, 254, 254]
    sums_us = [int(one.sum()) // 1000 for one in work]
    assert sums_us == [1053, 1265, 1087, 1268, 1152, 1060, 1070, 1079]


def test_durations_and_dependencies_give_the_spans_back(dlrm: Workload) -> None:
    assert [one // 1000 for one in measured(dlrm).span_ns] == DLRM_SPANS_US


def test_the_first_all_to_all_is_nearly_all_waiting(dlrm: Workload) -> None:
    meetings = match_communications(dlrm)
    times = measure_waiting(measured_timeline(dlrm), meetings)
    rows = meetings.members(0)
    kernels_us = (dlrm.nodes.duration_ns[rows] // 1000).tolist()
    assert kernels_us == [2146, 7635, 518, 6132, 4882, 4679, 514, 10]
    assert times.transferring[rows].sum() < 100_000 < 26_000_000 < times.waiting[rows].sum()


def test_the_replay_with_measured_times_reproduces_every_span(
    dlrm: Workload, resnet: Workload
) -> None:
    spans_us = [one / 1000 for one in replay_job(dlrm).span_ns]
    assert spans_us == pytest.approx(DLRM_SPANS_US, rel=0.01)
    assert replay_job(resnet).span_ns == pytest.approx(measured(resnet).span_ns, rel=0.01)


def test_overlap_computation_and_idle_time_are_those_of_hta(dlrm: Workload) -> None:
    times = measure_rank_times(dlrm, measured_timeline(dlrm))
    assert [round(one.overlap_percent or 0, 2) for one in times] == HTA_OVERLAP_PERCENT
    assert [(one.idle_ns or 0) // 1000 for one in times] == HTA_IDLE_US
    assert [one.computation_ns // 1000 for one in times] == HTA_COMPUTE_US


def test_the_breakdown_of_idle_time_is_that_of_hta(corpus: Path) -> None:
    # get_idle_time_breakdown compares its threshold of 30 with microseconds in these files.
    files = names(corpus / "pytorch" / "dlrm-kineto-8")
    (one, *_) = collect_findings(read_kineto(files, kernel_delay_factor=1000.0)).ranks
    assert one.idle == IdleTime(22_239_000, 144_000, 0)


def test_longer_collectives_lengthen_the_job(dlrm: Workload) -> None:
    slow = replay_job(dlrm, lambda kind, size, ranks: 50_000_000)
    # They follow one another on one stream.
    assert 8 * 50_000_000 < slow.job_ns < 8 * 50_000_000 + measured(dlrm).job_ns


def test_collectives_of_the_vision_job(resnet: Workload) -> None:
    found = collectives(resnet, 0)
    assert Counter(kind for kind, _ in found) == {AR: 15, BC: 6}
    assert sorted(found) == sorted(3 * RESNET_STEP)
    assert resnet.groups[0].name == "0"
    assert resnet.groups[0].ranks == (0, 1)
    # Kernels, copies and fills.
    assert len(other_device_work(resnet, 0)) == 2679 + 960 + 114


def test_one_step_of_the_vision_job(corpus: Path) -> None:
    files = [one for one in names(corpus / "pytorch" / "resnet-2") if ".pt." in one]
    step = read_kineto(files, ranks_missing="assume-same", step=5)
    assert sorted(collectives(step, 0)) == sorted(RESNET_STEP)


def test_execution_traces_of_the_recommendation_job(corpus: Path) -> None:
    files = names(corpus / "pytorch" / "dlrm-et-8")
    workload = read_traces(list_files(files), RankOptions(), Provenance("test"))
    assert [collectives(workload, rank) for rank in range(8)] == [DLRM] * 8
    said = workload.extensions["pytorch"]
    assert isinstance(said, dict)
    assert (said["operators"], said["waits"]) == ([1675] * 8, [5] * 8)


def test_execution_trace_of_the_vision_job(corpus: Path) -> None:
    files = [one for one in names(corpus / "pytorch" / "resnet-2") if ".et." in one]
    options = RankOptions(ranks_missing="assume-same")
    workload = read_traces(list_files(files), options, Provenance("test"))
    assert sorted(collectives(workload, 1)) == sorted(3 * RESNET_STEP)
    said = workload.extensions["pytorch"]
    assert isinstance(said, dict)
    assert said["operators"] == [14392]
    assert said["assumed_ranks"] == [0]


def test_the_readme_shows_the_report_of_the_recommendation_job(collhub, corpus: Path) -> None:
    files = names(corpus / "pytorch" / "dlrm-kineto-8")
    network = "switch:8?bandwidth=25GB/s"
    run = collhub("profile", *files, "--topology", network)
    assert run.code == 0
    assert run.out in README.read_text()


def test_the_report_of_the_recommendation_job_is_a_document(collhub, corpus: Path) -> None:
    files = names(corpus / "pytorch" / "dlrm-kineto-8")
    report = collhub("profile", *files, "--json").report()
    (exchange,) = [one for one in report["kinds"] if one["kind"] == "all-to-all"]
    total = exchange["waiting_ns"] + exchange["transferring_ns"]
    assert total == 1000 * sum(exchange_us(name) for name in files)
    assert 0.99 < exchange["waiting_ns"] / total < 1
