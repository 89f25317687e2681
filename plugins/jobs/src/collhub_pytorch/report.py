"""Format findings as tables for people, and create their JSON report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from msgspec import structs

from collhub_pytorch.analysis import has_times
from collhub_pytorch.findings import (
    CallGroup,
    ProfileFindings,
    Saving,
    collect_findings,
    sum_by_kind,
)
from collhub_pytorch.job import idle_streams
from collhub_pytorch.machine import MachineComparison, create_comparison_item
from collhub_pytorch.profile_record import (
    GroupTimes,
    IdleStream,
    KindTimes,
    ProfileReport,
    RankTimes,
    ReplayItem,
    SimulatedCollective,
    WaitedRank,
)
from collhub_pytorch.replay import NetworkTimes
from hub_core import folded_ranks
from hub_core.model import (
    Workload,
    format_bandwidth,
    format_bytes,
    format_ranks,
    format_time,
)
from hub_core.plugin_api import JobChange
from hub_core.reports import list_changes

OVERLAP_DEFINITION = (
    "overlap, as HolisticTraceAnalysis defines it: share of the communication time in which kernels"
    " of computation run; copies and sets of memory do not count"
)
HOST_OVERLAP_DEFINITION = (
    "overlap: share of the communication time in which operators of the host run; "
    "HolisticTraceAnalysis defines it by kernels, which the profile does not record"
)
IDLE_DEFINITION = (
    "idle: no work on the device; of the gaps of its streams, added up: host (nothing was queued),"
    " kernel (queued, below the usual delay between kernels), other, as HolisticTraceAnalysis"
    " defines them"
)
_UNKNOWN = "-"
_COUNTS_HEADER = ("collective", "size", "group", "ranks", "calls")
_CALLS_HEADER = (*_COUNTS_HEADER, "transferring", "waiting", "share", "busbw")
_RANKS_HEADER = ("rank", "span", "replayed", "transferring", "waiting", "overlap", "last")
_TIMES_HEADER = (
    "rank",
    "computation",
    "communication",
    "memory",
    "idle",
    "host",
    "kernel",
    "other",
)
_STRAGGLERS_HEADER = ("collective", "size", "group", "rank", "last", "others waited", "share")
_SIMULATED_HEADER = ("collective", "size", "ranks", "algorithm", "simulated")
# Maximum number of stragglers listed for one kind, size and group, and for all communications.
_LISTED_STRAGGLERS = 3
_LISTED_TOTALS = 8


@dataclass(frozen=True, slots=True)
class Table:
    """Table for people; `right`: right-aligned columns (numbers)."""

    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    right: tuple[str, ...]


Block = Table | list[str]


def build_blocks(findings: ProfileFindings) -> list[Block]:
    """Build the report of the measured times as a list of tables and lists of lines, for people.

    The blocks are, in this order:

    - calls (table) and one line per kind (`kind_lines`), both only if there are calls;
    - ranks (table); equal rows of several ranks are one row, as in the next table. The transfer
      time is unknown (`-`) for ranks that do not communicate;
    - times of ranks (table): `none` for 0, `-` for a time that is not recorded;
    - the definition of overlap, and that of idle time if it is known for any rank (lines);
    - a heading and the stragglers (`_straggler_blocks`), only if a rank waits.
    """
    calls: list[Block] = []
    if findings.calls:
        table = Table(_CALLS_HEADER, _calls_rows(findings), ("size", *_CALLS_HEADER[3:]))
        calls = [table, kind_lines(findings)]
    ranks: dict[int, list[str]] = {}
    times: dict[int, list[str]] = {}
    for rank in findings.ranks:
        device, idle = rank.times, rank.idle
        ranks[rank.rank] = [
            _time(rank.span_ns or None),
            _time(rank.replayed_ns or None),
            _time(rank.transferring_ns if device.communication_ns else None),
            _time(rank.waiting_ns),
            _percent(device.overlap_percent),
            _UNKNOWN if rank.waiting_ns is None else str(rank.last_count),
        ]
        parts = [device.computation_ns, device.communication_ns, device.memory_ns, device.idle_ns]
        reasons: list[int | None] = [None, None, None]
        if idle is not None:
            reasons = [idle.host_wait_ns, idle.kernel_wait_ns, idle.other_ns]
        # A time that is not recorded is `-`.
        times[rank.rank] = ["none" if part == 0 else _time(part) for part in (*parts, *reasons)]
    lines = [overlap_definition(findings)]
    if any(rank.idle is not None for rank in findings.ranks):
        lines.append(IDLE_DEFINITION)
    return [
        *calls,
        Table(_RANKS_HEADER, folded_ranks(ranks), _RANKS_HEADER),
        Table(_TIMES_HEADER, folded_ranks(times), _TIMES_HEADER),
        lines,
        *_straggler_blocks(findings),
    ]


def simulated_table(times: NetworkTimes) -> Table:
    """Build the table of the collectives whose times were simulated.

    There is one row for each kind, size and number of ranks, in the order of simulation. The
    columns are kind, size, ranks, algorithm and simulated time, all as text for readers.
    Without a simulation, the table has only its header.
    """
    rows = [
        [kind.label, format_bytes(size), format_ranks(ranks), entry.algorithm,
         format_time(entry.time_ns)]
        for (kind, size, ranks), entry in times.answers.items()
    ]  # fmt: skip
    return Table(_SIMULATED_HEADER, rows, ("size", "simulated"))


def counts_table(calls: Sequence[CallGroup]) -> Table:
    """Build the table of calls without recorded times."""
    return Table(
        _COUNTS_HEADER, [_call_row(call_group) for call_group in calls], ("size", "ranks", "calls")
    )


def kind_lines(findings: ProfileFindings) -> list[str]:
    """Format one line per kind of collective: how much of its time is waiting for the last rank.

    A line is `all-to-all: 99.1 % of 4.05 ms, all ranks together, is waiting for the last rank`.
    Lines are in alphabetical order of the kinds; without calls the result is [].

    - The time is waiting plus transfer, summed over all groups of calls of the kind. Groups with
      unknown waiting count with their transfer only.
    - The percentage is waiting / (waiting + transfer of the ranks with a file). This transfer is
      the total times `measured_count / rank_count` (`CallGroup.waiting_percent`).

    If waiting is unknown for all groups of the kind, the line has the transfer time only:
    `all-to-all: 36 us, all ranks together; waiting is not measured`.
    """
    lines = []
    for call_group in sum_by_kind(findings.calls):
        if call_group.waiting_ns is None or call_group.waiting_percent is None:
            total = format_time(call_group.transferring_ns)
            lines.append(f"{call_group.kind}: {total}, all ranks together; waiting is not measured")
            continue
        total = format_time(call_group.waiting_ns + call_group.transferring_ns)
        share = f"{call_group.waiting_percent:.1f} % of {total}"
        lines.append(
            f"{call_group.kind}: {share}, all ranks together, is waiting for the last rank"
        )
    return lines


def saving_line(saving: Saving, lead: str) -> str:
    """Format the times of a job and the saving of a replay as a line that begins with `lead`.

    The line is `LEAD the job takes A instead of B: saves C, 12.3 %`, where B is the
    measured time. A negative saving is `costs C`, with positive numbers. The percentage is
    relative to B, and 0.0 if B is 0.
    """
    saved = saving.measured_ns - saving.job_ns
    verb = "saves" if saved >= 0 else "costs"
    return (
        f"{lead} the job takes {format_time(saving.job_ns)} "
        f"instead of {format_time(saving.measured_ns)}: "
        f"{verb} {format_time(abs(saved))}, {abs(saving.saved_percent):.1f} %"
    )


def instant_line(findings: ProfileFindings) -> str:
    """Return a sentence on the time that the job would take if communication took no time.

    It compares this time, the limit for any network, with the measured one (`saving_line`). If
    the profile has no calls, neither collectives nor messages, the sentence reports that a
    network can save no time.
    """
    if not findings.calls:
        return "there are no collectives in the profile: a network can save nothing"
    return saving_line(findings.instant, "if communication took no time")


def _calls_rows(findings: ProfileFindings) -> list[list[str]]:
    """Build one row per call group; times are means over ranks, summed over calls."""
    return [
        [
            *_call_row(call_group),
            format_time(call_group.transferring_ns / call_group.rank_count),
            _time(
                None
                if call_group.waiting_ns is None
                else call_group.waiting_ns / call_group.measured_count
            ),
            _percent(call_group.waiting_percent),
            _UNKNOWN
            if call_group.bus_bandwidth is None
            else format_bandwidth(call_group.bus_bandwidth),
        ]
        for call_group in findings.calls
    ]


def overlap_definition(findings: ProfileFindings) -> str:
    """Return the sentence that defines `overlap` in this report.

    It is the definition by kernels (`OVERLAP_DEFINITION`) if any rank has a time of memory
    operations, which only profiles of a device have. Otherwise it is the definition by
    operators of the host.
    """
    has_device = any(rank.times.memory_ns is not None for rank in findings.ranks)
    return OVERLAP_DEFINITION if has_device else HOST_OVERLAP_DEFINITION


def _straggler_blocks(findings: ProfileFindings) -> list[Block]:
    """Return a heading and the table of ranks for which other ranks wait; [] without waiting.

    The table has these rows. Ranks that cause no waiting have none.

    1. `all`: up to 8 ranks that cause the most waiting in all calls, longest first, ties by
       rank.
    2. For each entry of `findings.calls`, in order: its first 3 stragglers, which are
       sorted by caused waiting.

    A row has collective, size, group, rank, number of calls in which the rank was last, the
    waiting that it caused, and its percentage of the waiting of all calls or of the entry.
    Rows of `all` have no size and group.
    """
    total = sum(call_group.waiting_ns or 0 for call_group in findings.calls)
    if not total:
        return []
    by_rank = sorted(findings.ranks, key=lambda rank: (-rank.caused_waiting_ns, rank.rank))
    rows = [
        ["all", "", "", str(rank.rank), str(rank.last_count), format_time(rank.caused_waiting_ns),
         _percent(100 * rank.caused_waiting_ns / total)]
        for rank in by_rank[:_LISTED_TOTALS] if rank.caused_waiting_ns
    ]  # fmt: skip
    for call in findings.calls:
        for straggler in call.stragglers[:_LISTED_STRAGGLERS]:
            if straggler.waiting_ns and call.waiting_ns:
                share = _percent(100 * straggler.waiting_ns / call.waiting_ns)
                rows.append([
                    *_call_row(call)[:3], str(straggler.rank), str(straggler.calls),
                    format_time(straggler.waiting_ns), share,
                ])  # fmt: skip
    lead = "ranks that start last, and how long the other ranks wait for them:"
    return [[lead], Table(_STRAGGLERS_HEADER, rows, ("size", *_STRAGGLERS_HEADER[3:]))]


def create_counts_report(
    workload: Workload, calls: Sequence[CallGroup], notes: Sequence[str] = ()
) -> ProfileReport:
    """Create the report of traces without times of collectives."""
    return ProfileReport(
        num_ranks=workload.num_ranks,
        job_ns=None,
        instant_job_ns=None,
        collectives=[_create_group_times(call_group) for call_group in calls],
        kinds=[_create_kind_times(call_group) for call_group in sum_by_kind(calls)],
        ranks=[],
        notes=notes,
        replay=None,
        machine_comparison=None,
        changes=[],
    )


def create_report(
    findings: ProfileFindings,
    notes: Sequence[str],
    replay: tuple[Saving, NetworkTimes] | None,
    comparison: MachineComparison | None = None,
    changes: Sequence[JobChange] = (),
) -> ProfileReport:
    """Create the report for `--json`; times are integers in ns, None if not recorded.

    - `collectives` and `ranks` are in the order of the findings.
    - `kinds` are the sums of `collectives` by kind, in alphabetical order (`sum_by_kind`).
    - `replay` has the saving and the simulated times, None without a replay.
    - `machine_comparison` has the comparison with a measured machine, None without one.
    - `changes` has the changes of the job (`list_changes`), [] by default.
    - `idle_by_stream` of a rank is None if the workload has no idle times for the rank.

    Raises `InputError` (`invalid-json`) for invalid idle times in the workload (`idle_streams`).
    """
    return ProfileReport(
        num_ranks=findings.workload.num_ranks,
        job_ns=findings.job_ns,
        instant_job_ns=findings.instant.job_ns,
        collectives=[_create_group_times(call_group) for call_group in findings.calls],
        kinds=[_create_kind_times(call_group) for call_group in sum_by_kind(findings.calls)],
        ranks=[
            RankTimes(
                rank=rank.rank,
                span_ns=rank.span_ns,
                replayed_span_ns=rank.replayed_ns,
                transferring_ns=rank.transferring_ns,
                waiting_ns=rank.waiting_ns,
                overlap_percent=rank.times.overlap_percent,
                last_count=rank.last_count,
                caused_waiting_ns=rank.caused_waiting_ns,
                computation_ns=rank.times.computation_ns,
                communication_ns=rank.times.communication_ns,
                memory_ns=rank.times.memory_ns,
                idle_ns=rank.times.idle_ns,
                idle_by_stream=None
                if streams is None
                else [IdleStream(**asdict(stream)) for stream in streams],
            )
            for rank, streams in zip(findings.ranks, idle_streams(findings.workload), strict=True)
        ],
        overlap_definition=overlap_definition(findings),
        notes=notes,
        replay=None if replay is None else _create_replay_item(*replay),
        machine_comparison=None if comparison is None else create_comparison_item(comparison),
        changes=list_changes(changes),
    )


def _create_replay_item(saving: Saving, times: NetworkTimes) -> ReplayItem:
    return ReplayItem(
        topology=times.topology.name,
        timing=times.timing.note,
        machine=times.timing.machine_record(),
        job_ns=saving.job_ns,
        saved_ns=saving.measured_ns - saving.job_ns,
        rank_span_ns=saving.span_ns,
        simulated=[
            SimulatedCollective(
                kind=kind.label,
                bytes=size,
                ranks=ranks,
                algorithm=entry.algorithm,
                time_ns=entry.time_ns,
            )
            for (kind, size, ranks), entry in times.answers.items()
        ],
    )


def _create_group_times(call_group: CallGroup) -> GroupTimes:
    return GroupTimes(
        **structs.asdict(_create_kind_times(call_group)),
        bytes=call_group.bytes if call_group.bytes >= 0 else None,
        group=call_group.group,
        rank_count=call_group.rank_count,
        bus_bandwidth_bytes_per_s=call_group.bus_bandwidth,
        stragglers=[
            WaitedRank(rank=rank.rank, calls=rank.calls, waiting_ns=rank.waiting_ns)
            for rank in call_group.stragglers
        ],
    )


def _create_kind_times(call_group: CallGroup) -> KindTimes:
    return KindTimes(
        kind=call_group.kind,
        calls=call_group.calls,
        transferring_ns=call_group.transferring_ns,
        waiting_ns=call_group.waiting_ns,
    )


def _call_row(call_group: CallGroup) -> list[str]:
    size = format_bytes(call_group.bytes) if call_group.bytes >= 0 else "unknown"
    return [
        call_group.kind,
        size,
        call_group.group or "all",
        str(call_group.rank_count),
        str(call_group.calls),
    ]


def _time(time_ns: float | None) -> str:
    return _UNKNOWN if time_ns is None else format_time(time_ns)


def _percent(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1f} %"


def lines(workload: Workload) -> list[str]:
    """Format the report of measured times (`build_blocks`) as lines of text.

    Columns of tables are separated by two spaces and padded to the longest cell, so lines may end
    with spaces; those in `Table.right` are aligned to the right. The first line is the header.

    Returns [] if a node has no recorded duration; markers are not examined. So a workload
    that has only markers, or no nodes, gets a report. Raises `InputError` for communications
    that do not match, and for cyclic dependencies.
    """
    if not has_times(workload):
        return []
    text: list[str] = []
    for block in build_blocks(collect_findings(workload)):
        if isinstance(block, list):
            text += block
            continue
        rows = [block.header, *block.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        aligned = [str.rjust if name in block.right else str.ljust for name in block.header]
        for row in rows:
            cells = zip(aligned, row, widths, strict=True)
            text.append("  ".join(align(cell, width) for align, cell, width in cells))
    return text
