"""Records of NCCL's Inspector and profiler plugin as workloads: order, ranks, losses, times."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from collhub_nccl_records import NcclLog, read_inspector_lines
from collhub_nccl_records.calls import CallRecord, SkippedLine
from collhub_nccl_records.plugin_records import read_profiler_events
from collhub_pytorch.findings import collect_findings
from collhub_pytorch.formats import ClockOptions, DeepSpeedOptions, RankOptions
from collhub_pytorch.job import recorded_ranks_per_node
from collhub_pytorch.nccl.read import (
    has_calls,
    read_deepspeed,
    read_inspector,
    read_log,
    read_profiler,
)
from collhub_pytorch.samples import (
    deepspeed_logs,
    inspector_line,
    inspector_lines,
    log_lines,
    profiler_events,
    profiler_file,
    source_of,
)
from read_jobs import collectives

from hub_core.model import Diagnostic, HubError, InputError, NodeKind, Workload
from hub_core.plugin_api import Source

SAME = ClockOptions(ranks_missing="assume-same")


@pytest.fixture
def records(corpus: Path) -> Path:
    folder = corpus / "evidence" / "nccl"
    if not folder.is_dir():
        pytest.skip("the corpus has no records of NCCL")
    return folder


def read_text(*lines: str, options: ClockOptions | None = None) -> tuple[Workload, list[str]]:
    notes: list[Diagnostic] = []
    source = Source("job", source_of("job", {"all.log": "".join(lines)}).parts, notes.append)
    workload = read_inspector(source, options or ClockOptions())
    return workload, [note.message for note in notes]


def test_calls_after_a_marker_have_the_communicator_of_the_marker() -> None:
    content = inspector_lines()[1].content().decode()
    plain = [json.loads(line) for line in content.splitlines()]
    expected, _ = read_text(*(json.dumps(entry) + "\n" for entry in plain))
    lines: list[str] = []
    for entry in plain:
        marker = {key: entry.pop(key) for key in ("header", "metadata")}
        stats = {"coll_records": 1, "proxy_records": 1, "coll_dropped_since_last_dump": 0}
        entries = [marker | {"dump_stats": stats}, {"proxy_trace": {"rank": 0}}, entry]
        lines += [json.dumps(one) + "\n" for one in entries]
    workload, _ = read_text(*lines)
    assert collectives(workload, 0) == collectives(expected, 0)
    assert collectives(workload, 1) == collectives(expected, 1)


def test_lost_calls_and_calls_beyond_the_marker_are_reported() -> None:
    entry = json.loads(inspector_lines()[1].content().splitlines()[0])
    marker = {key: entry.pop(key) for key in ("header", "metadata")}
    marker["dump_stats"] = {"coll_records": 1, "coll_dropped_since_last_dump": 7}
    lines = [json.dumps(one).encode() for one in (marker, entry, entry)]
    records = list(read_inspector_lines(enumerate(lines, 1), "x"))
    assert [type(record).__name__ for record in records] == [
        "SkippedLine", "CallRecord", "SkippedLine",
    ]  # fmt: skip
    assert "7 calls were overwritten" in getattr(records[0], "message", "")
    assert "no header" in getattr(records[2], "message", "")


def test_the_published_bandwidths_follow_from_size_and_time(records: Path) -> None:
    path = records / "inspector_ok.log"
    workload, notes = read_text(path.read_text())
    assert collectives(workload, 0) == collectives(workload, 1)
    assert collectives(workload, 0) == [
        ("ALL_REDUCE", 1 << 20, 100_000),
        ("ALL_GATHER", 1 << 20, 50_000),
    ]
    bandwidths = {one.kind: one.bus_bandwidth for one in collect_findings(workload).calls}
    assert bandwidths["all-reduce"] == pytest.approx(10.48576e9)
    assert bandwidths["all-gather"] == pytest.approx(20.97152e9)
    # The receive of the message is not in the file.
    assert any(note.startswith("1 messages without a record of the other end") for note in notes)
    lines = enumerate(path.read_bytes().splitlines(), 1)
    assert len(list(read_inspector_lines(lines, "x"))) == 5


def test_a_cut_file_keeps_its_whole_lines_and_reports_the_other(records: Path) -> None:
    workload, notes = read_text((records / "inspector_cut.log").read_text(), options=SAME)
    assert collectives(workload, 0) == [("ALL_REDUCE", 1 << 20, 100_000)]
    assert "not used: all.log:2: the line is not a JSON object; it may be truncated" in notes


def test_waiting_is_the_time_beyond_that_of_the_fastest_rank() -> None:
    findings = collect_findings(read_inspector(inspector_lines()[0], ClockOptions()))
    (reduce,) = [one for one in findings.calls if one.kind == "all-reduce"]
    assert (reduce.transferring_ns, reduce.waiting_ns) == (200_000, 40_000)
    assert reduce.stragglers[0].rank == 1
    kinds = {one.kind: one.bytes for one in findings.calls}
    # The Inspector records the received segment of a reduce-scatter.
    assert kinds == {"all-reduce": 1 << 20, "all-gather": 1 << 20, "reduce-scatter": 1 << 20,
                     "send": 1 << 16}  # fmt: skip


def test_one_file_and_one_file_per_process_are_one_workload() -> None:
    apart, together = (read_inspector(one, ClockOptions()) for one in inspector_lines())
    assert apart.differences(together) == ["provenance", "extensions"]


def test_a_record_that_one_rank_lost_is_completed() -> None:
    lines = [inspector_line(rank, "AllReduce", sn, 4096, 10 + rank) for rank in (0, 1)
             for sn in (1, 2, 3) if (rank, sn) != (1, 2)]  # fmt: skip
    workload, notes = read_text(*lines)
    assert len(collectives(workload, 1)) == 3
    assert any(
        note.startswith("1 records of collectives are missing on one rank") for note in notes
    )


def test_gaps_on_all_ranks_are_lost_records_not_an_error() -> None:
    lines = [inspector_line(rank, "AllReduce", sn, 4096, 10) for rank in (0, 1) for sn in (1, 5)]
    _, notes = read_text(*lines)
    assert any(note.startswith("3 collectives have no record on any rank") for note in notes)


def test_sequence_numbers_may_be_counted_per_operation() -> None:
    names = ("AllReduce", "AllGather")
    lines = [inspector_line(rank, name, sn, 4096, 10) for rank in (0, 1) for sn in (1, 2)
             for name in names]  # fmt: skip
    workload, notes = read_text(*lines)
    assert [one[0] for one in collectives(workload, 1)] == ["ALL_REDUCE", "ALL_GATHER"] * 2
    assert not any("no record" in note for note in notes)


def test_ranks_of_subgroups_follow_from_their_processes() -> None:
    lines = []
    for rank in range(4):
        world = {"communicator": "0xa", "rank_count": 4, "pid": 10 - rank}
        pair = {"communicator": f"0xb{rank % 2}", "rank_count": 2, "pid": 10 - rank}
        lines.append(inspector_line(rank, "AllReduce", 1, 4096, 10, **world))
        lines.append(inspector_line(rank // 2, "AllGather", 1, 4096, 10, **pair))
    workload, _ = read_text(*lines)
    assert sorted(group.ranks for group in workload.groups) == [(0, 2), (1, 3)]


def test_crossing_orders_of_two_communicators_are_read_in_one_order() -> None:
    both = [("0xa", "AllReduce"), ("0xb", "AllGather")]
    lines = [inspector_line(rank, name, 1, 4096, 10, communicator=communicator)
             for rank in (0, 1) for communicator, name in (both if rank else both[::-1])]  # fmt: skip
    workload, notes = read_text(*lines)
    assert collectives(workload, 0) == collectives(workload, 1)
    assert any("different orders at 1 places" in note for note in notes)


def test_start_times_of_kernels_give_gaps_between_calls() -> None:
    lines = []
    for rank in (0, 1):
        for sn, start in ((1, 1000), (2, 1200)):
            entry = json.loads(inspector_line(rank, "AllReduce", sn, 4096, 50))
            kernel = {"channel_id": 0, "kernel_start_ts": start, "kernel_stop_ts": start + 50}
            entry["event_trace_ts"] = {"coll_start_ts": start - 5, "kernel_events": [kernel]}
            lines.append(json.dumps(entry) + "\n")
    workload, notes = read_text(*lines)
    assert collect_findings(workload).job_ns == 250_000
    assert not any("no start times" in note for note in notes)


def test_calls_without_their_initialisation_are_refused_with_the_reason() -> None:
    call = "AllReduce: opCount 1 sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 comm 0x3"
    text = f"node:1:2 [0] NCCL INFO {call} [nranks=2] stream 0x4\n"
    with pytest.raises(InputError) as caught:
        read_log(Source.of_bytes("a.0.nccl.log", text.encode()), RankOptions())
    finding = caught.value.diagnostics[0]
    assert finding.message.startswith("there is no valid record: the log has no line of init")
    assert finding.cure == "log the start of the job as well: NCCL_DEBUG_SUBSYS=INIT,COLL"
    assert finding.location.line == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{}\n"], r"all.log:1: there is no valid record"),
        ([inspector_line(2, "AllReduce", 1, 8192, 10)], "rank 2 is not below its 2 ranks"),
        ([inspector_line(0, "AllReduce", 1, 8192, 10)], "ranks 1 of 2 are missing"),
        (
            [inspector_line(0, "AllReduce", 1, 8192, 10, pid=pid) for pid in (1, 2)],
            "rank 0 is in process 'node0:1' and 'node0:2'",
        ),
        (
            [inspector_line(r, "AllReduce", 1, 8192 + r, 10) for r in (0, 1)],
            "is an all-reduce of 8.001 KiB",
        ),
    ],
)
def test_contradictions_are_refused(lines: Sequence[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_text(*lines)


def test_times_of_the_profiler_plugin_are_aligned() -> None:
    workload = read_profiler(profiler_events()[0], ClockOptions())
    assert [one[:2] for one in collectives(workload, 1)] == [
        ("ALL_REDUCE", 1 << 20),
        ("ALL_GATHER", 1 << 18),
    ]
    findings = collect_findings(workload)
    (reduce,) = [one for one in findings.calls if one.kind == "all-reduce"]
    assert (reduce.transferring_ns, reduce.waiting_ns) == (200_000, 20_000)


def read_events(text: str) -> list[CallRecord | SkippedLine]:
    lines = enumerate(text.encode().splitlines(), start=1)
    return list(read_profiler_events(lines, "trace-node-7.txt"))


def test_a_call_whose_begin_is_repeated_is_reported_as_skipped() -> None:
    reduced = profiler_file(0, 0).splitlines(keepends=True)[:5]
    text = "".join([*reduced[:2], *reduced[1:]])
    skipped, call = read_events(text)
    assert isinstance(skipped, SkippedLine)
    assert (skipped.line, skipped.message) == (2, "AllReduce has no end in the file")
    assert isinstance(call, CallRecord)
    assert call.line == 3


def test_calls_above_the_limit_of_open_ones_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collhub_nccl_records.plugin_records._MAX_OPEN_CALLS", 1)
    begins = profiler_file(0, 0).splitlines(keepends=True)
    found = read_events("".join([begins[1], begins[5], begins[4]]))
    assert [type(one) for one in found] == [SkippedLine, CallRecord]
    assert found[0].line == 2


def test_a_kernel_without_a_time_leaves_the_begin_of_the_others() -> None:
    lines = profiler_file(0, 0).splitlines(keepends=True)[:5]
    without_time = lines[2].replace('"ts": 10', '"ts": "?"')
    assert without_time != lines[2]
    (expected,), (found,) = (
        read_events("".join(text)) for text in (lines, [*lines[:3], without_time, *lines[3:]])
    )
    assert found == expected
    assert isinstance(found, CallRecord)
    assert found.timing_source == "kernel_cpu"


def test_a_profile_without_closing_bracket_and_end_is_read() -> None:
    files = {f"trace-node{rank}-7.txt": profiler_file(rank, 0) for rank in range(2)}
    cut = {name: text[: text.rindex('{"name": "AllGather"')] for name, text in files.items()}
    notes: list[Diagnostic] = []
    source = Source("job", source_of("job", cut).parts, notes.append)
    assert [one[0] for one in collectives(read_profiler(source, ClockOptions()), 0)] == [
        "ALL_REDUCE"
    ]
    assert any("AllGather has no end in the file" in note.message for note in notes)


@pytest.mark.once
def test_damaged_records_are_read_or_refused() -> None:
    random_bytes = random.Random(5)
    sources = [(read_inspector, one) for one in inspector_lines()]
    sources += [(read_profiler, one) for one in profiler_events()]
    sources += [(read_log, one) for one in log_lines()]
    outcomes = set()
    for turn in range(400):
        read, source = sources[turn % len(sources)]
        files: dict[str, Any] = {part.name: bytearray(part.load()) for part in source.parts}
        content = files[random_bytes.choice(sorted(files))]
        for _ in range(random_bytes.randint(1, 4)):
            place = random_bytes.randrange(len(content))
            content[place : place + random_bytes.randint(0, 3)] = random_bytes.randbytes(2)
        texts = {name: bytes(content).decode("latin-1") for name, content in files.items()}
        try:
            read(source_of("job", texts), ClockOptions())
            outcomes.add("read")
        except HubError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_profile_reads_the_records(collhub, tmp_path: Path) -> None:
    paths = []
    for part in inspector_lines()[0].parts:
        paths.append(tmp_path / part.name)
        paths[-1].write_bytes(part.load())
    report = collhub("profile", *paths, "--json").report()
    assert report["job_ns"] == 258_000
    assert any("no start times" in note for note in report["notes"])
    refused = collhub("profile", *paths, "--step", "3")
    assert refused.code == 2
    assert "records of NCCL's Inspector, which mark no iterations" in refused.err


def test_files_of_two_formats_are_refused(collhub, tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.txt"
    one.write_text(inspector_line(0, "AllReduce", 1, 8192, 10))
    two.write_text(profiler_file(1, 0))
    run = collhub("profile", one, two)
    assert run.code == 1
    assert "these are events of NCCL's profiler plugin, but" in run.err


def log_of(*messages: tuple[int, str], members: Sequence[str] = ("0x1", "0x1")) -> Source:
    """A log of ranks 0, 1, ...; `members`: communicator of each process, by hash."""
    lines = [
        f"node0:{100 + rank}:7 [{rank}] NCCL INFO ncclCommInitRank comm 0xa{rank} rank"
        f" {list(members[:rank]).count(identity)} nranks {members.count(identity)} cudaDev {rank}"
        f" busId 1000 commId {identity} - Init START"
        for rank, identity in enumerate(members)
    ]
    lines += [f"node0:{100 + rank}:7 [{rank}] NCCL INFO {text}" for rank, text in messages]
    return source_of("job.log", {"job.log": "\n".join(lines)})


def call_text(rank: int, operation: str, count: int = 1024, root: int = 0, dtype: int = 7) -> str:
    return (
        f"{operation}: opCount 0 sendbuff 0x7f recvbuff 0x7f count {count} datatype {dtype} op 0"
        f" root {root} comm 0xa{rank} [nranks=2] stream 0x55"
    )


@pytest.mark.parametrize(
    ("operation", "size"),
    [("AllReduce", 4096), ("AllGather", 4096), ("ReduceScatter", 8192), ("AlltoAll", 8192),
     ("Broadcast", 4096)],
)  # fmt: skip
def test_calls_of_a_log_have_the_bytes_of_the_input_buffer(operation: str, size: int) -> None:
    source = log_of(*((rank, call_text(rank, operation)) for rank in (0, 1)))
    workload = read_log(source, RankOptions())
    assert [one[1] for one in collectives(workload, 0)] == [size]


def test_messages_of_a_log_have_their_peers() -> None:
    source = log_of((0, call_text(0, "Send", root=1)), (1, call_text(1, "Recv", root=0)))
    nodes = read_log(source, RankOptions()).nodes
    assert nodes.kind.tolist() == [NodeKind.SEND, NodeKind.RECV]
    assert nodes.peer.tolist() == [1, 0]


def test_types_that_differ_between_ranks_are_a_mismatch() -> None:
    source = log_of((0, call_text(0, "AllReduce")), (1, call_text(1, "AllReduce", dtype=2)))
    with pytest.raises(InputError, match=r"\(int32\).*\(float32\)"):
        read_log(source, RankOptions())


def test_calls_of_a_log_that_differ_between_ranks_are_kept_on_request() -> None:
    source = log_of(*((rank, call_text(rank, "AllReduce", 100 + rank)) for rank in (0, 1)))
    with pytest.raises(InputError, match="400 B"):
        read_log(source, RankOptions())
    workload = read_log(source, RankOptions(mismatches="keep"))
    assert workload.nodes.bytes.tolist() == [400, 404]


def test_a_call_that_one_rank_does_not_log_is_a_mismatch() -> None:
    texts = [(rank, call_text(rank, "AllReduce")) for rank in (0, 1, 0)]
    with pytest.raises(InputError, match=r"collective 2 of all ranks .* rank 1 .* has only 1"):
        read_log(log_of(*texts), RankOptions())


def test_calls_without_a_line_of_initialisation_are_reported() -> None:
    notes: list[Diagnostic] = []
    texts = [(rank, call_text(rank, "AllReduce")) for rank in (0, 1)]
    source = log_of(*texts, (0, call_text(9, "AllReduce")))
    read_log(Source("job.log", source.parts, notes.append), RankOptions())
    assert any("job.log:5: the log has no line of initialisation" in one.message for one in notes)


def old_log(*members: tuple[int, int, int], calls: Sequence[tuple[int, str]]) -> Source:
    """A log of a release that logs no `commId`; `members`: process, rank and number of ranks."""
    lines = [
        f"node0:{100 + process}:7 [0] NCCL INFO comm 0x{size}{process} rank {rank} nranks {size}"
        f" cudaDev {process} nvmlDev {process} - Init COMPLETE"
        for process, rank, size in members
    ]
    lines += [f"node0:{100 + process}:7 [0] NCCL INFO {text}" for process, text in calls]
    return source_of("job.log", {"job.log": "\n".join(lines)})


def old_call(process: int, size: int) -> tuple[int, str]:
    return process, call_text(process, "AllReduce").replace("0xa", f"0x{size}")


def test_communicators_of_old_logs_without_ids_are_those_of_their_sizes() -> None:
    world = [(process, process, 4) for process in range(4)]
    calls = [old_call(process, 4) for process in range(4)]
    calls += [old_call(process, 2) for process in (1, 3)]
    source = old_log(*world, (1, 0, 2), (3, 1, 2), calls=calls)
    workload = read_log(source, RankOptions())
    assert workload.num_ranks == 4
    assert [group.ranks for group in workload.groups] == [(1, 3)]
    assert [len(collectives(workload, rank)) for rank in range(4)] == [1, 2, 1, 2]


def test_rings_before_the_line_of_initialisation_of_an_old_log_belong_to_it() -> None:
    rings = [b"node0:100:7 [0] NCCL INFO Channel 00/01 : 0 1"]
    members = [
        b"node0:10%d:7 [0] NCCL INFO comm 0x%d rank %d nranks 2 cudaDev 0 busId 60 - Init COMPLETE"
        % (rank, rank, rank)
        for rank in range(2)
    ]
    log = NcclLog()
    assert not list(log.read(enumerate([*rings, *members], 1), "job.log"))
    (facts,) = log.communicators.values()
    assert (facts.identity, facts.size(), facts.ring(0)) == ("2 ranks", 2, (0, 1))
    assert sorted(facts.processes) == [0, 1]


def test_a_pointer_that_an_old_log_uses_again_names_the_communicator_of_the_new_size() -> None:
    line = "node0:10{0}:7 [0] NCCL INFO comm 0x{0} rank {1} nranks {2} cudaDev 0 busId 60"
    members = [(0, 0, 2), (1, 1, 2), (0, 0, 1)]
    log = NcclLog()
    lines = [f"{line.format(*member)} - Init COMPLETE".encode() for member in members]
    assert not list(log.read(enumerate(lines, 1), "job.log"))
    assert {name: facts.size() for name, facts in log.communicators.items()} == {
        "2 ranks": 2,
        "1 ranks": 1,
    }


def test_communicators_of_one_size_in_old_logs_without_ids_are_refused() -> None:
    members = [(process, process % 2, 2) for process in range(4)]
    source = old_log(*members, calls=[old_call(process, 2) for process in range(4)])
    with pytest.raises(InputError, match=r"'2 ranks': rank 0 is in process .* lack the commId"):
        read_log(source, RankOptions())


def test_only_logs_with_calls_of_all_ranks_are_jobs(records: Path) -> None:
    assert has_calls(log_lines()[0])
    path = records / "init_4ranks.log"
    assert not has_calls(source_of(path.name, {path.name: path.read_text()}))


def test_a_split_has_the_colour_of_its_parent() -> None:
    split = "ncclCommSplit comm 0xb{0} rank {1} nranks 1 cudaDev 0 nvmlDev 0 busId 1 parent 0xa{0}"
    split += " childCount 1 color {0} key 0 - Init COMPLETE"
    texts = [(rank, split.format(rank, 0)) for rank in (0, 1)]
    texts += [(rank, call_text(rank, "AllReduce").replace("0xa", "0xb")) for rank in (0, 1)]
    texts += [(rank, call_text(rank, "AllGather")) for rank in (0, 1)]
    workload = read_log(log_of(*texts), RankOptions())
    assert sorted(group.ranks for group in workload.groups) == [(0,), (1,)]


def deepspeed(text: str) -> tuple[Workload, list[str]]:
    notes: list[Diagnostic] = []
    source = source_of("train.log", {"train.log": text})
    source = Source(source.name, source.parts, notes.append)
    return read_deepspeed(source, DeepSpeedOptions()), [note.message for note in notes]


def logged(name: str, time: str, size: str, algorithm: float, bus: float) -> str:
    return (
        f"[2026-05-04 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] rank=0 | comm op:"
        f" {name} | time (ms): {time} | msg size: {size} | algbw (Gbps): {algorithm}  | busbw"
        f" (Gbps): {bus}\n"
    )


def test_a_log_of_deepspeed_has_the_calls_sizes_and_ranks_of_its_lines() -> None:
    workload, notes = deepspeed(deepspeed_logs()[0].content().decode())
    # Bus bandwidth is 15/16 of the algorithm bandwidth. 678.86 MB are 678.86 * 1024 * 1024 bytes.
    assert workload.num_ranks == 16
    # An all-gather logs the input of a rank, a reduce-scatter its whole input.
    assert collectives(workload, 0) == collectives(workload, 15) == [
        ("ALL_REDUCE", 711_836_303, 9_460_000),
        ("REDUCE_SCATTER", 104_857_600, 5_000_000),
        ("ALL_GATHER", 44_491_080, 10_000_000),
        ("ALL_REDUCE", 1_048_576, 1_000_000),
    ]  # fmt: skip
    assert any("sizes are rounded" in note for note in notes)
    assert any("ranks 1-15 have no file" in note for note in notes)


def test_bus_bandwidths_are_those_that_deepspeed_prints() -> None:
    workload, _ = deepspeed(deepspeed_logs()[0].content().decode())
    found = {(one.kind, one.bytes): one.bus_bandwidth for one in collect_findings(workload).calls}
    printed = {
        ("all-reduce", 711_836_303): 1129.23,
        ("reduce-scatter", 104_857_600): 157.29,
        ("all-gather", 44_491_080): 533.9,
        ("all-reduce", 1_048_576): 15.73,
    }
    assert {key: (value or 0) * 8 / 1e9 for key, value in found.items()} == {
        key: pytest.approx(value, rel=0.001) for key, value in printed.items()
    }


def test_the_last_summary_gives_the_calls_where_lines_are_missing() -> None:
    text = deepspeed_logs()[1].content().decode()
    once, notes = deepspeed(text)
    assert [call[2] for call in collectives(once, 0)] == [
        *[9_460_000] * 2, *[5_000_000] * 2, *[10_000_000] * 2, *[1_000_000] * 2,
    ]  # fmt: skip
    assert any("a summary has no order" in note for note in notes)
    # A later summary includes the calls of an earlier one.
    twice, _ = deepspeed(text + "iteration 2\n" + text)
    assert collectives(twice, 0) == collectives(once, 0)
    lines = deepspeed_logs()[0].content().decode()
    assert len(collectives(deepspeed(lines + text)[0], 0)) == 4


def test_names_of_callers_and_operations_that_are_no_collectives_are_handled() -> None:
    text = logged("all_reduce | [Caller Func: step]", "1.00", "1.0 MB", 16.78, 14.68)
    text += logged("monitored_barrier", "1.00", "0B", 0.0, 0.0)
    workload, notes = deepspeed(text)
    assert workload.num_ranks == 8
    assert collectives(workload, 0) == [("ALL_REDUCE", 1 << 20, 1_000_000)]
    assert any("'monitored_barrier' is no collective" in note for note in notes)


def test_of_several_numbers_of_ranks_that_fit_the_most_even_one_is_assumed() -> None:
    # 31/32 of 10 is 9.6875; between 9.685 / 10.005 and 9.695 / 9.995 are 31/32 and 32/33.
    workload, notes = deepspeed(logged("all_reduce", "1.00", "1.0 MB", 10.0, 9.69))
    assert workload.num_ranks == 32
    assert any("32 ranks are assumed; the rounded bandwidths fit 32 to 33" in one for one in notes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (logged("broadcast", "1.00", "1.0 MB", 8.39, 8.39), "number of ranks cannot be derived"),
        (
            logged("all_reduce", "1.00", "1.0 MB", 16.78, 14.68)
            + logged("all_reduce", "1.00", "1.0 MB", 16.78, 15.73),
            "different numbers of ranks",
        ),
        (logged("barrier", "1.00", "0B", 0.0, 0.0), "there is no valid record: 'barrier'"),
        (logged("all_reduce", "1.00", "1.0 MB", 1e6, 999980.0), "more than 16384 ranks"),
        (
            logged("all_reduce", "1.00", "1.0 MB", 8.39, 16.78),
            "the bus bandwidth 16.78 is not below the algorithm bandwidth 8.39",
        ),
        (
            deepspeed_logs()[1].content().decode().replace(" 2  ", " 999999  "),
            "ranks together; at most 4194304 are read",
        ),
        ("comm op: x | time (ms): \n", "there is no record"),
    ],
)
def test_logs_of_deepspeed_without_usable_calls_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        deepspeed(text)
    assert caught.value.diagnostics[0].location.file == "train.log"


def four_ranks(node_count: int, hosts: Sequence[str]) -> Workload:
    """An all-reduce of four ranks, each in a process of the host at its position."""
    lines = [
        inspector_line(
            rank, "AllReduce", 1, 4096, 10.0, rank_count=4, node_count=node_count, host=host
        )
        for rank, host in enumerate(hosts)
    ]
    return read_text(*lines)[0]


@pytest.mark.parametrize(
    ("node_count", "hosts", "expected"),
    [
        (2, "aabb", 2),
        (1, "aaaa", 4),
        (4, "abcd", 1),
        # Ranks alternate between the hosts, three hosts of one node, and a count that is no factor.
        (2, "abab", None),
        (1, "aabb", None),
        (3, "aabb", None),
        (0, "aabb", None),
    ],
)
def test_ranks_per_node_follow_from_recorded_nodes_that_the_hosts_confirm(
    node_count: int, hosts: str, expected: int | None
) -> None:
    assert recorded_ranks_per_node(four_ranks(node_count, hosts)) == expected


def test_profile_compares_with_a_machine_of_the_recorded_nodes(collhub, tmp_path: Path) -> None:
    lines = [
        inspector_line(
            rank, "AllReduce", number, 1 << 26, 2000.0, rank_count=8, node_count=2,
            host=f"node{rank // 4}",
        )
        for number in (1, 2)
        for rank in range(8)
    ]  # fmt: skip
    path = tmp_path / "job.inspector.jsonl"
    path.write_text("".join(lines))
    report = collhub("profile", path, "--machine", "h100", "--json").report()
    (entry,) = report["machine_comparison"]["collectives"]
    assert entry["node_count"] == 2
    assert any("4 ranks are on each" in note for note in report["notes"])
