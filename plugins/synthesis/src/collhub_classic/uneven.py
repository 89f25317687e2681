"""Algorithms for exchanges of uneven sizes: direct, on a ring, and in two levels through nodes.

An all-to-all-v in two levels sends data for another node through one relay: *node first* to the
rank of the sender's node with the local index of the receiver, then over the network; or *network
first* to the rank of the receiver's node with the local index of the sender, as the dispatch of
DeepSeek-V3 (arXiv 2412.19437, section 3.2.2). Messages between nodes are united to one per pair of
ranks, or remain separate, so that they may overlap with those within nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from collhub_classic.orders import find_equal_groups, find_ring_order
from hub_core.columns import BoolArray, Int64Array, first_positions, inverse, run_mask
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    JsonValue,
    Provenance,
    StepKind,
    StepTable,
    UnitCounts,
    UsageError,
)
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import Chunks, Transfers, algorithm_of, collective_among

# Chunks of the mean share of a rank on a ring, so that large parts overlap with others.
_CHUNKS_PER_SHARE = 4
_DIRECT, _FIRST_HOP, _SECOND_HOP = 0, 1, 2

Candidate = tuple[Mapping[str, JsonValue], Algorithm]
"""Details for the statistics, and the algorithm."""


def generate_candidates(
    name: str, request: SynthesisRequest, groups: Int64Array | None, provenance: Provenance
) -> Iterator[Candidate]:
    """Yield (details, algorithm) for the variants of the algorithm `name` of an uneven collective.

    - All-to-all-v, `direct`: `message order` is first `rotated` (receivers by ascending distance
      from the sender), then `largest first`.
    - All-to-all-v, any other name: `levels` and `messages between nodes` are (node first, united),
      (node first, separate), (network first, united), (network first, separate). Node first relays
      on the sender's node, network first on the receiver's.
    - All other kinds: one variant with empty details. It is direct for `direct`, a ring in both
      directions for `bidirectional-ring`, a ring in one direction for any other name.

    Only the second case uses `groups`: int64[nodes, ranks per node], None for `find_equal_groups`.
    With fewer than two nodes or ranks per node, its first iteration raises `UsageError`
    (`option-value`).
    """
    kind = request.collective.kind
    if kind is not CollectiveKind.ALL_TO_ALL_V:
        if name == "direct":
            chunks, transfers = _plan_direct(request)
        else:
            chunks, transfers = _plan_ring(request, both_ways=name == "bidirectional-ring")
        algorithm = algorithm_of(
            request.collective,
            chunks,
            transfers,
            npus=request.npus,
            num_npus=request.topology.num_npus,
            provenance=provenance,
            collective_bytes=request.collective_bytes,
        )
        yield {}, algorithm
        return
    if name == "direct":
        for order in ("rotated", "largest first"):
            messages = _Exchange(request.collective, order == "largest first").direct()
            yield {"message order": order}, _build_exchange(request, messages, provenance)
        return
    if groups is None:
        groups = find_equal_groups(request.topology, request.npus)
    if len(groups) < 2 or groups.shape[1] < 2:
        raise UsageError(
            f"topology {request.topology.name}: two levels need equal nodes of two ranks or more",
            cure="give the ranks of a node and the number of nodes: -O sizes=8x8",
            code="option-value",
        )
    for is_node_first, is_united in product((True, False), (True, False)):
        messages = _Exchange(request.collective, False).in_two_levels(
            groups, is_node_first=is_node_first, is_united=is_united
        )
        details = {
            "levels": "node first" if is_node_first else "network first",
            "messages between nodes": "united" if is_united else "separate",
        }
        yield details, _build_exchange(request, messages, provenance)


def _plan_direct(request: SynthesisRequest) -> tuple[Chunks, Transfers]:
    """Plan an all-gather-v or reduce-scatter-v in which every part is sent directly to its target.

    Returns the chunks, one per part that is not empty, and one transfer per chunk and other rank,
    with NPU numbers (`request.npus`). In an all-gather-v the owner r of the part sends it to rank
    (r + d) modulo ranks, for d = 1 to ranks - 1; in a reduce-scatter-v that rank sends to r, which
    reduces. `start` of a transfer is d, which is an order and no time.
    """
    ranks = request.collective.num_ranks
    chunks = Chunks.of_blocks(request.collective)
    part = _part_ranks(chunks)
    distance = np.tile(np.arange(1, ranks), len(part))
    chunk = np.repeat(np.arange(len(part)), ranks - 1)
    other = (part[chunk] + distance) % ranks
    return chunks, _transfers(request, chunk, part[chunk], other, distance)


def _plan_ring(request: SynthesisRequest, both_ways: bool) -> tuple[Chunks, Transfers]:
    """Plan an all-gather-v or reduce-scatter-v in which every part passes all ranks of a ring.

    Returns the chunks and n - 1 transfers per chunk with NPU numbers, n being the ranks. They
    are ordered by chunk, then by hop; `start` is the hop, from 0. The ring is that of
    `find_ring_order`. A part is cut into chunks of nearly equal size of at most max(1, units of
    the collective // (4 n)) units (`Chunks.of_blocks`). An empty part has no chunk.

    A chunk of an all-gather-v starts at the owner of its part. A chunk of a reduce-scatter-v
    starts at the rank after the target in the direction of its movement, and ends at the
    target. The direction is that of the ring. With `both_ways`, chunks with odd numbers
    (counted over all parts) move in the opposite direction. Raises `InputError`
    (`disconnected`) if a rank cannot reach another one.
    """
    collective, ranks = request.collective, request.collective.num_ranks
    chunks = Chunks.of_blocks(
        collective, max(1, collective.unit_count // (_CHUNKS_PER_SHARE * ranks))
    )
    order = find_ring_order(request.topology, request.npus)
    position = inverse(order)
    part = _part_ranks(chunks)
    hop = np.tile(np.arange(ranks - 1), len(part))
    chunk = np.repeat(np.arange(len(part)), ranks - 1)
    # A part of a reduce-scatter starts one rank after its target and ends there.
    step = np.where(chunk % 2, -1, 1) if both_ways else np.ones_like(chunk)
    start = position[part[chunk]] + (step if collective.kind.traits.reduces else 0)
    source = order[(start + step * hop) % ranks]
    destination = order[(start + step * (hop + 1)) % ranks]
    return chunks, _transfers(request, chunk, source, destination, hop, is_path=True)


def _part_ranks(chunks: Chunks) -> Int64Array:
    """Return the rank of every chunk's part: its origin, or its target if it is reduced."""
    return np.where(chunks.origin >= 0, chunks.origin, chunks.target)


def _transfers(
    request: SynthesisRequest,
    chunk: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    start: Int64Array,
    is_path: bool = False,
) -> Transfers:
    """Convert transfers between ranks to a table of transfers between NPUs.

    All arrays are int64 with one entry per transfer; `request.npus` has the NPU of each rank. The
    link number is source NPU * NPUs + destination NPU. `start` is an order, not a time; the finish
    is `start` + 1. In a reducing collective all transfers reduce, and direct ones (not `is_path`)
    are reversed, so that they lead to the target.
    """
    reduces = request.collective.kind.traits.reduces
    if reduces and not is_path:
        source, destination = destination, source
    npus = np.asarray(request.npus, np.int64)
    total = request.topology.num_npus
    zeros = np.zeros(len(chunk), np.int64)
    return Transfers(
        chunk,
        npus[source],
        npus[destination],
        npus[source] * total + npus[destination],
        start,
        start + 1,
        np.full(len(chunk), reduces),
        zeros,
        zeros,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """Messages between ranks as int64 columns, and the piece of a relay that each one carries.

    `source`, `destination`: ranks. `src_buffer`, `src_offset`, `dst_buffer`, `dst_offset`, `count`:
    as in a step table. `channel`: messages of one pair and channel arrive in order.
    """

    source: Int64Array
    destination: Int64Array
    src_buffer: Int64Array
    src_offset: Int64Array
    dst_buffer: Int64Array
    dst_offset: Int64Array
    count: Int64Array
    channel: Int64Array

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """An exchange: messages and copies of the ranks, and their dependencies.

    `messages`: all messages. `copies`: local copies, whose source and destination are one rank.
    `arrival_of`, `user_of`: pairs of rows of which the second waits for the first. Rows are
    messages m as receives (m) and as sends (m + M), and copies c (c + 2 M), M messages in all.
    `scratch`: int64[ranks], units of SCRATCH.
    """

    messages: _Messages
    copies: _Messages
    arrival_of: Int64Array
    user_of: Int64Array
    scratch: Int64Array


class _Exchange:
    """Pairs of ranks with data in an all-to-all-v, as columns in the order of their sending.

    The receivers of a rank are in ascending distance from it (mod n), so that ranks begin with
    different receivers; with `is_by_size`, by descending units.
    """

    def __init__(self, collective: Collective, is_by_size: bool) -> None:
        counts = collective.counts
        assert isinstance(counts, UnitCounts)
        table = counts.table
        first_input, first_output = counts.first_units()
        source, target = np.nonzero(table)
        distance = (target - source) % collective.num_ranks
        keys = (distance, -table[source, target]) if is_by_size else (distance,)
        order = np.lexsort((*keys, source))
        self._ranks = collective.num_ranks
        self._source, self._target = source[order], target[order]
        pairs = self._source, self._target
        self._count = table[pairs]
        self._input, self._output = first_input[pairs], first_output[pairs]

    def direct(self) -> _Plan:
        """Plan one message per pair of different ranks with data, from INPUT to OUTPUT.

        Messages are in the order of the pairs (`_Exchange`). The data of a rank for itself
        are a copy, if there are any. No message waits for another one, and no rank needs
        SCRATCH.
        """
        empty = np.zeros(0, np.int64)
        is_other = self._source != self._target
        messages, copies = self._direct_rows(is_other), self._direct_rows(~is_other)
        return _Plan(messages, copies, empty, empty, np.zeros(self._ranks, np.int64))

    def in_two_levels(self, groups: Int64Array, *, is_node_first: bool, is_united: bool) -> _Plan:
        """Plan an all-to-all-v in two levels: within nodes, and between equal local indices.

        `groups`: ranks of every node; the local index of a rank is its position in the row. Data of
        a pair of ranks are treated as follows:

        - Sender and receiver are the same rank: copied. Both are on one node: sent directly.
        - Otherwise a relay forwards the data. With `is_node_first` the relay is the rank on the
          sender's node with the receiver's local index. Without, it is the rank on the receiver's
          node with the sender's local index.
        - The relay is the sender or receiver: sent directly. With `is_united`, this requires that
          no other pair has the same relay and the same rank at the other end between the nodes.

        With `is_node_first`, SCRATCH of a relay is sorted by receiver, then OUTPUT offset; without,
        by sender, then INPUT offset. With `is_united`, data into or out of a relay become one
        message if they have the same two ranks and are adjacent in both buffers.
        """
        node, local = np.empty(self._ranks, np.int64), np.empty(self._ranks, np.int64)
        node[groups] = np.arange(len(groups))[:, None]
        local[groups] = np.arange(groups.shape[1])
        source, target = self._source, self._target
        on_source_side = groups[node[source], local[target]]
        on_target_side = groups[node[target], local[source]]
        relay = on_source_side if is_node_first else on_target_side
        is_relayed = node[source] != node[target]
        is_local = (relay == source) | (relay == target)
        # The rank with which the relay exchanges data over the network.
        far = target if is_node_first else source
        if is_united:
            # Data that no other data join need no copy in the relay.
            key = (relay * self._ranks + far)[is_relayed]
            _, inverse, number = np.unique(key, return_inverse=True, return_counts=True)
            is_alone = np.zeros(len(source), np.bool_)
            is_alone[is_relayed] = number[inverse] == 1
            is_relayed &= ~(is_local & is_alone)
        else:
            is_relayed &= ~is_local
        direct = self._direct_rows(~is_relayed & (source != target))
        own = self._direct_rows(source == target)
        # Pieces in SCRATCH of the relays: by far rank, then as in the buffer of that rank.
        rows = np.flatnonzero(is_relayed)
        place = self._output if is_node_first else self._input
        rows = rows[np.lexsort((place[rows], far[rows], relay[rows]))]
        pieces = self._pieces(rows, relay[rows])
        first, run_of_first = _join(pieces, 0, is_united)
        second, run_of_second = _join(pieces, 1, is_united)
        return _combine(direct, own, (first, run_of_first), (second, run_of_second), self._ranks)

    def _direct_rows(self, mask: BoolArray) -> _Messages:
        """Return one message from INPUT to OUTPUT per pair of ranks that `mask` selects.

        `mask`: bool per pair; the order of the pairs is kept. All are on the channel `_DIRECT`. A
        pair of a rank with itself gives a row as well, which the caller uses as a copy.
        """
        count = self._count[mask]
        return _Messages(
            self._source[mask],
            self._target[mask],
            np.full(len(count), int(Buffer.INPUT)),
            self._input[mask],
            np.full(len(count), int(Buffer.OUTPUT)),
            self._output[mask],
            count,
            np.full(len(count), _DIRECT),
        )

    def _pieces(self, rows: Int64Array, relay: Int64Array) -> tuple[_Messages, _Messages]:
        """Return two messages per pair of ranks: into the SCRATCH of its relay, and out of it.

        The result is (messages in, messages out), each with one row per pair in `rows`, in this
        order. A relay that is the sender or receiver of the pair gets its messages too.

        - In: from INPUT of the sender to SCRATCH of the relay, on channel `_FIRST_HOP`.
        - Out: from SCRATCH of the relay to OUTPUT of the receiver, on channel `_SECOND_HOP`.

        `relay`: the rank that relays each pair of `rows`. Pairs with the same relay must be
        adjacent. Their data are consecutive in its SCRATCH, from unit 0, in the order of
        `rows`.
        """
        count = self._count[rows]
        before = first_positions(count)
        # The first unit of a relay is 0; pieces of a relay are adjacent.
        is_first = run_mask(relay)
        base = before[is_first][np.cumsum(is_first) - 1] if len(rows) else before
        slot = before - base
        sides = (
            (self._source[rows], relay, Buffer.INPUT, self._input[rows], Buffer.SCRATCH, slot),
            (relay, self._target[rows], Buffer.SCRATCH, slot, Buffer.OUTPUT, self._output[rows]),
        )
        first, second = (
            _Messages(
                source,
                destination,
                np.full(len(rows), int(src)),
                src_offset,
                np.full(len(rows), int(dst)),
                dst_offset,
                count,
                np.full(len(rows), channel),
            )
            for (source, destination, src, src_offset, dst, dst_offset), channel in zip(
                sides, (_FIRST_HOP, _SECOND_HOP), strict=True
            )
        )
        return first, second


def _join(
    pieces: tuple[_Messages, _Messages], hop: int, is_united: bool
) -> tuple[_Messages, Int64Array]:
    """Join consecutive pieces of a hop to messages; return (messages, message of every piece).

    A piece is the data of one pair of ranks that a relay forwards. `pieces`: its messages into the
    relay (hop 0) and out of it (hop 1). Only those of `hop` are read.

    With `is_united`, a piece is joined to the previous one if it has the same source and
    destination, and begins where the previous one ends in both buffers. Otherwise it is a separate
    message. A message has the values of its first piece, and the sum of `count`.

    The messages keep the order of the pieces. The second result is the index of each piece's
    message. Without pieces both are empty.
    """
    piece = pieces[hop]
    starts = np.ones(len(piece), np.bool_)
    if is_united and len(piece):
        is_adjacent = (piece.source[1:] == piece.source[:-1]) & (
            piece.destination[1:] == piece.destination[:-1]
        )
        for offset in (piece.src_offset, piece.dst_offset):
            is_adjacent &= offset[1:] == offset[:-1] + piece.count[:-1]
        starts[1:] = ~is_adjacent
    run = np.cumsum(starts) - 1
    count = np.bincount(run, piece.count, int(run[-1]) + 1 if len(run) else 0).astype(np.int64)
    columns = {
        name: getattr(piece, name)[starts] for name in _Messages.__slots__ if name != "count"
    }
    return _Messages(**columns, count=count), run


def _combine(
    direct: _Messages,
    own: _Messages,
    first: tuple[_Messages, Int64Array],
    second: tuple[_Messages, Int64Array],
    ranks: int,
) -> _Plan:
    """Combine direct messages, copies and the two hops of relayed data into a plan.

    `direct`: messages. `own`: copies within a rank. `first`, `second`: the hops, each as (messages,
    index of the message of each piece), with the same pieces in both. A message of a hop from a
    rank to itself becomes a copy.

    - Messages: `direct`, then those of the first, then those of the second hop.
    - Copies: `own`, then those of the first, then those of the second hop.
    - Dependencies: for each piece, the send or copy of the second hop (row `user_of[k]`) waits for
      the receive or copy of the first hop (row `arrival_of[k]`). Each pair occurs once, ascending
      by (arrival, user). Rows count all receives, then all sends, then all copies.
    - `scratch`: the end of the last message or copy of the first hop on each rank, else 0.
    """
    hops = [first[0], second[0]]
    is_copy = [hop.source == hop.destination for hop in hops]
    sent = [_select(hop, ~mask) for hop, mask in zip(hops, is_copy, strict=True)]
    copied = [_select(hop, mask) for hop, mask in zip(hops, is_copy, strict=True)]
    messages, copies = _concatenate([direct, *sent]), _concatenate([own, *copied])
    total = len(messages)
    # Row of every hop's message: as receive or copy, and as send or copy.
    begin = (len(direct), len(direct) + len(sent[0]))
    begin_copy = (2 * total + len(own), 2 * total + len(own) + len(copied[0]))
    arrival, use = (
        np.where(
            is_copy[hop],
            begin_copy[hop] + np.cumsum(is_copy[hop]) - 1,
            begin[hop] + np.cumsum(~is_copy[hop]) - 1 + (total if hop else 0),
        )
        for hop in (0, 1)
    )
    pair = np.unique(np.stack([arrival[first[1]], use[second[1]]], axis=1), axis=0)
    scratch = np.zeros(ranks, np.int64)
    np.maximum.at(scratch, first[0].destination, first[0].dst_offset + first[0].count)
    return _Plan(messages, copies, pair[:, 0], pair[:, 1], scratch)


def _select(messages: _Messages, mask: BoolArray) -> _Messages:
    return _Messages(*(getattr(messages, name)[mask] for name in _Messages.__slots__))


def _concatenate(parts: list[_Messages]) -> _Messages:
    return _Messages(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in _Messages.__slots__)
    )


def _build_exchange(request: SynthesisRequest, plan: _Plan, provenance: Provenance) -> Algorithm:
    """Build the algorithm of a planned all-to-all-v; rank r runs on NPU `request.npus[r]`.

    The steps of a rank are in this order:

    1. sends: direct messages in the order of the plan, then first hops by distance
    2. receives of first hops by distance
    3. copies into SCRATCH, in the order of the plan
    4. sends of second hops by distance
    5. receives: direct messages in the order of the plan, then second hops by distance
    6. all other copies, in the order of the plan

    The distance is (destination - source) of the hop modulo the ranks; equal ones are in the order
    of the plan. The algorithm has one rank per NPU of the topology; others than `npus` have no
    steps. It is for calls out of place. Raises `InputError` (`too-large`) if rank r is not NPU r
    for all NPUs, and the required contents are too many to be listed.
    """
    messages, copies, total = plan.messages, plan.copies, len(plan.messages)
    npus = np.asarray(request.npus, np.int64)
    unused = np.full(total, int(Buffer.UNKNOWN)), np.zeros(total, np.int64)
    received = (*unused, messages.dst_buffer, messages.dst_offset)
    sent = (messages.src_buffer, messages.src_offset, *unused)
    copied = (copies.src_buffer, copies.src_offset, copies.dst_buffer, copies.dst_offset)
    kinds = (StepKind.RECV, total), (StepKind.SEND, total), (StepKind.COPY, len(copies))
    columns = {
        "rank": np.concatenate([messages.destination, messages.source, copies.source]),
        "kind": np.concatenate([np.full(rows, int(kind)) for kind, rows in kinds]),
        "peer": np.concatenate(
            [npus[messages.source], npus[messages.destination], np.full(len(copies), -1)]
        ),
        "channel": np.concatenate([messages.channel, messages.channel, 0 * copies.channel]),
        "count": np.concatenate([messages.count, messages.count, copies.count]),
    }
    columns["rank"] = npus[columns["rank"]]
    names = ("src_buffer", "src_offset", "dst_buffer", "dst_offset")
    for index, name in enumerate(names):
        columns[name] = np.concatenate([received[index], sent[index], copied[index]])
    # A relay receives and copies first hops before it sends the second ones. Messages of one pair
    # and channel keep their order on both sides.
    is_second = messages.channel == _SECOND_HOP
    phase = np.concatenate(
        [
            np.where(messages.channel == _FIRST_HOP, 1, 4),
            np.where(is_second, 3, 0),
            np.where(copies.dst_buffer == Buffer.SCRATCH, 2, 5),
        ]
    )
    distance = (messages.destination - messages.source) % request.collective.num_ranks
    # Direct messages have the order of the plan; hops are sorted by relay there.
    distance[messages.channel == _DIRECT] = 0
    distances = np.concatenate([distance, distance, 0 * copies.count])
    order = np.lexsort((np.arange(len(distances)), distances, phase))
    row = inverse(order)
    columns = {name: column[order] for name, column in columns.items()}
    empty = np.zeros(0, np.int64)
    npu_count = request.topology.num_npus
    steps = StepTable.from_columns(
        npu_count, columns, (row[plan.arrival_of], row[plan.user_of]), (empty, empty)
    )
    scratch = np.zeros(npu_count, np.int64)
    scratch[npus] = plan.scratch
    collective = Collective(
        CollectiveKind.ALL_TO_ALL_V,
        request.collective.num_ranks,
        request.collective.unit_count,
        counts=request.collective.counts,
    )
    return Algorithm(
        collective_among(collective, request.npus, npu_count),
        steps,
        scratch,
        provenance,
        request.collective_bytes,
    )
