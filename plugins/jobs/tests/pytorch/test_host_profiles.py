"""Profiles without a device: which operator issued each collective, and what the host waited for.

The expected savings are the times in which the host of the profile is idle for a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_pytorch import read_profiles
from collhub_pytorch.formats import ProfileOptions
from collhub_pytorch.kineto.read import read
from collhub_pytorch.replay import measured, replay_job
from collhub_pytorch.samples import part

from hub_core.model import InputError, JobCollective, NodeKind, Workload
from hub_core.plugin_api import Source

Event = dict[str, Any]
AR, BC = JobCollective.ALL_REDUCE, JobCollective.BROADCAST
STATED = ProfileOptions(clocks="stated")


def operator(
    name: str, start: float, duration: float, *, thread: int = 1, shapes: object = None
) -> Event:
    args = {} if shapes is None else {"Input Dims": shapes}
    return event("cpu_op", name, start, duration, thread, args)


def annotation(
    name: str, start: float, duration: float, elements: int = 10, *, thread: int = 2
) -> Event:
    args = {"Input Dims": [[elements]], "Input type": ["float"]}
    return event("user_annotation", name, start, duration, thread, args)


def event(
    category: str, name: str, start: float, duration: float, thread: int, args: Mapping[str, object]
) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start,
        "dur": duration, "args": dict(args),
    }  # fmt: skip


def read_ranks(*ranks: Sequence[Event], options: ProfileOptions = STATED) -> Workload:
    parts = []
    for rank, events in enumerate(ranks):
        info = {"backend": "gloo", "rank": rank, "world_size": len(ranks)}
        document = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": list(events)}
        parts.append(part(f"job.{rank}.json", rank, document))
    return read(Source("job", tuple(parts), lambda found: None), options)


def collectives(workload: Workload, rank: int = 0) -> list[tuple[int, int]]:
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.rank == rank))
    return list(zip(nodes.collective[rows].tolist(), nodes.bytes[rows].tolist(), strict=True))


def saved_us(workload: Workload) -> float:
    """The time that the job saves if its collectives take none."""
    return (measured(workload).job_ns - replay_job(workload, lambda *_: 0).job_ns) / 1000


def within(name: str) -> list[Event]:
    """A step whose all-reduce is issued inside the operator `name`; the host waits from 180 on."""
    return [
        operator("aten::mm", 0, 100),
        operator(name, 150, 60),
        operator("c10d::allreduce_", 160, 20),
        annotation("gloo:all_reduce", 181, 500),
        operator("aten::add_", 690, 50),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
        "DistributedDataParallel.forward",
        "FullyShardedDataParallel.forward",
        "## backward ##",
        "_c10d_functional::all_reduce",
    ],
)
def test_a_collective_issued_inside_another_operator_is_found(name: str) -> None:
    workload = read_ranks(within(name), within(name))
    assert collectives(workload) == [(AR, 40)]
    assert saved_us(workload) == 500


def test_collectives_inside_several_operators_are_found() -> None:
    events = [
        operator("## step ##", 0, 1000),
        operator("FSDP::pre_forward", 10, 190),
        operator("FSDP::all_gather", 20, 60),
        operator("c10d::_allgather_base_", 30, 20),
        annotation("gloo:all_gather", 51, 100),
        operator("aten::mm", 200, 100),
        operator("FSDP::post_backward", 310, 600),
        operator("c10d::_reduce_scatter_base_", 320, 20),
        annotation("gloo:all_reduce", 341, 400),
        operator("aten::add_", 750, 100),
    ]
    workload = read_ranks(events, events)
    assert [kind for kind, _ in collectives(workload)] == [JobCollective.ALL_GATHER, AR]
    # Idle for the first until 151 since 51, for the second until 741 since 341.
    assert saved_us(workload) == 500


def test_autograd_may_issue_in_a_thread_of_its_own() -> None:
    backward = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    events = [
        operator("aten::mm", 0, 100, thread=1),
        operator(backward, 150, 60, thread=5),
        operator("c10d::allreduce_", 160, 20, thread=5),
        annotation("gloo:all_reduce", 181, 500, thread=2),
        # The library copies in its own thread, while the host waits.
        operator("aten::copy_", 200, 400, thread=2),
        operator("aten::add_", 690, 50, thread=1),
    ]
    workload = read_ranks(events, events)
    assert measured(workload).job_ns == 740_000
    assert saved_us(workload) == 500


def test_a_range_over_the_step_hides_no_wait() -> None:
    events = [operator("## step ##", 0, 1000), *within("## backward ##")]
    assert saved_us(read_ranks(events, events)) == 500


def test_the_innermost_operator_of_a_kind_issues_the_collective() -> None:
    # The outer operator begins earlier; the collective cannot begin before the inner one.
    events = [
        operator("c10d::allreduce_", 0, 300),
        operator("aten::mm", 10, 180),
        operator("c10d::allreduce_", 200, 20),
        annotation("gloo:all_reduce", 221, 100),
        operator("aten::add_", 400, 10),
    ]
    workload = read_ranks(events, events)
    nodes = workload.nodes
    (row,) = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.rank == 0)).tolist()
    (launch,) = nodes.data_indices[nodes.data_indptr[row] : nodes.data_indptr[row + 1]].tolist()
    # From the begin of the inner operator to the begin of the collective.
    assert nodes.duration_ns[launch] == 21_000


def test_collectives_are_matched_in_the_order_in_which_they_are_issued() -> None:
    def rank(first: float, second: float) -> list[Event]:
        return [
            operator("c10d::broadcast_", 0, 10, shapes=[[[512]]]),
            operator("c10d::broadcast_", 20, 10, shapes=[[[1]]]),
            annotation("gloo:broadcast", first, 100, 512, thread=2),
            annotation("gloo:broadcast", second, 100, 1, thread=3),
            operator("aten::add_", 200, 10),
        ]

    # The threads of gloo start the second one first on rank 1.
    workload = read_ranks(rank(50, 60), rank(60, 50))
    assert [collectives(workload, one) for one in range(2)] == 2 * [[(BC, 2048), (BC, 4)]]


def test_sizes_tell_operators_of_one_kind_apart() -> None:
    # The collective of the first operator ends after the profile, and is not recorded.
    events = [
        operator("c10d::allreduce_", 0, 10, shapes=[[[1000]]]),
        operator("aten::mm", 20, 60),
        operator("c10d::allreduce_", 100, 10, shapes=[[[10]]]),
        annotation("gloo:all_reduce", 111, 100, 10),
        operator("aten::add_", 300, 10),
    ]
    assert saved_us(read_ranks(events, events)) == 100


def test_a_reduce_scatter_of_gloo_is_an_all_reduce() -> None:
    events = [
        operator("c10d::_reduce_scatter_base_", 0, 10, shapes=[[5], [10]]),
        operator("c10d::allreduce_", 20, 10, shapes=[[[10]]]),
        annotation("gloo:all_reduce", 40, 10, 10),
        annotation("gloo:all_reduce", 50, 10, 10),
        operator("aten::add_", 100, 10),
    ]
    assert collectives(read_ranks(events, events)) == [(AR, 40), (AR, 40)]


def test_messages_are_issued_by_the_operator_around_them() -> None:
    def message(name: str) -> list[Event]:
        return [
            operator(f"c10d::{name.rstrip('_')}", 10, 20),
            annotation(f"gloo:{name.rstrip('_')}", 15, 40, thread=1),
            operator("aten::add_", 60, 10),
        ]

    workload = read_ranks(message("send"), message("recv_"))
    kinds = workload.nodes.kind[workload.nodes.peer >= 0].tolist()
    assert kinds == [NodeKind.SEND, NodeKind.RECV]


@pytest.mark.parametrize("library", ["gloo", "mpi", "ucc"])
def test_collectives_without_an_operator_are_an_error_that_counts_them(library: str) -> None:
    events = [
        *within("## backward ##"),
        annotation(f"{library}:broadcast", 5, 10),
        annotation(f"{library}:all_gather", 300, 10),
    ]
    message = r"job.0.json: 2 of 3 collectives have no operator .*, the first a broadcast at 5.000"
    with pytest.raises(InputError, match=message):
        read_ranks(events, events)


def test_differing_collectives_of_the_host_may_be_of_other_groups() -> None:
    more = [operator("c10d::allreduce_", 800, 5), annotation("gloo:all_reduce", 810, 20, 99)]
    events = within("## backward ##")
    with pytest.raises(InputError, match=r"but rank 1 .* do not state process groups"):
        read_ranks([*events, *more], events)


def test_collectives_outside_the_step_need_no_operator() -> None:
    step = event("user_annotation", "ProfilerStep#3", 100, 700, 1, {})
    events = [*within("## backward ##"), annotation("gloo:broadcast", 5, 10), step]
    options = ProfileOptions(clocks="stated", step=3)
    assert collectives(read_ranks(events, events, options=options)) == [(AR, 40)]


def test_collectives_occupy_the_network_not_the_host() -> None:
    workload = read_ranks(within("## backward ##"), within("## backward ##"))
    nodes = workload.nodes
    assert not nodes.on_host[nodes.is_kind(NodeKind.COLLECTIVE)].any()
    assert nodes.on_host[nodes.is_kind(NodeKind.COMPUTE)].all()


@pytest.mark.parametrize(
    ("name", "saved", "percent"), [("flat", 500, 72.5), ("mixed", 510, 68.9), ("nested", 500, 72.5)]
)
def test_savings_of_the_corpus(corpus: Path, name: str, saved: float, percent: float) -> None:
    files = sorted(map(str, (corpus / "strangers" / "profile").glob(f"{name}.*.json")))
    if not files:
        pytest.skip("the corpus has no profiles of strangers")
    workload = read_profiles(files)
    assert saved_us(workload) == saved
    assert round(100 * saved * 1000 / measured(workload).job_ns, 1) == percent
