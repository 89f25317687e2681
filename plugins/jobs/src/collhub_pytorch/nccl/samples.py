"""Small records for the conformance kit and for tests, written as NCCL's tools write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from collhub_pytorch.samples import file_part
from hub_core.plugin_api import Source

# Operation, sequence number, bytes, time in us on rank 0 and on rank 1, which arrives late once.
_CALLS = (
    ("AllReduce", 1, 1 << 20, (140, 100)),
    ("AllGather", 2, 1 << 20, (50, 50)),
    ("ReduceScatter", 3, 1 << 19, (48, 48)),
)


def inspector_lines() -> Sequence[Source]:
    """Three collectives and a message of two ranks, one file each, and all in one file."""
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
) -> str:
    """Format one line of the Inspector; with `peer`, of a message."""
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
        "hostname": "node0",
        "pid": 100 + rank if pid is None else pid,
    }
    entry = {"header": {**header, "nnodes": 1}, "metadata": metadata, f"{prefix}_perf": values}
    return json.dumps(entry) + "\n"


_LOG_CALLS = (
    "AllReduce: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f00 count 262144 datatype 7 op 0"
    " root 0 comm 0xa{rank} [nranks=2] stream 0x55",
    "ReduceScatter: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f00 count 1024 datatype 9 op 0"
    " root 0 comm 0xa{rank} [nranks=2] stream 0x55",
)


def log_lines() -> Sequence[Source]:
    """Two collectives of two ranks, whose lines are mixed."""
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
    """An all-reduce and an all-gather of two ranks; the clock of rank 1 is 5 us late."""
    files = {
        f"trace-node{rank}-7.txt": profiler_file(rank, offset_us)
        for rank, offset_us in enumerate((0, -5))
    }
    return [source_of("job", files)]


def profiler_file(rank: int, offset_us: float) -> str:
    """Format the events of one process, with types without quotes and without the bracket."""
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
    """Return a source in memory whose notes are dropped; ranks are in the content only."""
    parts = tuple(file_part(file, text.encode()) for file, text in files.items())
    return Source(name, parts, report=lambda finding: None)
