"""Flat jobs become schedules of the same messages and times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_goal.parse import parse_goal
from collhub_goal.schedule import GoalOperation
from collhub_goal.write import build_job_schedule, write_job

from hub_core import UsageError, Workload
from hub_core.model import NodeKind
from hub_core.plugin_api import NoOptions
from hub_core.testing import pipeline, training_step


def flat() -> Workload:
    """Messages and computations; a collective between them does nothing."""
    workload = pipeline()
    nodes = workload.nodes
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE)
    kind = np.where(is_collective, int(NodeKind.MARKER), nodes.kind).astype(nodes.kind.dtype)
    return replace(workload, nodes=replace(nodes, kind=kind))


def text_of(workload: Workload) -> str:
    (artifact,) = write_job(workload, NoOptions()).artifacts
    return artifact.content().decode()


def test_every_node_is_a_line_and_comes_back() -> None:
    workload = flat()
    schedule = build_job_schedule(workload)
    again = parse_goal(text_of(workload).encode(), "job.goal")
    assert len(again) == len(workload.nodes)
    for name in ("rank", "operation", "amount", "peer", "tag"):
        assert np.array_equal(getattr(again, name), getattr(schedule, name)), name
    pairs = [sorted(zip(one.parent, one.child, strict=True)) for one in (again, schedule)]
    assert pairs[0] == pairs[1]


def test_messages_of_one_tag_and_other_sizes_have_tags_of_their_own() -> None:
    workload = flat()
    nodes = workload.nodes
    size = nodes.bytes.copy()
    messages = np.flatnonzero(nodes.is_kind(NodeKind.SEND, NodeKind.RECV))
    size[messages[:2]] += 1
    tags = build_job_schedule(replace(workload, nodes=replace(nodes, bytes=size))).tag[messages]
    assert len(set(tags.tolist())) == len(set(size[messages].tolist()))


def test_collectives_are_refused_with_the_cure() -> None:
    with pytest.raises(UsageError, match="is a collective") as caught:
        write_job(training_step(), NoOptions())
    assert "collhub expand" in caught.value.diagnostics[0].cure


def test_work_without_a_duration_is_refused() -> None:
    workload = flat()
    none = np.full_like(workload.nodes.duration_ns, -1)
    with pytest.raises(UsageError, match="has no duration"):
        write_job(replace(workload, nodes=replace(workload.nodes, duration_ns=none)), NoOptions())


def test_the_loads_of_a_job_are_calculations() -> None:
    workload = flat()
    kind = workload.nodes.kind.copy()
    kind[kind == NodeKind.COMPUTE] = NodeKind.LOAD
    changed = replace(workload, nodes=replace(workload.nodes, kind=kind))
    assert (build_job_schedule(changed).operation == GoalOperation.CALC).any()
    assert "kinds" in {loss.feature for loss in write_job(changed, NoOptions()).losses}
