"""Schedules of collectives that run on weighted trees, chunk after chunk, without barriers.

List scheduling (Graham 1966): a link that is idle takes, of the messages whose data is at its
start, one of the earliest chunk, and of these the one that most others follow. Of equal ones every
NPU begins with the tree of the NPU behind it by number, and with its own last: so no two send to
one at once, where networks look alike from all NPUs, and trees end one after the other. The
progress of trees is compared by the part of their data that lies before a chunk, so that trees with
unequal numbers of chunks end together. Reduce and broadcast of different chunks overlap; a barrier
between the phases would cost up to half of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from collhub_columns import (
    Int64Array,
    counted_positions,
    csr,
    group_of_entry,
    row_pointer,
    run_mask,
)
from collhub_schedules import Chunks, Transfers

from collhub_packing.pipelining.operations import Operations
from collhub_packing.pipelining.streams import Stream, streams_of
from collhub_packing.pipelining.tree_routes import TreePaths, routed_along
from collhub_packing.pipelining.windows import windows_of
from collhub_packing.trees import SpanningTree
from hub_core.model import Collective, InputError, message_bytes
from hub_core.network import Occupancy, Routes, Topology, link_times_ps

if TYPE_CHECKING:
    from collhub_packing.pipelining.event_kernel import PipelinePlan


# Between two calls of the kernel, each of about a second at most, Ctrl-C is heard.
_EVENTS_PER_CALL = 1 << 21


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """A schedule: `transfers`, times in picoseconds, of `chunks` of `collective`.

    Ready for `collhub_schedules.algorithm_of`. The collective has the least number of units in
    which all chunks are whole. Chunks are numbered tree by tree, in a scatter or gather rank by
    rank within a tree, and then in the order of the data.
    """

    collective: Collective
    chunks: Chunks
    transfers: Transfers
    time_ps: int


@dataclass(frozen=True, slots=True, eq=False)
class Pipelining:
    """A collective on trees, prepared for schedules with different numbers of chunks.

    `reduces_first`: on every link what is reduced goes before what is broadcast, so that an
    all-reduce is a reduce-scatter and then an all-gather where all links are busy with both.
    """

    topology: Topology
    collective: Collective
    collective_bytes: int
    occupancy: Occupancy
    streams: tuple[Stream, ...]
    operations: Operations
    routes: Routes
    reduces_first: bool = False

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
        """Prepare `collective`, whose rank r runs on NPU `members[r]`, on weighted out-trees.

        Its units are chosen later. All-gather and reduce-scatter split the share of a rank by the
        weights of the trees that are rooted at its NPU, all others every share by the weights of
        all trees. Reductions run against the trees. `paths` states routes through switches, and
        for the way up their opposites are taken; all other messages go by `Topology.routes`, as
        in simulators. Other NPUs relay where a tree needs them. Raises `InputError` for an
        all-to-all, for a tree that does not reach a member, for a tree with another root than the
        collective's, and for a rank that no tree is rooted at.
        """
        streams = tuple(streams_of(trees, collective, np.asarray(members, np.int64)))
        prepared = cls.of_streams(topology, streams, collective, collective_bytes, occupancy)
        if paths is None:
            return prepared
        routes = routed_along(paths, trees, streams, topology, prepared.routes)
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
        """Prepare streams whose messages go by `Topology.routes`."""
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
        """Shares into which the collective's data falls: one a rank, or one in all."""
        return self.collective.kind.traits.parts(self.collective.num_ranks)

    def schedule(self, chunk_counts: Sequence[int], slack_ps: int = 0) -> Pipeline:
        """Schedule with `chunk_counts[t]` equal chunks on tree t.

        In a scatter or gather so many for every rank. `slack_ps`: picoseconds that data lie at an
        NPU before they are sent on, so that what comes later than planned holds up nobody. Cost: a
        few heap operations per message and link. Raises `InputError` for chunks of less than one
        byte.
        """
        counts = [chunk_counts[stream.tree] for stream in self.streams]
        collective, chunks, units = self._cut(counts)
        # Bytes of a chunk: a unit of the collective need not be a whole number of them.
        sizes = message_bytes(self.collective_bytes, collective.unit_count, units)
        plan = self._plan(counts, sizes, slack_ps)
        start, finish = _run(plan)
        transfers = self._transfers(plan, start, finish)
        return Pipeline(collective, chunks, transfers, int(finish.max(initial=0)))

    def _cut(self, counts: Sequence[int]) -> tuple[Collective, Chunks, Int64Array]:
        """The collective in whole units, its chunks, and per stream the units of a chunk."""
        parts = self._chunk_parts(counts)
        share_units = math.lcm(*(part.denominator for part in parts))
        units = _in_units(parts, share_units)
        begin = _in_units([stream.begin for stream in self.streams], share_units)
        collective = replace(self.collective, unit_count=self.num_shares * share_units)
        whole = Chunks.cut(collective, [share_units])
        stream = group_of_entry(row_pointer(counts))
        within = begin[stream] + counted_positions(counts) * units[stream]
        share = np.asarray([stream.share for stream in self.streams], np.int64)[stream]
        return collective, _part_of(whole, share, within, units[stream]), units

    def _chunk_parts(self, counts: Sequence[int]) -> list[Fraction]:
        """Per stream, the part of a share that is a chunk."""
        pairs = zip(self.streams, counts, strict=True)
        parts = [stream.part / count for stream, count in pairs]
        # A share is the collective's bytes over the number of shares.
        if any(part * self.collective_bytes < self.num_shares for part in parts):
            raise InputError(
                f"{self.collective_bytes} bytes are too few for {sum(counts)} chunks",
                cure="choose a larger size, or fewer chunks",
                code="size-too-small",
            )
        return parts

    def _plan(self, counts: Sequence[int], sizes: Int64Array, slack_ps: int) -> PipelinePlan:
        """What the kernel reads; `counts` and `sizes`, in bytes, are those of chunks by stream."""
        # Importing numba takes a second.
        from collhub_packing.pipelining.event_kernel import PipelinePlan

        operations = self.operations
        widths = [len(stream.operations) for stream in self.streams]
        width = np.asarray(widths, np.int64)
        repeats = np.asarray(counts, np.int64)
        # Who waits for an operation, and for how many others each of these waits.
        next_indptr, followers = csr(operations.before, operations.after, len(operations))
        needs = np.bincount(operations.after, minlength=len(operations))
        size_class, busy, arrival = self._times(sizes)
        urgency = self._urgency()
        turn = _turns(repeats) * (int(urgency.max(initial=0)) + 1)
        if self.reduces_first:
            # Before all that is broadcast: more than all turns, and what goes before them.
            ahead = int(turn.max(initial=0) + urgency.max(initial=0)) + 1
            urgency += np.where(self.operations.reduces, ahead, 0)
        return PipelinePlan(
            stream_operation=row_pointer(width),
            stream_message=row_pointer(width * repeats),
            stream_chunk=row_pointer(repeats),
            turn=turn,
            urgency=urgency,
            needs=needs.astype(np.int64),
            next_indptr=next_indptr,
            next_operation=followers,
            route_indptr=self.routes.indptr,
            route_link=self.routes.links,
            size_class=size_class,
            busy=busy,
            arrival=arrival,
            slack=np.asarray([slack_ps], np.int64),
        )

    def _urgency(self) -> Int64Array:
        """Per operation, its place among those of one turn, from 0 for the last on."""
        operations, num_npus = self.operations, self.topology.num_npus
        to_root = (operations.root - operations.source) % num_npus
        to_destination = (operations.destination - operations.source) % num_npus
        # Of trees of one root, one chunk of each before all that a node sends of one.
        widths = [len(stream.operations) for stream in self.streams]
        stream = np.repeat(np.arange(len(widths)), widths)
        keys = (to_destination, stream, to_root, -operations.remaining)
        order = np.lexsort(keys)
        is_later = run_mask(*(key[order] for key in keys))
        place = np.empty(len(operations), np.int64)
        place[order] = np.cumsum(is_later)
        urgency: Int64Array = place.max(initial=0) - place
        return urgency

    def _times(self, sizes: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Size class per stream; by class and link the picoseconds of being busy and of arrival."""
        distinct, size_class = np.unique(sizes, return_inverse=True)
        bandwidth, latency_s = self.topology.bandwidth_bytes_per_s, self.topology.latency_s
        busy, arrival = link_times_ps(bandwidth, latency_s, distinct[:, None], self.occupancy)
        return size_class.ravel().astype(np.int64), busy, arrival

    def _transfers(self, plan: PipelinePlan, start: Int64Array, finish: Int64Array) -> Transfers:
        """All messages of a plan with their times."""
        stream = group_of_entry(plan.stream_message)
        message = counted_positions(np.diff(plan.stream_message))
        width = np.diff(plan.stream_operation)
        # The order of messages is that of `PipelinePlan`.
        chunk, position = np.divmod(message, width[stream])
        operation = plan.stream_operation[stream] + position
        # Messages wait for each other where they leave.
        first_link = self.routes.links[self.routes.indptr[operation]]
        is_ready = plan.needs[operation] == 0
        return Transfers(
            plan.stream_chunk[stream] + chunk,
            self.operations.source[operation],
            self.operations.destination[operation],
            first_link,
            start,
            finish,
            self.operations.reduces[operation],
            windows_of(first_link, start, finish, is_ready),
        )


def _turns(repeats: Int64Array) -> Int64Array:
    """Per chunk of all streams, its turn: equal where as much of the tree's data is before."""
    chunks = np.repeat(repeats, repeats)
    before = counted_positions(repeats) / chunks
    # Quotients of integers below 2^26 are equal as doubles only where they are equal.
    _, turn = np.unique(before, return_inverse=True)
    return turn.ravel().astype(np.int64)


def _part_of(whole: Chunks, share: Int64Array, within: Int64Array, count: Int64Array) -> Chunks:
    """Chunks of `count` units, from unit `within` of shares on."""
    return Chunks(
        whole.origin[share],
        whole.input_offset[share] + within,
        whole.output_offset[share] + within,
        count,
        whole.target[share],
    )


def _in_units(parts: Sequence[Fraction], units: int) -> Int64Array:
    """Fractions of a share in units of it, of which they are whole numbers."""
    return np.asarray([int(part * units) for part in parts], np.int64)


def _run(plan: PipelinePlan) -> tuple[Int64Array, Int64Array]:
    """Start and finish of every message, in picoseconds."""
    # Importing numba takes a second.
    from collhub_packing.pipelining.event_kernel import advance, begin, state_of

    state = state_of(plan)
    begin(plan, state)
    while advance(_EVENTS_PER_CALL, plan, state):
        pass
    return state.start, state.finish
