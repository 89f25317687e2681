"""Flat jobs run as their messages: what arrives is what was sent, in an order that the job allows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_local import job_messages
from collhub_local.job_messages import algorithm_of_job
from hypothesis import given
from hypothesis import strategies as st

import hub_core
from hub_core import UsageError, Workload
from hub_core.model import NodeColumns, NodeKind, StepKind
from hub_core.testing import pipeline

KINDS = {"compute": NodeKind.COMPUTE, "send": NodeKind.SEND, "receive": NodeKind.RECV}


def job(ranks: int, nodes: list[tuple[int, str, int, int]]) -> Workload:
    """Nodes (rank, what, peer, bytes), each rank's in a chain."""
    columns = {
        "rank": [rank for rank, *_ in nodes],
        "kind": [KINDS[what] for _, what, *_ in nodes],
        "peer": [peer for *_, peer, _ in nodes],
        "bytes": [size for *_, size in nodes],
        "duration_ns": [5 if what == "compute" else -1 for _, what, *_ in nodes],
    }
    last: dict[int, int] = {}
    edges = []
    for row, (rank, *_) in enumerate(nodes):
        if rank in last:
            edges.append((last[rank], row))
        last[rank] = row
    parents, children = zip(*edges, strict=True) if edges else ((), ())
    return Workload(NodeColumns.from_columns(ranks, columns, (list(parents), list(children))))


@st.composite
def jobs(draw: st.DrawFn) -> Workload:
    """Messages one after the other, with work between them."""
    ranks = draw(st.integers(2, 4))
    nodes: list[tuple[int, str, int, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        sender, receiver = draw(st.permutations(range(ranks)))[:2]
        size = draw(st.sampled_from([12, 30, 42]))
        nodes += [(sender, "send", receiver, size), (receiver, "receive", sender, size)]
        nodes += [(receiver, "compute", -1, -1)]
    return job(ranks, nodes)


@given(jobs())
def test_messages_are_a_custom_collective_that_is_right(workload: Workload) -> None:
    algorithm = algorithm_of_job(workload)
    assert hub_core.verify(algorithm).ok
    nodes = workload.nodes
    sent = nodes.bytes[nodes.is_kind(NodeKind.SEND)]
    assert algorithm.collective_bytes == sent.sum()
    steps = algorithm.steps
    is_work = steps.is_kind(StepKind.COMPUTE)
    assert steps.duration_ns[is_work].tolist() == [5] * int(is_work.sum())
    assert len(steps.edges()[0]) == len(nodes.edges()[0])


def test_many_units_are_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_messages, "_MOST_UNITS", 4)
    sizes = (7, 11)
    nodes = [(0, "send", 1, size) for size in sizes] + [(1, "receive", 0, size) for size in sizes]
    algorithm = algorithm_of_job(job(2, nodes))
    # 18 bytes in 4 units of 5: 2 and 3 of them.
    assert (algorithm.collective.unit_count, algorithm.collective_bytes) == (5, 25)


def test_a_receipt_without_its_message_is_found() -> None:
    nodes = [(0, "send", 1, 8), (1, "receive", 0, 8), (1, "receive", 0, 8)]
    assert not hub_core.verify(algorithm_of_job(job(2, nodes))).ok


def test_collectives_are_refused_with_the_cure() -> None:
    with pytest.raises(UsageError, match=r"is a collective without steps.*collhub expand"):
        algorithm_of_job(pipeline())


def test_a_job_without_messages_is_refused() -> None:
    with pytest.raises(UsageError, match="no messages"):
        algorithm_of_job(job(2, [(0, "compute", -1, -1)]))


@pytest.mark.parametrize("executor", ["numpy", "shared-memory"])
def test_a_flat_job_runs(collhub: Callable[..., Any], tmp_path: Path, executor: str) -> None:
    nodes = [(0, "send", 1, 64), (1, "receive", 0, 64), (1, "send", 0, 32), (0, "receive", 1, 32)]
    pytest.importorskip("collhub_jobs")
    hub_core.write(job(2, nodes), tmp_path / "job")
    report = collhub("run", tmp_path / "job", "--executor", executor, "--json").report()
    assert report["ok"] is True
    assert report["messages"] == 2
    assert np.all(np.asarray(report["repeat_times_s"]) > 0)
