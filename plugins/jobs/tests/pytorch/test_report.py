"""The figures of the report, by closed forms; definitions of overlap and idle time are those of
HolisticTraceAnalysis, that of bus bandwidth is that of nccl-tests."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from collhub_pytorch.analysis import has_times, measure_rank_times, measured_timeline
from collhub_pytorch.findings import ProfileFindings, collect_findings
from collhub_pytorch.formats import ProfileOptions
from collhub_pytorch.kineto.read import read
from collhub_pytorch.profile_reading import notes
from collhub_pytorch.report import build_blocks, create_report
from collhub_pytorch.report import lines as inspect_lines
from collhub_pytorch.samples import (
    all_reduce_args,
    launched,
    part,
    profile_of,
    runtime,
    step_events,
)

from hub_core.model import NodeColumns, NodeKind, Workload
from hub_core.plugin_api import Source

Event = dict[str, Any]
STATED = ProfileOptions(clocks="stated")


def read_ranks(
    *ranks: Sequence[Event], world_size: int | None = None, options: ProfileOptions = STATED
) -> Workload:
    size = world_size or len(ranks)
    parts = [
        part(f"job.{rank}.json", rank, profile_of(rank, events, size))
        for rank, events in enumerate(ranks)
    ]
    return read(Source("job", tuple(parts), lambda found: None), options)


def kernel(
    name: str,
    start: float,
    duration: float,
    *,
    stream: int = 7,
    called: float | None = None,
    category: str = "kernel",
    args: Mapping[str, object] | None = None,
) -> list[Event]:
    """A kernel launched at `called`, by default 5 us before its start, and its launch."""
    call = start - 5 if called is None else called
    number = round(1000 * start) + stream
    events = launched(
        name, number, stream=stream, call_us=call, start_us=start, dur_us=duration, args=args
    )
    return [events[0], {**events[1], "cat": category}]


def call_args(kind: str, elements_in: int, elements_out: int, ranks: int) -> dict[str, object]:
    return all_reduce_args() | {
        "Collective name": kind, "In msg nelems": elements_in, "Out msg nelems": elements_out,
        "Group size": ranks, "Process Group Ranks": str(list(range(ranks))),
    }  # fmt: skip


def nccl(start: float, duration: float, args: Mapping[str, object] | None = None) -> list[Event]:
    stated = all_reduce_args() if args is None else args
    return kernel("ncclDevKernel_AllReduce_Sum(x)", start, duration, stream=20, args=stated)


def findings(*ranks: Sequence[Event]) -> ProfileFindings:
    return collect_findings(read_ranks(*ranks))


@pytest.mark.parametrize(
    ("category", "name"),
    [("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"), ("gpu_memset", "Memset (Device)"),
     ("gpu_memcpy", "CopyHostToDevice"), ("Memcpy", "Memcpy DtoD"), ("mtia_ccp_events", "dma_in")],
)  # fmt: skip
def test_copies_and_sets_of_memory_are_a_class_of_their_own(category: str, name: str) -> None:
    events = [*nccl(100, 100), *kernel(name, 110, 40, category=category)]
    events += kernel("gemm", 300, 30)
    (one, _) = measure_rank_times(
        workload := read_ranks(events, events), measured_timeline(workload)
    )
    assert (one.memory_ns, one.computation_ns, one.communication_ns) == (40_000, 30_000, 100_000)
    assert one.overlap_percent == 0
    # Between the collective and the kernel.
    assert one.idle_ns == 100_000


def test_overlap_is_that_of_kernels_each_moment_once() -> None:
    generator = random.Random(7)
    events: list[Event] = []
    busy: dict[str, set[int]] = {"nccl": set(), "gemm": set(), "memory": set()}
    for stream in range(7, 19):
        moment = 20
        for _ in range(6):
            start = moment + generator.randint(1, 30)
            moment = start + generator.randint(1, 30)
            kind = generator.choice(["nccl", "gemm", "memory"])
            busy[kind] |= set(range(start, moment))
            name, category = {
                "nccl": ("ncclDevKernel_SendRecv(x)", "kernel"),
                "gemm": ("gemm", "kernel"),
                "memory": ("Memcpy DtoD", "gpu_memcpy"),
            }[kind]
            events += kernel(name, start, moment - start, stream=stream, category=category)
    workload = read_ranks(events)
    (one,) = measure_rank_times(workload, measured_timeline(workload))
    assert one.communication_ns == 1000 * len(busy["nccl"])
    assert one.computation_ns == 1000 * len(busy["gemm"])
    assert one.memory_ns == 1000 * len(busy["memory"])
    both = busy["nccl"] & busy["gemm"]
    assert one.overlap_percent == pytest.approx(100 * len(both) / len(busy["nccl"]))
    every = set().union(*busy.values())
    assert one.idle_ns == 1000 * (max(every) + 1 - min(every) - len(every))


def idle_of(options: ProfileOptions = STATED) -> dict[str, object]:
    events = [
        *kernel("a", 100, 10),
        # Launched after `a` ended at 110: nothing was queued.
        *kernel("b", 130, 10, called=115),
        # Queued; 20 ns, then 5 us after the end of the one before.
        *kernel("c", 140.02, 10, called=120),
        *kernel("d", 155.02, 10, called=121),
    ]
    workload = read_ranks(events, options=options)
    extension = workload.extensions["pytorch"]
    assert isinstance(extension, dict)
    ((stream,),) = extension["idle"]  # type: ignore[misc, union-attr]
    return dict(stream)  # type: ignore[arg-type, call-overload]


def test_idle_time_is_host_wait_kernel_wait_or_other() -> None:
    assert idle_of() == {
        "device": 0, "stream": 7, "host_wait_ns": 20_000, "kernel_wait_ns": 20, "other_ns": 5_000
    }  # fmt: skip


def test_the_usual_delay_between_kernels_is_30_ns_times_a_factor() -> None:
    smaller = idle_of(ProfileOptions(clocks="stated", kernel_delay_factor=0.5))
    assert (smaller["kernel_wait_ns"], smaller["other_ns"]) == (0, 5_020)
    larger = idle_of(ProfileOptions(clocks="stated", kernel_delay_factor=200))
    assert (larger["kernel_wait_ns"], larger["other_ns"]) == (5_020, 0)


def test_the_last_rank_to_start_is_the_straggler() -> None:
    args = call_args("allreduce", 1000, 1000, 3)
    small = call_args("allreduce", 10, 10, 3)

    def rank(first: float, second: float) -> list[Event]:
        return [*nccl(first, 200 - first, args), *nccl(300 + second, 100 - second, small)]

    found = findings(rank(100, 0), rank(140, 50), rank(190, 0))
    # Of the first call ranks 0 and 1 wait 90 and 50 us for rank 2, of the second 0 and 2 for 1.
    assert [one.caused_waiting_ns for one in found.ranks] == [0, 100_000, 140_000]
    assert [one.last_count for one in found.ranks] == [0, 1, 1]
    by_bytes = {call.bytes: call.stragglers for call in found.calls}
    assert {size: [(one.rank, one.waiting_ns) for one in ranks] for size, ranks in by_bytes.items()} == {
        4000: [(2, 140_000)], 40: [(1, 100_000)],
    }  # fmt: skip


def test_ranks_that_start_last_together_are_no_stragglers() -> None:
    args = call_args("allreduce", 1000, 1000, 3)
    found = findings(nccl(100, 100, args), nccl(150, 50, args), nccl(150, 50, args))
    assert [one.caused_waiting_ns for one in found.ranks] == [0, 0, 0]
    assert found.calls[0].waiting_ns == 50_000


MIB = 1 << 20


@pytest.mark.parametrize(
    ("kind", "elements_in", "elements_out", "ranks", "time_us", "bus_bandwidth"),
    [
        # NCCL's inspector reports the first two for these sizes and times.
        ("allreduce", MIB // 4, MIB // 4, 2, 100, 10.48576e9),
        ("_allgather_base", MIB // 4, MIB // 2, 2, 50, 20.97152e9),
        ("_reduce_scatter_base", MIB, MIB // 4, 4, 100, 4 * MIB / 100e-6 * 3 / 4),
        ("all_to_all", MIB, MIB, 4, 100, 4 * MIB / 100e-6 * 3 / 4),
        ("broadcast", MIB, MIB, 4, 100, 4 * MIB / 100e-6),
        ("reduce", MIB, MIB, 4, 100, 4 * MIB / 100e-6),
        ("barrier", 0, 0, 4, 100, None),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(
    kind: str, elements_in: int, elements_out: int, ranks: int, time_us: int,
    bus_bandwidth: float | None,
) -> None:  # fmt: skip
    args = call_args(kind, elements_in, elements_out, ranks)
    # Rank 0 waits for the others, which is no transfer.
    late = nccl(100, time_us, args)
    found = findings([*nccl(50, 50 + time_us, args)], *([late] * (ranks - 1)))
    (call,) = found.calls
    assert call.bus_bandwidth == (bus_bandwidth and pytest.approx(bus_bandwidth))


def test_kernels_of_communication_without_a_name_are_not_computation() -> None:
    events = [
        *nccl(100, 50),
        *kernel("ncclDevKernel_SendRecv(x)", 200, 30, stream=20),
        *kernel("void vllm::cross_device_reduce_1stage<half>(x)", 240, 10),
        *kernel("gemm", 300, 20),
    ]
    (one, _) = measure_rank_times(
        workload := read_ranks(events, events), measured_timeline(workload)
    )
    assert (one.communication_ns, one.computation_ns) == (90_000, 20_000)


def test_messages_without_a_known_peer_are_not_computation() -> None:
    args = call_args("send", 10, 10, 3) | {"Process Group Ranks": "[0, 1, 2]"}
    events = [*nccl(100, 50, args), *kernel("gemm", 300, 20)]
    one = measure_rank_times(
        workload := read_ranks(events, events, events), measured_timeline(workload)
    )[0]
    assert (one.communication_ns, one.computation_ns) == (50_000, 20_000)


def test_the_limit_of_any_saving_has_no_time_of_messages_and_unknown_collectives() -> None:
    columns = {
        "rank": [0, 0, 0, 1, 1, 1],
        "kind": [
            *map(int, (NodeKind.COMPUTE, NodeKind.SEND, NodeKind.COLLECTIVE)),
            *map(int, (NodeKind.RECV, NodeKind.COMPUTE, NodeKind.COLLECTIVE)),
        ],
        "duration_ns": [5000, 400, 9000, 6000, 2000, 7000],
        "collective": [-1] * 6,
        "bytes": [-1, 1000, -1, 1000, -1, -1],
        "peer": [-1, 1, -1, 0, -1, -1],
    }
    nodes = NodeColumns.from_columns(2, columns, ([0, 1, 3, 4], [1, 2, 4, 5]))
    instant = collect_findings(Workload(nodes)).instant
    assert instant.measured_ns == 6000 + 2000 + 7000
    # The computations, one after another: the receive waits for the send.
    assert instant.job_ns == 5000 + 2000


def text_of(workload: Workload) -> str:
    return "\n".join([*notes(workload), *inspect_lines(workload)])


def test_copies_of_one_rank_report_no_waiting_time() -> None:
    options = ProfileOptions(ranks_missing="assume-same")
    found = collect_findings(read_ranks(step_events(100), world_size=4, options=options))
    report = create_report(found, [], None)
    assert [one.waiting_ns for one in report.collectives] == [None]
    assert [one.waiting_ns for one in report.ranks] == [None] * 4
    assert "waiting is not measured" in "\n".join(map(str, build_blocks(found)))


def test_only_ranks_with_files_wait_and_are_waited_for() -> None:
    options = ProfileOptions(ranks_missing="assume-same")
    args = call_args("allreduce", 1000, 1000, 4)
    ranks = [step_events(100, args), step_events(140, args)]
    found = collect_findings(read_ranks(*ranks, world_size=4, options=options))
    assert [one.waiting_ns for one in found.ranks] == [40_000, 0, None, None]
    assert found.calls[0].waiting_ns == 40_000
    assert [one.caused_waiting_ns for one in found.ranks] == [0, 40_000, 0, 0]


def test_waiting_for_a_copy_is_not_measured() -> None:
    options = ProfileOptions(ranks_missing="assume-same", clocks="stated")
    # Ranks 0 and 2 have files; each is in a group with a copy of the other one, and in that of all.
    all_ranks = call_args("allreduce", 10, 10, 4)
    parts = []
    for rank, start in ((0, 100), (2, 140)):
        pair = call_args("allreduce", 1000, 1000, 2) | {
            "Process Group Name": "1", "Process Group Ranks": str([rank, rank + 1]),
        }  # fmt: skip
        events = [*nccl(start, 200 - start, pair), *nccl(300 + start, 200 - start, all_ranks)]
        parts.append(part(f"job.{rank}.json", rank, profile_of(rank, events, 4)))
    found = collect_findings(read(Source("job", tuple(parts), lambda note: None), options))
    assert {call.bytes: call.waiting_ns for call in found.calls} == {40: 40_000, 4000: None}
    assert [one.waiting_ns for one in found.ranks] == [40_000, None, 0, None]


def test_streams_and_correlations_may_have_64_bits() -> None:
    large = (1 << 64) - 1
    events = [
        {**event, "args": {**event["args"], "correlation": large - event["args"]["correlation"],
                           **({"stream": large} if "stream" in event["args"] else {})}}
        for event in kernel("gemm", 100, 10)
    ]  # fmt: skip
    workload = read_ranks([*events, *kernel("relu", 200, 10)])
    (one,) = measure_rank_times(workload, measured_timeline(workload))
    assert one.computation_ns == 20_000
    # The launch 5 us before the kernel is known.
    assert workload.nodes.duration_ns.min() >= 0
    assert "launch" in {workload.names[name] for name in workload.nodes.name.tolist() if name >= 0}


def host_call(library: str, start: float) -> Event:
    return {
        "ph": "X", "cat": "user_annotation", "name": f"{library}:all_reduce", "pid": 9, "tid": 9,
        "ts": start, "dur": 30, "args": {"Input Dims": [[24]], "Input type": ["float"]},
    }  # fmt: skip


def test_collectives_without_kernels_have_no_times() -> None:
    operator = {**host_call("nccl", 90), "cat": "cpu_op", "name": "c10d::allreduce_", "dur": 50}
    workload = read_ranks([operator, host_call("nccl", 100)], [operator, host_call("nccl", 100)])
    assert not has_times(workload)
    text = text_of(workload)
    assert "ranks 0,1: 2 collectives have no kernels in the profile: their times" in text
    assert "0 ns" not in text
    assert workload.nodes.bytes.max() == 96


def test_annotations_within_one_another_are_one_collective() -> None:
    comms = {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 9, "tid": 9, "ts": 105,
        "dur": 10, "args": all_reduce_args(),
    }  # fmt: skip
    events = [host_call("nccl", 100), comms]
    workload = read_ranks(events, events)
    assert workload.nodes.bytes[workload.nodes.bytes >= 0].tolist() == [4000, 4000]


def test_profiles_without_collectives_say_so_and_no_zeros() -> None:
    operator = {**host_call("x", 90), "cat": "cpu_op", "name": "aten::mm"}
    text = text_of(workload := read_ranks([operator]))
    assert "rank 0: no collectives are recorded" in text
    assert "rank 0: no work of a device is recorded" in text
    assert "0 ns" not in "\n".join(map(str, build_blocks(collect_findings(workload))))


def test_profiles_of_mtia_have_a_device() -> None:
    launch = {**runtime("runFunction - job_prep_and_submit_for_execution", 1, 90, 5),
              "cat": "mtia_runtime"}  # fmt: skip
    work = {
        "ph": "X", "cat": "mtia_ccp_events", "name": "fc_kernel", "pid": 0, "tid": 1, "ts": 100,
        "dur": 40, "args": {"device": 0, "stream": 1, "correlation": 1},
    }  # fmt: skip
    text = text_of(workload := read_ranks([launch, work]))
    (one,) = measure_rank_times(workload, measured_timeline(workload))
    assert (one.computation_ns, one.communication_ns, one.memory_ns) == (40_000, 0, 0)
    assert "rank 0: no collectives are recorded" in text
    assert "no work of a device" not in text


def test_files_of_2021_are_read() -> None:
    capital = {"kernel": "Kernel", "cuda_runtime": "Runtime"}
    events = [
        {**event, "cat": capital[event["cat"]],
         "args": {key: str(value) for key, value in event["args"].items()}}
        for event in step_events(100, {})
    ]  # fmt: skip
    call = {**host_call("nccl", 35), "cat": "Operator"}
    call["args"] = {"Input dims": [[24]], "Input type": ["float"]}
    step = {**host_call("x", 0), "cat": "Operator", "name": "ProfilerStep#1", "dur": 400}
    copy = {**kernel("Memcpy HtoD (Pageable -> Device)", 250, 7)[1], "cat": "Memcpy"}
    workload = read_ranks([*events, call, step, copy], [*events, call, step, copy])
    assert workload.nodes.bytes.max() == 96
    (one, _) = measure_rank_times(workload, measured_timeline(workload))
    assert one.memory_ns == 7_000
    only = ProfileOptions(clocks="stated", step=1)
    assert read_ranks([*events, call, step], [*events, call, step], options=only).num_ranks == 2
