"""Read exports of Nsight Systems as a workload: work of the devices and calls of NCCL.

The contents of each file become the events of each of its ranks, as of a Kineto profile.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from collhub_nccl_records import Member, input_bytes
from collhub_nccl_records.calls import operation_word

from collhub_pytorch.calls import Call, GroupRecord, kind_of
from collhub_pytorch.formats import NSYS, NSYS_PARQUET, NsysOptions
from collhub_pytorch.job import join_ranks
from collhub_pytorch.kineto.events import RankEvents, is_custom_communication
from collhub_pytorch.kineto.read import (
    ASSUMPTIONS,
    describe_facts,
    device_profile,
    nodes_of_profile,
)
from collhub_pytorch.nccl.ranks import find_job_ranks
from collhub_pytorch.nsys.activities import (
    MEMORY_WORK,
    Activities,
    Merger,
    RuntimeCalls,
    read_activities,
    read_runtime_calls,
)
from collhub_pytorch.nsys.database import ExportTables, open_database
from collhub_pytorch.nsys.parquet import group_exports
from collhub_pytorch.nsys.ranges import (
    CallRange,
    KernelCalls,
    NcclRanges,
    assign_calls,
    read_ranges,
)
from collhub_pytorch.profile_reading import align_clocks, read_source, report_notes
from collhub_pytorch.rank_nodes import KERNEL_DELAY_NS, NONE, RankNodes
from collhub_pytorch.trace_files import TraceFile, open_decompressed, rank_numbers
from hub_core.columns import Int64Array
from hub_core.model import (
    InputError,
    JsonValue,
    Location,
    Provenance,
    Workload,
    format_count,
    format_time,
)
from hub_core.plugin_api import Source


def read(source: Source, options: NsysOptions) -> Workload:
    """Read one export per rank, or exports of several ranks.

    Assumptions and losses are passed to `source.report`. Raises `InputError` for damaged files,
    missing ranks, mismatched collectives, and clocks that cannot be aligned.
    """
    return read_source(source, NSYS, workload_of, options)


def workload_of(
    files: Sequence[TraceFile], options: NsysOptions, provenance: Provenance
) -> Workload:
    """Read these SQLite files as a workload, one after the other."""
    return _workload_of(_open_files(files), options, provenance)


def read_folder(source: Source, options: NsysOptions) -> Workload:
    """Read a folder of Parquet exports of Nsight Systems as one workload.

    An export is a folder that contains `StringIds.parquet`; other folders are ignored. If
    every process recorded the creation of a communicator, ranks follow from these records.
    Otherwise the rank of each process is found separately:

    - The number in the name of the folder (such as `rank3`), if the export has only one
      process.
    - If there is no such number, or the export has several processes: the position of the
      process among all processes, from 0.

    Notes are reported to `source`. Raises `UsageError` without pyarrow. Raises `InputError`
    if there is no export, an export has no work of a device, a file is damaged, ranks are
    missing or repeated, collectives do not match, or clocks cannot be aligned.
    """
    provenance = Provenance(NSYS_PARQUET, "", source.name, source.sha256())
    exports = group_exports(source.parts)
    names = rank_numbers([export.name for export in exports])
    opened = zip(exports, names, strict=True)
    workload = _workload_of(opened, options, provenance)
    report_notes(workload, source)
    return workload


def _open_files(files: Sequence[TraceFile]) -> Iterator[tuple[ExportTables, int | None]]:
    for file in files:
        with open_decompressed(file) as stream, open_database(stream, file.name) as database:
            yield database, file.rank


def _workload_of(
    exports: Iterable[tuple[ExportTables, int | None]], options: NsysOptions, provenance: Provenance
) -> Workload:
    """Join the exports of Nsight Systems to one workload, with all times on a common clock.

    `exports`: the tables of each file, and the rank in its name (None if unknown). If every
    process recorded the initialization of a communicator, ranks follow from these records.
    Otherwise a process has the rank of its file; without one, or in a file of several
    processes or devices, its position among all processes.

    Gaps between kernels of a stream below 30 ns x `kernel_delay_factor` count as delay. Idle
    times of streams with negative ids are omitted. The extension has `assumptions` and
    `notes`. Raises `InputError` for damaged files, files without work of a device (`empty`),
    missing or repeated ranks, and files of different runs.
    """
    parts: list[RankNodes] = []
    ranks: list[FileRank] = []
    stated: dict[str, int | None] = {}
    lines: list[str] = []
    delay_ns = KERNEL_DELAY_NS * options.kernel_delay_factor
    for tables, file_rank in exports:
        contents = read_file(tables)
        lines += _describe_contents(tables.name, contents)
        for rank in contents.ranks:
            stated[rank.process] = file_rank if len(contents.ranks) == 1 else None
            profile = device_profile(rank.events, None, delay_ns)
            shown = tuple(stream_idle for stream_idle in profile.idle if stream_idle.stream >= 0)
            parts.append(nodes_of_profile(rank.events, replace(profile, idle=shown)))
            # Only the nodes of each file are kept.
            rank.events = RankEvents(rank.events.file)
            ranks.append(rank)
            del profile
    lines += _number_ranks(parts, ranks, stated)
    lines += describe_facts(parts)
    assumptions: list[JsonValue] = list(ASSUMPTIONS)
    extension: dict[str, JsonValue] = {"assumptions": assumptions, "notes": [*lines]}
    workload = join_ranks(parts, options, provenance, extension)
    return align_clocks(workload, options)


def _describe_contents(file: str, contents: FileContents) -> list[str]:
    texts = {
        "payloads of NCCL's ranges do not fit their schema: sizes of these calls are unknown":
            contents.undecodable,
        "ranges of NCCL have no payload: sizes of these calls are unknown":
            contents.without_payload - contents.undecodable,
        "kernels of NCCL perform several calls of a group, whose sizes are added": contents.added,
    }  # fmt: skip
    lines = [f"{file}: {count} {text}" for text, count in texts.items() if count > 0]
    if contents.merger is not None and contents.merger.merged:
        gap = format_time(contents.merger.gap_ns)
        lines.append(
            f"{file}: {contents.merger.merged} kernels and copies are merged with others on their"
            f" stream, because the profile is long; computation includes gaps below {gap}"
        )
    return lines


def _number_ranks(
    parts: Sequence[RankNodes], ranks: Sequence[FileRank], stated: Mapping[str, int | None]
) -> list[str]:
    """Set the rank, world size and calls of all parts in place; return notes.

    `parts`, `ranks`: the same processes in the same order.

    - Every process recorded the initialization of a communicator: ranks, world size, groups and
      first notes are those of `find_job_ranks`.
    - Otherwise: the rank is `stated[process]` (from the file name), or the position in `ranks` if
      that is None; repeated ranks are not detected. The world size is None. A note reports this.

    A communicator without recorded initialization has as group the ranks whose processes use it.
    The group is all ranks of the job if all processes use it, or if its name is "". A note counts
    the named communicators of this kind, another reports "". Calls get bytes, peers (-1 if unknown)
    and groups of the job. Raises `InputError` (`communicator`) if a part uses a group that lacks
    its own rank; errors of `find_job_ranks` pass through.
    """
    users: dict[str, list[str]] = defaultdict(list)
    for part, rank in zip(parts, ranks, strict=True):
        for communicator in sorted({call.group.name for call in part.calls}):
            users[communicator].append(rank.process)
    members = [member for rank in ranks for member in rank.members]
    lines: list[str] = []
    rank_of: dict[str, int] = {}
    group_of: dict[str, GroupRecord] = {}
    ranks_of: dict[str, tuple[int, ...]] = {}
    world_size: int | None = None
    if members and {member.process for member in members} == {rank.process for rank in ranks}:
        job = find_job_ranks(members, parts[0].file)
        rank_of = {member.process: rank for member, rank in job.rank_of.items()}
        group_of, ranks_of = dict(job.group_of), dict(job.ranks_of)
        world_size = job.world_size
        lines += job.notes
    else:
        for order, rank in enumerate(ranks):
            number = stated[rank.process]
            rank_of[rank.process] = order if number is None else number
        lines.append(
            "initialisations of communicators are not recorded: ranks follow from the names or the"
            " order of the files"
        )
    unknown = sorted(set(users) - set(ranks_of))
    for communicator in unknown:
        numbers = tuple(sorted(rank_of[process] for process in users[communicator]))
        ranks_of[communicator] = numbers
        is_all = not communicator or len(numbers) == len(ranks)
        group_of[communicator] = GroupRecord(communicator, None if is_all else numbers)
    if named_count := sum(bool(communicator) for communicator in unknown):
        communicators = format_count(named_count, "communicator")
        lines.append(f"{communicators}: each has the ranks whose files use it as group")
    if "" in unknown:
        lines.append("calls without a communicator are assumed to be calls of all ranks")
    for part, rank in zip(parts, ranks, strict=True):
        part.rank, part.world_size = rank_of[rank.process], world_size
        part.calls = [_resolve_call(part, call, group_of, ranks_of) for call in part.calls]
    return lines


def _resolve_call(
    part: RankNodes,
    call: Call,
    group_of: Mapping[str, GroupRecord],
    ranks_of: Mapping[str, tuple[int, ...]],
) -> Call:
    """Return a copy of a call of `part` whose bytes, peer and group refer to the job.

    `call` has the bytes of NCCL's API, its peer as a position in the communicator, and the
    name of the communicator as group. `group_of` and `ranks_of`: group and ranks by
    communicator.

    - bytes: those of the input buffer. For reduce-scatter, all-to-all and scatter they are
      the bytes of the call times the number of ranks, otherwise the bytes of the call.
      Unknown (negative) bytes give -1.
    - peer: its rank in the job. -1 if the position is not in the communicator, or if this
      rank has no file.
    - group: that of the job. If any of its ranks has no file, its list of ranks is None.

    Raises `KeyError` for an unknown communicator, and `InputError` (`communicator`) if the rank
    of `part` is not in the group.
    """
    communicator = call.group.name
    ranks = ranks_of[communicator]
    size = input_bytes(operation_word(call.name), call.bytes, len(ranks))
    peer = ranks[call.peer] if 0 <= call.peer < len(ranks) else NONE
    group = group_of[communicator]
    if group.ranks is not None and min(group.ranks) < 0:
        # Ranks of the communicator have no file.
        group = GroupRecord(group.name)
    if group.ranks is not None and part.rank not in group.ranks:
        message = f"rank {part.rank} uses communicator {group.name} of other ranks"
        cure = "name files of one run"
        raise InputError(message, location=Location(part.file), cure=cure, code="communicator")
    return replace(call, bytes=size, peer=peer, group=group)


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


def read_file(tables: ExportTables) -> FileContents:
    """Read all ranks of an Nsight Systems export: one per process and device with activities.

    Activities are kernels, copies and other memory operations. Ranks ascend by process, then
    device. Calls of NCCL are assigned to kernels by the launches of all processes together
    (`assign_calls`).

    The result has four values for notes: undecodable payloads, calls without a payload, kernels
    that execute several calls (numbers), and the merger that combines activities of long profiles
    (above 200 000 rows), else None. Raises `InputError` for a damaged file, and (`empty`) without
    activities.
    """
    activities = read_activities(tables)
    if not len(activities.start):
        message = "the file has no kernels of a device"
        cure = "profile with nsys profile --trace cuda,nvtx, and export with --type sqlite"
        raise InputError(message, location=Location(tables.name), cure=cure, code="empty")
    runtime = read_runtime_calls(tables, activities)
    ranges = read_ranges(tables)
    launch = _find_launches(activities, runtime)
    nccl_rows = np.flatnonzero(activities.is_nccl & (launch >= 0))
    nccl_launches = [
        (
            row,
            int(runtime.thread[launch[row]]),
            int(runtime.start[launch[row]]),
            activities.texts.get(int(activities.name[row]), ""),
        )
        for row in nccl_rows.tolist()
    ]
    calls = assign_calls(ranges, nccl_launches)
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
    """Return for each activity the index of the runtime call that launched it, or -1.

    It is the call of the same process with the same correlation id. Of several, the one
    with the latest start is taken, of equal starts the last one in `runtime`. Activities
    with a negative correlation id have none. The result is int64[activities].
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


def _file_rank(
    file: str,
    rows: Int64Array,
    device_count: int,
    contents: tuple[Activities, RuntimeCalls, NcclRanges, KernelCalls],
) -> FileRank:
    """Build the events and memberships of one device of a process.

    `rows`: the activities of the device, at least one. `device_count`: number of devices of
    the process with activities. There are two cases:

    - One device: the process is `FILE:PID`; the events are named `FILE`. All communicators and
      runtime calls of the process are used.
    - Several devices: process and events are named `FILE:PID:DEVICE`. Only communicators that
      were initialized on this device are used. A runtime call of the process is used if it
      launched one of `rows` (equal correlation id) or is of a kind that launches nothing.

    Names are numbered in the order of the ids of their texts; equal names share a number. An
    id without a text has the name `kernel <id>`. Names of copies and other memory operations
    are added to `memory_names`, those of communication kernels outside NCCL to
    `communication_names`. Device work is added by `_add_device_work`.
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
    threads, thread_index = np.unique(runtime.thread[is_used], return_inverse=True)
    events.threads = {str(thread): index for index, thread in enumerate(threads.tolist())}
    _extend(events.calls.start, runtime.start[is_used])
    _extend(events.calls.duration, runtime.end[is_used] - runtime.start[is_used])
    _extend(events.calls.place, thread_index)
    _extend(events.calls.correlation, runtime.correlation[is_used])
    _extend(events.calls.label, runtime.kind[is_used])
    return rank


def _add_device_work(
    rank: FileRank, activities: Activities, rows: Int64Array, calls: KernelCalls
) -> None:
    """Add the kernels and copies of a device to the events of a rank, one row each, in order.

    `rows`: at least one row of `activities`, all of one device. `events.device` is empty
    before. Its row i gets start and duration in ns, correlation id, name and stream of
    activity `rows[i]`; name and stream are numbers. `events.streams` is replaced: (device,
    stream id) to number, from 0 by ascending id. A name without text is `kernel N` (its id).

    Equal collectives of an NCCL kernel are merged into one call first. `events.kernel_calls`
    maps the row of the kernel to its first call, or None. For each further call, a copy of
    the row is appended after all rows and mapped to it. Copy k of a kernel, from 1, is in the
    extra stream -k. `rank.extra_streams` is raised to the number of these streams.
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
    """Return the calls that one kernel executes, with equal collectives merged into one.

    Collectives are equal if kind, communicator and root are. The merged call is at the position of
    its first call and has the operation name of the last. Its bytes are the sum of all calls, -1 if
    those of any call are unknown. Messages are never merged.
    Calls of unknown operations are left out; without calls the list is empty. Roots and peers are
    positions in the communicator; a message has root -1, a collective peer -1.
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
        sizes = [payload.bytes] if known is None else [known.bytes, payload.bytes]
        size = sum(sizes) if min(sizes) >= 0 else -1
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


def _extend(column: array[int], values: Int64Array) -> None:
    column.frombytes(np.ascontiguousarray(values, np.int64).tobytes())
