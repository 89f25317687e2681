"""Build profiles of collectives of host libraries (gloo, mpi, ucc) and host operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_pytorch.calls import ISSUER_NAMESPACES, Call, GroupRecord, kind_of, with_target
from collhub_pytorch.kineto.events import IssueInterval, IssuerArgs, RankEvents, resolve_group
from collhub_pytorch.kineto.graph import RankProfile
from collhub_pytorch.kineto.issuers import Issuer, assign_spans
from hub_core.columns import BoolArray, Int64Array, positions_in
from hub_core.model import InputError, Location

_NO_ARGS = IssuerArgs(frozenset(), -1)


def host_profile(events: RankEvents, window: tuple[int, int] | None) -> RankProfile:
    """Build the profile of a rank whose collectives run on the host.

    `window`: (start, end) in ns, end excluded; None is all. It selects operators by their start,
    and collectives by their time of issue. That is the start of the operator that issued it, for a
    device library the start of the collective. Collectives are in the order of issue, each on a
    stream of its own. Those of device libraries are included, but as their times are unknown, they
    end when they start and `is_recorded` is False for them.

    The work of the host changes at points of time. These are the times of issue, and the start and
    end of each outermost operator. An operator that contains one of torch.distributed is replaced
    by its inner ones. A collective ends between two points. The host waited for it before the later
    point if it was idle or in torch.distributed between them, and the collective was issued before
    that point. Of several such collectives, the host waited for the one with the last end.

    Raises `InputError`: `no-issuer` (a collective of a host library without an operator that issued
    it), and `group` (a list of ranks that the file cuts off).
    """
    operators = _Operators.of(events)
    issued = _issued_calls(events, operators, window)
    visible = operators.visible_rows()
    begin = operators.start[visible]
    if window is not None:
        visible = visible[(begin >= window[0]) & (begin < window[1])]
    issue_time = np.array([issued_call.issue_time for issued_call in issued], np.int64)
    start = np.array([issued_call.span.start for issued_call in issued], np.int64)
    is_recorded = np.array([issued_call.span.is_of_host for issued_call in issued], np.bool_)
    end = np.where(
        is_recorded, np.array([issued_call.span.end for issued_call in issued], np.int64), start
    )
    time, work = _points(operators, visible, issue_time)
    # Idle time, which has the work -1, selects the last entry.
    names = operators.names
    may_wait = np.array([*(name.startswith(ISSUER_NAMESPACES) for name in names), True], np.bool_)
    return RankProfile(
        events.file,
        events.rank,
        events.world_size,
        operators.names,
        [issued_call.call(events) for issued_call in issued],
        start,
        end,
        # Threads of a library run collectives independently.
        np.arange(len(issued)),
        np.full(len(issued), -1, np.int64),
        np.arange(len(issued)),
        np.searchsorted(time, issue_time, "left"),
        time,
        _awaited(time, may_wait[work], np.where(is_recorded, end, -1), issue_time),
        work,
        is_on_host=True,
        is_recorded=is_recorded,
    )


def add_host_calls(
    profile: RankProfile, events: RankEvents, window: tuple[int, int] | None
) -> RankProfile:
    """Add the collectives of host libraries to the profile of a rank with a device.

    `window`: (start, end) in ns of the issue times (starts of the issuing operators), end excluded;
    None for all. Returns `profile` itself without such collectives, otherwise a changed copy. They
    follow those of the device, by issue time, each on a new stream, in the group of the library's
    name with all ranks (None if unknown). `host_calls` is their number. Their issue times become
    points of the host, at equal times after the given ones. `work` is -1 for every point.

    Known waits (`awaited` at least 0) remain. At other points the host waited for the host
    collective that ended last after the previous point and up to this one, and was issued before
    it; else -1.

    Raises `InputError`: `no-issuer` without an issuing operator, `group` for truncated ranks.
    """
    issued = _host_calls(events, _Operators.of(events), window)
    if not issued:
        return profile
    count, point_count = len(issued), len(profile.time)
    issue_time, start, end = (
        np.array(column, np.int64)
        for column in zip(
            *(
                (issued_call.issue_time, issued_call.span.start, issued_call.span.end)
                for issued_call in issued
            ),
            strict=True,
        )
    )
    time = np.concatenate([profile.time, issue_time])
    order = np.argsort(time, kind="stable")
    position = positions_in(order, len(order))
    none = np.full(count, -1, np.int64)
    awaited = np.concatenate([profile.awaited, none])[order]
    may_wait = awaited < 0
    of_host = _awaited(time[order], may_wait, end, issue_time)
    awaited = np.where(of_host >= 0, of_host + len(profile.start), awaited)
    issue = np.where(profile.issue >= 0, position[profile.issue], -1)
    everyone = None if events.world_size is None else tuple(range(events.world_size))
    return replace(
        profile,
        calls=[
            *profile.calls,
            *(
                replace(
                    issued_call.call(events), group=GroupRecord(issued_call.span.library, everyone)
                )
                for issued_call in issued
            ),
        ],
        start=np.concatenate([profile.start, start]),
        end=np.concatenate([profile.end, end]),
        stream=np.concatenate([profile.stream, len(events.streams) + np.arange(count)]),
        label=np.concatenate([profile.label, none]),
        call=np.concatenate([profile.call, len(profile.calls) + np.arange(count)]),
        issue=np.concatenate([issue, position[point_count:]]),
        time=time[order],
        awaited=awaited,
        work=np.full(len(time), -1, np.int64),
        host_calls=count,
    )


@dataclass(frozen=True, slots=True)
class _IssuedCall:
    """Collective with its issue time, and its root or peer, -1 if unknown."""

    span: IssueInterval
    issue_time: int
    target: int = -1

    def call(self, events: RankEvents) -> Call:
        """Return the communication of the recorded span (annotation), with all ranks of its group.

        For host libraries (gloo, mpi, ucc), root or peer are those of the issuing operator. Raises
        `InputError` (`group`) if the file has only a truncated list of ranks.
        """
        call = replace(self.span.call, group=resolve_group(events, self.span.call.group))
        return with_target(call, self.target) if self.span.is_of_host else call


@dataclass(frozen=True, slots=True, eq=False)
class _Operators:
    """Operators of all threads, by thread and start, enclosing ones first; int64[operators].

    `row`: in the columns of the events; `parent`: enclosing operator, -1 without one; `has_issuer`:
    it contains an operator of torch.distributed; `is_of_job`: no library communicates in its
    thread.
    """

    names: Sequence[str]
    row: Int64Array
    start: Int64Array
    end: Int64Array
    thread: Int64Array
    label: Int64Array
    parent: Int64Array
    has_issuer: BoolArray
    is_of_job: BoolArray

    @classmethod
    def of(cls, events: RankEvents) -> _Operators:
        """Build the table of all operators of a file, sorted by thread, start and descending end.

        Equal ones keep the order of the file. Times are in ns. The columns that are derived:

        - `parent`: the last earlier operator of the thread that has not ended at the start of this
          one, as a row of this table; -1 without one. It may end before this one does.
        - `has_issuer`: whether the operator encloses, at any depth, one whose name begins with a
          namespace in `ISSUER_NAMESPACES` (it issues collectives). Its own name does not count.
        - `is_of_job`: False for all operators of a thread in which a host library communicates,
          because they only copy its buffers. But True if an operator that issues collectives runs
          in the thread.
        """
        columns = events.operators
        names = list(events.names)
        start, thread = columns.column("start"), columns.column("place")
        end, label = start + columns.column("duration"), columns.column("label")
        order = np.lexsort((-end, start, thread))
        start, end, thread, label = start[order], end[order], thread[order], label[order]
        parent = np.full(len(order), -1, np.int64)
        around: list[int] = []
        for operator in range(len(order)):
            while around and (
                thread[around[-1]] != thread[operator] or end[around[-1]] <= start[operator]
            ):
                around.pop()
            if around:
                parent[operator] = around[-1]
            around.append(operator)
        is_issuer = np.array([name.startswith(ISSUER_NAMESPACES) for name in names], np.bool_)[
            label
        ]
        has_issuer = np.zeros(len(order), np.bool_)
        # Children follow their parents: visit them first.
        for child in range(len(order) - 1, -1, -1):
            if parent[child] >= 0 and (is_issuer[child] or has_issuer[child]):
                has_issuer[parent[child]] = True
        # Operators in threads of a library copy its buffers.
        of_library = {span.thread for span in events.spans if span.is_of_host}
        of_library.difference_update(thread[is_issuer].tolist())
        is_of_job = ~np.isin(thread, np.array(sorted(of_library), np.int64))
        return cls(names, order, start, end, thread, label, parent, has_issuer, is_of_job)

    def visible_rows(self) -> Int64Array:
        """Return the operators that count as work of the host: int64 rows of this table, by start.

        An operator counts if all of these hold:

        - It encloses no operator of torch.distributed, at any depth. Its own name does not matter.
        - Every operator that encloses it does enclose such an operator.
        - It runs in a thread of the job (`is_of_job`), not of a communication library.

        Equal starts keep the order of the table.
        """
        is_open = np.zeros(len(self.row), np.bool_)
        for operator in range(len(self.row)):
            around = self.parent[operator]
            is_open[operator] = around < 0 or (is_open[around] and self.has_issuer[around])
        rows = np.flatnonzero(is_open & ~self.has_issuer & self.is_of_job)
        return rows[np.argsort(self.start[rows], kind="stable")]

    def issuers(self, events: RankEvents) -> list[Issuer]:
        """List the operators of torch.distributed that issue collectives and messages.

        An operator is listed if `events.issuers` has its arguments and its name gives a kind
        (`kind_of`). The list has the order of this table: by thread, then by start; it may be
        empty. Each entry has start and end in ns, thread, kind, sizes of the inputs, root or peer,
        and whether the operator encloses another issuing operator of the same kind.
        """
        issuers = []
        for operator in np.flatnonzero(np.isin(self.row, list(events.issuers))).tolist():
            args = events.issuers.get(int(self.row[operator]), _NO_ARGS)
            kind = kind_of(self.names[self.label[operator]])
            if kind is not None:
                issuers.append(
                    Issuer(
                        int(self.start[operator]),
                        int(self.end[operator]),
                        int(self.thread[operator]),
                        kind,
                        args.sizes,
                        args.target,
                        self._encloses_kind(operator, kind),
                    )
                )
        return issuers

    def _encloses_kind(self, operator: int, kind: object) -> bool:
        """Return whether an operator encloses, at any depth, an issuing operator of this kind.

        `operator`: row of this table; `kind`: as `kind_of` returns it for a name. Only
        operators whose names start with one of `ISSUER_NAMESPACES` issue. The operator itself
        does not count. Later rows are searched up to the first one that is on another thread, or
        finishes after `operator`.
        """
        if not self.has_issuer[operator]:
            return False
        for inner in range(operator + 1, len(self.row)):
            is_same_thread = self.thread[inner] == self.thread[operator]
            if not is_same_thread or self.end[inner] > self.end[operator]:
                return False
            name = self.names[self.label[inner]]
            if name.startswith(ISSUER_NAMESPACES) and kind_of(name) == kind:
                return True
        return False


def _issued_calls(
    events: RankEvents, operators: _Operators, window: tuple[int, int] | None
) -> list[_IssuedCall]:
    """List the collectives that were issued within a window of time, in the order of issue.

    `window`: (start, end) in ns, with the end excluded; None for the entire file. The time of
    issue depends on the library:

    - device library: the start of the collective's annotation. Of nested annotations of a thread,
      it is the outermost one, or, if that has no group name, the first nested one with a group
      name. An annotation is nested if it starts before the end of the outermost one, even if its
      end is later; of equal starts, the one with the latest end is the outermost.
    - host library: the start of the operator that issued it (`_host_calls`, also for `InputError`)

    At equal times, collectives of device libraries come first, by thread.
    """
    spans = [span for span in events.spans if not span.is_of_host]
    spans.sort(key=lambda one: (one.thread, one.start, -one.end))
    # A file may annotate one collective by several nested spans of a thread.
    outermost: list[IssueInterval] = []
    thread, end = -1, 0
    for span in spans:
        if span.thread != thread or span.start >= end:
            outermost.append(span)
            thread, end = span.thread, span.end
        elif span.call.group.name and not outermost[-1].call.group.name:
            outermost[-1] = span
    calls = [_IssuedCall(span, span.start) for span in outermost]
    if window is not None:
        calls = [
            issued_call for issued_call in calls if window[0] <= issued_call.issue_time < window[1]
        ]
    calls += _host_calls(events, operators, window)
    return sorted(calls, key=lambda issued_call: issued_call.issue_time)


def _host_calls(
    events: RankEvents, operators: _Operators, window: tuple[int, int] | None
) -> list[_IssuedCall]:
    """List the collectives of host libraries with their issuing operators, in issue order.

    `assign_spans` finds the issuing operator of each collective. The issue time is the start of
    this operator, and root or peer are taken from it. Only collectives whose issue time is in
    `window` are listed: (start, end) in ns, end excluded; None for all. Equal issue times keep the
    order of the file. All ranks issue collectives in the same order, while threads of a library may
    start them in another order.

    Raises `InputError` (`no-issuer`) if a collective without an issuing operator starts in the
    window. The message has the number of such collectives, and names the earliest one.
    """
    of_host = [span for span in events.spans if span.is_of_host]
    issuers = operators.issuers(events)
    calls, orphans = [], []
    for span, issuer in zip(of_host, assign_spans(of_host, issuers), strict=True):
        if issuer >= 0:
            calls.append(_IssuedCall(span, issuers[issuer].start, issuers[issuer].target))
        elif window is None or window[0] <= span.start < window[1]:
            orphans.append(span)
    if orphans:
        first = min(orphans, key=lambda one: one.start)
        message = (
            f"{len(orphans)} of {len(of_host)} collectives have no operator of torch.distributed"
            f" that issued them, the first a {first.call.name} at {first.start / 1000:.3f} us"
        )
        cure = (
            "record a profile that begins before the first collective is issued,"
            " or read one iteration with -O step=N"
        )
        raise InputError(message, location=Location(events.file), cure=cure, code="no-issuer")
    if window is not None:
        calls = [
            issued_call for issued_call in calls if window[0] <= issued_call.issue_time < window[1]
        ]
    return sorted(calls, key=lambda issued_call: issued_call.issue_time)


def _points(
    operators: _Operators, visible: Int64Array, issue_times: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the points in time at which the host changes its work, and its work before each.

    Points are the starts and ends of the `visible` operators (rows of `operators`), and each
    different time of `issue_times` (ns) that is not the start of one. Points ascend; at equal
    times, ends come first, then starts, then the issue time.

    The work before a point is the label of the operator that started last and has not ended, of
    equal starts the last in `visible`; -1 if there is none. An operator of duration 0 has two
    points but is never work. An operator from 10 to 20 and an issue time of 15 give the points 10,
    15, 20 and the work -1, label, label. Both results are int64[points].
    """
    start, end = operators.start[visible], operators.end[visible]
    extra = np.setdiff1d(issue_times, start)
    time = np.concatenate([end, start, extra])
    # Ends precede starts at the same time.
    order = np.lexsort((np.arange(len(time)) >= len(end), time))
    work = np.full(len(time), -1, np.int64)
    active: list[int] = []
    for point, entry in enumerate(order.tolist()):
        if active:
            work[point] = operators.label[visible[active[-1]]]
        if entry < len(end):
            if entry in active:
                active.remove(entry)
        elif entry < 2 * len(end) and end[entry - len(end)] > time[entry]:
            active.append(entry - len(end))
    return time[order], work


def _awaited(
    time: Int64Array, may_wait: BoolArray, ends: Int64Array, begin: Int64Array
) -> Int64Array:
    """Return for every point the collective for which the host waited before it, -1 for none.

    `time`: points in ns, ascending. `begin`, `ends`: issue and end of each collective in
    ns, end -1 if unknown. The collective is the one with the last end (of equal ends, the
    last row) after the previous point and up to this one. Collectives that are not issued
    before the point are ignored. Points outside `may_wait` have -1, as do all but the first
    of several points of equal time. The result is int64[points].
    """
    awaited = np.full(len(time), -1, np.int64)
    first_point = np.searchsorted(time, ends, "left")
    for span in np.argsort(ends, kind="stable").tolist():
        point = int(first_point[span])
        if ends[span] >= 0 and point < len(time) and may_wait[point] and begin[span] < time[point]:
            awaited[point] = span
    return awaited
