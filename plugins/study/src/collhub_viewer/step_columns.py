"""Columns of steps without the values that the page derives from others.

Values of a wait are those of the step that waits, the next one. Steps without message have no peer.
Both ends of a message have equal bytes and chunks. The k-th send from one rank to another matches
the k-th receive there. Values are only left out if the rule reproduces them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_viewer.columns import ColumnLines, Reference
from hub_core.columns import BoolArray, Int64Array

IN_ORDER = "in order"
"""Matching steps that the page derives from the order of sends and receives."""


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Writer of the columns of a run's steps; steps are sorted by lane.

    `rank`: rank of each step; `is_wait`, `is_send`, `is_receive`: bool. `partner`: step at the
    other end of the message, -1 for none.
    """

    lines: ColumnLines
    rank: Int64Array
    is_wait: BoolArray
    is_send: BoolArray
    is_receive: BoolArray
    partner: Int64Array

    def add_gaps(self, start: Int64Array, end: Int64Array, first: Int64Array) -> Reference:
        """Add the time between the end of the previous step of the lane and each start."""
        return self.lines.add(compute_gaps(start, end, first))

    def add_partners(self, peer: Int64Array) -> Reference | str | None:
        """Add the matching steps and return their reference; `IN_ORDER` without a column if the
        order determines them. Mutual partners are stored as distance at the first of both; others
        in full. None if the column exceeds the budget.
        """
        if np.array_equal(self._match_in_order(peer), self.partner):
            return IN_ORDER
        step = np.arange(len(self.partner))
        has_partner = self.partner >= 0
        back = self.partner[self.partner[has_partner]]
        if np.array_equal(back, step[has_partner]):
            offset = np.where(has_partner & (self.partner > step), self.partner - step, 0)
            reference = self.lines.add_optional("matching steps", offset)
            return None if reference is None else reference | {"ends": "first"}
        return self.lines.add_optional("matching steps", self.partner, is_delta=True)

    def add_awaited(self, awaited: Int64Array, peer: Int64Array) -> Reference | None:
        """Add the awaited ranks of waits as differences from the peers of the waiting steps."""
        difference = (awaited - np.append(peer[1:], -1))[self.is_wait]
        return self.lines.add_optional("awaited ranks", difference)

    def add(
        self,
        name: str,
        values: Int64Array,
        *,
        is_delta: bool = False,
        has_partners: bool,
        is_required: bool = False,
    ) -> Reference | None:
        """Add values of all steps; `has_partners`: the page knows the matching steps.

        The reference states which steps are left out: waits, steps without message (if their
        values are all equal), and the second steps of messages.
        """
        kept = np.ones(len(values), bool)
        waits = np.flatnonzero(self.is_wait)
        without_message = ~(self.is_wait | self.is_send | self.is_receive)
        second = np.flatnonzero((self.partner >= 0) & (self.partner < np.arange(len(values))))
        marks: Reference = {}
        has_next = not len(waits) or int(waits[-1]) + 1 < len(values)
        if has_next and np.array_equal(values[waits], values[waits + 1]):
            marks["waits"] = "next"
            kept[waits] = False
        rest = values[without_message]
        if len(rest) and (rest == rest[0]).all():
            marks["rest"] = int(rest[0])
            kept[without_message] = False
        if has_partners and np.array_equal(values[second], values[self.partner[second]]):
            marks["ends"] = "first"
            kept[second] = False
        if is_required:
            return self.lines.add(values[kept], is_delta=is_delta) | marks
        reference = self.lines.add_optional(name, values[kept], is_delta=is_delta)
        return None if reference is None else reference | marks

    def _match_in_order(self, peer: Int64Array) -> Int64Array:
        """Return the partner of every step, int64: the k-th receive from a in b for the k-th send
        from a to b, and vice versa; -1 for other steps and surplus sends or receives.
        """
        partner = np.full(len(peer), -1, np.int64)
        ranks = int(max(self.rank.max(initial=0), peer.max(initial=0))) + 1
        sends = np.flatnonzero(self.is_send & (peer >= 0))
        receives = np.flatnonzero(self.is_receive & (peer >= 0))
        sent = self.rank[sends] * ranks + peer[sends]
        received = peer[receives] * ranks + self.rank[receives]
        by_sent, by_received = np.argsort(sent, kind="stable"), np.argsort(received, kind="stable")
        sends, sent = sends[by_sent], sent[by_sent]
        receives, received = receives[by_received], received[by_received]
        ordinal = np.arange(len(received)) - np.searchsorted(received, received)
        place = np.searchsorted(sent, received) + ordinal
        matches = place < len(sent)
        matches[matches] = sent[place[matches]] == received[matches]
        partner[receives[matches]] = sends[place[matches]]
        partner[sends[place[matches]]] = receives[matches]
        return partner


def compute_gaps(start: Int64Array, end: Int64Array, first: Int64Array) -> Int64Array:
    """Return for every entry its start minus the end of the previous entry of its lane; for the
    first one of a lane, its start. `first`: position of each lane's first entry, and the number of
    entries at the end.
    """
    before = np.zeros_like(start)
    before[1:] = end[:-1]
    before[first[:-1][np.diff(first) > 0]] = 0
    return start - before
