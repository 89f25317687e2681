"""The events of one rank's profile that matter, as columns, read in one pass."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from collhub_pytorch.calls import (
    HOST_LIBRARIES,
    ISSUER_NAMESPACES,
    ROOT_OR_PEER,
    Call,
    GroupSaid,
    call_of_args,
    call_of_shapes,
    elements_of,
    group_of_args,
    kind_of,
)
from collhub_pytorch.trace_files import JsonStream, Record, TraceFile, opened
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location

# Categories in lower case; files of 2021 capitalise them and call copies `Memcpy`.
_KERNELS = ("kernel", "concurrent_kernel", "mtia_ccp_events")
_MEMORY_WORK = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
_OPERATORS = ("cpu_op", "operator")
_RUNTIME = re.compile(r"(?:[a-z0-9]+_)?(?:runtime|driver)\Z")
_COMMUNICATION_KERNEL = re.compile(r"nccl|rccl|hccl|mccl|oneccl", re.IGNORECASE)
# Kernels by which runtimes communicate without a library: vLLM, torch's symmetric memory, NVSHMEM.
_CUSTOM_COMMUNICATION = re.compile(
    r"cross_device_reduce|(?:one|two)_shot_all_reduce|multimem_|mscclpp|msccl|nvshmem",
    re.IGNORECASE,
)
# Memory engines of MTIA; its copies have the category of its kernels.
_MEMORY_KERNEL = re.compile(r"(?:hip)?Mem(?:cpy|set)|dma")
_CALLS = ("nccl:", "rccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_ANNOTATIONS = ("ProfilerStep#", *_CALLS)
_BLOCKING = re.compile(r"(?:Stream|Device|Event|Ctx)Synchronize|Memcpy(?!.*Async)")
_STATED_WAIT = "Stream Wait Event"
_STREAM_WAIT = re.compile(r"StreamWaitEvent")
# Annotations around several collectives, or about none.
_NO_COLLECTIVES = (":coalesced", ":wait", ":init", ":end_coalescing", ":start_coalescing")
# 146 years.
_MAX_TIME_NS = 1 << 62
_LARGEST = 1 << 63
_STEP = re.compile(r"ProfilerStep#([0-9]+)\Z")


def _times_ns(event: Record) -> tuple[int, int]:
    """Start and duration of an event. Raises `ValueError` for what are no such times."""
    start, duration = event["ts"], event.get("dur", 0)
    try:
        start_ns, duration_ns = round(start * 1000), round(duration * 1000)
        if duration_ns >= 0 and -_MAX_TIME_NS < start_ns < _MAX_TIME_NS - duration_ns:
            return start_ns, duration_ns
    except (TypeError, OverflowError, ValueError):
        pass
    message = f"start {start!r:.40} and duration {duration!r:.40} are no times in microseconds"
    raise ValueError(message)


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
        """Append an event with its times in microseconds. Raises `ValueError` for other times."""
        start, duration = _times_ns(event)
        self.start.append(start)
        self.duration.append(duration)
        self.place.append(place)
        self.correlation.append(correlation)
        self.label.append(label)

    def column(self, name: str) -> Int64Array:
        """One column as an array."""
        return np.array(getattr(self, name), np.int64)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a host thread that says which communication is issued in it.

    `library`: the one that communicates from main memory (`gloo`), empty for others; its
    communication lasts as long as the span.
    """

    start: int
    end: int
    thread: int
    call: Call
    library: str = ""

    @property
    def is_of_host(self) -> bool:
        """Whether a library of the host performs the communication."""
        return bool(self.library)


@dataclass(frozen=True, slots=True)
class IssuerArgs:
    """What an operator of torch.distributed states: elements of its inputs, and root or peer."""

    sizes: frozenset[int]
    target: int


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
    `memory_names`, `communication_names`: names of device work that copies or sets memory, and of
    kernels that communicate although nothing states their collective.
    `calls`: of the runtime, labels LAUNCH, BLOCK and STREAM_WAIT. `operators`: of the host, with a
    device only those of torch.distributed; `issuers`: those of torch.distributed among them, by
    row. `spans` state communications on the host; `unknown_calls`: annotations of a communication
    library that name no known collective, counted by name. `steps`: iterations by number.
    `groups`: the ranks of groups by name, as far as calls list them; `threads`: numbers of threads
    by name; `streams`: numbers of streams by device and stream. `waits`: of streams for streams.
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
    streams: dict[tuple[int, int], int] = field(default_factory=dict)
    issuers: dict[int, IssuerArgs] = field(default_factory=dict)
    memory_names: set[str] = field(default_factory=set)
    communication_names: set[str] = field(default_factory=set)
    unknown_calls: dict[str, int] = field(default_factory=dict)
    waits: list[StreamWait] = field(default_factory=list)

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, where the file states it."""
        return self.distributed_number("world_size")

    def distributed_number(self, key: str) -> int | None:
        """A number of `distributedInfo`, None where it is missing or negative (not initialised).

        Raises `InputError` for other values.
        """
        value = self.distributed().get(key)
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError):
            message = f"distributedInfo states {key} {value!r}, which is no number"
            raise InputError(message, location=Location(self.file)) from None
        return number if number >= 0 else None

    def distributed(self) -> Record:
        """`distributedInfo` of the file, empty where it has none."""
        stated = self.header.get("distributedInfo")
        return stated if isinstance(stated, dict) else {}


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
    events.rank = file.rank_or(events.distributed_number("rank"), order)
    _check_not_empty(events)
    return events


def _take(events: RankEvents, record: Record) -> None:
    """Keep an event if it matters. Raises `InputError` for one without what it needs."""
    take = _taker_of(str(record.get("cat", "")))
    if take is None:
        return
    if not isinstance(record.setdefault("args", {}), dict):
        message = f"`args` of {_described(record)} is not an object"
        raise InputError(message, location=Location(events.file), cure="record the profile again")
    try:
        take(events, record)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        message = f"{_described(record)} cannot be read: {reason}"
        raise InputError(message, location=Location(events.file)) from None


def _described(record: Record) -> str:
    return f"an event {str(record.get('name', ''))[:60]!r} of category {record['cat']}"


@lru_cache(maxsize=64)
def _taker_of(category: str) -> Callable[[RankEvents, Record], None] | None:
    """How events of a category are kept, None for those that are not."""
    name = category.lower()
    return _TAKERS.get(name) or (_take_call if _RUNTIME.match(name) else None)


def _take_kernel(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record["args"]
    if "Collective name" in args or _is_library_kernel(name):
        events.kernel_calls[len(events.device.start)] = _stated_call(events, args)
    elif name not in events.names:
        # Of many kernels of one name the first decides.
        if _CUSTOM_COMMUNICATION.search(name):
            events.communication_names.add(name)
        elif _MEMORY_KERNEL.match(name):
            events.memory_names.add(name)
    _take_device(events, record)


@lru_cache(maxsize=1 << 14)
def _is_library_kernel(name: str) -> bool:
    return _COMMUNICATION_KERNEL.match(name) is not None


def _take_memory_work(events: RankEvents, record: Record) -> None:
    events.memory_names.add(str(record["name"]))
    _take_device(events, record)


def _take_device(events: RankEvents, record: Record) -> None:
    if not events.device.start:
        _keep_issuers(events)
    args = record["args"]
    stream = _stream(events, args, "stream")
    name = str(record["name"])
    label = events.names.setdefault(name, len(events.names))
    events.device.add(record, stream, _correlation(args), label)


def _keep_issuers(events: RankEvents) -> None:
    """Drop the operators that issue no collectives: with a device, the host's work is launches."""
    operators, issuers = events.operators, events.issuers
    kept = EventColumns()
    for row in issuers:
        kept.start.append(operators.start[row])
        kept.duration.append(operators.duration[row])
        kept.place.append(operators.place[row])
        kept.correlation.append(operators.correlation[row])
        kept.label.append(operators.label[row])
    events.operators = kept
    events.issuers = dict(enumerate(issuers.values()))


def _take_wait(events: RankEvents, record: Record) -> None:
    args = record["args"]
    before = int(args.get("wait_on_cuda_event_record_corr_id", -1))
    if record["name"] == _STATED_WAIT and before >= 0:
        after, awaited = _correlation(args), _stream(events, args, "wait_on_stream")
        events.waits.append(StreamWait(_stream(events, args, "stream"), after, awaited, before))


def _stream(events: RankEvents, args: Mapping[str, Any], name: str) -> int:
    """The number of a stream: those of two devices differ, and may have any 64 bits in the file."""
    stream = int(args.get("device", 0)), int(args.get(name, -1))
    return events.streams.setdefault(stream, len(events.streams))


def _correlation(args: Mapping[str, Any]) -> int:
    """The number that links a call to its work; some files write -1 without its sign."""
    number = int(args.get("correlation", -1))
    return number if number < _LARGEST else number - (_LARGEST << 1)


def _take_call(events: RankEvents, record: Record) -> None:
    name = str(record["name"])
    kind = LAUNCH
    if _BLOCKING.search(name):
        kind = BLOCK
    elif _STREAM_WAIT.search(name):
        kind = STREAM_WAIT
    correlation = _correlation(record["args"])
    events.calls.add(record, _thread(events, record), correlation, kind)


def _take_operator(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record["args"]
    if name == "record_param_comms":
        call = _stated_call(events, args)
        if call is not None:
            _add_span(events, record, call)
    elif name.startswith(_ANNOTATIONS):
        # Files of 2021 have no category of their own for annotations.
        _take_annotation(events, record)
    else:
        if name.startswith(ISSUER_NAMESPACES) and kind_of(name) is not None:
            events.issuers[len(events.operators.start)] = _issuer_args(name, args)
        elif events.device.start:
            return
        label = events.names.setdefault(name, len(events.names))
        events.operators.add(record, _thread(events, record), -1, label)


def _issuer_args(name: str, args: Mapping[str, Any]) -> IssuerArgs:
    """The sizes of an operator's inputs; the place of root or peer depends on the operator."""
    inputs = args.get("Concrete Inputs", ())
    place = ROOT_OR_PEER.get(name.removeprefix("c10d::"), len(inputs))
    is_stated = place < len(inputs) and str(inputs[place]).isdigit()
    sizes = frozenset(elements_of(shape) for shape in _shapes(args) if shape)
    return IssuerArgs(sizes, int(inputs[place]) if is_stated else -1)


def _take_annotation(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record["args"]
    if step := _STEP.match(name):
        start, duration = _times_ns(record)
        events.steps[int(step[1])] = (start, start + duration)
    elif name.startswith(_CALLS):
        call = _stated_call(events, args)
        call = call or call_of_shapes(name, _shapes(args), args.get("Input type") or [])
        if call is not None:
            is_of_host = name.startswith(HOST_LIBRARIES)
            _add_span(events, record, call, name.partition(":")[0] if is_of_host else "")
        elif not name.endswith(_NO_COLLECTIVES):
            events.unknown_calls[name] = events.unknown_calls.get(name, 0) + 1


def _shapes(args: Mapping[str, Any]) -> list[Any]:
    """The shapes of an operator's inputs; files of 2021 spell the key differently."""
    shapes = args.get("Input Dims") or args.get("Input dims") or []
    return list(json.loads(shapes) if isinstance(shapes, str) else shapes)


_TAKERS: Mapping[str, Callable[[RankEvents, Record], None]] = {
    **dict.fromkeys(_KERNELS, _take_kernel),
    **dict.fromkeys(_MEMORY_WORK, _take_memory_work),
    **dict.fromkeys(_OPERATORS, _take_operator),
    "cuda_sync": _take_wait,
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
    groups = events.distributed().get("pg_config")
    for one in groups if isinstance(groups, list) else []:
        ranks = one.get("ranks") if isinstance(one, dict) and str(one.get("pg_name")) == name else 0
        # Newer files cut long lists as text.
        if ranks and isinstance(ranks, list):
            return tuple(map(int, ranks))
    return None


def _thread(events: RankEvents, record: Record) -> int:
    """A number for the thread; files name some by text."""
    return events.threads.setdefault(str(record.get("tid")), len(events.threads))


def _add_span(events: RankEvents, record: Record, call: Call, library: str = "") -> None:
    start, duration = _times_ns(record)
    span = Span(start, start + duration, _thread(events, record), call, library)
    events.spans.append(span)


def _check_not_empty(events: RankEvents) -> None:
    if not events.device.start and not events.spans and not events.operators.start:
        message = "there is no event of a profile in it"
        cure = "name the files that torch.profiler's export_chrome_trace wrote"
        raise InputError(message, location=Location(events.file), cure=cure, code="empty")
