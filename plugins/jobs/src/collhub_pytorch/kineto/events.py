"""Read the relevant events of one rank's profile as columns, in one pass."""

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
    GroupRecord,
    call_of_args,
    call_of_shapes,
    elements_of,
    group_of_args,
    kind_of,
    list_regular_ranks,
)
from collhub_pytorch.trace_files import JsonStream, Record, TraceFile, open_decompressed
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
# Suffixes of annotations that enclose several collectives, or none.
_NO_COLLECTIVES = (":coalesced", ":wait", ":init", ":end_coalescing", ":start_coalescing")
# 146 years.
_MAX_TIME_NS = 1 << 62
_LARGEST = 1 << 63
_STEP = re.compile(r"ProfilerStep#([0-9]+)\Z")


def _times_ns(event: Record) -> tuple[int, int]:
    """Return the start (`ts`) and duration (`dur`) of an event in ns, rounded from microseconds.

    A missing duration is 0. Raise KeyError without a start. Raise ValueError if one of them
    is no finite number (such as null or a text), if the rounded duration is negative, and
    if start or end is not within 2^62 ns of 0.
    """
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
    # Stream of device work; thread of a call or an operator.
    place: array[int] = field(default_factory=lambda: array("q"))
    correlation: array[int] = field(default_factory=lambda: array("q"))
    # Index of the name, or kind of call (LAUNCH, BLOCK, STREAM_WAIT).
    label: array[int] = field(default_factory=lambda: array("q"))

    def add(self, event: Record, place: int, correlation: int, label: int) -> None:
        """Append an event as a row of the columns, with its times (us) rounded to ns.

        A missing duration is 0. `place`: number of the stream or thread. `correlation`: number
        that links a runtime call and its work on the device; `label`: index of the name, or
        kind of the call. These three are stored unchanged. Raises `ValueError` for invalid
        times, and `KeyError` without a start; no row is added then.
        """
        start, duration = _times_ns(event)
        self.start.append(start)
        self.duration.append(duration)
        self.place.append(place)
        self.correlation.append(correlation)
        self.label.append(label)

    def column(self, name: str) -> Int64Array:
        """Return one column as an array."""
        return np.array(getattr(self, name), np.int64)


@dataclass(frozen=True, slots=True)
class IssueInterval:
    """Interval of a host thread in which a communication is issued.

    `library`: the host library (`gloo`) that communicates from main memory during the span, empty
    for device libraries.
    """

    start: int
    end: int
    thread: int
    call: Call
    library: str = ""

    @property
    def is_of_host(self) -> bool:
        """Whether a host library performs the communication."""
        return bool(self.library)


@dataclass(frozen=True, slots=True)
class IssuerArgs:
    """Arguments of an operator of torch.distributed: elements of its inputs, and root or peer."""

    sizes: frozenset[int]
    target: int


@dataclass(frozen=True, slots=True)
class StreamWait:
    """Recorded wait between streams (newer files).

    Work of `stream` launched after the call `after` waits for all work of the stream `awaited`
    launched before the call `before`. Calls are identified by their correlations.
    """

    stream: int
    after: int
    awaited: int
    before: int


@dataclass(slots=True)
class RankEvents:
    """Contents of one file. Times in ns of its clock.

    `device`: kernels and copies; `names`: their labels; `kernel_calls`: communications in the
    arguments of kernels, by row of `device`, None if only the name identifies a communication.
    `memory_names`, `communication_names`: names of device work that copies or sets memory, and of
    kernels that communicate without a recorded collective.
    `calls`: of the runtime, labels LAUNCH, BLOCK and STREAM_WAIT. `operators`: of the host, with a
    device only those of torch.distributed; `issuers`: arguments of operators of torch.distributed,
    by row. `spans`: communications recorded on the host; `unknown_calls`: annotations of a
    communication library that name no known collective, counted by name. `steps`: iterations by
    number. `groups`: ranks of groups by name, if calls list them; `threads`: numbers of threads by
    name; `streams`: numbers of streams by device and stream. `waits`: recorded waits between
    streams.
    """

    file: str
    rank: int = -1
    header: Record = field(default_factory=dict)
    device: EventColumns = field(default_factory=EventColumns)
    calls: EventColumns = field(default_factory=EventColumns)
    operators: EventColumns = field(default_factory=EventColumns)
    names: dict[str, int] = field(default_factory=dict)
    kernel_calls: dict[int, Call | None] = field(default_factory=dict)
    spans: list[IssueInterval] = field(default_factory=list)
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
        """Number of ranks of the job, None if it is not recorded."""
        return self.distributed_number("world_size")

    def distributed_number(self, key: str) -> int | None:
        """Return the number of `key` in `distributedInfo`; None if it is missing, null or negative.

        A text with an integer counts as a number, true and false count as 1 and 0, and a fraction
        is truncated towards 0 (-0.5 gives 0). Raises `InputError` (`profile-record`) for any other
        value.
        """
        value = self.distributed().get(key)
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            message = f"distributedInfo states {key} {value!r}, which is no number"
            raise InputError(message, location=Location(self.file), code="profile-record") from None
        return number if number >= 0 else None

    def distributed(self) -> Record:
        """Return the object `distributedInfo` of the file's header.

        Empty if it is missing or no object.
        """
        stated = self.header.get("distributedInfo")
        return stated if isinstance(stated, dict) else {}


LAUNCH, BLOCK, STREAM_WAIT = 0, 1, 2


def read_events(file: TraceFile, order: int) -> RankEvents:
    """Read a profile of PyTorch: the events with `ph` `X` in file order, the header, and the rank.

    The rank is the first that exists: `rank` of `distributedInfo` in the header (not negative), the
    rank of the file (`TraceFile.rank`), `order` (position of the file). Events are stored by
    category (`_handle`); other categories are ignored.

    Raises `InputError`:

    - `truncated` or `not-json`, with the byte offset, for damaged JSON
    - `profile-record` for an unreadable event, or a rank in the header that is no number
    - `empty` without any device work, communication on the host and operator, even if there are
      runtime calls or profiler steps
    - for a damaged archive, or a file that cannot be opened
    """
    events = RankEvents(file.name)
    with open_decompressed(file) as content:
        stream = JsonStream(content, file.name)
        events.header = stream.header
        for record in stream.records("traceEvents"):
            if record.get("ph") == "X":
                _handle(events, record)
    events.rank = file.rank_or(events.distributed_number("rank"), order)
    if not events.device.start and not events.spans and not events.operators.start:
        message = "there is no event of a profile in it"
        cure = "name the files that torch.profiler's export_chrome_trace wrote"
        raise InputError(message, location=Location(events.file), cure=cure, code="empty")
    return events


def _handle(events: RankEvents, record: Record) -> None:
    """Store an event in `events` if its category has a handler; otherwise ignore it.

    `record`: the JSON object of the event; its category is `cat`, in upper or lower case. Handled
    are device work (`kernel`, `gpu_memcpy`), calls of a runtime (`cuda_runtime`), operators of the
    host (`cpu_op`), `cuda_sync` and `user_annotation`. Ignored events are neither checked nor
    changed. In a handled one, missing `args` become an empty object in `record`.

    Raises `InputError` (`profile-record`) if `args` is null or another value than an object, and
    for missing or invalid fields (such as a start that is no time). Other `InputError` of the
    handler, such as that of an invalid list of ranks, pass through.
    """
    take = _find_handler(str(record.get("cat", "")))
    if take is None:
        return
    if not isinstance(record.setdefault("args", {}), dict):
        message = f"`args` of {_describe(record)} is not an object"
        raise InputError(
            message,
            location=Location(events.file),
            cure="record the profile again",
            code="profile-record",
        )
    try:
        take(events, record)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        message = f"{_describe(record)} cannot be read: {reason}"
        raise InputError(message, location=Location(events.file), code="profile-record") from None


def _describe(record: Record) -> str:
    return f"an event {str(record.get('name', ''))[:60]!r} of category {record['cat']}"


@lru_cache(maxsize=64)
def _find_handler(category: str) -> Callable[[RankEvents, Record], None] | None:
    """Return the function that adds an event of this category to a `RankEvents`, or None.

    Case is ignored. One function handles the runtime and driver calls of any device
    (`cuda_runtime`, `xpu_runtime`, `cuda_driver`, ...). Events of categories without a
    function are ignored.
    """
    name = category.lower()
    return _HANDLERS.get(name) or (_add_runtime_call if _RUNTIME.match(name) else None)


def _add_kernel(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record["args"]
    if "Collective name" in args or _is_library_kernel(name):
        events.kernel_calls[len(events.device.start)] = _parse_call(events, args)
    elif name not in events.names:
        # Kernels of one name are classified once.
        if is_custom_communication(name):
            events.communication_names.add(name)
        elif _MEMORY_KERNEL.match(name):
            events.memory_names.add(name)
    _add_device_work(events, record)


@lru_cache(maxsize=1 << 14)
def _is_library_kernel(name: str) -> bool:
    return _COMMUNICATION_KERNEL.match(name) is not None


def is_custom_communication(name: str) -> bool:
    """Return whether a kernel communicates without a library of collectives."""
    return _CUSTOM_COMMUNICATION.search(name) is not None


def _add_memory_work(events: RankEvents, record: Record) -> None:
    events.memory_names.add(str(record["name"]))
    _add_device_work(events, record)


def _add_device_work(events: RankEvents, record: Record) -> None:
    """Add a kernel, copy or memset to the work of the device.

    Before the first one, all operators that do not issue communication are removed. The remaining
    ones get the numbers 0, 1, ... in the order of `events.issuers`, and these become its keys.
    """
    if not events.device.start:
        # In files with a device, only operators that issue communication are needed.
        operators, issuers = events.operators, events.issuers
        issuer_columns = EventColumns()
        for row in issuers:
            issuer_columns.start.append(operators.start[row])
            issuer_columns.duration.append(operators.duration[row])
            issuer_columns.place.append(operators.place[row])
            issuer_columns.correlation.append(operators.correlation[row])
            issuer_columns.label.append(operators.label[row])
        events.operators = issuer_columns
        events.issuers = dict(enumerate(issuers.values()))
    args = record["args"]
    stream = _stream(events, args, "stream")
    name = str(record["name"])
    label = events.names.setdefault(name, len(events.names))
    events.device.add(record, stream, _correlation(args), label)


def _add_stream_wait(events: RankEvents, record: Record) -> None:
    args = record["args"]
    before = int(args.get("wait_on_cuda_event_record_corr_id", -1))
    if record["name"] == _STATED_WAIT and before >= 0:
        after, awaited = _correlation(args), _stream(events, args, "wait_on_stream")
        events.waits.append(StreamWait(_stream(events, args, "stream"), after, awaited, before))


def _stream(events: RankEvents, args: Mapping[str, Any], name: str) -> int:
    """Return the number of the stream of an event; streams of all devices are numbered from 0.

    `name`: argument that has the stream, -1 if it is missing; a missing `device` is 0. A
    new pair of device and stream gets the next number in `events.streams`. Raises
    `ValueError` or `TypeError` for values that are no integers.
    """
    stream = int(args.get("device", 0)), int(args.get(name, -1))
    return events.streams.setdefault(stream, len(events.streams))


def _correlation(args: Mapping[str, Any]) -> int:
    """Return the number that links a call of the runtime to its work on the device; -1 if missing.

    Some files write negative numbers as unsigned ones of 64 bits: numbers from 2^63 on are
    reduced by 2^64. Texts of digits are accepted. Raises `ValueError` or `TypeError` for a
    value that is no number.
    """
    number = int(args.get("correlation", -1))
    return number if number < _LARGEST else number - (_LARGEST << 1)


def _add_runtime_call(events: RankEvents, record: Record) -> None:
    kind = classify_runtime_call(str(record["name"]))
    correlation = _correlation(record["args"])
    events.calls.add(record, _thread(events, record), correlation, kind)


def classify_runtime_call(name: str) -> int:
    """Return the kind of a runtime call by its name, such as `cudaLaunchKernel`.

    - BLOCK for synchronizations of a stream, device, event or context, and for copies
      (`Memcpy`) without `Async` in the name: the host waits until the device has finished
      work
    - STREAM_WAIT for `StreamWaitEvent`: a stream waits for an event
    - LAUNCH for all other names, also unknown ones and ""

    The first of these applies; case matters.
    """
    if _BLOCKING.search(name):
        return BLOCK
    return STREAM_WAIT if _STREAM_WAIT.search(name) else LAUNCH


def _add_operator(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record["args"]
    if name == "record_param_comms":
        call = _parse_call(events, args)
        if call is not None:
            _add_span(events, record, call)
    elif name.startswith(_ANNOTATIONS):
        # Files of 2021 have no category of their own for annotations.
        _add_annotation(events, record)
    else:
        if name.startswith(ISSUER_NAMESPACES) and kind_of(name) is not None:
            events.issuers[len(events.operators.start)] = _issuer_args(name, args)
        elif events.device.start:
            return
        label = events.names.setdefault(name, len(events.names))
        events.operators.add(record, _thread(events, record), -1, label)


def _issuer_args(name: str, args: Mapping[str, Any]) -> IssuerArgs:
    """Return the sizes of an operator's inputs in elements, and its root or peer.

    `args`: the arguments of the event. Root or peer is the text of digits at a position in
    `Concrete Inputs` that depends on the name of the operator (`ROOT_OR_PEER`). It is -1 if
    the name has no position, or the input is missing or not of digits (such as -1). A list
    of tensors is one input with the sum of their elements. Inputs with an empty or missing
    shape are left out of the sizes.
    """
    inputs = args.get("Concrete Inputs", ())
    index = ROOT_OR_PEER.get(name.removeprefix("c10d::"), len(inputs))
    is_stated = index < len(inputs) and str(inputs[index]).isdigit()
    sizes = frozenset(elements_of(shape) for shape in _shapes(args) if shape)
    return IssuerArgs(sizes, int(inputs[index]) if is_stated else -1)


def _add_annotation(events: RankEvents, record: Record) -> None:
    name, args = str(record["name"]), record["args"]
    if step := _STEP.match(name):
        start, duration = _times_ns(record)
        events.steps[int(step[1])] = (start, start + duration)
    elif name.startswith(_CALLS):
        call = _parse_call(events, args)
        call = call or call_of_shapes(name, _shapes(args), args.get("Input type") or [])
        if call is not None:
            is_of_host = name.startswith(HOST_LIBRARIES)
            _add_span(events, record, call, name.partition(":")[0] if is_of_host else "")
        elif not name.endswith(_NO_COLLECTIVES):
            events.unknown_calls[name] = events.unknown_calls.get(name, 0) + 1


def _shapes(args: Mapping[str, Any]) -> list[Any]:
    """Return the shapes of an operator's inputs, in the order of its arguments; empty if absent.

    Files of 2021 have the key `Input dims`, later ones `Input Dims`. Its value is a list or the
    text of a JSON list; another text raises `json.JSONDecodeError`.
    """
    shapes = args.get("Input Dims") or args.get("Input dims") or []
    return list(json.loads(shapes) if isinstance(shapes, str) else shapes)


_HANDLERS: Mapping[str, Callable[[RankEvents, Record], None]] = {
    **dict.fromkeys(_KERNELS, _add_kernel),
    **dict.fromkeys(_MEMORY_WORK, _add_memory_work),
    **dict.fromkeys(_OPERATORS, _add_operator),
    "cuda_sync": _add_stream_wait,
    "user_annotation": _add_annotation,
}


def resolve_group(events: RankEvents, group: GroupRecord) -> GroupRecord:
    """Return a process group with its complete list of ranks.

    A truncated list is replaced by the first complete one that another event has for the
    same group name, otherwise by the list in the file's header, otherwise by all ranks if the
    group is as large as the job (`world_size`). A group that is not truncated is returned
    unchanged, even without ranks. Raise `InputError` (`group`) if no list is found,
    (`profile-record`) for an invalid header, and (`rank-range`) for a job that is too large.
    """
    if not group.is_cut:
        return group
    known = events.groups.get(group.name) or _find_configured_ranks(events, group.name)
    if known is None and group.size > 0 and group.size == events.world_size:
        known = list_regular_ranks(0, 1, group.size, events.file)
    if known is None:
        message = f"the ranks of process group {group.name!r} are cut, without start and stride"
        raise InputError(message, location=Location(events.file), code="group")
    return GroupRecord(group.name, known)


def _parse_call(events: RankEvents, args: Mapping[str, Any]) -> Call | None:
    """Parse the communication in the arguments of an event in newer files.

    None without `Collective name`, and if that names no known communication.

    Side effect, also for an unknown name: if the arguments contain all ranks of the process
    group, these are stored in `events.groups` under the name of the group, unless the name is
    already there. Truncated lists are not stored.

    Raises `InputError` for an invalid list of ranks, and `ValueError` or `TypeError` for
    invalid numbers.
    """
    if "Collective name" not in args:
        return None
    group = group_of_args(args, events.file)
    if group.ranks is not None:
        events.groups.setdefault(group.name, group.ranks)
    return call_of_args(args, group)


def _find_configured_ranks(events: RankEvents, name: str) -> tuple[int, ...] | None:
    """Return the ranks of a group in the header of the file; None if it does not contain them.

    Of the list `pg_config` in `distributedInfo`, the first entry counts whose `pg_name` as text is
    `name` and whose `ranks` is a list that is not empty. The ranks keep its order and duplicates.
    Texts of integers are converted, fractions are truncated. Newer files write long lists as
    truncated texts; such entries are ignored, and entries that are no objects too. Raises
    `InputError` (`profile-record`) if a value in the list of that entry is no number.
    """
    groups = events.distributed().get("pg_config")
    for group in groups if isinstance(groups, list) else []:
        ranks = (
            group.get("ranks")
            if isinstance(group, dict) and str(group.get("pg_name")) == name
            else 0
        )
        # Newer files write long lists as truncated text.
        if ranks and isinstance(ranks, list):
            try:
                return tuple(map(int, ranks))
            except (TypeError, ValueError, OverflowError):
                message = f"pg_config: ranks of process group {name!r:.40} are no numbers"
                location = Location(events.file)
                raise InputError(message, location=location, code="profile-record") from None
    return None


def _thread(events: RankEvents, record: Record) -> int:
    """Number the threads; some files identify threads by text."""
    return events.threads.setdefault(str(record.get("tid")), len(events.threads))


def _add_span(events: RankEvents, record: Record, call: Call, library: str = "") -> None:
    start, duration = _times_ns(record)
    span = IssueInterval(start, start + duration, _thread(events, record), call, library)
    events.spans.append(span)
