"""Small profiles written as torch writes them: links, groups, clocks, and what is wrong in them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collhub_pytorch import execution_trace
from collhub_pytorch.analysis import (
    match_communications,
    measure_waiting,
    measured_timeline,
    overlap_percent,
)
from collhub_pytorch.calls import call_of_kernel, element_bytes, group_of_args, kind_of
from collhub_pytorch.formats import ProfileOptions, RankOptions
from collhub_pytorch.kineto.read import read
from collhub_pytorch.replay import measured, replay_job, replay_transfers
from collhub_pytorch.samples import (
    all_reduce_args,
    execution_traces,
    launched,
    part,
    profile_of,
    profiles,
    step_events,
)

from hub_core.model import (
    Diagnostic,
    InputError,
    JobCollective,
    NodeColumns,
    NodeKind,
    Workload,
)
from hub_core.plugin_api import Source, SourcePart

DEFAULTS = ProfileOptions()
Event = dict[str, Any]


def quiet(diagnostic: Diagnostic) -> None:
    del diagnostic


def read_events(
    *events: Sequence[Event], options: ProfileOptions = DEFAULTS, world_size: int | None = None
) -> Workload:
    size = len(events) if world_size is None else world_size
    parts = [part(f"job.{rank}.json", rank, profile_of(rank, own, size))
             for rank, own in enumerate(events)]  # fmt: skip
    return read(Source("job", tuple(parts), quiet), options)


def read_content(*contents: bytes) -> Workload:
    parts = [
        SourcePart(f"rank{rank}.json", lambda content=content: content)  # type: ignore[misc]
        for rank, content in enumerate(contents)
    ]
    return read(Source("job", tuple(parts), quiet), DEFAULTS)


def sample() -> Workload:
    return read(replace(profiles()[0], report=quiet), DEFAULTS)


def rows(workload: Workload, name: str, rank: int = 0) -> list[int]:
    nodes = workload.nodes
    index = workload.names.index(name)
    return np.flatnonzero((nodes.name == index) & (nodes.rank == rank)).tolist()


def test_nodes_start_and_end_as_in_the_profile() -> None:
    workload = sample()
    times = measured_timeline(workload)
    begin = times.start[rows(workload, "gemm")[0]]
    assert begin == 10_000  # Microsecond 20 of a profile that begins with a call at 10.
    (row,) = rows(workload, "allreduce")
    assert (times.start[row] - begin, times.end[row] - begin) == (80_000, 180_000)
    (row,) = rows(workload, "relu")
    assert (times.start[row] - begin, times.end[row] - begin) == (181_000, 211_000)


def test_kernels_without_any_call_of_the_runtime_are_read() -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "dur": 2, "pid": 0, "tid": 7}
    workload = read_content(
        json.dumps({"traceEvents": [kernel | {"ts": 10}, kernel | {"ts": 15}]}).encode()
    )
    durations = workload.nodes.duration_ns[workload.nodes.duration_ns > 0]
    assert durations.tolist().count(2000) == 2


def test_the_last_rank_transfers_and_the_others_wait() -> None:
    workload = sample()
    meetings = match_communications(workload)
    times = measure_waiting(measured_timeline(workload), meetings)
    members = meetings.members(0)
    assert times.transferring[members].tolist() == [60_000, 60_000]
    assert times.waiting[members].tolist() == [40_000, 0]


def test_a_call_without_a_time_does_not_end_before_its_start() -> None:
    """-1 is the value of an unknown duration, not a duration."""
    columns = {
        "rank": np.array([0, 1]),
        "kind": np.full(2, NodeKind.COLLECTIVE),
        "collective": np.full(2, JobCollective.ALL_REDUCE),
    }
    job = Workload(NodeColumns.from_columns(2, columns))
    result = replay_transfers(job, match_communications(job), np.full(2, -1))
    assert result.times.start.tolist() == result.times.end.tolist()


def test_a_kernel_that_was_told_to_wait_waits_for_the_collective() -> None:
    workload = sample()
    (relu,), (collective,) = rows(workload, "relu"), rows(workload, "allreduce")
    nodes = workload.nodes
    (gap,) = nodes.data_indices[nodes.data_indptr[relu] : nodes.data_indptr[relu + 1]].tolist()
    waits = nodes.control_indices[nodes.control_indptr[gap] : nodes.control_indptr[gap + 1]]
    assert waits.tolist() == [collective]


def test_a_faster_collective_saves_what_the_iteration_waited_for_it() -> None:
    workload = sample()
    before = measured(workload)
    after = replay_job(workload, lambda kind, size, ranks: 10_000)
    assert before.job_ns - after.job_ns == 50_000
    assert replay_job(workload).span_ns == before.span_ns


def test_a_stated_wait_is_no_assumption() -> None:
    wait = {
        "ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 7, "ts": 60,
        "dur": 0,
        "args": {"stream": 7, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 3,
                 "correlation": 3, "device": 0},
    }  # fmt: skip
    workload = read_events(*([*step_events(start), wait] for start in (100, 140)))
    assert len(workload.nodes.control_indices) == 0
    after = replay_job(workload, lambda kind, size, ranks: 10_000)
    assert measured(workload).job_ns - after.job_ns == 50_000


def test_hidden_communication_counts_as_overlap() -> None:
    hidden = launched("conv", 9, stream=7, call_us=50, start_us=120, dur_us=50)
    events = [event for event in step_events(100) if event["name"] != "relu"]
    workload = read_events(*([*events, *hidden] for _ in range(2)))
    assert overlap_percent(workload, measured_timeline(workload)) == [50, 50]


def test_clocks_that_differ_are_aligned_by_the_ends() -> None:
    late = [{**event, "ts": event["ts"] + 5_000} for event in step_events(140)]
    workload = read_events(step_events(100), late)
    said = workload.extensions["pytorch"]
    assert isinstance(said, dict)
    assert said["clock_offsets_ns"] == [0, 5_000_000]
    assert said["clock_residual_ns"] == 0
    assert measured(workload).times.start.max() < 1_000_000


def test_old_files_tell_a_collective_by_the_annotation_around_its_launch() -> None:
    annotation = {
        "ph": "X", "cat": "user_annotation", "name": "nccl:all_to_all", "pid": 9, "tid": 9,
        "ts": 30, "dur": 30, "args": {"Input Dims": [[24]], "Input type": ["long int"]},
    }  # fmt: skip
    workload = read_events(*([*step_events(100, {}), annotation] for _ in range(2)))
    nodes = workload.nodes
    (row,) = rows(workload, "all_to_all")
    assert (nodes.collective[row], nodes.bytes[row]) == (JobCollective.ALL_TO_ALL, 192)
    assert nodes.group[row] == -1


def test_without_any_word_the_name_of_the_kernel_tells_the_kind() -> None:
    workload = read_events(*(step_events(100, {}) for _ in range(2)))
    row = int(np.flatnonzero(workload.nodes.is_kind(NodeKind.COLLECTIVE))[0])
    assert workload.nodes.collective[row] == JobCollective.ALL_REDUCE
    assert workload.nodes.bytes[row] == -1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)", JobCollective.ALL_REDUCE),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", JobCollective.REDUCE_SCATTER),
        ("ncclAllGatherRingLLKernel_copy_i8(ncclColl)", JobCollective.ALL_GATHER),
    ],
)
def test_kernels_of_all_versions_of_nccl_name_their_collective(
    name: str, kind: JobCollective
) -> None:
    call = call_of_kernel(name)
    assert call is not None
    assert call.collective == kind


def test_cut_lists_of_ranks_are_told_by_start_and_stride() -> None:
    cut = all_reduce_args() | {"Process Group Ranks": "[0, 2, 4, ...]", "Group size": 4}
    call = {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 9, "tid": 9, "ts": 35,
        "dur": 20, "args": {**cut, "Global rank start": 0, "Global rank stride": 2},
    }  # fmt: skip
    options = ProfileOptions(ranks_missing="assume-same")
    workload = read_events([*step_events(100, cut), call], options=options, world_size=8)
    assert [group.ranks for group in workload.groups] == [(0, 2, 4, 6), (1, 3, 5, 7)]


@pytest.mark.parametrize("size", [4, 8])
def test_cut_lists_of_as_many_ranks_as_the_job_are_of_all_ranks(size: int) -> None:
    cut = all_reduce_args() | {"Process Group Ranks": "[0, 1, 2, ...]", "Group size": size}
    options = ProfileOptions(ranks_missing="assume-same")
    if size == 4:
        with pytest.raises(InputError, match="the ranks of process group '0' are cut"):
            read_events(step_events(100, cut), options=options, world_size=8)
        return
    workload = read_events(step_events(100, cut), options=options, world_size=8)
    assert [group.ranks for group in workload.groups] == [tuple(range(8))]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_allgather_base", JobCollective.ALL_GATHER),
        ("allgather_into_tensor_coalesced", JobCollective.ALL_GATHER),
        ("_reduce_scatter_base", JobCollective.REDUCE_SCATTER),
        ("reduce_scatter_tensor_coalesced", JobCollective.REDUCE_SCATTER),
        ("all_to_allv", JobCollective.ALL_TO_ALL),
        ("allreduce_coalesced", JobCollective.ALL_REDUCE),
        ("nccl:broadcast", JobCollective.BROADCAST),
        ("_reduce_oop", JobCollective.REDUCE),
        ("barrier", JobCollective.BARRIER),
    ],
)
def test_names_of_collectives(name: str, kind: JobCollective) -> None:
    assert kind_of(name) == (NodeKind.COLLECTIVE, kind)


def test_names_of_messages_and_of_what_is_none() -> None:
    assert [kind_of(name) for name in ("send", "recv", "wait", "", "init")] == [
        (NodeKind.SEND, -1), (NodeKind.RECV, -1), None, None, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("Float", 4), ("c10::BFloat16", 2), ("long int", 8), ("unsigned char", 1), ("what", -1),
        # Annotations of kernels in CUDA graphs.
        ("float32", 4), ("float16", 2), ("int64", 8), ("uint8", 1), ("complex128", 16),
        ("Float8_e4m3fnuz", 1), ("UInt16", 2),
    ],
)  # fmt: skip
def test_sizes_of_types(dtype: str, size: int) -> None:
    assert element_bytes(dtype) == size


def test_messages_of_two_ranks_meet() -> None:
    def side(name: str) -> dict[str, object]:
        return all_reduce_args() | {"Collective name": name}

    workload = read_events(step_events(100, side("send")), step_events(140, side("recv")))
    meetings = match_communications(workload)
    members = meetings.members(0)
    assert workload.nodes.kind[members].tolist() == [NodeKind.SEND, NodeKind.RECV]
    assert workload.nodes.peer[members].tolist() == [1, 0]


def test_files_may_be_compressed_or_bare_lists() -> None:
    whole = profile_of(0, step_events(100))
    packed = gzip.compress(json.dumps(whole).encode())
    bare = json.dumps(step_events(140)).encode()
    assert read_content(packed, bare).num_ranks == 2


def test_records_beyond_a_chunk_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collhub_pytorch.trace_files._CHUNK_BYTES", 7)
    contents = [json.dumps(profile_of(rank, step_events(100)), indent=1).encode()
                for rank in range(2)]  # fmt: skip
    assert read_content(*contents).differences(sample_at(100)) in ([], ["provenance", "extensions"])


def sample_at(start_us: int) -> Workload:
    return read_events(*(step_events(start_us) for _ in range(2)))


REFUSED: list[tuple[str, Any, str]] = [
    ("truncated", lambda good: good[:-200], r"rank1.json: byte \d+: the file ends within its JSON"),
    ("text", lambda good: b"hello", r"rank1.json: byte 0: this is no JSON: 'hello'"),
    ("empty", lambda good: b"[]", "rank1.json: there is no event of a profile in it"),
    (
        "archive",
        lambda good: gzip.compress(good)[:-30],
        r"rank1.json: byte \d+: the gzip archive ends early or is damaged",
    ),
    ("twice", lambda good: good.replace(b'"rank": 1', b'"rank": 0'), "this is rank 0, as is rank0"),
    (
        "other job",
        lambda good: good.replace(b'"world_size": 2', b'"world_size": 3'),
        "this is of a job of 2 ranks, rank1.json of one of 3",
    ),
    (
        "foreign group",
        lambda good: good.replace(b"[0, 1]", b"[0]"),
        "rank 1 communicates in process group '0' of others",
    ),
    ("no rank list", lambda good: good.replace(b"[0, 1]", b"[0, x]"), "is no list of the ranks"),
    (
        "bad event",
        lambda good: good.replace(b'"ts": 201', b'"ts": "a"'),
        "event 'relu' of category kernel cannot be read: start 'a' and duration 30 are no times",
    ),
    (
        "negative",
        lambda good: good.replace(b'"ts": 201, "dur": 30', b'"ts": 201, "dur": -30'),
        "event 'relu' of category kernel cannot be read: start 201 and duration -30 are no times",
    ),
    (
        "no object",
        lambda good: good.replace(b'"args": {"correlation": 1}', b'"args": 3'),
        "`args` of an event 'cudaLaunchKernel' of category cuda_runtime is not an object",
    ),
    (
        "many ranks",
        lambda good: good.replace(b'"world_size": 2', b'"world_size": 1000000000'),
        "of a job of 2 ranks, rank1.json of one of 1000000000",
    ),
    (
        "rank of text",
        lambda good: good.replace(b'"rank": 1', b'"rank": "x"'),
        "distributedInfo states rank 'x', which is no number",
    ),
    (
        "infinite rank",
        lambda good: good.replace(b'"rank": 1', b'"rank": 1e999'),
        "distributedInfo states rank inf, which is no number",
    ),
    *(
        (
            f"{rank} in pg_config",
            lambda good, rank=rank: good.replace(b"[0, 1]", b"[0, ...]").replace(
                b'"rank": 1',
                b'"rank": 1, "pg_config": [{"pg_name": "0", "ranks": [0, %s]}]' % rank.encode(),
            ),
            "pg_config: ranks of process group '0' are no numbers",
        )
        for rank in ('"x"', "null", "1e999")
    ),
]


@pytest.mark.parametrize(("name", "damage", "message"), REFUSED, ids=lambda one: str(one)[:12])
def test_damaged_files_are_refused_in_one_line(name: str, damage: Any, message: str) -> None:
    good = [json.dumps(profile_of(rank, step_events(100))).encode() for rank in range(2)]
    with pytest.raises(InputError, match=message) as caught:
        read_content(good[0], damage(good[1]))
    assert "\n" not in str(caught.value)


def test_archives_that_unpack_to_far_more_than_traces_do_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hub_core.plugin_api.formats.UNCHECKED_BYTES", 0)
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * 10_000_000)
    with pytest.raises(InputError, match="expands to more than 300 times the bytes read"):
        read_content(bomb)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            all_reduce_args(elements=999),
            r"job.1.json: rank 1, step \d+: collective 1 of process group '0' is an all-reduce of "
            r"3.902 KiB \(Float\), at job.0.json: rank 0, step \d+ an all-reduce of 3.906 KiB",
        ),
        (all_reduce_args(dtype="Int"), r"\(Int\), at job.0.json: .* \(Float\)"),
        (
            all_reduce_args() | {"Collective name": "broadcast"},
            "is a broadcast of 3.906 KiB",
        ),
    ],
)
def test_ranks_that_disagree_are_both_named(change: Mapping[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_events(step_events(100), step_events(140, change))


def test_a_rank_that_lacks_a_collective_is_named() -> None:
    without = [event for event in step_events(140) if "nccl" not in event["name"]]
    message = r"collective 1 of process group '0' is an all-reduce .* but rank 1 \(job.1.json\) has"
    with pytest.raises(InputError, match=message):
        read_events(step_events(100), without)


def test_missing_ranks_are_named() -> None:
    with pytest.raises(
        InputError, match=r"ranks 1-3 of 4 are missing; .*ranks_missing=assume-same"
    ):
        read_events(step_events(100), world_size=4)


def test_jobs_of_too_many_ranks_are_refused_without_counting_them() -> None:
    with pytest.raises(InputError, match="a job of 1000000000 ranks; at most 1048576 are read"):
        read_events(step_events(100), world_size=10**9)
    options = ProfileOptions(ranks_missing="assume-same")
    computation = [event for event in step_events(100) if "nccl" not in event["name"]]
    with pytest.raises(InputError, match=r"copies for 1048575 missing ranks would have \d+ nodes"):
        read_events(computation * 50, options=options, world_size=1 << 20)


@pytest.mark.parametrize("changes", [{"Group size": 50_000_000}, {"Global rank start": 1 << 40}])
def test_regular_groups_of_too_many_ranks_are_refused_before_their_ranks_are_listed(
    changes: dict[str, int],
) -> None:
    args = {"Process Group Name": "0", "Global rank start": 0, "Global rank stride": 1}
    with pytest.raises(InputError, match=r"a process group of \d+ ranks from \d+ on"):
        group_of_args({**args, "Group size": 2, **changes}, "trace.json")


def test_messages_tell_nothing_of_missing_ranks() -> None:
    side = all_reduce_args() | {"Collective name": "send"}
    options = ProfileOptions(ranks_missing="assume-same")
    with pytest.raises(InputError, match="a message between two ranks says nothing of the ranks"):
        read_events(step_events(100, side), options=options, world_size=2)


def test_messages_whose_peer_is_not_recorded_are_counted() -> None:
    side = all_reduce_args() | {
        "Collective name": "send", "Process Group Ranks": "[0, 1, 2]", "Group size": 3,
    }  # fmt: skip
    parts = [part(f"job.{rank}.json", rank, profile_of(rank, step_events(100, side), 3))
             for rank in range(3)]  # fmt: skip
    messages: list[str] = []
    source = Source("job", tuple(parts), lambda found: messages.append(found.message))
    workload = read(source, ProfileOptions(clocks="stated"))
    assert not np.isin(workload.nodes.kind, [NodeKind.SEND, NodeKind.RECV]).any()
    assert messages[0] == (
        "ranks 0-2: 3 messages without a recorded peer count as communication with an unknown"
        " rank, for which nobody waits"
    )


def test_ranks_without_an_execution_trace_are_named() -> None:
    source = execution_traces()[0]
    messages: list[str] = []
    first = Source("job", source.parts[:1], lambda found: messages.append(found.message))
    assert execution_trace.read(first, RankOptions(ranks_missing="assume-same")).num_ranks == 2
    assert messages == ["ranks 1 have no file and are assumed to do what others do"]


def two_steps(second_us: int) -> list[Event]:
    """A step, and all of it again `second_us` later."""
    again = [
        {**event, "ts": event["ts"] + second_us,
         "args": {**event["args"], "correlation": event["args"]["correlation"] + 100}}
        for event in step_events(100)
    ]  # fmt: skip
    return [*step_events(100), *again]


def test_clocks_that_cannot_be_aligned_are_refused() -> None:
    with pytest.raises(InputError, match=r"clocks cannot be aligned: .* still ends .* ms from"):
        read_events(two_steps(1_000), two_steps(9_000))
    allowed = ProfileOptions(clock_residual=0.1)
    assert read_events(two_steps(1_000), two_steps(9_000), options=allowed).num_ranks == 2


def test_clocks_of_ranks_that_never_meet_are_refused_unless_they_are_one() -> None:
    alone = [event for event in step_events(100) if "nccl" not in event["name"]]
    with pytest.raises(InputError, match="clocks of ranks 1 cannot be aligned: they share no"):
        read_events(alone, alone)
    stated = ProfileOptions(clocks="stated")
    assert read_events(alone, alone, options=stated).num_ranks == 2


def test_a_step_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="there is no ProfilerStep#3: it has none"):
        read_events(step_events(100), options=ProfileOptions(step=3), world_size=1)


def test_execution_traces_state_collectives_without_times() -> None:
    workload = execution_trace.read(execution_traces()[0], RankOptions())
    assert workload.nodes.bytes.tolist() == [4000, 4000]
    assert workload.groups[0].ranks == (0, 1)
    with pytest.raises(InputError, match="a node has no measured time; name Kineto profiles"):
        measured_timeline(workload)


def host_all_reduce(start: float, duration: float) -> list[Event]:
    """An all-reduce of gloo, and the operator that issues it 10 us before."""
    args = {"Input Dims": [[24]], "Input type": ["float"]}
    return [
        {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "pid": 9, "tid": 9,
         "ts": start - 10, "dur": 5, "args": {}},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 9, "tid": 8,
         "ts": start, "dur": duration, "args": args},
    ]  # fmt: skip


def notes_on(*events: Sequence[Event]) -> tuple[Workload, list[str]]:
    messages: list[str] = []
    parts = [part(f"job.{rank}.json", rank, profile_of(rank, own))
             for rank, own in enumerate(events)]  # fmt: skip
    source = Source("job", tuple(parts), lambda found: messages.append(found.message))
    return read(source, DEFAULTS), messages


def test_kernels_of_unknown_collectives_are_counted() -> None:
    several = launched("ncclDevKernel_SendRecv(a)", 9, stream=20, call_us=210, start_us=220,
                       dur_us=9)  # fmt: skip
    _, messages = notes_on([*step_events(100), *several], step_events(100))
    assert messages[0] == (
        "rank 0: 1 kernels of communication count as communication of an unknown collective"
    )


def test_collectives_of_the_host_next_to_a_device_are_kept() -> None:
    # The host is idle from 61 on, and launches a kernel after the collective ended at 600.
    after = launched("late", 9, stream=7, call_us=650, start_us=660, dur_us=20)
    events = [*host_all_reduce(300, 300), *step_events(100), *after]
    workload, messages = notes_on(events, events)
    assert "ranks 0,1: 2 collectives of libraries of the host, next to its device" in messages[0]
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & (nodes.rank == 0))
    assert sorted(nodes.bytes[rows].tolist()) == [96, 4000]
    assert {group.name for group in workload.groups} == {"0", "gloo"}
    saved = measured(workload).job_ns - replay_job(workload, lambda *_: 0).job_ns
    assert saved == 300_000


def test_ends_of_threads_of_the_host_do_not_move_the_clocks_of_devices() -> None:
    after = launched("late", 9, stream=7, call_us=9_650, start_us=9_660, dur_us=20)
    ranks = [[*step_events(100), *host_all_reduce(300, length), *after] for length in (300, 9_000)]
    workload, messages = notes_on(*ranks)
    assert any(message.endswith("differ by up to 0 ns") for message in messages)
    extension = workload.extensions["pytorch"]
    assert isinstance(extension, dict)
    assert extension["clock_offsets_ns"] == [0, 0]


def test_collectives_of_the_host_without_an_operator_are_an_error() -> None:
    events = [*step_events(100), host_all_reduce(300, 30)[1]]
    with pytest.raises(InputError, match="1 of 1 collectives have no operator"):
        notes_on(events, events)
