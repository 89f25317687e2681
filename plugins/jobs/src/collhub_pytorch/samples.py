"""Small traces for the conformance kit and for tests, written as torch writes them."""

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
    """A step of two ranks in which rank 0 waits for rank 1: compute, all-reduce, compute."""
    parts = [
        part(f"job.{rank}.pt.trace.json", rank, profile_of(rank, step_events(start_us)))
        for rank, start_us in enumerate((100, 140))
    ]
    return [Source("job", tuple(parts), report=lambda found: None)]


def execution_traces() -> Sequence[Source]:
    """The same step as execution traces."""
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
    """Work from `start_us` on, an all-reduce that ends at 200, and work that waits for it."""
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
    """What newer profiles state of an all-reduce of two ranks."""
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
    """A kernel and the call that launched it."""
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
    """An all-reduce among two ranks, in the form of schema 1.1.0."""
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
