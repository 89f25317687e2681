"""Read Kineto profiles as a workload: work, times and dependencies of each rank.

Launches are linked to kernels, and kernels of communication to the calls that they perform.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from collhub_pytorch.calls import Call, call_of_kernel
from collhub_pytorch.formats import KINETO, ProfileOptions
from collhub_pytorch.job import format_rank_list, join_ranks
from collhub_pytorch.kineto.events import (
    BLOCK,
    LAUNCH,
    IssueInterval,
    RankEvents,
    read_events,
    resolve_group,
)
from collhub_pytorch.kineto.graph import (
    NO_PAIRS,
    Launches,
    RankProfile,
    build_nodes,
    convert_stream_waits,
    infer_dependencies,
)
from collhub_pytorch.kineto.host import add_host_calls, host_profile
from collhub_pytorch.profile_reading import align_clocks, read_source
from collhub_pytorch.rank_nodes import KERNEL_DELAY_NS, RankFacts, RankNodes, measure_idle_times
from collhub_pytorch.trace_files import TraceFile
from hub_core.columns import BoolArray, Int64Array, positions_in
from hub_core.model import InputError, JsonValue, Location, Provenance, Workload
from hub_core.plugin_api import Source

ASSUMPTIONS = (
    "the host threads of a rank issue their work in the order of the profile",
    "work waits for another stream where a wait or a gap in its own stream tells that it did; "
    "such dependencies are control dependencies",
    "the ranks of a collective end together: their clocks are aligned by it",
)


def read(source: Source, options: ProfileOptions) -> Workload:
    """Read one profile per rank.

    Assumptions are passed to `source.report` and stored in `extensions`. Raises `InputError` for
    damaged files, missing ranks, mismatched collectives, and clocks that cannot be aligned.
    """
    return read_source(source, KINETO, workload_of, options)


def workload_of(
    files: Sequence[TraceFile], options: ProfileOptions, provenance: Provenance
) -> Workload:
    """Read Kineto profiles, one per rank, as a workload.

    The rank of a file is that in its content, else that in its name, else its position in
    `files`. One file is in memory at a time. Notes and assumptions are in the plugin's
    extension of the workload. Clocks are aligned as the options request (`align_clocks`).

    Raises `InputError` for invalid files (`read_events`), for ranks that do not form a job,
    such as missing ranks (unless the options assume them) or ranks with two files
    (`join_ranks`), for collectives that differ between ranks (unless the options keep
    them), and for clocks that cannot be aligned. Raises `ValueError` without files.
    """
    parts = [_rank_nodes(file, order, options) for order, file in enumerate(files)]
    lines: list[JsonValue] = [*describe_facts(parts)]
    assumptions: list[JsonValue] = list(ASSUMPTIONS)
    extension: dict[str, JsonValue] = {"assumptions": assumptions, "notes": lines}
    workload = join_ranks(parts, options, provenance, extension)
    return align_clocks(workload, options)


def _rank_nodes(file: TraceFile, order: int, options: ProfileOptions) -> RankNodes:
    events = read_events(file, order)
    window = None
    if options.step is not None:
        if options.step not in events.steps:
            have = ", ".join(map(str, sorted(events.steps))) or "none"
            message = f"there is no ProfilerStep#{options.step}: it has {have}"
            location = Location(events.file)
            raise InputError(message, location=location, cure="name another step", code="step")
        window = events.steps[options.step]
    has_device = bool(events.device.start)
    if has_device:
        delay_ns = KERNEL_DELAY_NS * options.kernel_delay_factor
        profile = add_host_calls(device_profile(events, window, delay_ns), events, window)
    else:
        profile = host_profile(events, window)
    return nodes_of_profile(events, profile)


def nodes_of_profile(events: RankEvents, profile: RankProfile) -> RankNodes:
    """Return the nodes of a rank (`build_nodes`) with the facts about its file.

    The facts, in `facts` of the result, are:

    - whether the file has work of a device
    - number of communication kernels with an unknown collective
    - number of activities without a recorded time; 0 if `profile.is_recorded` is None
    - number of collectives of host libraries next to a device
    - annotations that name no known collective: counts by name
    - names of work that copies or sets memory, and of work that communicates although its
      collective is unknown
    - idle times of the streams; None without work of a device

    Neither argument is changed.
    """
    nodes = build_nodes(profile)
    is_recorded = profile.is_recorded
    has_device = bool(events.device.start)
    nodes.facts = RankFacts(
        has_device,
        profile.unknown,
        0 if is_recorded is None else int((~is_recorded).sum()),
        profile.host_calls,
        events.unknown_calls,
        profile.memory_names,
        profile.communication_names,
        profile.idle if has_device else None,
    )
    return nodes


def describe_facts(parts: Sequence[RankNodes]) -> list[str]:
    """Return up to six notes on the files: treatment of unusual work, and missing data.

    A note such as `ranks 0-1: 5 TEXT` names the ranks concerned, ascending; a note without such
    ranks is omitted. Notes 1 to 4 also have the sum of the counts of these ranks. The order is:

    1. kernels of unknown collectives
    2. collectives of host libraries next to a device
    3. annotations that name no known collective
    4. collectives without a recorded time, because the file has no kernels for them
    5. ranks without any call of communication (`calls` is empty)
    6. ranks without work of a device

    No parts give an empty list.
    """
    facts = [(part.rank, part.facts) for part in parts]
    lines = [
        _describe_count(
            "kernels of communication count as communication of an unknown collective",
            {rank: fact.unknown_kernels for rank, fact in facts},
        ),
        _describe_count(
            "collectives of libraries of the host, next to its device, form a group of all ranks",
            {rank: fact.host_calls for rank, fact in facts},
        ),
        _describe_count(
            "annotations of communication name no known collective and are left out",
            {rank: sum(fact.unknown_calls.values()) for rank, fact in facts},
        ),
        _describe_count(
            "collectives have no kernels in the profile: their times, waiting, overlap and idle "
            "time are not recorded; profile with ProfilerActivity.CUDA (XPU, MTIA) as well",
            {rank: fact.unrecorded for rank, fact in facts},
        ),
    ]
    silent = [part.rank for part in parts if not part.calls]
    if silent:
        lines.append(f"{format_rank_list(silent)}: no collectives are recorded")
    hosts = [rank for rank, fact in facts if not fact.has_device]
    if hosts:
        missing = "overlap, idle time of streams and memory copies"
        lines.append(
            f"{format_rank_list(hosts)}: no work of a device is recorded: {missing} are missing"
        )
    return [line for line in lines if line]


def _describe_count(text: str, counts: Mapping[int, int]) -> str:
    """Return a note such as `ranks 0-1: 5 TEXT` with the ranks and the sum of their counts.

    `counts`: by rank; ranks with 0 are not named. "" if all are 0.
    """
    ranks = [rank for rank, count in counts.items() if count]
    return f"{format_rank_list(ranks)}: {sum(counts.values())} {text}" if ranks else ""


# Maximum nesting depth of annotations; torch nests fewer.
_MAX_NESTING = 32


def device_profile(
    events: RankEvents, window: tuple[int, int] | None, kernel_delay_ns: float = KERNEL_DELAY_NS
) -> RankProfile:
    """Return the profile of a rank with a device: its activities (kernels, copies) sorted by start.

    Activities with equal starts keep the order of the file. `window`: (start, end) in ns. Only
    activities issued at start or later, and before end, are included; None includes all, perhaps
    none. An activity is issued at the start of the runtime call that launched it, or at its own
    start if that call is unknown.

    - Dependencies: if the file records waits of streams, they become `stated`, and `assumed` is
      empty. Otherwise `assumed` has dependencies that are inferred from the times.
    - Idle times: a gap between two activities of a stream counts as the usual delay between
      kernels if it is shorter than `kernel_delay_ns` (30 ns) and is no wait for the host. This
      argument has no other effect.
    - Points of the host have no known work (-1).

    Raises `InputError`: `step` if `window` contains no activity, `group` if the ranks of a group
    are unknown, and `profile-record` for invalid data in the file's header.
    """
    order, launches = _select_issued(events, window)
    start = events.device.column("start")[order]
    end = start + events.device.column("duration")[order]
    stream = events.device.column("place")[order]
    calls, call, unknown = _calls(events, order, launches)
    issued_at = launches.issue_times(np.full(len(start), -1, np.int64))
    issue, time, awaited = _points(launches, start, end)
    correlation = events.device.column("correlation")[order]
    stated = convert_stream_waits(events.waits, stream, correlation)
    # Dependencies are not inferred if the file records them.
    is_stated = bool(events.waits)
    assumed = infer_dependencies(start, end, stream, call >= 0, launches)
    return RankProfile(
        events.file,
        events.rank,
        events.world_size,
        tuple(events.names),
        calls,
        start,
        end,
        stream,
        events.device.column("label")[order],
        call,
        issue,
        time,
        awaited,
        np.full(len(time), -1, np.int64),
        assumed=NO_PAIRS if is_stated else assumed,
        stated=stated,
        unknown=unknown.total(),
        communication_names=frozenset({*unknown, *events.communication_names}),
        memory_names=frozenset(events.memory_names),
        idle=measure_idle_times(
            start, end, stream, issued_at, kernel_delay_ns, list(events.streams)
        ),
    )


def _select_issued(
    events: RankEvents, window: tuple[int, int] | None
) -> tuple[Int64Array, Launches]:
    """Return the selected rows of device work, sorted by start, and all runtime calls.

    Work with equal start keeps the order of the file. `window`: (start, end) in ns. Work is
    selected if it was issued from start on and before end. It is issued at the start of the runtime
    call that launched it; without a known call, at its own start. None selects all, even none.

    The calls are sorted by start, equal ones in the order of the file. Their `of_activity` has one
    entry per selected row: the position of the call with the correlation number of the work, of
    several the last one. It is -1 without such a call, and for a negative number. Raises
    `InputError` (`step`) if a window selects no work.
    """
    work_start = events.device.column("start")
    order = np.argsort(work_start, kind="stable")
    correlation = events.device.column("correlation")[order]
    calls = events.calls
    call_order = np.argsort(calls.column("start"), kind="stable")
    call_start = calls.column("start")[call_order]
    call_end = call_start + calls.column("duration")[call_order]
    kind = calls.column("label")[call_order]
    numbers = calls.column("correlation")[call_order]
    by_number = np.argsort(numbers, kind="stable")
    index = np.searchsorted(numbers[by_number], correlation, "right") - 1
    of_activity = np.full(len(correlation), -1, np.int64)
    if len(numbers):
        is_launched = (index >= 0) & (numbers[by_number][index] == correlation) & (correlation >= 0)
        of_activity[is_launched] = by_number[index[is_launched]]
    launches = Launches(call_start, call_end, calls.column("place")[call_order], kind, of_activity)
    if window is None:
        return order, launches
    issued = launches.issue_times(work_start[order])
    is_kept = (issued >= window[0]) & (issued < window[1])
    if not is_kept.any():
        message = "no work of the device is issued in this ProfilerStep"
        raise InputError(message, location=Location(events.file), code="step")
    return order[is_kept], replace(launches, of_activity=of_activity[is_kept])


def _calls(
    events: RankEvents, order: Int64Array, launches: Launches
) -> tuple[list[Call], Int64Array, Counter[str]]:
    """Return the communications of the device, their index by activity, and unknown kernels.

    An activity is a row of work of the device; `order` has the selected rows, one per activity.
    Each selected row of `events.kernel_calls` is a kernel of communication. The first source that
    gives its communication is used:

    1. the arguments of the kernel
    2. the spans (annotations of communications) of the launching thread that contain the start of
       its launch. The innermost one with a group name is used, otherwise the innermost one. Only
       the last 32 spans that begin at or before the launch are examined.
    3. the name of the kernel

    The three results are:

    - the communications, one per kernel with a source, in the order of `events.kernel_calls`, also
      equal ones. Truncated groups are completed (`resolve_group`).
    - int64[activities]: the index in this list, -1 for all other activities
    - the number of kernels without a source, by kernel name

    Raises `InputError` (`group`) if the ranks of a truncated group are unknown.
    """
    position = positions_in(order, len(events.device.start))
    names = list(events.names)
    # By thread the starts and the spans, parallel; an enclosing span precedes the inner ones.
    spans: dict[int, tuple[list[int], list[IssueInterval]]] = {}
    for span in sorted(events.spans, key=lambda one: (one.start, -one.end)):
        starts, thread_spans = spans.setdefault(span.thread, ([], []))
        starts.append(span.start)
        thread_spans.append(span)
    calls: list[Call] = []
    of_activity = np.full(len(order), -1, np.int64)
    unknown: Counter[str] = Counter()
    for row, stated in events.kernel_calls.items():
        activity = int(position[row])
        if activity < 0:
            continue
        call = stated or _enclosing_call(spans, launches, int(launches.of_activity[activity]))
        name = names[events.device.label[row]]
        call = call or call_of_kernel(name)
        if call is None:
            unknown[name] += 1
            continue
        of_activity[activity] = len(calls)
        calls.append(replace(call, group=resolve_group(events, call.group)))
    return calls, of_activity, unknown


def _enclosing_call(
    spans: dict[int, tuple[list[int], list[IssueInterval]]], launches: Launches, launch: int
) -> Call | None:
    """Return the communication of the innermost span with a group name that encloses a launch.

    `spans`: (starts, spans) by thread, ascending. `launch`: row of a call in `launches`, -1
    if unknown; its thread and start count. Only the last `_MAX_NESTING` (32) spans that
    begin before or at the launch are examined; a span that ends at the launch encloses it.
    If none has a group name, the innermost one is taken. Return None without an enclosing
    span, and for -1.
    """
    if launch < 0 or int(launches.thread[launch]) not in spans:
        return None
    starts, thread_spans = spans[int(launches.thread[launch])]
    moment = int(launches.start[launch])
    last = bisect_right(starts, moment)
    around = [
        span for span in thread_spans[max(0, last - _MAX_NESTING) : last] if span.end >= moment
    ]
    complete = [span for span in around if span.call.group.name]
    return (complete or around)[-1].call if around else None


def _points(
    launches: Launches, start: Int64Array, end: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return int64 arrays: issuing point per activity; time and awaited activity per point.

    Activities are work of the device; `start` and `end` are their times in ns. Points are moments
    of the host:

    - the start of each runtime call that launched an activity; activities of one call share it
    - the end of each call that waited for an activity (`_awaited`)

    A call that launched and waited has both points. Points are sorted by time, at equal times
    starts before ends, then in the order of the calls in `launches`. The issuing point of an
    activity is the start of its call, -1 without a known launch. The awaited activity is that for
    whose end the call waited, -1 for points that are starts.
    """
    is_launch = launches.launch_mask()
    awaited_by_call = _awaited(launches, start, end, is_launch)
    returns = np.flatnonzero(awaited_by_call >= 0)
    issuing = np.flatnonzero(is_launch)
    # The return of a blocking call is a separate point, after the point of the call.
    time = np.concatenate([launches.start[issuing], launches.end[returns]])
    awaited = np.concatenate([np.full(len(issuing), -1), awaited_by_call[returns]])
    order = np.argsort(time, kind="stable")
    position = positions_in(order, len(order))
    point_of_call = np.full(len(launches.start), -1, np.int64)
    point_of_call[issuing] = position[: len(issuing)]
    issue = np.full(len(launches.of_activity), -1, np.int64)
    is_launched = launches.of_activity >= 0
    issue[is_launched] = point_of_call[launches.of_activity[is_launched]]
    return issue, time[order], awaited[order]


def _awaited(
    launches: Launches, start: Int64Array, end: Int64Array, is_launch: BoolArray
) -> Int64Array:
    """Return the activity for whose end each runtime call waited, -1 for none: int64[calls].

    `start`, `end`: of the activities, in ns. `is_launch`: bool[calls], whether the call launched an
    activity. Times of the calls are those of `launches`.

    - A call of kind BLOCK waits for activities that it launched, and for those issued at or before
      its start. Without a known launch, an activity is issued at its own start.
    - A call of kind LAUNCH with `is_launch` waits only for the activities that it launched, because
      copies of pageable memory block.
    - Other calls wait for none.

    Only activities that end after the start of the call and at or before its end count. Of several,
    the one with the last end is returned; of equal ends, the last one by index.
    """
    awaited = np.full(len(launches.start), -1, np.int64)
    by_end = np.argsort(end, kind="stable")
    sorted_ends = end[by_end]
    issued_at = launches.issue_times(start)
    is_blocking = (launches.kind == BLOCK) | ((launches.kind == LAUNCH) & is_launch)
    for call in np.flatnonzero(is_blocking).tolist():
        begins, returns = int(launches.start[call]), int(launches.end[call])
        index = int(np.searchsorted(sorted_ends, returns, "right")) - 1
        while index >= 0 and sorted_ends[index] > begins:
            activity = int(by_end[index])
            is_launched_by_call = launches.of_activity[activity] == call
            if is_launched_by_call or (
                launches.kind[call] == BLOCK and issued_at[activity] <= begins
            ):
                awaited[call] = activity
                break
            index -= 1
    return awaited
