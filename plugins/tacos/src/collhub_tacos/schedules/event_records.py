"""Columns that the event loop works on: what is to be sent, and the links that send it."""

from __future__ import annotations

from typing import NamedTuple

from hub_core.columns import BoolArray, Int64Array


class Jobs(NamedTuple):
    """What is to be sent, int64 per transfer unless said otherwise.

    `arc`: its arc. `unmet`: transfers that must have arrived before. `child_indptr`, `child`: who
    waits for it, as CSR. `rank`: smaller goes first. `start`, `finish`: results in picoseconds, -1
    before. `hop`: where on its path it is. `following`: the next one in a line at a switch, -1 for
    none. `path_indptr`, `path`: the links of every arc.
    """

    arc: Int64Array
    unmet: Int64Array
    child_indptr: Int64Array
    child: Int64Array
    rank: Int64Array
    start: Int64Array
    finish: Int64Array
    hop: Int64Array
    following: Int64Array
    path_indptr: Int64Array
    path: Int64Array


class SenderQueues(NamedTuple):
    """Links and what waits for them, int64 per link unless said otherwise.

    `busy`, `arrival`: times of one message in picoseconds. `is_busy`: bool. `first`, `last`: the
    line at a switch. `expected`: when the messages that were sent so far will have left it.
    `number`: how many its sender could send; where the order is fixed, how many it will send, those
    of `waiting[begin[l]:]` in order. `gone[begin[l]:begin[l] + sent[l]]`: what it has sent, of
    which the first `arrived[l]` have arrived. `window`: how many may be on their way, `at_once`:
    how many may wait for the same one, 0 for any number. `is_touched`: bool, `touched`: links that
    may begin to send.

    Where the order is not fixed, those of arc a are `waiting[arc_begin[a]:arc_begin[a + 1]]` by
    rank, none at hand before `head[a]`; `place`: of every transfer there. Arcs that begin with a
    link: `arcs[arcs_indptr[l]:arcs_indptr[l + 1]]`.
    """

    busy: Int64Array
    arrival: Int64Array
    is_busy: BoolArray
    first: Int64Array
    last: Int64Array
    expected: Int64Array
    begin: Int64Array
    number: Int64Array
    waiting: Int64Array
    gone: Int64Array
    sent: Int64Array
    arrived: Int64Array
    window: Int64Array
    at_once: Int64Array
    is_touched: BoolArray
    touched: Int64Array
    arc_begin: Int64Array
    head: Int64Array
    place: Int64Array
    arcs_indptr: Int64Array
    arcs: Int64Array
