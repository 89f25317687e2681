"""Both ends of every transfer in chronological order, and edges that keep the order on links.

Also the ranks that have a chunk before the collective, or need it afterwards, and separate channels
for the phases of a connection, so that rounds of an algorithm can overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    group_of_entry,
    labels,
    positions_in,
    run_lengths,
    run_starts,
    stable_order,
    stable_order_by,
)
from hub_core.model import (
    ALL_RANKS,
    Algorithm,
    InputError,
    matched_messages,
    matched_order,
)
from hub_core.schedules.transfers import NO_RANK, Chunks, Transfers

RowPairs = tuple[Int64Array, Int64Array]
"""Dependencies as int64 arrays (parent rows, child rows)."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkHolders:
    """Which NPUs have a chunk before the collective, and which must have it afterwards.

    `members`: int64[num_ranks], the NPU of every rank; `rank_of`: int64[num_npus], the rank of
    every NPU, -1 for NPUs that only relay.
    """

    chunks: Chunks
    members: Int64Array
    rank_of: Int64Array

    @classmethod
    def from_members(cls, chunks: Chunks, members: Int64Array, num_npus: int) -> ChunkHolders:
        """The holders of chunks if rank r is NPU `members[r]`."""
        return cls(chunks, members, positions_in(members, num_npus))

    @property
    def num_npus(self) -> int:
        """Number of NPUs, relays included."""
        return len(self.rank_of)

    def has_before(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether NPU `npu[i]` initially has chunk `chunk[i]` or a contribution to it, bool per
        row.

        `npu`, `chunk`: int64 columns of equal length.
        """
        return self._is_one_of(self.chunks.origin, npu, chunk)

    def needs(self, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Whether NPU `npu[i]` must have chunk `chunk[i]` afterwards, bool per row.

        `npu`, `chunk`: int64 columns of equal length.
        """
        return self._is_one_of(self.chunks.target, npu, chunk)

    def find_local_chunks(self) -> tuple[Int64Array, Int64Array]:
        """Return (npu, chunk), int64, of chunks whose only contributor is also a target, by chunk.

        Such chunks need no message. A target `ALL_RANKS` includes the contributor. A chunk with
        contributions of all ranks has a single contributor only if there is one rank.
        """
        origin, target = self.chunks.origin, self.chunks.target
        # With a single rank, a reduction is a copy of its contribution.
        single_rank = 0 if len(self.members) == 1 else NO_RANK
        contributor = np.where(origin == ALL_RANKS, single_rank, origin)
        is_target = (target == ALL_RANKS) | (target == contributor)
        chunk = np.flatnonzero(is_target & (contributor >= 0))
        return self.members[contributor[chunk]], chunk

    def _is_one_of(self, ranks: Int64Array, npu: Int64Array, chunk: Int64Array) -> BoolArray:
        """Return whether `ranks[chunk[i]]` is `ALL_RANKS` or the rank of `npu[i]`: bool[i].

        `ranks`: int64[chunks]. False for an NPU without a rank (a relay), even for `ALL_RANKS`.
        """
        rank = self.rank_of[npu]
        chunk_rank = ranks[chunk]
        # `ALL_RANKS` does not include relays, whose rank is -1.
        matches: BoolArray = (rank >= 0) & ((chunk_rank == ALL_RANKS) | (chunk_rank == rank))
        return matches


@dataclass(frozen=True, slots=True, eq=False)
class MessageEnds(ColumnTable):
    """Both ends of every transfer, by rank and then by time, as columns of equal length.

    `transfer`, `rank`, `chunk`: int64; `is_send`: whether this is the sending end. `previous`:
    int64, the row of the last arrival of the chunk at the rank before this end, or -1. `wanted`:
    the ranks whose ends are included, None for all.
    """

    transfer: Int64Array
    is_send: BoolArray
    rank: Int64Array
    chunk: Int64Array
    previous: Int64Array
    wanted: Int64Array | None

    @classmethod
    def from_transfers(
        cls, transfers: Transfers, num_chunks: int, wanted: Sequence[int] | None
    ) -> MessageEnds:
        """Build the ends of all transfers at the ranks `wanted`, sorted by rank and time.

        `None` stands for all ranks; without ranks there are no ends. A transfer has a send at its
        start, at the source, and an arrival at its finish, at the destination. At equal times of a
        rank, arrivals precede sends, so that a chunk can be forwarded at once. Simultaneous ends of
        one kind are sorted by the time of the opposite end, then by the number of the transfer.
        `previous` of an end is the last arrival of its chunk at its rank in an earlier row, -1
        without one.
        """
        # Until they are sorted, transfer i is sent in row i and received in row count + i.
        count = len(transfers)
        end = np.arange(2 * count, dtype=np.int64)
        rank = np.concatenate([transfers.source, transfers.destination])
        time = np.concatenate([transfers.start, transfers.finish])
        peer_time = np.concatenate([transfers.finish, transfers.start])
        ranks = None
        if wanted is not None:
            ranks = np.asarray(wanted, np.int64)
            # Before sorting, since one rank of a large network has few ends.
            end = end[np.isin(rank, ranks)]

        # Simultaneous ends of one kind are ordered by the time of the opposite end: messages of a
        # channel can start simultaneously if their first link takes no time, and must arrive in the
        # order in which they were sent.
        end = end[stable_order(peer_time[end])]
        is_send = end < count
        # Arrivals precede simultaneous sends, so that a chunk can be forwarded at once.
        order = stable_order_by(rank[end], 2 * time[end] + is_send)
        end, is_send = end[order], is_send[order]
        transfer = end % max(count, 1)
        chunk = transfers.chunk[transfer]
        previous = _find_last_arrivals(rank[end] * num_chunks + chunk, is_send)
        return cls(transfer, is_send, rank[end], chunk, previous, ranks)

    @property
    def has_arrived(self) -> BoolArray:
        """Return for each end whether its chunk arrived at its rank in an earlier row: bool[ends].

        An end is the send or the receive of a message. Such a send does not read INPUT.
        """
        arrived: BoolArray = self.previous >= 0
        return arrived


def check_causality(message_ends: MessageEnds, transfers: Transfers, holders: ChunkHolders) -> None:
    """Raise `InputError` (`schedule-acausal`) for a chunk that is sent before its source has it.

    A source has a chunk from the start, if `holders` says so, or from its first arrival on; an
    arrival at the time of the send suffices. The error names the first premature send by rank, then
    by time. Only sends in `message_ends` are checked; receives need no check.
    """
    is_available = message_ends.has_arrived | holders.has_before(
        message_ends.rank, message_ends.chunk
    )
    is_premature = message_ends.is_send & ~is_available
    if not is_premature.any():
        return
    row = int(np.argmax(is_premature))
    chunk, npu = int(message_ends.chunk[row]), int(message_ends.rank[row])
    start = int(transfers.start[message_ends.transfer[row]])
    message = f"chunk {chunk} from NPU {npu} at time {start}"
    raise InputError(
        f"the schedule sends {message}, before the chunk has arrived there",
        code="schedule-acausal",
    )


def order_links(message_ends: MessageEnds, transfers: Transfers) -> RowPairs:
    """Return control edges (parents, children) that keep the order of messages on every link.

    Both are int64 rows of `message_ends`; children are sends. The sends of a link form a queue by
    time, without those of window 0. Let P be the send w positions before send k, where w is the
    window of k. `previous` of a send is the last arrival of its chunk at its rank. Edges to k:

    1. from P, if it exists
    2. if w > 1: from the `previous` of the send directly before k
    3. if w > 1: from the latest `previous` of all sends before k

    Rules 2 and 3 give no edge if this arrival does not exist, is the `previous` of k itself, or
    finishes before P starts. Without P, the first send of the queue replaces P here.
    The edges are sorted by rule, then link, then time; an edge can occur twice.
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
        # Arrivals that the plan has before the data of the send are included, since simulators
        # round. An arrival before the start of `window_parent` is implied.
        is_new = (arrival >= 0) & (arrival != message_ends.previous[sends])
        finish = transfers.finish[message_ends.transfer[arrival]]
        start = transfers.start[message_ends.transfer[window_parent]]
        is_required = is_new & (finish >= start)
        all_parents.append(arrival[is_required])
        all_children.append(sends[is_required])
    return np.concatenate(all_parents), np.concatenate(all_children)


def _find_last_arrivals(key: Int64Array, is_send: BoolArray) -> Int64Array:
    """Return, per end, the row of the last arrival with the same key before it: int64, -1 for none.

    `key`: int64, a number per pair of rank and chunk; rows of a key are in chronological order.
    `is_send`: bool, the ends that are not arrivals.
    """
    # A stable sort preserves the chronological order of the rows of a key.
    rows = len(key)
    order = stable_order(key)
    starts = run_starts(key[order])
    first = np.repeat(starts, run_lengths(starts, rows))

    # The running maximum over the rows of arrivals is the last arrival. A value of a previous key
    # is less than the first row of this key, and is discarded below.
    arrivals = np.where(is_send[order], -1, np.arange(rows))
    latest = np.maximum.accumulate(arrivals)
    before = np.append(-1, latest)[:rows]
    last = np.where(before >= first, order[before], -1)
    previous = np.empty(rows, np.int64)
    previous[order] = last
    return previous


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
        """Build the queues of all links: the rows of sends, sorted by link and then by time.

        Sends with a window of 0 (any number in flight) are omitted. `first`: for every row, the
        position of the first row of its link. `window`: for every row, that of its transfer.
        """
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
        """Return edges (parent rows, child rows) by which sends on a link wait for each other.

        Each send waits for the one `window` positions before it in the order of its link. The first
        `window` sends of a link wait for none.
        """
        earlier = self.position - self.window
        children = np.flatnonzero(earlier >= self.first)
        parents = self.rows[earlier[children]]
        return parents, self.rows[children]

    def find_pipelined_sends(self) -> Int64Array:
        """Return the ascending positions of sends that may overlap with an earlier one of the link.

        They have a window above 1 and are not the first of a link. Positions are those in `rows`.
        """
        has_predecessor = self.position > self.first
        return np.flatnonzero(has_predecessor & (self.window > 1))

    def find_window_parents(self, positions: Int64Array) -> Int64Array:
        """Return, per position, the row of the send `window` positions earlier on its link.

        If there are fewer positions on the link, it is the first send of the link.
        """
        earlier = positions - self.window[positions]
        parents: Int64Array = self.rows[np.maximum(earlier, self.first[positions])]
        return parents

    def find_latest_arrivals(self, message_ends: MessageEnds) -> Int64Array:
        """Return, per position in `rows`, the row of the latest arrival whose data a send needs.

        Considered are the send at this position and all earlier sends of its link. The result is
        int64, rows of `message_ends`; it is negative if none of these sends needs an arrival.
        """
        # Rows of a rank are in chronological order and a link has one sender, so the latest arrival
        # is the largest row. The shift restarts the running maximum at every link.
        shift = self.first * (len(message_ends) + 1)
        arrivals = message_ends.previous[self.rows]
        latest: Int64Array = np.maximum.accumulate(arrivals + shift) - shift
        return latest


def separate_phases(algorithm: Algorithm) -> Algorithm:
    """Give each phase of a connection its own channel, and return the changed algorithm.

    A connection is a pair of ranks with a channel. Its messages whose sends are at the same level
    of the order of steps and messages (length of the longest path to them) form a phase. Phases of
    a connection are numbered by level. The pairs (old channel, phase) of all messages get the
    channels 0, 1 and so on in ascending order. The algorithm itself is returned if it has no steps,
    if it has lanes (fixed thread blocks), or if every connection has one phase. Messages must
    match, and steps must not wait in a cycle; neither is checked.
    """
    steps = algorithm.steps
    if (steps.lane >= 0).any() or not len(steps):
        return algorithm
    messages = matched_messages(steps)
    send, receive = messages.send, messages.receive
    order = matched_order(steps)
    level = np.zeros(len(steps), np.int64)
    level[order.nodes] = group_of_entry(order.level_indptr)
    connection = labels(steps.rank[send], steps.peer[send], steps.channel[send])
    # Pairs ascend with the connection, then with the level.
    pair = labels(connection, level[send])
    first_pair = np.full(int(connection.max(initial=-1)) + 1, len(send), np.int64)
    np.minimum.at(first_pair, connection, pair)
    phase = np.zeros(len(steps), np.int64)
    phase[send] = phase[receive] = pair - first_pair[connection]
    phases = int(phase.max(initial=0)) + 1
    if phases == 1:
        return algorithm
    is_message = steps.sends | steps.receives
    channel = np.where(is_message, steps.channel.astype(np.int64) * phases + phase, steps.channel)
    # Numbers without gaps, because runtimes limit the number of channels.
    channel[is_message] = labels(channel[is_message])
    return replace(algorithm, steps=replace(steps, channel=channel.astype(np.int32)))
