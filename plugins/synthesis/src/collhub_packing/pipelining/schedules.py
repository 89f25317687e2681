"""Schedule collectives on weighted trees, chunk after chunk, without barriers.

List scheduling (Graham 1966): an idle link takes, of the messages whose data is at its start, one
of the earliest chunk, and of these the one followed by the longest sequence of messages. Of equal
ones, every NPU begins with the tree of the next higher NPU number, and with its own last: so no two
NPUs send to one NPU at once in networks that are equal from the view of all NPUs, and trees finish
one after the other. The progress of trees is compared by the fraction of their data before a chunk,
so that trees with unequal numbers of chunks finish together. With deadlines, a message that begins
a long sequence precedes those of earlier chunks that begin a short one. Reduce and broadcast of
different chunks overlap; a barrier between the phases would cost up to half of the rate.

`windows_of` computes how many messages of a link are in flight at once in a schedule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from collhub_packing.pipelining.operations import (
    Operations,
    Stream,
    TreePaths,
    apply_tree_paths,
    generate_streams,
)
from collhub_packing.trees import SpanningTree
from hub_core.columns import (
    BoolArray,
    Float64Array,
    Int64Array,
    counted_positions,
    csr,
    group_of_entry,
    row_pointer,
    run_lengths,
    run_mask,
    run_starts,
    sorted_ordinals,
    stable_order_by,
)
from hub_core.model import Collective, InputError, message_bytes
from hub_core.network import Occupancy, Routes, Topology, link_times_ps
from hub_core.plugin_api import UnitLimits
from hub_core.schedules import Chunks, Transfers

if TYPE_CHECKING:
    from collhub_packing.pipelining.event_kernel import PipelinePlan

# Events per call of the kernel, about a second at most; Ctrl-C takes effect between calls.
_EVENTS_PER_CALL = 1 << 21
# Units of a collective are 64-bit integers; sums of two fit too.
_MAX_UNITS = 1 << 62
# Differences of priorities are above the keys of forwarded messages in the event kernel.
_MAX_PRIORITY = 1 << 60


# A runtime needs as many buffers as messages in flight. With contention at switches, a third of
# this limit left links idle that had messages to send.
_MAX_IN_FLIGHT = 32

# With deadlines, the time that the messages after a message are expected to take, relative to their
# times without other messages. On 17 networks of equal links without switches, the pipelines of an
# all-reduce fill 20 % sooner than without deadlines; with 1 and 2 it is 18 %.
_EXPECTED_DELAY = Fraction(3, 2)


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A schedule: `transfers` of `chunks` of `collective`, with times in picoseconds.

    Input for `hub_core.schedules.algorithm_of`. The collective has the minimum number of units of
    which all chunks are multiples. Chunks are numbered tree by tree, in a scatter or gather rank by
    rank within a tree, and then in the order of the data.
    """

    collective: Collective
    chunks: Chunks
    transfers: Transfers
    time_ps: int


@dataclass(frozen=True, slots=True, eq=False)
class Pipelining:
    """A collective on trees, prepared for schedules with different numbers of chunks.

    `reduces_first`: on every link reductions precede broadcasts, so that an all-reduce is a
    reduce-scatter and then an all-gather if all links are busy with both. `units`: allowed numbers
    of units of the collective, None for any; all chunks then have one unit. `has_deadlines`:
    messages of a link are sent in the order of the latest times at which they should start.
    """

    topology: Topology
    collective: Collective
    collective_bytes: int
    occupancy: Occupancy
    streams: tuple[Stream, ...]
    operations: Operations
    routes: Routes
    reduces_first: bool = False
    units: UnitLimits | None = None
    has_deadlines: bool = False

    @property
    def widths(self) -> Int64Array:
        """Number of operations of every stream: int64[streams]."""
        return np.asarray([len(stream.operations) for stream in self.streams], np.int64)

    @property
    def stream_of_operation(self) -> Int64Array:
        """Position of the stream of every operation: int64[operations]."""
        return np.repeat(np.arange(len(self.streams)), self.widths)

    @classmethod
    def of(
        cls,
        topology: Topology,
        trees: Sequence[SpanningTree],
        collective: Collective,
        collective_bytes: int,
        occupancy: Occupancy,
        members: Sequence[int] | Int64Array,
        paths: TreePaths | None = None,
    ) -> Pipelining:
        """Prepare to schedule a collective on weighted trees; its rank r runs on NPU `members[r]`.

        An all-gather or reduce-scatter divides the share of a rank by the weights of the trees
        rooted at its NPU, any other kind by those of all trees. Reductions run against the
        direction of the trees. `paths`: for each tree, the links from the parent, by child;
        without it messages use `Topology.routes`. NPUs that are no members only relay.

        Raise `InputError` in these cases, and `KeyError` if a needed link of `paths` has no
        reverse link:

        - `trees-unsuitable`: the collective cannot run on trees.
        - `tree-root`: there is no tree, or a tree has another root than the collective. For an
          all-gather or reduce-scatter, a rank has no tree, or a root is no member.
        - `tree-does-not-span`: a tree does not reach a member.
        """
        streams = tuple(generate_streams(trees, collective, np.asarray(members, np.int64)))
        prepared = cls.of_streams(topology, streams, collective, collective_bytes, occupancy)
        if paths is None:
            return prepared
        routes = apply_tree_paths(paths, trees, streams, topology, prepared.routes)
        return replace(prepared, routes=routes)

    @classmethod
    def of_streams(
        cls,
        topology: Topology,
        streams: tuple[Stream, ...],
        collective: Collective,
        collective_bytes: int,
        occupancy: Occupancy,
    ) -> Pipelining:
        """Prepare to schedule streams (parts of the data with their messages) on a topology.

        Messages use the routes of the topology. The operations of all streams are joined in the
        order of the streams; the numbers of units are not limited. Raises `ValueError` without
        streams, and `InputError` (`disconnected`) if the topology has no route for a message.
        """
        operations = Operations.joined([stream.operations for stream in streams])
        return cls(
            topology=topology,
            collective=collective,
            collective_bytes=collective_bytes,
            occupancy=occupancy,
            streams=streams,
            operations=operations,
            routes=topology.routes(operations.source, operations.destination),
        )

    @property
    def num_shares(self) -> int:
        """Number of shares of the collective's data: one per rank, or a single one."""
        return self.collective.kind.traits.parts(self.collective.num_ranks)

    def schedule(self, chunk_counts: Sequence[int], slack_ps: int = 0) -> Pipeline:
        """Compute a pipelined schedule with the data of tree t in `chunk_counts[t]` equal chunks.

        In a scatter or gather, the data of every rank on the tree are divided into that number of
        chunks. Numbers must be at least 1. `slack_ps`: delay before received data are sent on, so
        that late arrivals delay no further message. If `units` limits the units, the numbers of
        chunks are approximate (`_divide_evenly`).

        Raise `InputError` if a chunk has less than one byte (`size-too-small`), for more than 2^62
        units (`too-many-units`), if all messages together have 2^63 bytes or more (`size-range`),
        and if `units` allows no suitable number (`size-not-served`).
        """
        counts = [chunk_counts[stream.tree] for stream in self.streams]
        if self.units is not None:
            streams, counts = self._divide_evenly(counts, self.units)
            return replace(self, streams=streams, units=None)._schedule(counts, slack_ps)
        return self._schedule(counts, slack_ps)

    def count_chunks_of_share(self, chunk_counts: Sequence[int]) -> int:
        """Return the number of chunks of the share of the data that has the most chunks.

        `chunk_counts`: number of chunks by tree. The chunks of a share are those of all its
        streams.
        """
        numbers: dict[int, int] = {}
        for stream in self.streams:
            numbers[stream.share] = numbers.get(stream.share, 0) + chunk_counts[stream.tree]
        return max(numbers.values())

    def _divide_evenly(
        self, counts: Sequence[int], units: UnitLimits
    ) -> tuple[tuple[Stream, ...], list[int]]:
        """Divide each share of the data into an allowed number of equal chunks for its streams.

        A stream is the part of a share on one tree. `counts`: requested chunks by stream. All
        shares get the same number of chunks:

        1. Allowed are the numbers of `units.list_counts(num_shares)` that are at least the number
           of streams of every share.
        2. The requested number is the largest sum of `counts` of one share.
        3. The largest allowed number up to the requested one is used; otherwise the smallest
           allowed one.

        Within a share, each stream gets chunks in proportion to its fraction, at least one, by
        largest remainders (`apportion`). Its new fraction is its chunks divided by all chunks of
        the share. The streams of a share keep their order in the data and follow each other from 0.

        Returns the streams with new `begin` and `part`, and their numbers of chunks, both in the
        order of `streams`. Raises `InputError` (`size-not-served`) if no number is allowed.
        """
        of_share: dict[int, list[int]] = {}
        for index, stream in enumerate(self.streams):
            of_share.setdefault(stream.share, []).append(index)
        fewest = max(map(len, of_share.values()))
        wanted = max(sum(counts[index] for index in rows) for rows in of_share.values())
        allowed = [one for one in units.list_counts(self.num_shares) if one >= fewest]
        if not allowed:
            raise units.build_error(fewest * self.num_shares)
        total = max((one for one in allowed if one <= wanted), default=allowed[0])
        streams, numbers = list(self.streams), list(counts)
        for rows in of_share.values():
            rows = sorted(rows, key=lambda index: self.streams[index].begin)
            parts = apportion([self.streams[index].part for index in rows], total)
            before = 0
            for index, part in zip(rows, parts, strict=True):
                begin, fraction = Fraction(before, total), Fraction(part, total)
                streams[index] = replace(self.streams[index], begin=begin, part=fraction)
                numbers[index] = part
                before += part
        return tuple(streams), numbers

    def _schedule(self, counts: Sequence[int], slack_ps: int) -> Pipeline:
        """Schedule all messages if the data of stream i have `counts[i]` equal chunks.

        A stream is the part of the data on one tree. `slack_ps`: time in ps from the end of a
        message until messages that wait for it may start. `_build_plan` defines the priorities of
        messages.

        The result has the collective in its new units, the chunks stream by stream (`_cut_chunks`),
        and the transfers by stream, chunk (numbered over all streams), operation. The link of a
        transfer is the first of its route; its window is the number of messages of this link that
        may be in flight (`windows_of`). The time in ps is the end of the last message, 0 without
        messages. Raises `InputError` as `_cut_chunks` does, and (`size-range`) if all messages
        together have 2^63 bytes or more.
        """
        collective, chunks, units = self._cut_chunks(counts)
        # A unit of the collective need not be an integer number of bytes.
        sizes = message_bytes(self.collective_bytes, collective.unit_count, units)
        plan = self._build_plan(counts, sizes, slack_ps)
        # Run the event kernel.
        # Importing numba takes a second.
        from collhub_packing.pipelining.event_kernel import advance, build_state, start_messages

        state = build_state(plan)
        start_messages(plan, state)
        while advance(_EVENTS_PER_CALL, plan, state):
            pass
        start, finish = state.start, state.finish
        # Messages are sorted by stream, then chunk, then operation.
        stream = group_of_entry(plan.stream_message)
        message = counted_positions(np.diff(plan.stream_message))
        width = np.diff(plan.stream_operation)
        chunk, position = np.divmod(message, width[stream])
        operation = plan.stream_operation[stream] + position
        # Windows apply to the first link, where messages wait for each other.
        first_link = self.routes.links[self.routes.indptr[operation]]
        is_ready = plan.needs[operation] == 0
        transfers = Transfers(
            plan.stream_chunk[stream] + chunk,
            self.operations.source[operation],
            self.operations.destination[operation],
            first_link,
            start,
            finish,
            self.operations.reduces[operation],
            windows_of(first_link, start, finish, is_ready),
        )
        return Pipeline(collective, chunks, transfers, int(finish.max(initial=0)))

    def _cut_chunks(self, counts: Sequence[int]) -> tuple[Collective, Chunks, Int64Array]:
        """Divide the data into chunks, and the collective into units that fit the chunks.

        The data are `num_shares` equal shares: one per rank, or a single one. Stream s carries a
        fraction of one share, and is cut into `counts[s]` equal chunks. Chunks are listed by
        stream, then by ascending position. Each share has the smallest number of units with which
        every chunk is an integer number of units. Returns (collective with the units of all
        shares, chunks, int64 units of one chunk by stream).

        Raises `InputError` if a chunk has less than one byte (`size-too-small`). Then it raises
        `InputError` if all shares together have more than 2^62 units (`too-many-units`), because
        tree weights give fractions with large denominators.
        """
        # Compute the fraction of a share that a chunk of each stream is.
        pairs = zip(self.streams, counts, strict=True)
        fractions = [stream.part / count for stream, count in pairs]
        if any(part * self.collective_bytes < self.num_shares for part in fractions):
            raise InputError(
                f"too few bytes for {sum(counts)} chunks: {self.collective_bytes}",
                cure="choose a larger size, or fewer chunks",
                code="size-too-small",
            )
        share_units = math.lcm(*(part.denominator for part in fractions))
        if self.num_shares * share_units > _MAX_UNITS:
            raise InputError(
                f"{sum(counts)} chunks on {len(counts)} trees of these weights need "
                f"{self.num_shares * share_units:.3g} units of data; at most {_MAX_UNITS:.3g} fit",
                cure="choose fewer chunks, or round the bandwidths of the topology",
                code="too-many-units",
            )
        units = _to_units(fractions, share_units)
        begin = _to_units([stream.begin for stream in self.streams], share_units)
        collective = replace(self.collective, unit_count=self.num_shares * share_units)
        shares = Chunks.cut(collective, [share_units])
        stream = group_of_entry(row_pointer(counts))
        offset = begin[stream] + counted_positions(counts) * units[stream]
        share = np.asarray([stream.share for stream in self.streams], np.int64)[stream]
        return (
            collective,
            Chunks(
                shares.origin[share],
                shares.input_offset[share] + offset,
                shares.output_offset[share] + offset,
                units[stream],
                shares.target[share],
            ),
            units,
        )

    def _build_plan(self, counts: Sequence[int], sizes: Int64Array, slack_ps: int) -> PipelinePlan:
        """Build the input of the event kernel, which schedules the messages. Times are in ps.

        A stream is a part of the data on one tree, sent in chunks. `counts`: chunks per stream;
        `sizes`: bytes of a chunk per stream. `slack_ps`: time from the end of a message until
        dependent ones may start. Distinct sizes, ascending, are the size classes; `busy` and
        `arrival` have a row per class and a column per link. Raises `InputError` (`too-long`) if a
        latency, or a size / bandwidth, is above 5e16 ps.

        If several messages wait for a link, the kernel sends the one with the lowest `turn -
        urgency`. `turn` is by chunk, `urgency` by operation. With `has_deadlines`, both are from
        `_compute_deadlines`, and `reduces_first` is ignored. Otherwise the order is:

        1. If `reduces_first`: reductions before broadcasts.
        2. The lower round. Chunk k of n (k from 0) has the fraction k / n. Its round is the
           position of this fraction among the distinct fractions of all streams, ascending.
        3. The higher urgency (`_compute_urgency`).
        """
        # Importing numba takes a second.
        from collhub_packing.pipelining.event_kernel import PipelinePlan

        operations = self.operations
        width = self.widths
        repeats = np.asarray(counts, np.int64)
        # The operations that wait for an operation, and the number of operations that each waits
        # for.
        next_indptr, followers = csr(operations.before, operations.after, len(operations))
        need_count = np.bincount(operations.after, minlength=len(operations))
        # Compute the size class per stream.
        distinct, size_class = np.unique(sizes, return_inverse=True)
        bandwidth, latency_s = self.topology.bandwidth_bytes_per_s, self.topology.latency_s
        busy, arrival = link_times_ps(bandwidth, latency_s, distinct[:, None], self.occupancy)
        size_class = size_class.ravel().astype(np.int64)
        urgency = self._compute_urgency()
        # Compute the round of every chunk: equal if equal fractions of the tree precede it.
        chunks = np.repeat(repeats, repeats)
        fraction_before = counted_positions(repeats) / chunks
        # Quotients of integers below 2^26 are equal as doubles only if they are equal.
        _, round_number = np.unique(fraction_before, return_inverse=True)
        round_number = round_number.ravel().astype(np.int64) * (int(urgency.max(initial=0)) + 1)
        if self.has_deadlines:
            round_number, urgency = self._compute_deadlines(
                repeats, (busy[size_class], arrival[size_class]), fraction_before, urgency
            )
        elif self.reduces_first:
            # Reductions precede all broadcasts: larger than all rounds and urgencies.
            precedence = int(round_number.max(initial=0) + urgency.max(initial=0)) + 1
            urgency += np.where(self.operations.reduces, precedence, 0)
        return PipelinePlan(
            stream_operation=row_pointer(width),
            stream_message=row_pointer(width * repeats),
            stream_chunk=row_pointer(repeats),
            turn=round_number,
            urgency=urgency,
            needs=need_count.astype(np.int64),
            next_indptr=next_indptr,
            next_operation=followers,
            route_indptr=self.routes.indptr,
            route_link=self.routes.links,
            size_class=size_class,
            busy=busy,
            arrival=arrival,
            slack=np.asarray([slack_ps], np.int64),
        )

    def _compute_deadlines(
        self,
        counts: Int64Array,
        times: tuple[Int64Array, Int64Array],
        fraction_before: Float64Array,
        urgency: Int64Array,
    ) -> tuple[Int64Array, Int64Array]:
        """Return priorities (by chunk, by operation) whose difference orders messages by deadline.

        Messages with the lowest differences are sent first. The deadline to start a message is that
        of its chunk minus the expected time of the slowest sequence of messages from this one to
        the end of the chunk: `_EXPECTED_DELAY` times the sum of their times. The deadline of a
        chunk is the fraction of its stream before it, times the bandwidth time of the busiest link.
        Equal deadlines are ordered by `urgency`, the highest first.

        `counts`: chunks by stream. `times`: for how long a chunk occupies a link, and its time to
        the end of the link, in ps by stream and link. `fraction_before`: by chunk.
        """
        stream = self.stream_of_operation
        operation, link = group_of_entry(self.routes.indptr), self.routes.links
        busy, arrival = times
        load = np.zeros(busy.shape[1])
        chunks = counts[stream[operation]].astype(np.float64)
        np.add.at(load, link, busy[stream[operation], link] * chunks)
        message_ps = np.zeros(len(stream), np.int64)
        np.add.at(message_ps, operation, arrival[stream[operation], link])
        remaining = self.operations.measure_remaining(message_ps)
        remaining = remaining * _EXPECTED_DELAY.numerator // _EXPECTED_DELAY.denominator
        # Priorities must fit into 62 bits.
        ranks, bandwidth_ps = int(urgency.max(initial=0)) + 1, float(load.max(initial=0))
        unit = int(max(bandwidth_ps, remaining.max(initial=0))) * ranks // _MAX_PRIORITY + 1
        deadline = np.rint(fraction_before * (bandwidth_ps / unit)).astype(np.int64)
        return deadline * ranks, remaining // unit * ranks + urgency

    def _compute_urgency(self) -> Int64Array:
        """Return the priority of every operation within its round; the highest is sent first.

        Keys in this order; a key decides only if all earlier ones are equal:

        1. larger `remaining`, the number of messages in sequence from this one to the last
        2. smaller distance from the source to the root
        3. earlier stream
        4. smaller distance from the source to the destination

        The distance from NPU a to NPU b is (b - a) modulo the number of NPUs. The result is int64
        by operation. Operations that are equal in all keys have the same priority. Priorities are
        0, 1, 2, ... without gaps.
        """
        operations, num_npus = self.operations, self.topology.num_npus
        to_root = (operations.root - operations.source) % num_npus
        to_destination = (operations.destination - operations.source) % num_npus
        # For trees of one root, one chunk of each tree precedes the remaining messages of a node.
        keys = (to_destination, self.stream_of_operation, to_root, -operations.remaining)
        order = np.lexsort(keys)
        is_new = run_mask(*(key[order] for key in keys))
        position = np.empty(len(operations), np.int64)
        position[order] = np.cumsum(is_new)
        urgency: Int64Array = position.max(initial=0) - position
        return urgency


def windows_of(
    link: Int64Array,
    start: Int64Array,
    finish: Int64Array,
    is_ready: BoolArray,
    limit: int = _MAX_IN_FLIGHT,
) -> Int64Array:
    """Return for each message how many messages of its link may be in flight, with itself: int64.

    All arrays have one entry per message. `link`: first link of the message's route. `start`,
    `finish`: times in the schedule. `is_ready`: the message waits for no other message. Without
    messages the result is `link`, which is empty.

    1. All messages of a link get the maximum number in flight at once in the schedule. A
       message that finishes at the start of another is not counted with it.
    2. This number is limited to `limit`.
    3. The messages of a link are numbered by start, from 0; equal starts keep their order. A
       ready message with a number n above 0 gets at most n. So it starts after the first one
       of its link, although both may be ready at one instant.
    """
    if not len(link):
        return link
    order = stable_order_by(link, start)
    link = link[order]
    ordinal = sorted_ordinals(link)
    # Link and time are combined in one number, so that one sorted search serves all links. Messages
    # leave a link in order, so that a later finish of an earlier message counts.
    span = int(finish.max()) + 1
    finished = np.maximum.accumulate(link * span + finish[order])
    num_finished = np.searchsorted(finished, link * span + start[order], side="right")
    first = run_starts(link)
    most = np.maximum.reduceat(np.arange(len(link)) - num_finished + 1, first)
    in_flight = np.minimum(np.repeat(most, run_lengths(first, len(link))), limit)
    waits_for_first = is_ready[order] & (ordinal > 0)
    window = np.empty(len(link), np.int64)
    window[order] = np.where(waits_for_first, np.minimum(in_flight, ordinal), in_flight)
    return window


def apportion(parts: Sequence[Fraction], total: int) -> list[int]:
    """Divide `total` items in proportion to `parts`, so that each part gets at least one.

    `parts`: positive weights, at most `total` of them. Each part first gets its exact
    share of `total`, rounded down, but at least 1. Then items are added one by one, each
    to the part that is farthest below its share, or taken away, each from the part that
    is farthest above it and has more than one. Of equal parts the first one is changed.
    Returns the numbers in the order of `parts`.
    """
    weight = sum(parts)
    exact = [part / weight * total for part in parts]
    numbers = [max(1, math.floor(number)) for number in exact]
    while (missing := total - sum(numbers)) != 0:
        change = 1 if missing > 0 else -1
        rows = [row for row, number in enumerate(numbers) if number + change >= 1]
        row = max(rows, key=lambda row: (change * (exact[row] - numbers[row]), -row))
        numbers[row] += change
    return numbers


def _to_units(fractions: Sequence[Fraction], units: int) -> Int64Array:
    """Return fractions of a share as int64 numbers of units; `units`: number of units of a share.

    The products must be integers; this is not checked.
    """
    return np.asarray([int(part * units) for part in fractions], np.int64)
