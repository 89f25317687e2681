"""The events of one rank's profile that matter, as columns, read in one pass."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from collhub_columns import Int64Array

from collhub_pytorch.calls import (
    HOST_LIBRARIES,
    ROOT_OR_PEER,
    Call,
    GroupSaid,
    call_of_args,
    call_of_shapes,
    group_of_args,
)
from collhub_pytorch.json_stream import JsonStream, Record
from collhub_pytorch.trace_files import TraceFile, opened
from hub_core.model import InputError, Location

_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_HOST_CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime", "driver")
_COMMUNICATION_KERNEL = re.compile(r"(nccl|rccl)", re.IGNORECASE)
_ANNOTATED_CALL = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl|hccl):")
_BLOCKING = re.compile(r"(?:Stream|Device|Event|Ctx)Synchronize|Memcpy(?!.*Async)")
_STATED_WAIT = "Stream Wait Event"
_STREAM_WAIT = re.compile(r"StreamWaitEvent")
_STEP = re.compile(r"ProfilerStep#([0-9]+)\Z")
# A stream's number is unique on its device.
_STREAMS_PER_DEVICE = 1 << 32


@dataclass(slots=True)
class EventColumns:
    """Events by columns of whole numbers, all of one length; times in ns."""

    start: array[int] = field(default_factory=lambda: array("q"))
    duration: array[int] = field(default_factory=lambda: array("q"))
    # The stream of device work; the thread of a call or an operator.
    place: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    # Index of the name, or what kind of call it is.
    label: array[int] = field(default_factory=lambda: array("q"))

    def add(self, event: Record, place: int, correlation: int, label: int) -> None:
        """Append an event with its times in microseconds."""
        self.start.append(round(event["ts"] * 1000))
        self.duration.append(round(event.get("dur", 0) * 1000))
        self.place.append(place)
        self.correlation.append(correlation)
        self.label.append(label)

    def column(self, name: str) -> Int64Array:
        """One column as an array."""
        return np.array(getattr(self, name), np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a host thread that says which communication is issued in it.

    `is_of_host`: by a library that communicates from main memory, in which it then lasts so long.
    """

    start: int
    end: int
    thread: int
    call: Call
    is_of_host: bool = False


@dataclass(frozen=True, slots=True)
class StreamWait:
    """What newer files state: work of `stream` launched after the call `after` waits for all work
    of `awaited` launched before the call `before`. Calls by their correlations."""

    stream: int
    after: int
    awaited: int
    before: int


@dataclass(slots=True)
class RankEvents:
    """What one file says. Times in ns of its own clock.

    `device`: kernels and copies; `names` of their labels; `kernel_calls`: communications that
    kernels state themselves, by row of `device`, None where only the name tells that it is one.
    `calls`: of the runtime, labels LAUNCH, BLOCK and STREAM_WAIT. `operators`: of the host, kept
    where the job has no device. `spans` state communications on the host. `steps`: iterations by
    number. `groups`: the ranks of groups by name, as far as calls list them; `threads`: numbers of
    threads by name. `targets`: root or other side that an operator of torch.distributed states, by
    its start. `waits`: of streams for streams.
    """

    file: str
    rank: int = -1
    header: Record = field(default_factory=dict)
    device: EventColumns = field(default_factory=EventColumns)
    calls: EventColumns = field(default_factory=EventColumns)
    operators: EventColumns = field(default_factory=EventColumns)
    names: dict[str, int] = field(default_factory=dict)
    kernel_calls: dict[int, Call | None] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    threads: dict[str, int] = field(default_factory=dict)
    targets: dict[int, int] = field(default_factory=dict)
    waits: list[StreamWait] = field(default_factory=list)

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, where the file says it."""
        found = self.header.get("distributedInfo", {}).get("world_size")
        return None if found is None else int(found)


LAUNCH, BLOCK, STREAM_WAIT = 0, 1, 2


def read_events(file: TraceFile, order: int) -> RankEvents:
    """The events of a file, whose rank is its `order` where nothing else tells it.

    Raises `InputError` with the byte of what is wrong.
    """
    events = RankEvents(file.name)
    with opened(file) as content:
        stream = JsonStream(content, file.name)
        events.header = stream.header
        for record in stream.records("traceEvents"):
            if record.get("ph") == "X":
                _take(events, record)
    stated = events.header.get("distributedInfo", {}).get("rank")
    events.rank = file.rank_or(None if stated is None else int(stated), order)
    _check_not_empty(events)
    return events


def _take(events: RankEvents, record: Record) -> None:
    """Keep an event if it matters. Raises `InputError` for one without what it needs."""
    take = _TAKERS.get(record.get("cat", ""))
    if take is None:
        return
    try:
        take(events, record)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        name = str(record.get("name", ""))[:60]
        message = f"an event {name!r} of category {record['cat']} lacks {error}"
        raise InputError(message, location=Location(events.file)) from None


def _take_device(events: RankEvents, record: Record) -> None:
    if not events.device.start:
        # With a device, the work of the host is what it launches.
        events.operators = EventColumns()
    name, args = str(record["name"]), record.get("args", {})
    is_kernel = record["cat"] == "kernel"
    if is_kernel and (_COMMUNICATION_KERNEL.match(name) or "Collective name" in args):
        row = len(events.device.start)
        events.kernel_calls[row] = _stated_call(events, args)
    stream = _stream(args, "stream")
    label = events.names.setdefault(name, len(events.names))
    events.device.add(record, stream, int(args.get("correlation", -1)), label)


def _take_wait(events: RankEvents, record: Record) -> None:
    args = record.get("args", {})
    before = int(args.get("wait_on_cuda_event_record_corr_id", -1))
    if record["name"] == _STATED_WAIT and before >= 0:
        after, awaited = int(args["correlation"]), _stream(args, "wait_on_stream")
        events.waits.append(StreamWait(_stream(args, "stream"), after, awaited, before))


def _stream(args: Mapping[str, Any], name: str) -> int:
    """A number for a stream that is unique among the devices."""
    return int(args.get(name, -1)) + _STREAMS_PER_DEVICE * int(args.get("device", 0))


def _take_call(events: RankEvents, record: Record) -> None:
    name = str(record["name"])
    kind = LAUNCH
    if _BLOCKING.search(name):
        kind = BLOCK
    elif _STREAM_WAIT.search(name):
        kind = STREAM_WAIT
    correlation = int(record.get("args", {}).get("correlation", -1))
    events.calls.add(record, _thread(events, record), correlation, kind)


def _take_operator(events: RankEvents, record: Record) -> None:
    args = record.get("args", {})
    if record["name"] == "record_param_comms":
        call = _stated_call(events, args)
        if call is not None:
            _add_span(events, record, call)
    elif not events.device.start:
        name = str(record["name"])
        inputs = args.get("Concrete Inputs", ())
        place = ROOT_OR_PEER.get(name.removeprefix("c10d::"), len(inputs))
        if place < len(inputs) and str(inputs[place]).isdigit():
            events.targets[round(record["ts"] * 1000)] = int(inputs[place])
        label = events.names.setdefault(name, len(events.names))
        events.operators.add(record, _thread(events, record), -1, label)


def _take_annotation(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record.get("args", {})
    if step := _STEP.match(name):
        start = round(record["ts"] * 1000)
        events.steps[int(step[1])] = (start, start + round(record["dur"] * 1000))
    elif _ANNOTATED_CALL.match(name):
        shapes = args.get("Input Dims") or []
        call = _stated_call(events, args)
        call = call or call_of_shapes(name, shapes, args.get("Input type") or [])
        if call is not None:
            is_of_host = name.startswith(HOST_LIBRARIES)
            _add_span(events, record, call, is_of_host)


_TAKERS: Mapping[str, Callable[[RankEvents, Record], None]] = {
    **dict.fromkeys(_DEVICE_WORK, _take_device),
    **dict.fromkeys(_HOST_CALLS, _take_call),
    "cuda_sync": _take_wait,
    "cpu_op": _take_operator,
    "user_annotation": _take_annotation,
}


def resolved_group(events: RankEvents, group: GroupSaid) -> GroupSaid:
    """The group with its ranks, where another event or the head of the file lists them all.

    Raises `InputError` where nothing does.
    """
    if not group.is_cut:
        return group
    known = events.groups.get(group.name) or _configured(events, group.name)
    if known is None:
        message = f"the ranks of process group {group.name!r} are cut, without start and stride"
        raise InputError(message, location=Location(events.file), code="group")
    return GroupSaid(group.name, known)


def _stated_call(events: RankEvents, args: Mapping[str, Any]) -> Call | None:
    """The communication that the arguments of newer files state."""
    if "Collective name" not in args:
        return None
    group = group_of_args(args, events.file)
    if group.ranks is not None:
        events.groups.setdefault(group.name, group.ranks)
    return call_of_args(args, group)


def _configured(events: RankEvents, name: str) -> tuple[int, ...] | None:
    """The ranks that the head of the file gives a group."""
    groups = events.header.get("distributedInfo", {}).get("pg_config", [])
    found = [one.get("ranks") for one in groups if str(one.get("pg_name")) == name]
    return tuple(found[0]) if found and found[0] else None


def _thread(events: RankEvents, record: Record) -> int:
    """A number for the thread; files name some by text."""
    return events.threads.setdefault(str(record.get("tid")), len(events.threads))


def _add_span(events: RankEvents, record: Record, call: Call, is_of_host: bool = False) -> None:
    start = round(record["ts"] * 1000)
    end = start + round(record.get("dur", 0) * 1000)
    events.spans.append(Span(start, end, _thread(events, record), call, is_of_host))


def _check_not_empty(events: RankEvents) -> None:
    if not events.device.start and not events.spans and not events.operators.start:
        message = "there is no event of a profile in it"
        cure = "name the files that torch.profiler's export_chrome_trace wrote"
        raise InputError(message, location=Location(events.file), cure=cure, code="empty")
