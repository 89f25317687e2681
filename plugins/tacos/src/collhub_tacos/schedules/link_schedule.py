"""Schedules as columns of transfers on links, their windows, their reversal, and lockstep logs.

A window limits how many messages of a link are in flight, so that simulators keep the planned
order. An `ArrivalLog` stores an all-gather in equal steps in 2 to 4 bytes per transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.link_network import LinkNetwork, LinkTimes, PathNetwork, WindowRule
from collhub_tacos.symmetry import find_opposite_links
from hub_core.columns import BoolArray, ColumnTable, Int64Array, sorted_ordinals, stable_order_by
from hub_core.schedules import Transfers


def compute_link_windows(network: LinkNetwork, times: LinkTimes) -> Int64Array:
    """Return how many messages may be in flight on the first link of each arc: int64[arcs].

    An arc is a route to the next NPU, in the order of `network`. Its number is
    1 + (arrival - busy) / busy, with the quotient rounded up: as many messages as keep the
    first link busy until the first one arrives at the end of the arc. A busy time of 0 counts
    as 1 ps in the division.

    Arcs with the same first link all get the largest of their numbers. Last, the result is
    limited to `times.rule.max_in_flight`, unless that is 0.
    """
    idle = times.arrival - times.busy
    # Messages that can start after a message and before its arrival.
    num_ahead = -(-idle // np.maximum(times.busy, 1))
    # Arcs with the same first link share the largest of their windows.
    _, group_of_arc = np.unique(network.row, return_inverse=True)
    groups = int(group_of_arc.max(initial=-1)) + 1
    max_ahead = np.zeros(groups, np.int64)
    np.maximum.at(max_ahead, group_of_arc, num_ahead)
    window: Int64Array = 1 + max_ahead[group_of_arc]
    return np.minimum(window, times.rule.max_in_flight) if times.rule.max_in_flight else window


def max_released_at_once(network: LinkNetwork, rule: WindowRule) -> int:
    """Return how many messages of a link may wait for the same message; 0 for any number.

    1. 0 if the rule has no slow start.
    2. Otherwise 2 for a network without switches.
    3. Otherwise 4 if each NPU sends over one link only: the number of distinct pairs of an NPU and
       the first link of one of its arcs is at most the number of NPUs.
    4. Otherwise 2.

    The reason: simulators start messages that become free at the same instant in an internal
    order, in ASTRA-sim in that of a hash set. This is the planned order in a set of two, and in a
    set of four if the numbers of their steps are adjacent, as with one link per NPU.
    """
    if not rule.begins_slowly:
        return 0
    if not isinstance(network, PathNetwork):
        return 2
    rows = int(network.row.max(initial=0)) + 1
    sender = np.unique(network.source * rows + network.row)
    has_one_link_each = len(sender) <= network.num_npus
    return 4 if has_one_link_each else 2


def compute_windows(
    row: Int64Array, start: Int64Array, finish: Int64Array, window: Int64Array, at_once: int
) -> Int64Array:
    """Return, per message, how far back on its link the message is for which it waits: int64.

    `row`: link of each message. `start`, `finish`: ps. `window`: maximum number of messages in
    flight on the link, per message. The messages of a link have positions from 0, ordered by start;
    equal starts keep their order. Message i waits for one of the messages 0 to k, with k = i -
    window: the one with the latest finish, of equal ones the last. The result is i minus its
    position.

    With `at_once` > 0, k is at least (i - 1) // `at_once`. So a link starts with one message in
    flight, then has `at_once`, and so on up to the window.

    Messages that wait for none get i + 1: the first of a link, and those with k < 0. Without
    messages, `window` itself is returned.
    """
    if not len(row):
        return window
    order = stable_order_by(row, start)
    link = row[order]
    position = np.arange(len(row))
    ordinal = sorted_ordinals(link)
    first = position - ordinal
    # The message of the link up to each message that arrives last. An earlier message may arrive
    # later if its path is longer; of simultaneous arrivals, the later message counts.
    by_finish = stable_order_by(link, finish[order])
    arrival_rank = np.empty(len(row), np.int64)
    arrival_rank[by_finish] = position
    last_arrival = by_finish[np.maximum.accumulate(arrival_rank)]
    awaited_ordinal = ordinal - window[order]
    if at_once:
        awaited_ordinal = np.maximum(awaited_ordinal, (ordinal - 1) // at_once)
    awaited_message = last_arrival[first + np.maximum(awaited_ordinal, 0)]
    result = np.empty(len(row), np.int64)
    waits = (ordinal > 0) & (awaited_ordinal >= 0)
    result[order] = np.where(waits, position - awaited_message, ordinal + 1)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class LinkSchedule(ColumnTable):
    """Transfers: chunk `chunk[i]` is sent on link `link[i]` at `start[i]`, arriving at `finish[i]`.

    int64 columns of equal length, times in picoseconds, links of `network`, chunk ids as in
    `hub_core.schedules.Chunks`. `reduces`: bool per transfer, whether the destination adds the
    chunk to its own data.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray

    @classmethod
    def without_reduction(
        cls,
        network: LinkNetwork,
        chunk: Int64Array,
        link: Int64Array,
        start: Int64Array,
        finish: Int64Array,
    ) -> LinkSchedule:
        """Build a schedule in which no transfer reduces."""
        return cls(network, chunk, link, start, finish, np.zeros(len(chunk), np.bool_))

    @property
    def time_ps(self) -> int:
        """Arrival time of the last chunk in picoseconds."""
        return int(self.finish.max(initial=0))

    @property
    def source(self) -> Int64Array:
        """Source node of every transfer, int64: the node that its link leaves."""
        source: Int64Array = self.network.source[self.link]
        return source

    @property
    def destination(self) -> Int64Array:
        """Destination node of every transfer."""
        return self.network.destination[self.link]

    def select_rows(self, chosen: Int64Array | BoolArray) -> LinkSchedule:
        """Select transfers by a bool per row, in their order, or by rows, in the given order.

        Returns a new schedule on the same network; times are not changed.
        """
        return LinkSchedule(
            self.network,
            self.chunk[chosen],
            self.link[chosen],
            self.start[chosen],
            self.finish[chosen],
            self.reduces[chosen],
        )

    def select_touching(self, nodes: Sequence[int]) -> LinkSchedule:
        """Return a schedule of only the transfers whose source or destination is one of `nodes`.

        Their order and times are kept. Without `nodes` it is empty.
        """
        is_from = np.isin(self.source, nodes)
        is_to = np.isin(self.destination, nodes)
        return self.select_rows(is_from | is_to)

    def append_to(self, earlier: LinkSchedule, end_ps: int | None = None) -> LinkSchedule:
        """Return `earlier` followed by this schedule, whose times are shifted by `end_ps`.

        The rows of `earlier` come first. Both must have the same network (not checked). `end_ps`:
        time of the entire schedule of which `earlier` is a part; None: the time of `earlier`.
        """
        end = earlier.time_ps if end_ps is None else end_ps
        return replace(
            self,
            chunk=np.concatenate([earlier.chunk, self.chunk]),
            link=np.concatenate([earlier.link, self.link]),
            start=np.concatenate([earlier.start, end + self.start]),
            finish=np.concatenate([earlier.finish, end + self.finish]),
            reduces=np.concatenate([earlier.reduces, self.reduces]),
        )

    def transfers(self, times: LinkTimes) -> Transfers:
        """Convert to the transfers of the core's schedules, with a window for every message.

        The order of messages, starts and finishes (ps) are kept. Links get their numbers in the
        topology. A message with window w waits for the one that is w positions earlier on its link;
        with 0 it waits for none. The window of a link is the number of messages that may be in
        flight on it. The first rule that applies decides about the windows of the messages:

        - `times.rule.sums_in_turn`: a message that reduces has the window of its link, any other
          message has 0.
        - `times.rule.keeps_order` is False: all windows are 0.
        - Otherwise the windows are those of `compute_windows`. A message at position i of its link
          (from 0) that waits for none has i + 1.
        """
        network = self.network
        rule = times.rule
        if not (rule.sums_in_turn or rule.keeps_order):
            window = np.zeros(len(self), np.int64)
        else:
            window = compute_link_windows(network, times)[self.link]
            if rule.sums_in_turn:
                window = np.where(self.reduces, window, 0)
            else:
                at_once = max_released_at_once(network, rule)
                link = network.row[self.link]
                window = compute_windows(link, self.start, self.finish, window, at_once)
        # The core orders messages by topology link.
        row = network.row[self.link]
        return Transfers(
            self.chunk,
            self.source,
            self.destination,
            row,
            self.start,
            self.finish,
            self.reduces,
            window,
        )


def reverse_schedule(
    schedule: LinkSchedule, network: LinkNetwork, end_ps: int | None = None
) -> LinkSchedule:
    """Reverse a spreading schedule in time; the result reduces on `network`.

    `schedule` belongs to the transposed network, or to `network` itself if that has equal links
    in both directions. A transfer u -> v in [t, t + w] becomes a transfer v -> u in [T - t - w,
    T - t], which carries the partial sum of v; TACOS derives a reduce-scatter from an
    all-gather in this way (Won et al., MICRO 2024). Rows keep their order. The result is
    correct if every node received every chunk exactly once. `end_ps`: T, the time of the entire
    schedule of which `schedule` is a part; None for its own time.
    """
    end = schedule.time_ps if end_ps is None else end_ps
    opposite = find_opposite_links(schedule.network, network)
    return replace(
        schedule,
        network=network,
        link=opposite[schedule.link],
        start=end - schedule.finish,
        finish=end - schedule.start,
        reduces=np.ones(len(schedule), np.bool_),
    )


Identifiers = npt.NDArray[np.uint16 | np.uint32]
ChunkBits = npt.NDArray[np.uint64]
"""A bit per node and chunk: row v, bit `x & 63` of word `x >> 6`."""


def choose_identifier_type(num_chunks: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest unsigned type for the ids of `num_chunks` chunks, of 16 or 32 bits."""
    return np.uint16 if num_chunks <= 1 << 16 else np.uint32


def set_chunk_bits(node: Int64Array, chunk: Int64Array, shape: tuple[int, int]) -> ChunkBits:
    """Return bits that are set for the given (node, chunk) pairs: uint64[nodes, words].

    `node`, `chunk`: int64, equally long; pairs may occur repeatedly. `shape`: (nodes, chunks).
    There are chunks / 64 words, rounded up; chunk x is bit x % 64 of word x // 64.
    """
    num_nodes, num_chunks = shape
    bits = np.zeros((num_nodes, -(-num_chunks // 64)), np.uint64)
    bit = np.uint64(1) << (chunk & 63).astype(np.uint64)
    # `|=` would lose bits, because several chunks of a node share a word.
    np.bitwise_or.at(bits, (node, chunk >> 6), bit)
    return bits


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalLog:
    """All-gather in equal steps: a transfer of step t starts at `t * busy_ps`.

    It arrives `arrival_ps` later. `log[v]`: chunks of node v, first the `initial_count[v]` initial
    ones, then the others in order of steps and, within a step, of the links of `network`.
    `carried`: uint8[steps, ceil(links / 8)], a bit per link, lowest bit first: whether the link
    carries a chunk in this step. The log determines which chunk it is. This takes 2 to 4
    bytes per transfer plus the bits.
    """

    network: LinkNetwork
    busy_ps: int
    arrival_ps: int
    log: Identifiers
    initial_count: Int64Array
    carried: npt.NDArray[np.uint8]

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.carried)

    @property
    def num_transfers(self) -> int:
        """Number of transfers: all log entries except the initial chunks."""
        return self.log.size - int(self.initial_count.sum())

    @property
    def lag(self) -> int:
        """Number of steps from the start of a transfer until its chunk can be forwarded."""
        return -(-self.arrival_ps // self.busy_ps)

    @property
    def time_ps(self) -> int:
        """Return the arrival time of the last step's messages in picoseconds; 0 without steps.

        It is (steps - 1) * `busy_ps` + `arrival_ps`, because a step starts every `busy_ps`.
        """
        if not self.num_steps:
            return 0
        last_start = (self.num_steps - 1) * self.busy_ps
        return last_start + self.arrival_ps

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """Return all transfers, or those from or to `nodes`, ordered by start and then by link.

        A transfer of which only one end is in `nodes` is included. Times are in ps. Takes 41 bytes
        per transfer.
        """
        network = self.network
        links = np.arange(network.num_links)
        if nodes is not None:
            is_from, is_to = np.isin(network.source, nodes), np.isin(network.destination, nodes)
            links = links[is_from | is_to]
        step, link, chunk = self._expand_links(links)
        # Logs are expanded by receiver, which includes links that touch none of the nodes.
        if nodes is not None:
            is_selected = np.isin(link, links)
            step, link, chunk = step[is_selected], link[is_selected], chunk[is_selected]
        order = np.lexsort((link, step))
        start = step[order] * self.busy_ps
        finish = start + self.arrival_ps
        return LinkSchedule.without_reduction(network, chunk[order], link[order], start, finish)

    def _expand_links(self, links: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return (step, link, chunk) of all transfers to the destinations of some links.

        Transfers on other links into these destinations are included. The rows are sorted by
        destination, then by arrival, in one step by link. Chunks that a node has from the start
        have no transfer. Without links the arrays are empty.
        """
        indptr = self.network.indptr
        step, link, chunk = [links[:0]], [links[:0]], [links[:0]]
        for node in np.unique(self.network.destination[links]):
            in_links = np.arange(indptr[node], indptr[node + 1])
            # Unpack only the columns of these links.
            bit = (in_links & 7).astype(np.uint8)
            is_used = self.carried[:, in_links >> 3] >> bit & 1
            steps, index_of_link = np.nonzero(is_used)
            step.append(steps)
            link.append(in_links[index_of_link])
            chunk.append(self.log[node, self.initial_count[node] :].astype(np.int64))
        return np.concatenate(step), np.concatenate(link), np.concatenate(chunk)
