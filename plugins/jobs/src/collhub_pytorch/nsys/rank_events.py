"""Convert the contents of one file to the events of each of its ranks, as of a Kineto profile."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from collhub_nccl_records import Member

from collhub_pytorch.calls import Call, GroupRecord, kind_of
from collhub_pytorch.kineto.events import RankEvents, is_custom_communication
from collhub_pytorch.nsys.activities import (
    MEMORY_WORK,
    Activities,
    Merger,
    RuntimeCalls,
    read_activities,
    read_runtime_calls,
)
from collhub_pytorch.nsys.database import Tables
from collhub_pytorch.nsys.ranges import (
    CallRange,
    KernelCalls,
    NcclRanges,
    assign_calls,
    read_ranges,
)
from collhub_pytorch.rank_nodes import NONE
from hub_core.columns import BoolArray, Int64Array
from hub_core.model import InputError, Location


@dataclass(slots=True)
class FileRank:
    """One device of one process of a file, with its memberships in communicators.

    `calls`: the calls of NCCL, whose groups are named by the hash of the communicator and whose
    bytes, roots and peers are those of the API; `extra_streams`: numbers of streams that hold
    further messages of a kernel.
    """

    process: str
    events: RankEvents
    members: list[Member] = field(default_factory=list)
    extra_streams: int = 0


@dataclass(slots=True)
class FileContents:
    """Ranks of a file, and counts for the notes."""

    ranks: list[FileRank]
    undecodable: int = 0
    without_payload: int = 0
    merger: Merger | None = None
    added: int = 0


def read_file(tables: Tables) -> FileContents:
    """Read all ranks of a file: one per process and device, by ascending process and device number.

    Calls of NCCL are assigned to kernels by the launches of all processes together. Raises
    `InputError` (`empty`) without work of a device.
    """
    activities = read_activities(tables)
    if not len(activities.start):
        message = "the file has no kernels of a device"
        cure = "profile with nsys profile --trace cuda,nvtx, and export with --type sqlite"
        raise InputError(message, location=Location(tables.name), cure=cure, code="empty")
    runtime = read_runtime_calls(tables, activities)
    ranges = read_ranges(tables)
    launch = _find_launches(activities, runtime)
    calls = assign_calls(ranges, _nccl_launches(activities, runtime, launch))
    contents = FileContents(
        [], ranges.undecodable, ranges.without_payload, activities.merger, calls.added
    )
    keys = activities.pid << 32 | activities.device
    for key in np.unique(keys).tolist():
        rows = np.flatnonzero(keys == key)
        devices = np.unique(activities.device[activities.pid == key >> 32])
        contents.ranks.append(
            _file_rank(tables.name, rows, len(devices), (activities, runtime, ranges, calls))
        )
    return contents


def _find_launches(activities: Activities, runtime: RuntimeCalls) -> Int64Array:
    """Return the last call with the correlation of each activity in its process, or -1.

    The last is that with the latest start. Activities with a negative correlation have none.
    """
    keys = runtime.pid << 40 ^ runtime.correlation
    order = np.lexsort((runtime.start, keys))
    activity_keys = activities.pid << 40 ^ activities.correlation
    index = np.searchsorted(keys[order], activity_keys, "right") - 1
    is_known = (index >= 0) & (activities.correlation >= 0)
    launch = np.full(len(activity_keys), NONE, np.int64)
    candidates = order[index[is_known]] if len(order) else np.empty(0, np.int64)
    if len(order):
        launch[is_known] = np.where(keys[candidates] == activity_keys[is_known], candidates, NONE)
    return launch


def _nccl_launches(
    activities: Activities, runtime: RuntimeCalls, launch: Int64Array
) -> list[tuple[int, int, int, str]]:
    """List (row, thread, launch time in ns, name) of the kernels of NCCL, by row.

    `launch`: row of the launching call by activity; kernels without one (-1) are left out.
    """
    rows = np.flatnonzero(activities.is_nccl & (launch >= 0))
    return [
        (
            row,
            int(runtime.thread[launch[row]]),
            int(runtime.start[launch[row]]),
            activities.texts.get(int(activities.name[row]), ""),
        )
        for row in rows.tolist()
    ]


def _file_rank(
    file: str,
    rows: Int64Array,
    device_count: int,
    contents: tuple[Activities, RuntimeCalls, NcclRanges, KernelCalls],
) -> FileRank:
    """Build the events of one device of a process.

    `rows`: its activities, at least one. If the profile has several devices (`device_count`), the
    name of the process gets the device as a suffix, and only communicators of this device, and
    runtime calls that launch its activities or are not launches (kind above 0), are taken; else all
    of the process.
    """
    activities, runtime, ranges, calls = contents
    pid, device = int(activities.pid[rows[0]]), int(activities.device[rows[0]])
    process = f"{file}:{pid}" + (f":{device}" if device_count > 1 else "")
    events = RankEvents(process if device_count > 1 else file)
    rank = FileRank(process, events)
    for of_pid, payload in ranges.members:
        is_own = device_count == 1 or payload.device == device
        if of_pid == pid and is_own:
            rank.members.append(
                Member(process, payload.communicator, payload.rank, payload.rank_count)
            )
    for number in np.unique(activities.name[rows]).tolist():
        text = activities.texts.get(number, f"kernel {number}")
        events.names.setdefault(text, len(events.names))
        if number in MEMORY_WORK:
            events.memory_names.add(text)
        elif is_custom_communication(text):
            events.communication_names.add(text)
    _add_device_work(rank, activities, rows, calls)
    is_used = runtime.pid == pid
    if device_count > 1:
        is_used &= np.isin(runtime.correlation, activities.correlation[rows]) | (runtime.kind > 0)
    _add_runtime_calls(events, runtime, is_used)
    return rank


def _add_device_work(
    rank: FileRank, activities: Activities, rows: Int64Array, calls: KernelCalls
) -> None:
    """Add kernels and copies; further messages of a kernel get streams of their own.

    Kernels without a stored name are called `kernel` and the number of the name. Streams are
    numbered in ascending order of their id. A kernel of NCCL performs the merged calls that were
    found for it, or None if unknown: the first call is attached to its row, and for each other call
    the row is repeated in an extra stream (id -1, -2, ...); `rank.extra_streams` becomes the
    largest number of these.
    """
    events = rank.events
    numbers = np.unique(activities.name[rows])
    labels = np.array(
        [events.names[activities.texts.get(n, f"kernel {n}")] for n in numbers.tolist()], np.int64
    )
    label = labels[np.searchsorted(numbers, activities.name[rows])]
    streams, stream_index = np.unique(activities.stream[rows], return_inverse=True)
    device = int(activities.device[rows[0]])
    events.streams = {(device, stream): index for index, stream in enumerate(streams.tolist())}
    columns = events.device
    _extend(columns.start, activities.start[rows])
    _extend(columns.duration, activities.end[rows] - activities.start[rows])
    _extend(columns.place, stream_index)
    _extend(columns.correlation, activities.correlation[rows])
    _extend(columns.label, label)
    for position in np.flatnonzero(activities.is_nccl[rows]).tolist():
        performed = calls.of_kernel.get(int(rows[position]), [])
        merged = _merge_calls(performed)
        events.kernel_calls[position] = merged[0] if merged else None
        for number, call in enumerate(merged[1:]):
            rank.extra_streams = max(rank.extra_streams, number + 1)
            stream = events.streams.setdefault((device, -1 - number), len(events.streams))
            columns.start.append(columns.start[position])
            columns.duration.append(columns.duration[position])
            columns.place.append(stream)
            columns.correlation.append(columns.correlation[position])
            columns.label.append(columns.label[position])
            events.kernel_calls[len(columns.start) - 1] = call


def _merge_calls(calls: Sequence[CallRange]) -> list[Call]:
    """Convert the calls of one kernel; collectives that are equal in three respects become one.

    These are kind, communicator and root. The merged one has the bytes of its first part (-1:
    unknown) plus the known bytes of further parts, and the operation of the last. Messages are
    never merged. Calls of an unknown operation are left out. The order is that of the first parts.
    """
    merged: dict[tuple[object, ...], Call] = {}
    for number, call in enumerate(calls):
        kind = kind_of(call.operation)
        if kind is None:
            continue
        payload = call.payload
        group = GroupRecord(payload.communicator)
        key: tuple[object, ...] = (number,)
        if kind[1] >= 0:
            key = (kind, payload.communicator, payload.target)
        known = merged.get(key)
        size = payload.bytes if known is None else known.bytes + max(payload.bytes, 0)
        is_message = kind[1] < 0
        merged[key] = Call(
            call.operation,
            *kind,
            size,
            group=group,
            peer=payload.target if is_message else NONE,
            root=NONE if is_message else payload.target,
        )
    return list(merged.values())


def _add_runtime_calls(events: RankEvents, runtime: RuntimeCalls, is_used: BoolArray) -> None:
    threads, thread_index = np.unique(runtime.thread[is_used], return_inverse=True)
    events.threads = {str(thread): index for index, thread in enumerate(threads.tolist())}
    _extend(events.calls.start, runtime.start[is_used])
    _extend(events.calls.duration, runtime.end[is_used] - runtime.start[is_used])
    _extend(events.calls.place, thread_index)
    _extend(events.calls.correlation, runtime.correlation[is_used])
    _extend(events.calls.label, runtime.kind[is_used])


def _extend(column: array[int], values: Int64Array) -> None:
    column.frombytes(np.ascontiguousarray(values, np.int64).tobytes())
