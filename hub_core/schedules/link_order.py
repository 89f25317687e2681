"""Control dependencies that preserve the scheduled order of the messages on every link."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hub_core.columns import BoolArray, Int64Array, run_lengths, run_starts, stable_order
from hub_core.schedules.lowered_steps import RowPairs
from hub_core.schedules.message_ends import MessageEnds
from hub_core.schedules.transfers import Transfers


def order_links(message_ends: MessageEnds, transfers: Transfers) -> RowPairs:
    """Build control edges between rows of `message_ends` that keep the order on every link.

    Returns int64 arrays (parents, children). Only sends are children; messages with a window of 0
    are not ordered.
    """
    # A schedule has times; an algorithm has only dependencies. The order is preserved because a
    # SEND depends on the message `window` positions before it on its link.
    #
    # This suffices with a window of 1, if a link is busy until its message has arrived (the model
    # of TACOS, arXiv 2304.05301). If the latency is not part of the occupancy (ASTRA-sim's model),
    # a SEND finishes after its link is free, so `window` messages are in flight. Then message k
    # could start before message k - 1 whose data have not arrived yet. So k also depends on the
    # arrival that k - 1 waits for, and on the latest arrival that any earlier message of the link
    # waits for. These are arrivals at the same rank, so the edges are local.
    #
    # Messages with a window of 0 are not queued: they are sent as soon as their data are available.
    #
    # Invariant: with exact times, no message starts before its predecessor on the link.
    # Cost: one sort of the sends, and at most three edges per send.
    queue = _LinkQueues.from_ends(message_ends, transfers)
    parents, children = queue.build_window_edges()
    all_parents, all_children = [parents], [children]
    positions = queue.find_pipelined_sends()
    sends = queue.rows[positions]
    predecessor = queue.rows[positions - 1]
    window_parent = queue.find_window_parents(positions)
    latest_arrival = queue.find_latest_arrivals(message_ends)[positions - 1]
    for arrival in (message_ends.previous[predecessor], latest_arrival):
        is_required = _is_required(message_ends, transfers, arrival, sends, window_parent)
        all_parents.append(arrival[is_required])
        all_children.append(sends[is_required])
    return np.concatenate(all_parents), np.concatenate(all_children)


@dataclass(frozen=True, slots=True, eq=False)
class _LinkQueues:
    """The sends of every link in their order, concatenated over the links, as int64 columns.

    `rows`: rows of `MessageEnds`; `first`: position in `rows` where the queue of the link begins;
    `window`: maximum number of messages in flight, at least 1.
    """

    rows: Int64Array
    first: Int64Array
    window: Int64Array

    @classmethod
    def from_ends(cls, message_ends: MessageEnds, transfers: Transfers) -> _LinkQueues:
        """Build the queues of all links, of sends whose window is not 0, in chronological order."""
        rows = np.flatnonzero(message_ends.is_send & (transfers.window[message_ends.transfer] > 0))
        link = transfers.link[message_ends.transfer[rows]]
        # The rows of a sender are in chronological order, which a stable sort preserves.
        order = stable_order(link)
        rows, link = rows[order], link[order]
        starts = run_starts(link)
        lengths = run_lengths(starts, len(link))
        first = np.repeat(starts, lengths)
        return cls(rows, first, transfers.window[message_ends.transfer[rows]])

    @property
    def position(self) -> Int64Array:
        """Position of every send in `rows`: 0, 1, 2, ..."""
        return np.arange(len(self.rows))

    def build_window_edges(self) -> RowPairs:
        """Return edges to every send from the send `window` positions before it on its link.

        The first sends of a link have none.
        """
        earlier = self.position - self.window
        children = np.flatnonzero(earlier >= self.first)
        parents = self.rows[earlier[children]]
        return parents, self.rows[children]

    def find_pipelined_sends(self) -> Int64Array:
        """Return the positions of sends with a predecessor on their link and a window above 1."""
        has_predecessor = self.position > self.first
        return np.flatnonzero(has_predecessor & (self.window > 1))

    def find_window_parents(self, positions: Int64Array) -> Int64Array:
        """Return the rows of the sends `window` positions earlier, or of the link's first send."""
        earlier = positions - self.window[positions]
        parents: Int64Array = self.rows[np.maximum(earlier, self.first[positions])]
        return parents

    def find_latest_arrivals(self, message_ends: MessageEnds) -> Int64Array:
        """Return, per position, the latest arrival on which a send of the link so far depends.

        Rows of `message_ends`, negative if there is none.
        """
        # Rows of a rank are in chronological order and a link has one sender, so the latest arrival
        # is the largest row. The shift restarts the running maximum at every link.
        shift = self.first * (len(message_ends) + 1)
        arrivals = message_ends.previous[self.rows]
        latest: Int64Array = np.maximum.accumulate(arrivals + shift) - shift
        return latest


def _is_required(
    message_ends: MessageEnds,
    transfers: Transfers,
    arrival: Int64Array,
    send: Int64Array,
    window_parent: Int64Array,
) -> BoolArray:
    """Whether an edge from `arrival` to `send` is neither present nor implied by the schedule.

    `arrival`, `send`, `window_parent`: rows of `message_ends`, int64. `arrival` is -1 for none;
    `window_parent` is the message one window before `send`.
    """
    # Arrivals that the plan has before the data of `send` are included, since simulators round.
    is_new = (arrival >= 0) & (arrival != message_ends.previous[send])
    # An arrival before the start of `window_parent` is implied, since `send` depends on that.
    finish = transfers.finish[message_ends.transfer[arrival]]
    start = transfers.start[message_ends.transfer[window_parent]]
    required: BoolArray = is_new & (finish >= start)
    return required
