"""Control dependencies that keep the order of the messages on every link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array, run_lengths, run_starts, stable_order
from hub_core.schedules.lowering.columns import RowPairs
from hub_core.schedules.lowering.message_ends import MessageEnds
from hub_core.schedules.transfers import Transfers


def link_turns(ends: MessageEnds, transfers: Transfers) -> RowPairs:
    """The control dependencies between ends that keep every link's order: (parents, children)."""
    # A schedule says which message uses a link when; an algorithm has no clock. What keeps the
    # order is that a SEND waits for the message `window` turns before it on its link.
    #
    # With a window of 1, where a link is busy until its message has arrived (the model of TACOS,
    # arXiv 2304.05301), that is all. Where the latency is no part of the occupancy (ASTRA-sim's
    # model), a SEND ends later than its link is free, so `window` messages are under way at once.
    # Nothing would then keep message k from starting before message k - 1, whose data are still to
    # come. So k waits for what k - 1 waited for, and for what came last of all that those before
    # waited for: arrivals at the same rank, so that the edges are local.
    #
    # Messages with a window of 0 stand in no queue: each goes as soon as its data are there.
    #
    # Invariant: with exact times, no message starts before its predecessor on the link.
    # Cost: one sort of the sends, and at most three edges a send.
    queue = _LinkQueues.of(ends, transfers)
    parents, children = queue.sends_a_window_apart()
    all_parents, all_children = [parents], [children]
    held = queue.not_held_back()
    sends = queue.rows[held]
    predecessor = queue.rows[held - 1]
    bygone = queue.window_before(held)
    for waited in (ends.previous[predecessor], queue.last_release(ends)[held - 1]):
        kept = _is_recent(ends, transfers, waited, sends, bygone)
        all_parents.append(waited[kept])
        all_children.append(sends[kept])
    return np.concatenate(all_parents), np.concatenate(all_children)


@dataclass(frozen=True, slots=True, eq=False)
class _LinkQueues:
    """The sends of every link in their order, one link behind the other, as int64 columns.

    `rows`: rows of `MessageEnds`; `first`: the place where the queue of the link begins; `window`:
    how many messages may be under way at once, at least 1.
    """

    rows: Int64Array
    first: Int64Array
    window: Int64Array

    @classmethod
    def of(cls, ends: MessageEnds, transfers: Transfers) -> _LinkQueues:
        """The queues of all links that send, of messages that have a window."""
        rows = np.flatnonzero(ends.is_send & (transfers.window[ends.transfer] > 0))
        link = transfers.link[ends.transfer[rows]]
        # Rows of a sender are in the order of time, which a stable sort keeps.
        order = stable_order(link)
        rows, link = rows[order], link[order]
        starts = run_starts(link)
        lengths = run_lengths(starts, len(link))
        first = np.repeat(starts, lengths)
        return cls(rows, first, transfers.window[ends.transfer[rows]])

    @property
    def place(self) -> Int64Array:
        """The place of every send in `rows`."""
        return np.arange(len(self.rows))

    def sends_a_window_apart(self) -> RowPairs:
        """Every send but the first `window` of a link, after the one as many turns before."""
        turn_before = self.place - self.window
        later = np.flatnonzero(turn_before >= self.first)
        parents = self.rows[turn_before[later]]
        return parents, self.rows[later]

    def not_held_back(self) -> Int64Array:
        """Places of the sends that the one before on their link does not hold back by itself."""
        # A window of one means: one after the other.
        has_predecessor = self.place > self.first
        return np.flatnonzero(has_predecessor & (self.window > 1))

    def window_before(self, places: Int64Array) -> Int64Array:
        """Rows of the sends a window before those at `places`, else of the first of the link."""
        # So many may be on their way at once.
        turn_before = places - self.window[places]
        found: Int64Array = self.rows[np.maximum(turn_before, self.first[places])]
        return found

    def last_release(self, ends: MessageEnds) -> Int64Array:
        """Per place, the last arrival (row or -1) that a send of its link waited for so far."""
        # Rows of a rank are in the order of time, and links do not share senders: the largest row
        # is the last arrival. The shift lets one running maximum start anew at every link.
        shift = self.first * (len(ends) + 1)
        waited = ends.previous[self.rows]
        latest: Int64Array = np.maximum.accumulate(waited + shift) - shift
        return latest


def _is_recent(
    ends: MessageEnds,
    transfers: Transfers,
    arrival: Int64Array,
    send: Int64Array,
    bygone: Int64Array,
) -> BoolArray:
    """Whether an arrival is no condition of `send` yet, nor implied by other ones.

    `arrival`, `send`, `bygone`: rows of ends, int64; `arrival` -1 for none, `bygone` the message a
    window before.
    """
    # An arrival that by the plan alone is earlier than the data of `send` counts: simulators round.
    is_new = (arrival >= 0) & (arrival != ends.previous[send])
    # What was over when `bygone` started is implied, as `send` waits for that message.
    finish = transfers.finish[ends.transfer[arrival]]
    start = transfers.start[ends.transfer[bygone]]
    recent: BoolArray = is_new & (finish >= start)
    return recent
