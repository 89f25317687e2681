"""What the passes keep of a job: who waits for whom, and how many bytes are moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_jobs.check import run as check
from collhub_jobs.passes import (
    drop_markers,
    fuse_collectives,
    scale_compute,
    split_collectives,
)
from collhub_jobs.plugin import BucketOptions, ScaleOptions, SplitOptions
from hypothesis import given
from hypothesis import strategies as st

from hub_core import UsageError
from hub_core.columns import topological_levels
from hub_core.model import JobCollective, NodeColumns, NodeKind, Workload
from hub_core.plugin_api import CheckRequest, NoOptions
from hub_core.testing import training_step

RANKS = 2
Programs = list[tuple[NodeKind, int, list[int]]]


@st.composite
def programs(draw: st.DrawFn) -> Programs:
    """Nodes of one rank: kind, size, and the earlier ones that each waits for."""
    kinds = st.sampled_from([NodeKind.COMPUTE, NodeKind.COLLECTIVE, NodeKind.MARKER])
    rows = draw(st.integers(1, 12))
    return [
        (draw(kinds), draw(st.integers(1, 9)), draw(st.lists(st.integers(0, row - 1), max_size=3, unique=True)) if row else [])
        for row in range(rows)
    ]  # fmt: skip


def job_of(program: Programs) -> Workload:
    """The job of two ranks that both run a program."""
    count = len(program)
    kind = np.array([kind for kind, _, _ in program] * RANKS)
    size = np.array([size for _, size, _ in program] * RANKS)
    is_collective = kind == NodeKind.COLLECTIVE
    edges = [
        (rank * count + parent, rank * count + child)
        for rank in range(RANKS)
        for child, (_, _, parents) in enumerate(program)
        for parent in parents
    ]
    # Every other dependency is one of control.
    data, control = (
        np.array(half, np.int64).reshape(-1, 2).T for half in (edges[::2], edges[1::2])
    )
    columns = {
        "rank": np.repeat(np.arange(RANKS), count),
        "kind": kind,
        "duration_ns": np.where(kind == NodeKind.COMPUTE, size, -1),
        "bytes": np.where(is_collective, size, -1),
        "collective": np.where(is_collective, int(JobCollective.ALL_REDUCE), -1),
    }
    return Workload(
        NodeColumns.from_columns(RANKS, columns, (data[0], data[1]), (control[0], control[1]))
    )


def reach(job: Workload) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of (rank, id) of which the second waits for the first, over any chain."""
    nodes = job.nodes
    parents, children = (
        np.concatenate(side) for side in zip(nodes.data_edges, nodes.control_edges, strict=True)
    )
    reached = np.zeros((len(nodes), len(nodes)), np.bool_)
    reached[parents, children] = True
    for _ in range(len(nodes)):
        reached |= reached @ reached
    name = [(int(rank), int(one)) for rank, one in zip(nodes.rank, nodes.identity, strict=True)]
    return {(name[one], name[two]) for one, two in np.argwhere(reached).tolist()}


def is_correct(job: Workload) -> bool:
    return check(CheckRequest("job", workload=job), NoOptions()).ok


@given(programs())
def test_without_markers_the_others_wait_for_one_another_as_before(program: Programs) -> None:
    job = job_of(program)
    result, _ = drop_markers(job, NoOptions())
    assert not result.nodes.is_kind(NodeKind.MARKER).any()
    left = set(zip(result.nodes.rank.tolist(), result.nodes.identity.tolist(), strict=True))
    assert reach(result) == {pair for pair in reach(job) if set(pair) <= left}


@given(programs(), st.integers(2, 4))
def test_pieces_have_the_bytes_of_the_whole_and_wait_for_the_same(
    program: Programs, pieces: int
) -> None:
    job = job_of(program)
    result, _ = split_collectives(job, SplitOptions(pieces))
    assert is_correct(result)
    sizes = result.nodes.bytes[result.nodes.is_kind(NodeKind.COLLECTIVE)]
    assert sizes.sum() == job.nodes.bytes[job.nodes.is_kind(NodeKind.COLLECTIVE)].sum()
    first = {pair for pair in reach(result) if max(pair[0][1], pair[1][1]) < len(program)}
    assert first == reach(job)


def test_collectives_whose_bytes_times_pieces_exceed_64_bits_are_split() -> None:
    size = 2**61 + 5
    result, _ = split_collectives(job_of([(NodeKind.COLLECTIVE, size, [])]), SplitOptions(8))
    expected = [size * (index + 1) // 8 - size * index // 8 for index in range(8)]
    assert result.nodes.bytes.tolist() == expected * RANKS


def test_pieces_of_a_rank_with_the_highest_id_have_unused_ids() -> None:
    job = job_of([(NodeKind.COLLECTIVE, 4, []), (NodeKind.COLLECTIVE, 4, [0])])
    identity = np.array([0, 2**64 - 1, 0, 1], np.uint64)
    job = replace(job, nodes=replace(job.nodes, identity=identity))
    result, _ = split_collectives(job, SplitOptions(2))
    assert result.nodes.identity.tolist() == [0, 1, 2**64 - 1, 2, 0, 2, 1, 3]


@given(programs(), st.integers(1, 20))
def test_buckets_have_the_bytes_of_all_and_are_not_too_large(program: Programs, size: int) -> None:
    job = job_of(program)
    result, _ = fuse_collectives(job, BucketOptions(size))
    assert is_correct(result)
    before = job.nodes.bytes[job.nodes.is_kind(NodeKind.COLLECTIVE)]
    after = result.nodes.bytes[result.nodes.is_kind(NodeKind.COLLECTIVE)]
    assert before.sum() == after.sum()
    assert set(after[after > size]) <= set(before)
    left = set(zip(result.nodes.rank.tolist(), result.nodes.identity.tolist(), strict=True))
    assert {pair for pair in reach(job) if set(pair) <= left} <= reach(result)


def test_gradients_of_a_step_fall_into_one_bucket() -> None:
    result, report = fuse_collectives(training_step(), BucketOptions(1 << 17))
    assert result.nodes.bytes[result.nodes.is_kind(NodeKind.COLLECTIVE)].tolist() == [1 << 17] * 4
    assert report.changes == ("8 all-reduces are fused into 4",)
    edges = result.nodes.data_edges
    assert topological_levels(len(result.nodes), *edges).is_complete


def test_buckets_that_would_be_too_large_are_not_made() -> None:
    job = training_step()
    result, report = fuse_collectives(job, BucketOptions((1 << 17) - 1))
    assert (result.differences(job), report.changes) == ([], ())


def test_stragglers_compute_longer_and_nobody_else_does() -> None:
    job = training_step()
    result, report = scale_compute(job, ScaleOptions(2.5, "1,3"))
    compute = result.nodes.is_kind(NodeKind.COMPUTE)
    assert result.nodes.duration_ns[compute].tolist() == [2000, 3000, 5000, 7500] * 2
    assert report.changes == ("4 computations take 2.5 times as long",)


def test_operations_and_bytes_scale_with_durations() -> None:
    nodes = replace(
        training_step().nodes,
        operations=np.full(16, 10, np.int64),
    )
    result, _ = scale_compute(Workload(nodes), ScaleOptions(0.5))
    compute = result.nodes.is_kind(NodeKind.COMPUTE)
    assert set(result.nodes.operations[compute]) == {5}
    assert set(result.nodes.operations[~compute]) == {10}


def test_a_rank_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="rank 4 is not there: the job has 4"):
        scale_compute(training_step(), ScaleOptions(2, "4"))
