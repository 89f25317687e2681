"""Profiles that today's torch records of DistributedDataParallel, on two ranks of gloo."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from collhub_pytorch import read_profiles
from collhub_pytorch.execution_trace import workload_of as read_traces
from collhub_pytorch.formats import ProfileOptions, RankOptions
from collhub_pytorch.profiling import profile
from collhub_pytorch.replay import measured, replay_job
from collhub_pytorch.trace_files import list_files

from hub_core.model import NodeKind, Provenance, Workload

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: python -m pip install torch",
)
EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "profile_training.py"
# The gradients of two layers of 64 x 64 weights and 64 biases, a loss, and a learning rate.
STEP = [("all_reduce", 2 * (64 * 64 + 64) * 4, -1), ("all_gather", 4, -1), ("broadcast", 4, 0)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("live")
    command = [sys.executable, str(EXAMPLE), str(place)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return place


def collectives(workload: Workload, rank: int) -> list[tuple[str, int, int]]:
    nodes = workload.nodes
    return [
        (workload.names[nodes.name[row]], int(nodes.bytes[row]), int(nodes.root[row]))
        for row in range(len(nodes))
        if nodes.rank[row] == rank and nodes.kind[row] == NodeKind.COLLECTIVE
    ]


@needs_torch
def test_a_rank_writes_a_profile_and_an_execution_trace(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "training.0.et.json", "training.0.pt.trace.json.gz",
        "training.1.et.json", "training.1.pt.trace.json.gz",
    ]  # fmt: skip


@needs_torch
def test_a_profile_that_cannot_be_written_leaves_no_execution_trace(tmp_path: Path) -> None:
    """Readers take the files of a folder as those of a job: one of two would be a damaged job."""
    (tmp_path / "job.0.pt.trace.json.gz").mkdir()
    with pytest.raises(OSError, match="Is a directory"), profile(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["job.0.pt.trace.json.gz"]


@needs_torch
def test_profiles_without_a_device_are_replayed(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.glob("*.pt.trace.json.gz"))]
    # Both ranks ran on this machine; how far apart they end depends on what else it does.
    options = ProfileOptions(clocks="stated")
    workload = read_profiles(paths, options)
    for rank in range(2):
        assert collectives(workload, rank) == 3 * STEP
    profile = measured(workload)
    assert replay_job(workload).span_ns == pytest.approx(profile.span_ns, rel=0.01)
    assert min(profile.span_ns) > 0


@needs_torch
def test_execution_traces_of_the_same_run_agree(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.glob("*.et.json"))]
    workload = read_traces(list_files(paths), RankOptions(), Provenance("test"))
    found = [name for name, _, _ in collectives(workload, 1)]
    assert found == 3 * [name for name, _, _ in STEP]


@needs_torch
def test_the_host_waits_for_gradients_that_backward_issues(folder: Path) -> None:
    paths = [str(path) for path in sorted(folder.glob("*.pt.trace.json.gz"))]
    workload = read_profiles(paths, ProfileOptions(clocks="stated"))
    without = replay_job(workload, lambda kind, size, ranks: 0)
    # Each step of this example ends with collectives that the host waits for.
    assert without.job_ns < measured(workload).job_ns
