"""Profiles without a device: collectives of gloo and the operators of the host around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_pytorch.calls import aimed, kind_of
from collhub_pytorch.kineto.activities import RankProfile
from collhub_pytorch.kineto.events import RankEvents, Span, resolved_group

# The operator that issues a collective: `c10d::allreduce_`.
_ISSUER = "c10d::"


def host_profile(events: RankEvents, window: tuple[int, int] | None) -> RankProfile:
    """The profile of a rank whose collectives run on the host.

    Its points are the begins and ends of the outermost operators of the threads that issue
    collectives. That an operator waits for a collective which ended while the host was idle, or
    within a `c10d` operator, is assumed: files do not say it.
    """
    names = list(events.names)
    outermost = _outermost(events, names)
    begin, spans = _issued(events, outermost, names)
    if window is not None:
        start = events.operators.column("start")[outermost]
        outermost = outermost[(start >= window[0]) & (start < window[1])]
        is_kept = (begin >= window[0]) & (begin < window[1])
        begin, spans = begin[is_kept], [spans[one] for one in np.flatnonzero(is_kept)]
    end = np.array([one.end for one in spans], np.int64)
    time, work = _points(events, outermost)
    return RankProfile(
        events.file,
        events.rank,
        events.world_size,
        names,
        [replace(one.call, group=resolved_group(events, one.call.group)) for one in spans],
        np.array([one.start for one in spans], np.int64),
        end,
        # What runs in the pool of a group's threads waits for nothing but its issue.
        np.arange(len(spans)),
        np.full(len(spans), -1, np.int64),
        np.arange(len(spans)),
        np.searchsorted(time, begin, "left"),
        time,
        _awaited(time, _may_wait(work, names), end, begin),
        work,
        is_on_host=True,
    )


def _outermost(events: RankEvents, names: Sequence[str]) -> Int64Array:
    """Operators that lie in no other, by start, of the threads that issue collectives."""
    start, label = events.operators.column("start"), events.operators.column("label")
    end, thread = start + events.operators.column("duration"), events.operators.column("place")
    is_issuer = np.array([name.startswith(_ISSUER) for name in names], np.bool_)[label]
    is_wanted = np.isin(thread, thread[is_issuer])
    order = np.lexsort((-end, start, thread))
    found = []
    last_thread, last_end = -1, 0
    for row in order[is_wanted[order]].tolist():
        if thread[row] != last_thread or start[row] >= last_end:
            found.append(row)
            last_thread, last_end = int(thread[row]), int(end[row])
    kept = np.array(found, np.int64)
    return kept[np.argsort(start[kept], kind="stable")]


def _issued(
    events: RankEvents, outermost: Int64Array, names: Sequence[str]
) -> tuple[Int64Array, list[Span]]:
    """When each collective is issued, and the collectives by start.

    The k-th of a kind is issued by the k-th operator of that kind.
    """
    label = events.operators.column("label")
    start = events.operators.column("start")
    waiting: dict[object, list[Span]] = {}
    for span in sorted(events.spans, key=lambda one: -one.start):
        waiting.setdefault((span.call.kind, span.call.collective), []).append(span)
    found = []
    for row in outermost.tolist():
        name = names[label[row]]
        kind = kind_of(name) if name.startswith(_ISSUER) else None
        if kind is not None and waiting.get(kind):
            span = waiting[kind].pop()
            call = aimed(span.call, events.targets.get(int(start[row]), -1))
            found.append((int(start[row]), replace(span, call=call)))
    found.sort(key=lambda pair: pair[1].start)
    begin = np.array([issued_at for issued_at, _ in found], np.int64)
    return begin, [span for _, span in found]


def _points(events: RankEvents, outermost: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Times of begins and ends of operators, and what was done before each: idle is -1."""
    start = events.operators.column("start")[outermost]
    end = start + events.operators.column("duration")[outermost]
    time = np.concatenate([start, end])
    work = np.concatenate(
        [np.full(len(outermost), -1), events.operators.column("label")[outermost]]
    )
    # An end before the begin of the next operator at the same time.
    order = np.lexsort((work < 0, time))
    return time[order], work[order]


def _may_wait(work: Int64Array, names: Sequence[str]) -> BoolArray:
    """Whether the host may have waited for a collective before each point."""
    is_issuer = np.array([name.startswith(_ISSUER) for name in names], np.bool_)
    found: BoolArray = (work < 0) | is_issuer[work]
    return found


def _awaited(
    time: Int64Array, may_wait: BoolArray, ends: Int64Array, begin: Int64Array
) -> Int64Array:
    """For every point the collective for which the host waited before it, or -1.

    It is the last to end between the point and the one before, and was issued before that.
    """
    found = np.full(len(time), -1, np.int64)
    place = np.searchsorted(time, ends, "left")
    for span in np.argsort(ends, kind="stable").tolist():
        point = int(place[span])
        if point < len(time) and may_wait[point] and begin[span] < time[point]:
            found[point] = span
    return found
