"""Small traces and records for the conformance kit and for tests, as torch and NCCL write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hub_core.plugin_api import Source, SourcePart

Event = dict[str, Any]
_GROUP = {
    "Group size": 2,
    "In split size": "[]",
    "Out split size": "[]",
    "Process Group Name": "0",
    "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}


def profiles() -> Sequence[Source]:
    """Return one source, `job`, with the Kineto profiles of two ranks in memory, in a list.

    Each rank runs a computation, an all-reduce of both ranks and a computation. Rank 0
    reaches the all-reduce 40 us before rank 1, and waits. The source ignores findings that
    are reported to it.
    """
    parts = [
        part(f"job.{rank}.pt.trace.json", rank, profile_of(rank, step_events(start_us)))
        for rank, start_us in enumerate((100, 140))
    ]
    return [Source("job", tuple(parts), report=lambda found: None)]


def execution_traces() -> Sequence[Source]:
    """Return one source with the execution traces of ranks 0 and 1, as two files in memory.

    Each file contains one all-reduce of 1000 floats. Findings reported to the source are dropped.
    """
    parts = [part(f"job.{rank}.et.json", rank, execution_trace()) for rank in range(2)]
    return [Source("job", tuple(parts), report=lambda found: None)]


def part(name: str, rank: int, document: object) -> SourcePart:
    """Return a JSON file in memory."""
    return file_part(name, json.dumps(document).encode(), rank)


def file_part(name: str, content: bytes, rank: int | None = None) -> SourcePart:
    """Return a file in memory."""
    return SourcePart(name, lambda: content, rank, len(content))


def profile_of(rank: int, events: Sequence[Event], world_size: int = 2) -> Mapping[str, object]:
    """A Kineto profile with these events."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "a GPU"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "traceEvents": list(events),
    }


def step_events(start_us: int, call: Mapping[str, object] | None = None) -> list[Event]:
    """Return the seven events of one step of a rank: a kernel, an all-reduce and a kernel.

    Each of the three follows the event of its launch, which takes 5 us. All times are in us,
    with s for `start_us`:

    - `gemm`: launched at s - 90, runs from s - 80 to s - 10 on stream 7
    - the all-reduce: launched at s - 60, runs from s to 200 on stream 20
    - `cudaStreamWaitEvent`: at s - 50 for 1 us; the next kernel waits for the all-reduce
    - `relu`: launched at s - 40, runs from 201 to 231 on stream 7

    `call`: arguments of the all-reduce's kernel; None gives those of `all_reduce_args`. An s
    above 200 gives a negative duration.
    """
    stated = all_reduce_args() if call is None else call
    return [
        *launched("gemm", 1, stream=7, call_us=start_us - 90, start_us=start_us - 80, dur_us=70),
        *launched(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 2,
            stream=20, call_us=start_us - 60, start_us=start_us, dur_us=200 - start_us, args=stated,
        ),
        runtime("cudaStreamWaitEvent", 3, start_us - 50, 1),
        *launched("relu", 4, stream=7, call_us=start_us - 40, start_us=201, dur_us=30),
    ]  # fmt: skip


def all_reduce_args(elements: int = 1000, dtype: str = "Float") -> dict[str, object]:
    """Return the arguments of an all-reduce event as newer Kineto profiles record them.

    `elements`: number of elements of the input, and also of the output. The process group
    is group 0 of the ranks 0 and 1. The result is a new dictionary.
    """
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": dtype}
    return {"Collective name": "allreduce", **sizes, **_GROUP}


def launched(
    name: str,
    correlation: int,
    *,
    stream: int,
    call_us: float,
    start_us: float,
    dur_us: float,
    args: Mapping[str, object] | None = None,
) -> list[Event]:
    """Return two events of a profile: the call that launches a kernel, then the kernel.

    Both have the correlation id `correlation`. Times are in microseconds; the call starts
    at `call_us` and takes 5. `args`: further arguments of the kernel. They replace its own
    arguments (`device` 0, `stream`, `correlation`) of the same name.
    """
    kernel_args = {"device": 0, "stream": stream, "correlation": correlation}
    kernel = {
        "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start_us,
        "dur": dur_us, "args": {**kernel_args, **(args or {})},
    }  # fmt: skip
    return [runtime("cudaLaunchKernel", correlation, call_us, 5), kernel]


def runtime(name: str, correlation: int, start_us: float, dur_us: float) -> Event:
    """A call of the runtime on the only thread."""
    return {
        "ph": "X", "cat": "cuda_runtime", "name": name, "pid": 9, "tid": 9, "ts": start_us,
        "dur": dur_us, "args": {"correlation": correlation},
    }  # fmt: skip


def execution_trace() -> Mapping[str, object]:
    """Return the content of one rank's execution trace: one all-reduce of 1000 floats of two ranks.

    It is a new JSON object with `schema` (`1.1.0-chakra.0.0.4`), `pid` 9, and one node in `nodes`.
    The node is `record_param_comms` with id 5, `ctrl_deps` 4 and empty inputs. Its attributes
    describe the call: collective name, dtype, numbers of elements, empty split sizes, and process
    group 0 (`default_pg`) of ranks 0 and 1. The content names no rank, so it serves both ranks.
    """
    values = {
        "collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 1000,
        "out_msg_nelems": 1000, "in_split_size": "[]", "out_split_size": "[]",
        "global_rank_start": 0, "global_rank_stride": 1, "pg_name": "0", "pg_desc": "default_pg",
        "pg_size": 2,
    }  # fmt: skip
    attributes = [{"name": name, "type": "", "value": value} for name, value in values.items()]
    inputs: Event = {"values": [], "shapes": [], "types": []}
    node = {"id": 5, "name": "record_param_comms", "ctrl_deps": 4, "inputs": inputs}
    return {
        "schema": "1.1.0-chakra.0.0.4",
        "pid": 9,
        "nodes": [{**node, "attrs": attributes}],
    }


# Operation, sequence number, bytes, time in us on rank 0 and on rank 1, which arrives late once.
_CALLS = (
    ("AllReduce", 1, 1 << 20, (140, 100)),
    ("AllGather", 2, 1 << 20, (50, 50)),
    ("ReduceScatter", 3, 1 << 19, (48, 48)),
)


def inspector_lines() -> Sequence[Source]:
    """Return logs of NCCL's Inspector of two ranks: three collectives and one message.

    Both results are sources in memory with the same lines:

    1. `job`: one file per rank, `node0-pid100.log` and `node0-pid101.log`
    2. `all.log`: one file with the lines of rank 0, then those of rank 1

    The lines of a rank, with sequence number and size, are:

    - AllReduce, 1, 2^20 bytes; it takes 140 us on rank 0 and 100 us on rank 1
    - AllGather, 2, 2^20 bytes; ReduceScatter, 3, 2^19 bytes
    - Send on rank 0, Recv on rank 1: 1, 2^16 bytes

    Except for the AllReduce, both ranks have equal times. Findings that are reported to the
    sources are dropped.
    """
    files = [
        "".join(
            inspector_line(rank, operation, sequence, size, times[rank])
            for operation, sequence, size, times in _CALLS
        )
        + inspector_line(rank, ("Send", "Recv")[rank], 1, 1 << 16, 20, peer=1 - rank)
        for rank in range(2)
    ]
    names = [f"node0-pid{100 + rank}.log" for rank in range(2)]
    return [
        source_of("job", dict(zip(names, files, strict=True))),
        source_of("all.log", {"all.log": "".join(files)}),
    ]


def inspector_line(
    rank: int,
    operation: str,
    sequence: int,
    size: int,
    time_us: float,
    *,
    peer: int | None = None,
    communicator: str = "0x7f8c496ae9f661",
    rank_count: int = 2,
    pid: int | None = None,
    node_count: int = 1,
    host: str = "node0",
) -> str:
    """Format one line of NCCL's Inspector: a JSON object and a line feed.

    It has `header`, `metadata` (format version v4.0, `host`, process) and `coll_perf` or
    `p2p_perf`. Without `peer` the operation is a collective, and its keys begin with `coll`. With a
    peer, also 0, it is a message: its keys begin with `p2p`, and `p2p_peer` is added.

    `sequence`: number of the operation. `size`: bytes. `time_us`: execution time in us, which is
    said to be measured on the GPU. `communicator`: its id in the header, with `rank`, `rank_count`
    and `node_count`; its name is always `dp`. `pid`: None means 100 + rank. Values are not checked.
    """
    prefix = "coll" if peer is None else "p2p"
    values: dict[str, object] = {
        prefix: operation,
        f"{prefix}_sn": sequence,
        **({} if peer is None else {"p2p_peer": peer}),
        f"{prefix}_msg_size_bytes": size,
        f"{prefix}_exec_time_us": time_us,
        f"{prefix}_timing_source": "kernel_gpu",
    }
    header = {"id": communicator, "comm_name": "dp", "rank": rank, "n_ranks": rank_count}
    metadata = {
        "inspector_output_format_version": "v4.0",
        "hostname": host,
        "pid": 100 + rank if pid is None else pid,
    }
    entry = {
        "header": {**header, "nnodes": node_count},
        "metadata": metadata,
        f"{prefix}_perf": values,
    }
    return json.dumps(entry) + "\n"


# Operation, time in ms, size, algorithm and bus bandwidth in Gbps, of 16 ranks.
_LOGGED = (
    ("all_reduce", 9.46, "678.86 MB", 1204.52, 1129.23),
    ("reduce_scatter_tensor", 5.0, "100.0 MB", 167.77, 157.29),
    ("all_gather_into_tensor", 10.0, "42.43 MB", 569.5, 533.9),
    ("all_reduce", 1.0, "1.0 MB", 16.78, 15.73),
)


def deepspeed_logs() -> Sequence[Source]:
    """Return logs of DeepSpeed with the same four collectives of 16 ranks, in two forms.

    The calls are an all-reduce, a reduce-scatter, an all-gather and another all-reduce, with sizes
    in MB. Both results are sources in memory with one file of the same name:

    1. `train.deepspeed.log`: one line per call, of rank 0, with time in ms, size, algorithm
       bandwidth and bus bandwidth in Gbps
    2. `summary.deepspeed.log`: a heading, then two lines per call: its name, and its values. The
       count is 2 and the total latency is twice the time of the call, as after two iterations. The
       all-reduce occurs twice, once per call.

    Findings that are reported to the sources are dropped.
    """
    heading = ("Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)",
               "busbw_avg (Gbps)")  # fmt: skip
    lines, rows = [], ["Comm. Op".ljust(20) + "".join(text.ljust(20) for text in heading)]
    for name, time_ms, size, algorithm, bus in _LOGGED:
        lines.append(
            f"[2026-05-04 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] comm op: {name}"
            f" | time (ms): {time_ms:.2f} | msg size: {size} | algbw (Gbps): {algorithm:.2f}"
            f" | busbw (Gbps): {bus:.2f}\n"
        )
        values = (" ", size, 2, f"{2 * time_ms:.2f}", f"{time_ms:.2f}", f"{algorithm:.2f}",
                  f"{bus:.2f}")  # fmt: skip
        rows += [name, "".join(str(value).ljust(20) for value in values)]
    return [
        source_of("train.deepspeed.log", {"train.deepspeed.log": "".join(lines)}),
        source_of("summary.deepspeed.log", {"summary.deepspeed.log": "\n".join(rows) + "\n"}),
    ]


_LOG_CALLS = (
    "AllReduce: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f00 count 262144 datatype 7 op 0"
    " root 0 comm 0xa{rank} [nranks=2] stream 0x55",
    "ReduceScatter: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f00 count 1024 datatype 9 op 0"
    " root 0 comm 0xa{rank} [nranks=2] stream 0x55",
)


def log_lines() -> Sequence[Source]:
    """Return a log of NCCL with an all-reduce, then a reduce-scatter, of two ranks, in one file.

    First come the initializations of the communicator, one line per rank. Then each collective has
    two adjacent lines, one per rank in ascending order.
    """
    lines = [
        f"node0:{100 + rank}:{100 + rank} [{rank}] NCCL INFO ncclCommInitRank comm 0xa{rank} rank"
        f" {rank} nranks 2 cudaDev {rank} nvmlDev {rank} busId 1000 commId 0x9ca74fa6e40df7f4"
        " - Init COMPLETE\n"
        for rank in range(2)
    ]
    for count, call in enumerate(_LOG_CALLS):
        for rank in range(2):
            text = call.format(rank=rank, count=count)
            lines.append(f"node0:{100 + rank}:{100 + rank} [{rank}] NCCL INFO {text}\n")
    return [source_of("job.nccl.log", {"job.nccl.log": "".join(lines)})]


def profiler_events() -> Sequence[Source]:
    """Return one source, `job`, with one file of NCCL's profiler plugin for each of two ranks.

    The calls are an all-reduce and an all-gather (`profiler_file`). The clock of rank 1
    shows 5 us less than that of rank 0. The source ignores findings that are reported to
    it.
    """
    files = {
        f"trace-node{rank}-7.txt": profiler_file(rank, offset_us)
        for rank, offset_us in enumerate((0, -5))
    }
    return [source_of("job", files)]


def profiler_file(rank: int, offset_us: float) -> str:
    """Return the events of one process of NCCL's profiler as text: an all-reduce, an all-gather.

    As in its files, the list has no closing bracket, its last event ends with a comma, and the
    dtype `ncclFloat32` has no quotes; so the text is not valid JSON. Each collective has four
    events in the order begin and `KernelCh` begin, `KernelCh` end and end. Its arguments have the
    number 0 or 1 and `rank`.

    In us, before `offset_us` is added to all times, the kernel of the all-reduce (2^18 elements)
    lasts from 10 + 20 x `rank` to 130. That of the all-gather (2^16) lasts from 140 to 190. A
    collective begins 2 us before its kernel and ends 3 us after it.
    """
    lines = []
    for number, (name, count, begin, end) in enumerate(
        [("AllReduce", 1 << 18, 10 + 20 * rank, 130), ("AllGather", 1 << 16, 140, 190)]
    ):
        args = {
            "SeqNum": number, "CommHash": 18364758544493064720, "Rank": rank, "Count": count,
            "Datatype": "ncclFloat32", "Algorithm": "RING", "Protocol": "SIMPLE", "nChannels": 2,
        }  # fmt: skip
        lines += [
            _event(name, "COLL", "b", number, begin + offset_us - 2, args),
            _event("KernelCh", "GPU", "b", 10 + number, begin + offset_us, {"Channel": 0}),
            _event("KernelCh", "GPU", "e", 10 + number, end + offset_us, {}),
            _event(name, "COLL", "e", number, end + offset_us + 3, {}),
        ]
    return "[\n" + "".join(lines).replace('"ncclFloat32"', "ncclFloat32")


def _event(
    name: str, category: str, phase: str, number: int, ts: float, args: Mapping[str, object]
) -> str:
    event = {"name": name, "cat": category, "ph": phase, "id": number, "pid": 9, "tid": 1, "ts": ts}
    return json.dumps({**event, "args": args}) + ",\n"


def source_of(name: str, files: Mapping[str, str]) -> Source:
    """Create a source in memory from texts by file name, in the order of `files`.

    The parts have no rank. The source ignores findings that are reported to it.
    """
    parts = tuple(file_part(file, text.encode()) for file, text in files.items())
    return Source(name, parts, report=lambda finding: None)
