"""A job on a measured machine: its collectives compared, or simulated, with the library's times.

The figures of the comparison are those of `MachineComparison`; lines and the part of the JSON
report are two views of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collhub_pytorch.analysis import (
    is_computation,
    is_measured,
    measure_rank_times,
    measure_waiting,
    measured_timeline,
)
from collhub_pytorch.findings import ProfileFindings, count_bus_bytes
from collhub_pytorch.formats import JobMachineOptions
from collhub_pytorch.job import recorded_ranks_per_node
from collhub_pytorch.job_changes import find_changes, find_instant
from collhub_pytorch.predicted_times import (
    CallKey,
    MachinePredictor,
    has_measured_times,
    predict_job,
    require_sizes,
)
from collhub_pytorch.profile_record import (
    ComparedSizeClass,
    MachineComparisonItem,
    MachineSavingItem,
)
from collhub_pytorch.replay import measured, replay_job
from hub_core.model import (
    Diagnostic,
    JobCollective,
    NodeKind,
    Severity,
    UsageError,
    format_bandwidth,
    format_bytes,
    format_count,
    format_time,
)
from hub_core.plugin_api import (
    JobChange,
    LibraryTime,
    MachineDescription,
    WorkloadRequest,
    WorkloadTimes,
)
from hub_core.reports import TimedMachine

SIZE_NOT_RECORDED = "the profile does not record its size"
_MIN_RANKS_TO_SEPARATE_WAITING = 2


@dataclass(frozen=True, slots=True)
class ComparedCalls:
    """Calls of one kind, size class, number of ranks and number of nodes.

    A size class contains the sizes above one power of two up to the next one; `min_bytes` and
    `max_bytes` are input bytes of a rank that occur, -1 if not recorded. `node_count`: None if
    unknown. `transferring_ns`: mean over the ranks, summed over the calls. `bus_bandwidth`: in
    bytes/s as defined by nccl-tests, None without size or time. `includes_waiting`: too few ranks
    have files to separate waiting from transfer. `machine_bus_bandwidth`: of the machine for the
    same calls, None if its profile does not predict them; `reason` then states why. `methods`:
    sorted methods of the predictions. `held_out_error`: maximum over the predictions, None if one
    of them is not measured.
    """

    kind: str
    min_bytes: int
    max_bytes: int
    rank_count: int
    node_count: int | None
    calls: int
    transferring_ns: float
    includes_waiting: bool
    bus_bandwidth: float | None
    machine_bus_bandwidth: float | None
    methods: tuple[str, ...]
    held_out_error: float | None
    reason: str

    @property
    def reached_percent(self) -> float | None:
        """Bus bandwidth of the calls in percent of that of the machine.

        None if one is unknown, or if that of the machine is 0.
        """
        if self.bus_bandwidth is None or not self.machine_bus_bandwidth:
            return None
        return 100 * self.bus_bandwidth / self.machine_bus_bandwidth


@dataclass(frozen=True, slots=True)
class MachineSaving:
    """Job with the predicted times of all collectives that were slower than predicted, in ns.

    `replayed_ns`: replay with measured times. `job_ns`: replay with predicted times. The band of
    the saving contains the savings for times from p / (1 + e) to p / (1 - e), where p is a
    predicted time and e its held-out error; both limits are None if an error is not measured.
    """

    replayed_ns: int
    job_ns: int
    min_saved_ns: int | None
    max_saved_ns: int | None

    @property
    def saved_ns(self) -> int:
        """Difference of the two replays."""
        return self.replayed_ns - self.job_ns


@dataclass(frozen=True, slots=True)
class MachineComparison:
    """Collectives of a job compared with a machine, longest first.

    `saving`: None if the profile predicts no call of the job.
    """

    machine: MachineDescription
    ranks_per_node: int | None
    calls: tuple[ComparedCalls, ...]
    saving: MachineSaving | None


def compare_with_machine(
    findings: ProfileFindings, predictor: MachinePredictor
) -> MachineComparison:
    """Predict the collectives of the job on a machine, and replay the job with these times.

    The result has the machine, its ranks per node, and the saving (None if no call is predicted).
    It also has the measured and predicted figures of the collectives, summed over those of equal
    kind, size class, number of ranks and of nodes, and reason of no prediction. Size class c has
    the sizes above 2^(c-1) and up to 2^c bytes; class 0 is 1 byte, and class -1 unknown sizes,
    whose reason is `SIZE_NOT_RECORDED`. They are ordered by descending measured transfer time,
    then by kind, largest size and reason. Barriers, messages, and collectives of size 0 or of one
    rank are not compared.

    Raises `InputError` (`no-times`) for a job without times, and `HubError` for an unknown profile
    of a machine.
    """
    sums = _sum_calls(findings)
    known = [key for key in sums if key[1] >= 0]
    time_of_key = dict(zip(known, predictor.predict(known), strict=True))
    groups: dict[tuple[str, int, int, int | None, str], list[CallKey]] = {}
    for key in sums:
        kind, size, ranks = key
        time = time_of_key.get(key) or LibraryTime(None, reason=SIZE_NOT_RECORDED)
        size_class = (size - 1).bit_length() if size > 0 else -1
        group = (kind.label, size_class, len(ranks), time.nodes, time.reason)
        groups.setdefault(group, []).append(key)
    calls = [_to_compared_calls(group, keys, sums, time_of_key) for group, keys in groups.items()]
    calls.sort(key=lambda one: (-one.transferring_ns, one.kind, one.max_bytes, one.reason))
    saving = _replay(findings, time_of_key)
    return MachineComparison(predictor.description, predictor.ranks_per_node, tuple(calls), saving)


@dataclass(slots=True)
class _Sums:
    """Sums over calls: mean transfer time over the ranks in ns, and bus bytes."""

    calls: int = 0
    transferring_ns: float = 0.0
    includes_waiting: bool = False
    bus_bytes: float = 0.0


def _sum_calls(findings: ProfileFindings) -> dict[CallKey, _Sums]:
    """Sum the measured figures of all collectives with equal kind, size and ranks.

    The result is by (kind, size, ranks), in the order of the first calls. The size is the largest
    one in bytes of any rank of a call, -1 if all are unknown. `ranks` are those of the group. Left
    out are messages, collectives without a standard kind (barriers), size 0, and groups of one
    rank.

    - `calls`: the number of calls. `bus_bytes`: sum of `count_bus_bytes`, 0 for unknown sizes.
    - `transferring_ns`: sum over the calls of the mean transfer time of the ranks. The transfer
      begins when the last rank starts.
    - `includes_waiting`: whether for any call fewer than 2 ranks have a file
      (`_MIN_RANKS_TO_SEPARATE_WAITING`).

    Raises `InputError` (`no-times`) for a profile without times.
    """
    workload, meetings = findings.workload, findings.meetings
    nodes, has_file = workload.nodes, is_measured(findings.workload)
    transferring = measure_waiting(measured(workload).times, meetings).transferring
    sums: dict[CallKey, _Sums] = {}
    for meeting in range(len(meetings)):
        rows = meetings.members(meeting)
        first = int(rows[0])
        if nodes.kind[first] != NodeKind.COLLECTIVE or workload.kind_of(first) is None:
            continue
        kind, size = JobCollective(int(nodes.collective[first])), int(nodes.bytes[rows].max())
        ranks = workload.members(int(nodes.group[first]))
        if size == 0 or len(ranks) < 2:
            continue
        entry = sums.setdefault((kind, size, ranks), _Sums())
        entry.calls += 1
        entry.transferring_ns += float(transferring[rows].mean())
        entry.includes_waiting |= int(has_file[rows].sum()) < _MIN_RANKS_TO_SEPARATE_WAITING
        entry.bus_bytes += count_bus_bytes(kind.label, size, len(ranks))
    return sums


def _to_compared_calls(
    group: tuple[str, int, int, int | None, str],
    keys: list[CallKey],
    sums: Mapping[CallKey, _Sums],
    time_of_key: Mapping[CallKey, LibraryTime],
) -> ComparedCalls:
    kind, _, rank_count, node_count, reason = group
    entries = [sums[key] for key in keys]
    times = [time_of_key[key] for key in keys if key in time_of_key]
    transferring_ns = sum(entry.transferring_ns for entry in entries)
    bus_bytes = sum(entry.bus_bytes for entry in entries)
    predicted_ns = 0.0
    if not reason:
        predicted_ns = sum(
            entry.calls * (time.time_ns or 0.0) for entry, time in zip(entries, times, strict=True)
        )
    errors = [time.held_out_error for time in times if time.held_out_error is not None]
    return ComparedCalls(
        kind,
        min(key[1] for key in keys),
        max(key[1] for key in keys),
        rank_count,
        node_count,
        sum(entry.calls for entry in entries),
        transferring_ns,
        any(entry.includes_waiting for entry in entries),
        1e9 * bus_bytes / transferring_ns if bus_bytes > 0 and transferring_ns > 0 else None,
        1e9 * bus_bytes / predicted_ns if predicted_ns > 0 else None,
        tuple(sorted({time.method for time in times if time.method})),
        max(errors) if not reason and len(errors) == len(times) else None,
        reason,
    )


def _replay(
    findings: ProfileFindings, time_of_key: Mapping[CallKey, LibraryTime]
) -> MachineSaving | None:
    """Replay the job with measured and with predicted times of its collectives, all in ns.

    Returns None if `time_of_key` has no prediction (`time_ns`). `replayed_ns` is the job time with
    measured times, `job_ns` with predicted ones. A collective keeps its measured time if there is
    no prediction, or if the measured time is shorter than the prediction.

    The savings are `replayed_ns` minus the job time with changed predictions. Let e be the relative
    held-out error of a prediction p:

    - `min_saved_ns`: p / (1 - e). The collective keeps its measured time if e is 1 or more.
    - `max_saved_ns`: p / (1 + e)

    Both are None if the error of any prediction is unknown. A saving may be negative. Raises
    `InputError` (`no-times`) for a job without times.
    """
    times = [time for time in time_of_key.values() if time.time_ns is not None]
    if not times:
        return None

    def replay_ns(sign: int | None) -> int:
        """Replay the job with predicted times of collectives; return the time of the job in ns.

        - `sign` None: the measured times.
        - `sign` 0: the predictions.
        - `sign` 1 or -1: each prediction divided by 1 + sign x its relative error; an unknown
          error counts as 0.

        A collective keeps its measured time if that is shorter, if there is no prediction, or
        if the divisor is 0 or negative. Raises `InputError` as `replay_job`.
        """

        def time_of(kind: JobCollective, size: int, ranks: tuple[int, ...]) -> int | None:
            time = time_of_key.get((kind, size, ranks))
            if sign is None or time is None or time.time_ns is None:
                return None
            divisor = 1 + sign * (time.held_out_error or 0.0)
            # An error of 100 % has no upper limit of the time: the measured time remains.
            return round(time.time_ns / divisor) if divisor > 0 else None

        return replay_job(findings.workload, time_of, findings.meetings, keeps_shorter=True).job_ns

    replayed_ns = replay_ns(None)
    if any(time.held_out_error is None for time in times):
        return MachineSaving(replayed_ns, replay_ns(0), None, None)
    min_saved_ns, max_saved_ns = (replayed_ns - replay_ns(sign) for sign in (-1, 1))
    return MachineSaving(replayed_ns, replay_ns(0), min_saved_ns, max_saved_ns)


def comparison_lines(comparison: MachineComparison) -> list[str]:
    """Format the comparison of a job's collectives with a machine as lines of text.

    Without collectives, the only line says so. Otherwise the lines are, in this order:

    1. One line per entry of `calls`, in their order: size, kind, ranks, nodes. Then follow `not
       predicted:` and the reason, or the reached percentage of the machine's bandwidth with its
       error, or `no transfer time is recorded`.
    2. `if slower collectives reached the bandwidth of MACHINE the job takes A instead of B: saves C
       (D to E by the held-out error), 12.3 %`, if there is a saving. The percentage is relative to
       B, 0.0 if B is 0; without limits, the text in parentheses is `error not measured`.
    3. `2 of 10 calls are not predicted and keep their times`, if any is not predicted.
    4. The assumed number of ranks on each node, if `ranks_per_node` is not None.
    """
    name = comparison.machine.name
    calls, saving = comparison.calls, comparison.saving
    if not calls:
        return [f"there are no collectives to compare with {name}"]
    lines = [_calls_line(one, name) for one in calls]
    if saving is not None:
        band = "error not measured"
        if saving.min_saved_ns is not None and saving.max_saved_ns is not None:
            limits = f"{format_time(saving.min_saved_ns)} to {format_time(saving.max_saved_ns)}"
            band = f"{limits} by the held-out error"
        percent = 100 * saving.saved_ns / saving.replayed_ns if saving.replayed_ns else 0.0
        lines.append(
            f"if slower collectives reached the bandwidth of {name} the job takes "
            f"{format_time(saving.job_ns)} instead of {format_time(saving.replayed_ns)}: "
            f"saves {format_time(saving.saved_ns)} ({band}), {percent:.1f} %"
        )
    total = sum(one.calls for one in calls)
    unpredicted = sum(one.calls for one in calls if one.reason)
    if unpredicted:
        lines.append(f"{unpredicted} of {total} calls are not predicted and keep their times")
    per_node = comparison.ranks_per_node
    if per_node is not None:
        lines.append(f"assumed: {per_node} consecutive ranks on each node (--ranks-per-node)")
    return lines


def create_comparison_item(comparison: MachineComparison) -> MachineComparisonItem:
    """Return the JSON record of a comparison, the member `machine_comparison` of the report.

    - `machine`: name, library and held-out error (None if not measured) of the machine.
    - `ranks_per_node`: as in the comparison, None for none.
    - `collectives`: one record per entry of `comparison.calls`, in that order, [] without entries.
      An entry without recorded sizes (-1) has None as `min_bytes` and `max_bytes`.
      `transferring_ns` is rounded to whole ns; bandwidths are in bytes/s. `not_predicted` is the
      reason why the profile does not predict the calls, None if it does.
    - `saving`: None if the profile predicts no call of the job. Otherwise all members are in ns:
      the replay with measured times, the replay with predicted times, their difference, and the
      smallest and largest saving (both None if an error is not measured).
    """
    machine, saving = comparison.machine, comparison.saving
    return MachineComparisonItem(
        machine=TimedMachine(
            name=machine.name, library=machine.library, held_out_error=machine.held_out_error
        ),
        ranks_per_node=comparison.ranks_per_node,
        collectives=[
            ComparedSizeClass(
                kind=calls.kind,
                min_bytes=calls.min_bytes if calls.min_bytes >= 0 else None,
                max_bytes=calls.max_bytes if calls.min_bytes >= 0 else None,
                rank_count=calls.rank_count,
                node_count=calls.node_count,
                calls=calls.calls,
                transferring_ns=round(calls.transferring_ns),
                includes_waiting=calls.includes_waiting,
                bus_bandwidth_bytes_per_s=calls.bus_bandwidth,
                machine_bus_bandwidth_bytes_per_s=calls.machine_bus_bandwidth,
                reached_percent=calls.reached_percent,
                methods=calls.methods,
                held_out_error=calls.held_out_error,
                not_predicted=calls.reason or None,
            )
            for calls in comparison.calls
        ],
        saving=None
        if saving is None
        else MachineSavingItem(
            replayed_ns=saving.replayed_ns,
            job_ns=saving.job_ns,
            saved_ns=saving.saved_ns,
            min_saved_ns=saving.min_saved_ns,
            max_saved_ns=saving.max_saved_ns,
        ),
    )


def _calls_line(calls: ComparedCalls, machine: str) -> str:
    """Format calls as `64 MiB all-reduce, 8 ranks on 1 node: ` and the comparison with `machine`.

    Calls of different sizes read `32 MiB to 64 MiB`, of unknown (negative) size `unknown size`. An
    unknown number of nodes is left out. The first comparison that applies follows:

    1. `not predicted: REASON`, with a reason
    2. `no transfer time is recorded`, without a percentage or either bandwidth
    3. `80 % of the bandwidth that MACHINE reaches (ERROR), 8 GB/s of 10 GB/s`, with `, with waiting
       times` if these are included. ERROR is `measured at this size` if `measured` is the only
       method, otherwise `held-out error 5 %` or `error not measured`.
    """
    size = "unknown size" if calls.min_bytes < 0 else format_bytes(calls.max_bytes)
    if 0 <= calls.min_bytes < calls.max_bytes:
        size = f"{format_bytes(calls.min_bytes)} to {size}"
    ranks = f"{calls.rank_count} ranks"
    if calls.node_count is not None:
        ranks += f" on {format_count(calls.node_count, 'node')}"
    scope = f"{size} {calls.kind}, {ranks}"
    if calls.reason:
        return f"{scope}: not predicted: {calls.reason}"
    percent, reached = calls.reached_percent, calls.bus_bandwidth
    if percent is None or reached is None or calls.machine_bus_bandwidth is None:
        return f"{scope}: no transfer time is recorded"
    if calls.methods == ("measured",):
        error = "measured at this size"
    elif calls.held_out_error is None:
        error = "error not measured"
    else:
        error = f"held-out error {100 * calls.held_out_error:.0f} %"
    share = f"{percent:.0f} % of the bandwidth that {machine} reaches ({error})"
    figures = f"{format_bandwidth(reached)} of {format_bandwidth(calls.machine_bus_bandwidth)}"
    waiting = ", with waiting times" if calls.includes_waiting else ""
    return f"{scope}: {share}, {figures}{waiting}"


def simulate(request: WorkloadRequest, options: JobMachineOptions) -> WorkloadTimes:
    """Simulate a job with the times of a measured machine for its communications, uncontended.

    Computations keep their durations. A job is measured if it is a profile and all nodes except
    markers have times. The first that exists is the transfer time of a communication
    (`predict_job`):

    1. the predicted time: of a collective with data on several ranks, and, unless the job is
       measured, of a message (as a broadcast between two ranks, otherwise as an all-to-all)
    2. the measured time, in a measured job
    3. 0, for a barrier, and for a collective without data or of one rank

    If the job is no profile, a rank runs one computation at a time, and a group one collective.
    Ranks per node are those of the option, otherwise recorded, otherwise assumed by the machine.
    Notes (`assumption`) report the assumed number, and messages that count as broadcasts.

    The result has the times of nodes, the end of each rank in ns (0 without nodes), its exposed
    time (end minus computing time), and, only with the option `changes`, changes that save time.

    Raises `UsageError` without `machine` or hub, and for a collective without a size that is no
    barrier; `InputError` for missing times, cycles, unmatched communications; `HubError` for an
    unknown machine.
    """
    if options.machine is None or request.hub is None:
        raise UsageError("no machine is given", cure="give --machine P")
    require_sizes(request.workload)
    placed = options.ranks_per_node or recorded_ranks_per_node(request.workload)
    predictor = MachinePredictor(options.machine, placed, request.hub)
    workload = predict_job(request.workload, predictor)
    times = measured_timeline(workload)
    nodes = workload.nodes
    assumptions = []
    if placed is None and predictor.ranks_per_node is not None:
        per_node = predictor.ranks_per_node
        assumptions.append(f"{per_node} consecutive ranks on each node (-O ranks_per_node=N)")
    if nodes.is_kind(NodeKind.SEND).any() and not has_measured_times(request.workload):
        assumptions.append("messages take the time of a broadcast from one rank to another")
    finish = np.zeros(workload.num_ranks, np.int64)
    np.maximum.at(finish, nodes.rank, times.end)
    computation = [rank.computation_ns for rank in measure_rank_times(workload, times)]
    exposed = finish - np.array(computation, np.int64)
    changes: tuple[JobChange, ...] = ()
    if options.changes:
        changes = (
            *find_changes(workload, predictor, is_predicted=True),
            find_instant(workload, predictor),
        )
    return WorkloadTimes(
        tuple(finish.tolist()),
        times.start,
        times.end,
        rank_exposed_ns=tuple(exposed.tolist()),
        diagnostics=tuple(
            Diagnostic("assumption", f"assumed: {text}", Severity.NOTE) for text in assumptions
        ),
        slots="one computation of a rank, one collective of a group",
        details={
            "ranks_per_node": predictor.ranks_per_node,
            "computations": int(is_computation(workload).sum()),
        },
        machine=predictor.description,
        changes=changes,
    )
