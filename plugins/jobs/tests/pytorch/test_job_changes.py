"""Savings by bucket sizes and overlap: the changed job is timed again, by closed forms."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from collhub_pytorch.analysis import match_communications, measured_timeline
from collhub_pytorch.findings import count_bus_bytes, group_calls
from collhub_pytorch.formats import JobMachineOptions, ProfileOptions
from collhub_pytorch.job import EXTENSION
from collhub_pytorch.job_changes import find_changes, find_instant
from collhub_pytorch.kineto.read import read
from collhub_pytorch.machine import simulate
from collhub_pytorch.predicted_times import CallKey, predict_job
from collhub_pytorch.samples import all_reduce_args, launched, part, profile_of, runtime

import hub_core
from hub_core.model import (
    InputError,
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    Workload,
)
from hub_core.plugin_api import JobChange, LibraryTime, Source, WorkloadRequest

LATENCY_NS, US = 10_000, 1_000


@dataclass(frozen=True)
class LinearPredictor:
    """A collective takes 10 us and 1 ns per byte; predicted sizes are at most `largest`."""

    error: float | None = None
    largest: int = 1 << 40
    name: str = "a linear machine"

    def predict(self, keys: Iterable[CallKey]) -> list[LibraryTime]:
        times = []
        for _, size, _ in keys:
            if size > self.largest:
                times.append(LibraryTime(1, reason="it is too large"))
            else:
                times.append(LibraryTime(1, LATENCY_NS + size, "model", self.error))
        return times


@dataclass
class Program:
    """Nodes of a job in which all ranks do the same, with dependencies within a rank."""

    ranks: int = 2
    rows: list[dict[str, int]] = field(default_factory=list)
    data: list[tuple[int, int]] = field(default_factory=list)
    control: list[tuple[int, int]] = field(default_factory=list)

    def add(self, *, after: Sequence[int] = (), ordered: Sequence[int] = (), **columns: int) -> int:
        row = len(self.rows)
        self.rows.append({"duration_ns": -1, "bytes": -1, "collective": -1, "group": -1} | columns)
        self.data += [(parent, row) for parent in after]
        self.control += [(parent, row) for parent in ordered]
        return row

    def compute(
        self, duration_ns: int, *, after: Sequence[int] = (), ordered: Sequence[int] = ()
    ) -> int:
        kind = int(NodeKind.COMPUTE)
        return self.add(kind=kind, duration_ns=duration_ns, after=after, ordered=ordered)

    def call(
        self,
        size: int,
        collective: JobCollective = JobCollective.ALL_REDUCE,
        *,
        after: Sequence[int] = (),
        ordered: Sequence[int] = (),
        group: int = -1,
    ) -> int:
        return self.add(
            kind=int(NodeKind.COLLECTIVE),
            bytes=size,
            collective=int(collective),
            group=group,
            after=after,
            ordered=ordered,
        )

    def job(self, groups: Sequence[ProcessGroup] = ()) -> Workload:
        count = len(self.rows)
        columns = {
            name: np.tile([row[name] for row in self.rows], self.ranks)
            for name in ("kind", "duration_ns", "bytes", "collective", "group")
        }
        columns["rank"] = np.repeat(np.arange(self.ranks), count)
        edges = []
        for pairs in (self.data, self.control):
            sides = np.array(pairs, np.int64).reshape(-1, 2).T
            shifts = np.repeat(np.arange(self.ranks) * count, sides.shape[1])
            edges.append(tuple(np.tile(side, self.ranks) + shifts for side in sides))
        return Workload(
            NodeColumns.from_columns(self.ranks, columns, edges[0], edges[1]), groups=tuple(groups)
        )


def job_ns(workload: Workload) -> int:
    return int(measured_timeline(workload).end.max())


def changes_of(workload: Workload, predictor: LinearPredictor) -> dict[str, JobChange]:
    timed = predict_job(workload, predictor)
    changes = find_changes(timed, predictor, is_predicted=True)
    return {change.name: change for change in changes}


def gradients(count: int = 6, size: int = 1000) -> Program:
    """Backward passes of 1 us, an all-reduce of each gradient, and an optimizer of 2 us."""
    program = Program()
    calls, previous = [], []
    for _ in range(count):
        previous = [program.compute(US, after=previous)]
        calls.append(program.call(size, after=previous))
    program.compute(2 * US, after=calls)
    return program


def test_collectives_of_a_group_follow_each_other_and_computations_of_a_rank_do_too() -> None:
    program = gradients()
    program.compute(5 * US)
    timed = predict_job(program.job(), LinearPredictor())
    # The independent computation starts first of those that start at 0, or after the first one.
    assert job_ns(timed) in (1000 + 6 * 11_000 + 2000, 6000 + 6 * 11_000 + 2000)


def test_one_bucket_saves_the_latency_of_the_others() -> None:
    changes = changes_of(gradients().job(), LinearPredictor())
    bucket = changes["bucket-size"]
    # Six calls from 1 us on, against one call of 6000 bytes after all gradients.
    before, after = 1000 + 6 * 11_000 + 2000, 6000 + 16_000 + 2000
    assert (bucket.job_ns, bucket.saved_ns) == (after, before - after)
    assert (bucket.min_saved_ns, bucket.max_saved_ns) == (None, None)
    assert "6 calls become 1" in bucket.description
    assert "all-reduces of 2 ranks" in bucket.description


def test_the_best_of_several_bucket_sizes_is_reported() -> None:
    # Large calls gain nothing from one bucket, which would start after the last gradient.
    program = Program()
    calls, previous = [], []
    for _ in range(4):
        previous = [program.compute(100 * US, after=previous)]
        calls += [program.call(40_000, after=previous), program.call(40_000, after=previous)]
    program.compute(US, after=calls)
    bucket = changes_of(program.job(), LinearPredictor())["bucket-size"]
    # In pairs: 90 us each, hidden by the next computation but for the last one.
    assert bucket.job_ns == 400_000 + 90_000 + 1000
    assert "8 calls become 4" in bucket.description


def test_calls_that_wait_for_each_other_are_not_joined() -> None:
    program = Program()
    previous: list[int] = []
    for _ in range(4):
        previous = [program.call(1000, after=[program.compute(US, after=previous)])]
    assert changes_of(program.job(), LinearPredictor()) == {}


def test_gathers_between_reductions_of_one_group_do_not_prevent_buckets() -> None:
    program = Program()
    first = program.compute(US)
    reductions = []
    for _ in range(4):
        reductions.append(program.call(1000, JobCollective.REDUCE_SCATTER, after=[first]))
        gather = program.call(500, JobCollective.ALL_GATHER)
        first = program.compute(US, after=[first, gather])
    program.compute(US, after=reductions)
    timed = predict_job(program.job(), LinearPredictor())
    names = [
        change.description.split(" have")[0]
        for change in find_changes(timed, LinearPredictor(), is_predicted=True)
    ]
    assert "if reduce-scatters of 2 ranks" in names


def test_a_bucket_that_is_not_predicted_is_not_reported() -> None:
    bucket = changes_of(gradients().job(), LinearPredictor(largest=2048))["bucket-size"]
    assert "6 calls become 3" in bucket.description
    assert changes_of(gradients().job(), LinearPredictor(largest=1500)) == {}


def test_the_band_is_that_of_the_error_of_the_bucket() -> None:
    bucket = changes_of(gradients().job(), LinearPredictor(error=0.25))["bucket-size"]
    before = 1000 + 6 * 11_000 + 2000
    limits = [before - (6000 + round(16_000 / divisor) + 2000) for divisor in (0.75, 1.25)]
    assert [bucket.min_saved_ns, bucket.max_saved_ns] == limits
    assert limits[0] < bucket.saved_ns < limits[1]


def test_groups_at_other_distances_are_classes_of_their_own() -> None:
    groups = [
        ProcessGroup("a", (0, 1)), ProcessGroup("a2", (2, 3)),
        ProcessGroup("b", (0, 2)), ProcessGroup("b2", (1, 3)),
    ]  # fmt: skip
    program = Program(4)
    start = program.compute(US)
    calls = [program.call(1000, after=[start], group=group) for group in (0, 0, 2, 2)]
    program.compute(US, after=calls)
    job = program.job(groups)
    nodes = job.nodes
    group = nodes.group.copy()
    ranks = nodes.rank
    group[(nodes.group == 0) & (ranks >= 2)] = 1
    group[(nodes.group == 2) & (ranks % 2 == 1)] = 3
    job = Workload(
        NodeColumns.from_columns(
            4,
            {name: getattr(nodes, name) for name in ("rank", "kind", "duration_ns", "bytes")}
            | {"collective": nodes.collective, "group": group},
            nodes.data_edges,
            nodes.control_edges,
        ),
        groups=tuple(groups),
    )
    timed = predict_job(job, LinearPredictor())
    descriptions = [one.description for one in find_changes(timed, LinearPredictor())]
    # Both are equally long, so one alone saves nothing.
    assert descriptions == []
    assert len(match_communications(timed)) == 8


def test_an_order_without_data_is_no_reason_to_wait() -> None:
    program = Program()
    first = program.compute(10 * US)
    call = program.call(1000, after=[first])
    # The next computation follows in the order of the program, and does not need the result.
    second = program.compute(30 * US, after=[first], ordered=[call])
    program.compute(US, after=[call, second])
    overlap = changes_of(program.job(), LinearPredictor(error=0.1))["overlap"]
    assert (overlap.job_ns, overlap.saved_ns) == (41_000, 11_000)
    limits = [round(11_000 / divisor) for divisor in (1.1, 0.9)]
    assert [overlap.min_saved_ns, overlap.max_saved_ns] == limits


def test_control_edges_that_state_all_dependencies_are_kept() -> None:
    program = Program()
    call = program.call(1000, ordered=[program.compute(10 * US)])
    program.compute(30 * US, ordered=[call])
    assert changes_of(program.job(), LinearPredictor()) == {}


def test_instant_collectives_are_the_limit_with_a_band() -> None:
    predictor = LinearPredictor(error=0.5)
    timed = predict_job(gradients().job(), predictor)
    instant = find_instant(timed, predictor)
    assert (instant.job_ns, instant.saved_ns) == (8000, 61_000)
    assert instant.min_saved_ns is not None
    assert instant.max_saved_ns is not None
    assert instant.min_saved_ns < instant.saved_ns < instant.max_saved_ns


def test_a_call_beyond_the_profile_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"all-reduce of 1000 bytes on 2 ranks.*it is too large"):
        predict_job(gradients().job(), LinearPredictor(largest=10))


def test_a_computation_without_a_time_is_refused() -> None:
    program = Program()
    program.compute(-1)
    with pytest.raises(InputError, match="a node has no measured time"):
        predict_job(program.job(), LinearPredictor())


def profile_with_calls(count: int, late_us: float = 0) -> Workload:
    """Two ranks: kernels of 100 us back to back from 200 us on, and an all-reduce after each.

    Each all-reduce takes 200 us and waits for its kernel by an event. The host launches both within
    the first kernels, but all-reduces only from `late_us` on, and 5 us before their earliest start.
    """
    ranks = []
    for rank in range(2):
        events = []
        free = 0.0
        for number in range(count):
            start, issued = 200 + 100 * number, 195 + 20 * number
            called = max(issued + 10, late_us)
            events += launched(
                "gemm", 10 * number + 1, stream=7, call_us=issued, start_us=start, dur_us=100
            )  # fmt: skip
            free = max(free, start + 100, called + 5)
            events.append(runtime("cudaStreamWaitEvent", 10 * number + 2, called - 2, 1))
            events += launched(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 10 * number + 3, stream=20,
                call_us=called, start_us=free, dur_us=200, args=all_reduce_args(),
            )  # fmt: skip
            free += 200
        ranks.append(part(f"job.{rank}.json", rank, profile_of(rank, events)))
    source = Source("job", tuple(ranks), lambda found: None)
    return read(source, ProfileOptions(clocks="stated"))


def test_calls_of_a_profile_are_joined_across_the_order_of_their_stream() -> None:
    workload = profile_with_calls(4)
    changes = {change.name: change for change in find_changes(workload, LinearPredictor())}
    bucket = changes["bucket-size"]
    # 200 us for 4000 bytes, predicted 14 us: a bucket of 8000 bytes takes 18 us times 200/14. One
    # bucket would start after the last kernel.
    assert "4 calls become 2" in bucket.description
    base = job_ns(workload)
    bucket_ns = round(400_000 * 18 / 28)
    # The first bucket starts after the second kernel instead of after the first one.
    assert bucket.saved_ns == 800_000 - 100_000 - 2 * bucket_ns
    assert bucket.job_ns == base - bucket.saved_ns


def test_a_launch_that_comes_too_late_costs_overlap() -> None:
    assert find_changes(profile_with_calls(1), NO_CALLS) == ()
    # The host launches the call 95 us after its kernel.
    workload = profile_with_calls(1, late_us=395)
    (overlap,) = find_changes(workload, NO_CALLS)
    assert (overlap.name, overlap.saved_ns) == ("overlap", 100_000)
    assert overlap.job_ns == job_ns(workload) - 100_000
    assert "not when the host launches it" in overlap.assumptions[0]


NO_CALLS = LinearPredictor(largest=0)


def test_messages_take_the_time_of_a_broadcast_of_two_ranks() -> None:
    columns = {
        "rank": [0, 0, 1, 1],
        "kind": [int(NodeKind.COMPUTE), int(NodeKind.SEND), int(NodeKind.RECV), int(NodeKind.COMPUTE)],
        "duration_ns": [5000, -1, -1, 3000],
        "bytes": [-1, 1000, 1000, -1],
        "peer": [-1, 1, 0, -1],
    }  # fmt: skip
    nodes = NodeColumns.from_columns(2, columns, ([0, 2], [1, 3]))
    assert job_ns(predict_job(Workload(nodes), LinearPredictor())) == 5000 + 11_000 + 3000
    empty = NodeColumns.from_columns(2, {**columns, "bytes": [-1, 0, 0, -1]}, ([0, 2], [1, 3]))
    assert job_ns(predict_job(Workload(empty), LinearPredictor())) == 5000 + 3000


def test_recorded_durations_of_messages_are_times_only_in_a_profile() -> None:
    """Other jobs record the duration of a call, which may include waiting for the other rank."""
    columns = {
        "rank": [0, 1],
        "kind": [int(NodeKind.SEND), int(NodeKind.RECV)],
        "duration_ns": [400, 700_000],
        "bytes": [1000, 1000],
        "peer": [1, 0],
    }
    job = Workload(NodeColumns.from_columns(2, columns))
    assert job_ns(predict_job(job, LinearPredictor())) == 11_000
    profile = replace(job, extensions={EXTENSION: {}})
    assert job_ns(predict_job(profile, LinearPredictor())) == 700_000


def test_the_assumption_about_messages_is_reported_for_recorded_durations() -> None:
    if importlib.util.find_spec("collhub_machine_profiles") is None:
        pytest.skip("the profiles of machines are not installed")
    columns = {
        "rank": [0, 1],
        "kind": [int(NodeKind.SEND), int(NodeKind.RECV)],
        "duration_ns": [400, 700],
        "bytes": [1 << 20] * 2,
        "peer": [1, 0],
    }
    job = Workload(NodeColumns.from_columns(2, columns))
    request = WorkloadRequest(job, hub=hub_core.run_registry())
    times = simulate(request, JobMachineOptions(machine="h100"))
    assert min(finish_ns or 0 for finish_ns in times.rank_finish_ns) > 700
    assert any("messages take the time of a broadcast" in str(one) for one in times.diagnostics)


def test_collectives_of_unknown_kind_are_not_predicted() -> None:
    columns = {
        "rank": [0, 1],
        "kind": [int(NodeKind.COLLECTIVE)] * 2,
        "collective": [-1, -1],
        "bytes": [1000, 1000],
    }
    job = Workload(NodeColumns.from_columns(2, columns))
    says = "its collective of unknown kind with 1000 bytes is not predicted"
    with pytest.raises(InputError, match=says):
        predict_job(job, LinearPredictor())


def test_a_mismatch_of_collectives_of_unknown_kind_is_an_error_of_the_job() -> None:
    columns = {
        "rank": [0, 1],
        "kind": [int(NodeKind.COLLECTIVE)] * 2,
        "collective": [int(JobCollective.ALL_REDUCE), -1],
        "bytes": [1000, 1000],
    }
    job = Workload(NodeColumns.from_columns(2, columns))
    says = "is an unknown collective of 1000 B, at rank 0, step 0 an all-reduce of 1000 B"
    with pytest.raises(InputError, match=says):
        match_communications(job)


def test_collectives_of_unknown_kind_are_counted_without_bandwidth() -> None:
    columns = {
        "rank": [0, 1],
        "kind": [int(NodeKind.COLLECTIVE)] * 2,
        "collective": [-1, -1],
        "bytes": [1000, 1000],
    }
    job = Workload(NodeColumns.from_columns(2, columns))
    (calls,) = group_calls(job, match_communications(job))
    assert (calls.kind, calls.calls, calls.bus_bandwidth) == ("unknown", 1, None)
    assert count_bus_bytes(calls.kind, calls.bytes, calls.rank_count) == 0
