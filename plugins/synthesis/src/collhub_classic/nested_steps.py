"""Steps of all-gathers, reduce-scatters and all-reduces level by level, as columns.

Every level is an exchange of all pairs, or a ring in both directions: half of the blocks travel one
way and half the other, as in ASTRA-sim's and TPUs' collectives on tori. The program of every rank
has the same shape, so that a row is added to all ranks at once. Cost: linear in the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product, zip_longest
from math import prod

import numpy as np

from collhub_classic.nested_columns import (
    StepColumns,
    add_moves_from_owners,
    add_moves_to_owners,
)
from collhub_classic.nested_shapes import NestedShape
from hub_core.columns import Int64Array
from hub_core.model import Buffer, CollectiveKind, StepKind, StepTable

# Messages of a rank that are on the way at the same time in a level before a forwarded one.
_MAX_MESSAGES = 3

# Displacement of a rank's coordinates from those of another one, by level; None: all coordinates.
_Key = tuple[int | None, ...]


def build_nested_steps(shape: NestedShape, kind: CollectiveKind) -> StepTable:
    """Build the steps of an all-gather, reduce-scatter, or all-reduce over nested levels.

    The data are divided into streams, one per part and chunk, numbered by part, then by chunk. A
    stream has one unit per rank. It is gathered level by level in the order of levels of its
    part, and reduced in the reverse order. An all-reduce reduces all streams, then gathers them.
    Each level needs at least two ranks.

    - Units: in an all-reduce, and with `is_moved`, those of a stream are consecutive. Otherwise
      stream s of rank r has the unit `r * streams + s`.
    - An all-gather begins with a copy of each rank's units to OUTPUT. With `is_moved` it sends
      them instead to the ranks where their gathering starts. A reduce-scatter with `is_moved`
      ends by sending the results to their ranks.
    - Partial sums are in OUTPUT in an all-reduce, and in SCRATCH in a reduce-scatter.
    - The first `one_shot_levels` levels of the order (all-reduce only) are neither reduced nor
      gathered. One after another, their ranks exchange complete partial sums and share one unit.
      Each exchange writes a vector of its own in SCRATCH, the last one writes to OUTPUT.
    - If any level is a ring, the messages of all streams alternate. Otherwise, in each level, the
      messages of a stream precede those of the next one.
    - With several parts, each send of a gathering also waits for the previous level of all
      streams if `is_moved`, or in an all-reduce whose levels differ in size.
    """
    columns = StepColumns(prod(shape.sizes))
    streams = [
        _Stream(shape, kind, part, chunk, columns)
        for part in range(len(shape.parts))
        for chunk in range(shape.chunks)
    ]
    owned = np.asarray([stream.own_units for stream in streams])
    if kind is CollectiveKind.ALL_GATHER and shape.is_moved:
        for stream, row in zip(streams, add_moves_to_owners(columns, owned), strict=True):
            stream.start_gather(row)
    elif kind is CollectiveKind.ALL_GATHER:
        # Every rank copies its units from INPUT to OUTPUT.
        number, units = np.arange(columns.num_ranks), shape.units_per_rank
        offsets = {"src_offset": np.zeros_like(number), "dst_offset": number * units}
        buffers = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT}
        no_peers = np.full_like(number, -1)
        row = columns.add(StepKind.COPY, no_peers, units, [], buffers, offsets)
        for stream in streams:
            stream.start_gather(row)
    levels = range(len(shape.sizes))
    merge = _interleave if any(shape.is_ring) else _concatenate
    if kind is not CollectiveKind.ALL_GATHER:
        for phase in reversed(levels[shape.one_shot_levels :]):
            merge([stream.reduce_level(phase) for stream in streams])
    for phase in levels[: shape.one_shot_levels]:
        merge([stream.exchange_sums(phase) for stream in streams])
    if kind is not CollectiveKind.REDUCE_SCATTER:
        # After reductions of different duration, large messages of one part would delay the small
        # ones that other parts need before their own large messages.
        is_uneven = kind is CollectiveKind.ALL_REDUCE and len(set(shape.sizes)) > 1
        has_barriers = is_uneven or shape.is_moved
        for phase in levels[shape.one_shot_levels :]:
            if has_barriers and len(shape.parts) > 1:
                columns.barrier = [stream.last_row for stream in streams]
            merge([stream.gather_level(phase) for stream in streams])
    elif shape.is_moved:
        add_moves_from_owners(columns, owned, [stream.own_writer for stream in streams])
    return columns.build()


def _interleave(generators: Sequence[Iterator[None]]) -> None:
    """Advance the generators in turn (round robin), in the given order, until all are exhausted.

    An exhausted generator is left out of later rounds. Generators must yield None: one that
    yields another value is dropped before its end.
    """
    active = list(generators)
    while active:
        active = [generator for generator in active if next(generator, True) is None]


def _concatenate(generators: Sequence[Iterator[None]]) -> None:
    """Exhaust the generators one after another."""
    for generator in generators:
        for _ in generator:
            pass


class _Stream:
    """One chunk of one part of the data, on all ranks; its methods add rows to `columns`.

    A key names a range of units by the displacement of its rank from the own coordinates. The
    positions of the rows that wrote a range last are kept by key.
    """

    def __init__(
        self,
        shape: NestedShape,
        kind: CollectiveKind,
        part: int,
        chunk: int,
        columns: StepColumns,
    ) -> None:
        self._shape, self._kind, self._columns = shape, kind, columns
        self._order, self._direction = shape.parts[part]
        sizes = shape.sizes
        number = np.arange(prod(sizes))
        self._strides = [prod(sizes[:level]) for level in range(len(sizes))]
        self._place = [
            number // stride % size for stride, size in zip(self._strides, sizes, strict=True)
        ]
        stream = part * shape.chunks + chunk
        self._own_offset = stream
        # Messages of several ranks are one range only if the level gathered first varies fastest.
        self._is_contiguous = True
        if kind is CollectiveKind.ALL_REDUCE or shape.is_moved:
            self._base, self._widths = stream * prod(shape.unit_sizes), [0] * len(sizes)
            for position, level in enumerate(self._order):
                gathered = self._order[:position]
                self._widths[level] = prod(shape.unit_sizes[each] for each in gathered)
        else:
            self._base = stream
            self._widths = [stride * shape.units_per_rank for stride in self._strides]
            is_in_order = self._order == tuple(range(len(sizes)))
            self._is_contiguous = is_in_order and shape.units_per_rank == 1
        self._writers: dict[_Key, list[int]] = {}
        # Sends of entire vectors in INPUT, which is the memory of OUTPUT in a call in place.
        self._readers: list[int] = []
        # Finishes after all receives of the latest phase.
        self.last_row = 0

    def start_gather(self, copy: int) -> None:
        """Record that the row `copy` writes each rank's own unit to OUTPUT.

        It becomes the step for which later sends of this unit wait, and the last row of the stream.
        """
        self._writers[self._own_key] = [copy]
        self.last_row = copy

    def gather_level(self, phase: int) -> Iterator[None]:
        """Add the steps that gather along one level; yield after each send and receive.

        `phase`: position of the level in this part's order of levels, from 0. The level needs at
        least two ranks. A message has one row per range of contiguous units; there is no yield
        between these rows. The generator must be exhausted.

        - A send reads OUTPUT and depends on the rows that wrote its range. If the shape is
          forwarded (`is_forwarded`: the last level sends data on before the level before is
          complete), it may also wait for an earlier receive of the level (`_limit_messages`).
        - A receive writes to OUTPUT and becomes the only writer of its range.

        At the end, the last receive waits for all other receives of the phase and becomes
        `last_row`. Then the ranges of the level become one range with all their writers. This is
        left out if messages are not contiguous, and in the last two levels of a forwarded shape.
        """
        level = self._order[phase]
        receives: list[int] = []
        for before, is_send, (hop, displacement, onward) in self._list_rows(
            phase, is_reversed=False
        ):
            for key in self._list_keys(
                phase, displacement if is_send else self._wrap(level, onward), before
            ):
                if is_send:
                    peer = self._get_peer(level, hop)
                    row = self._add_send(key, peer, Buffer.OUTPUT)
                    self._limit_messages(phase, receives, row)
                    continue
                row = self._columns.add(
                    StepKind.RECV,
                    self._get_peer(level, -hop),
                    self._count_units(key),
                    [],
                    {"dst_buffer": Buffer.OUTPUT},
                    {"dst_offset": self._compute_offset(key)},
                )
                self._writers[key] = [row]
                receives.append(row)
            yield None
        self._end_phase(receives)
        if self._is_contiguous and not self._keeps_ranges(phase):
            own = next(iter(self._list_keys(phase, 0)))
            rows = [
                row
                for displacement in range(self._shape.sizes[level])
                for row in self._writers.pop(self._with(own, level, displacement), [])
            ]
            self._writers[self._with(own, level, None)] = rows

    def reduce_level(self, phase: int) -> Iterator[None]:
        """Add the rows that reduce along the level of a phase; yield after each send and receive.

        A level is a dimension of the ranks; `phase` is its index in the order of levels. Call the
        phases from last to first, and exhaust each generator. A message has one row per range of
        contiguous units, without a yield between them. The messages are those of `gather_level`
        reversed, in the opposite direction. A send reads the current sum, at first in INPUT; a
        receive adds to it. In a reduce-scatter that moves no units, the last addition to the unit
        of the rank in phase 0 writes to OUTPUT. The last receive waits for all others and becomes
        `last_row`.

        Contiguous messages change the recorded writers. At the start the range of the level is
        divided, except in the last two levels of a forwarded shape. At the end the ranges that were
        sent are removed, except in the last level of a forwarded shape.
        """
        level = self._order[phase]
        own = next(iter(self._list_keys(phase, 0)))
        if self._is_contiguous and not self._keeps_ranges(phase):
            # The ranges of this level have the writers of the range that contains them.
            rows = self._writers.pop(self._with(own, level, None), [])
            for displacement in range(self._shape.sizes[level]):
                self._writers[self._with(own, level, displacement)] = rows
        receives: list[int] = []
        additions = sum(1 for hop in self._list_hops(level) if hop[1] == 0)
        for before, is_send, (hop, displacement, onward) in self._list_rows(
            phase, is_reversed=True
        ):
            if is_send:
                for key in self._list_keys(phase, self._wrap(level, onward), before):
                    peer = self._get_peer(level, -hop)
                    row = self._add_send(key, peer, self._get_partial_buffer(key))
                    self._limit_messages(phase, receives, row)
            else:
                additions -= displacement == 0
                is_last = phase == 0 and displacement == 0 and not additions
                for key in self._list_keys(phase, displacement, before):
                    row = self._add_sum(key, self._get_peer(level, hop), is_last)
                    receives.append(row)
            yield None
        self._end_phase(receives)
        if self._is_contiguous and not self._is_forwarded(phase):
            for displacement in range(1, self._shape.sizes[level]):
                del self._writers[self._with(own, level, displacement)]

    def exchange_sums(self, phase: int) -> Iterator[None]:
        """Add the rows that exchange complete partial sums within one of the first levels.

        A level is a dimension of the ranks; it must have at least two ranks, else `IndexError`.
        Every rank has the sum of its own range over the levels before. The first exchange reads it
        from SCRATCH, or from INPUT if no level is reduced; each other exchange from the vector
        that the one before wrote. A rank first sends its sum to every other rank of the level, then
        receives their sums and adds them. The sends are in the order of `_list_hops`, the receives
        in the same order from the opposite direction. The first addition reads the sum that is
        sent, later ones the result, which is in another vector: sends may still read the sum. In
        OUTPUT, the first addition also waits for all sends of INPUT.

        Yields None after every send and every receive. If the generator is exhausted, the last
        receive waits for all other receives (`_end_phase`).
        """
        shape, level = self._shape, self._order[phase]
        once = shape.list_one_shot_levels()
        key = tuple(None if each in once else 0 for each in range(len(shape.sizes)))
        # Vectors of all units in SCRATCH; a reduction writes the first one.
        written = phase + (len(once) < len(self._order))
        offset, units = self._compute_offset(key), shape.count_units()
        operand = {"src_offset": offset + max(0, written - 1) * units}
        buffers = {"src_buffer": Buffer.SCRATCH if written else Buffer.INPUT}
        result = {"dst_offset": offset + written * units}
        target = Buffer.SCRATCH
        if phase == len(once) - 1:
            result, target = {"dst_offset": offset}, Buffer.OUTPUT
        count, parents = self._count_units(key), self._writers.get(key, [])
        hops = [hop for hop, _, _ in self._list_hops(level)]
        for hop in hops:
            peer = self._get_peer(level, hop)
            row = self._columns.add(StepKind.SEND, peer, count, parents, buffers, operand)
            if not written:
                self._readers.append(row)
            yield None
        receives: list[int] = []
        for hop in hops:
            row = self._columns.add(
                StepKind.RECV_REDUCE,
                self._get_peer(level, -hop),
                count,
                parents,
                {**buffers, "dst_buffer": target},
                {**operand, **result},
            )
            if not receives and target is Buffer.OUTPUT:
                self._columns.add_controls(self._readers, row)
            receives.append(row)
            parents, buffers = [row], {"src_buffer": target}
            operand = {"src_offset": result["dst_offset"]}
            yield None
        self._writers[key] = parents
        self._end_phase(receives)

    def _limit_messages(self, phase: int, receives: Sequence[int], row: int) -> None:
        """Let a send wait for an earlier receive of its level, if levels are forwarded.

        All ranks then exchange with the same displacement at about the same time, in the order of
        the program. Otherwise messages that are ready at the same time start in any order, and meet
        those of other ranks at the same receivers.
        """
        if self._is_forwarded(phase):
            # Two ranges are on the way.
            per_range = self._shape.sizes[self._order[phase]] - 1
            begun = len(receives) // per_range
            if begun > 1:
                self._columns.add_controls([receives[(begun - 1) * per_range - 1]], row)
        elif self._shape.is_forwarded:
            self._columns.add_controls(receives[-1:], row)

    def _end_phase(self, receives: Sequence[int]) -> None:
        """Make the last receive of a phase wait for the other ones; store it in `last_row`.

        `receives`: positions of rows; the dependencies are control dependencies. Rows that wait for
        the phase then need only this one dependency. Raise `IndexError` without a receive.
        """
        self.last_row = receives[-1]
        self._columns.add_controls(receives[:-1], self.last_row)

    @property
    def own_writer(self) -> int:
        """Return the position of the row that wrote each rank's own unit last.

        Raises `ValueError` if several rows wrote it, `KeyError` if none did.
        """
        (row,) = self._writers[self._own_key]
        return row

    @property
    def own_units(self) -> Int64Array:
        """The unit of the collective with which every rank starts a gather, int64[ranks]."""
        return self._compute_offset(self._own_key)

    @property
    def _own_key(self) -> _Key:
        return (0,) * len(self._shape.sizes)

    def _list_rows(
        self, phase: int, *, is_reversed: bool
    ) -> list[tuple[int | None, bool, tuple[int, int, int]]]:
        """List the rows of a phase in the order of the program, as (range, is send, message).

        A phase gathers along one level (dimension) of the ranks. Its messages are those of
        `_list_hops`, reversed if `is_reversed`. The first n messages are sent first. Then the
        messages are received one by one; after each receive the next message is sent, if one is
        left. n is:

        - 1 if the level is a ring
        - otherwise 3 (`_MAX_MESSAGES`) if the shape `is_forwarded`, except in its last phase
        - otherwise the number of messages, so that all sends come first

        The range is None, except in the last phase of a forwarded shape. There, all these rows are
        listed once for each range, i.e. a displacement along the level of the phase before. With m
        ranks along that level, the ranges are 0, m - 1, m - 2, ..., 1. If `is_reversed`, they are
        0, 1, ..., m - 1.
        """
        level = self._order[phase]
        hops = list(self._list_hops(level))
        if is_reversed:
            hops.reverse()
        # Sends before the first receive; then a receive and a send alternate.
        ahead = len(hops)
        if self._shape.is_ring[level]:
            ahead = 1
        elif self._shape.is_forwarded and not self._is_forwarded(phase):
            ahead = _MAX_MESSAGES
        rows = [(True, hop) for hop in hops[:ahead]]
        for received, sent in zip_longest(hops, hops[ahead:]):
            rows.append((False, received))
            if sent:
                rows.append((True, sent))
        if not self._is_forwarded(phase):
            return [(None, *row) for row in rows]
        size = self._shape.sizes[self._order[phase - 1]]
        arrivals = [-hop % size for hop in range(size)]
        if is_reversed:
            arrivals = arrivals[:1] + arrivals[:0:-1]
        return [(before, *row) for before in arrivals for row in rows]

    def _is_forwarded(self, phase: int) -> bool:
        return self._shape.is_forwarded and phase == len(self._order) - 1

    def _keeps_ranges(self, phase: int) -> bool:
        """Return whether the ranges of a level are not united, since they are forwarded."""
        return self._shape.is_forwarded and phase >= len(self._order) - 2

    def _list_hops(self, level: int) -> Iterator[tuple[int, int, int]]:
        """Yield the messages that each rank sends in a gather along a level, in their order.

        A message is a triple of displacements along the level: receiver - sender, sent block -
        sender, and sent block - receiver. Only the second is reduced modulo the size of the
        level; the other numbers may be negative.

        - Without a ring, each rank sends its block to every other rank: (hop, 0, -hop) for hop
          = 1, 2, ..., size - 1.
        - On a ring, blocks are passed on to the neighbour in direction +1 or -1. Message d in
          direction s is (s, -(d - 1) s modulo size, -d s). The direction of the part has d = 1
          to size // 2, the other one d = 1 to (size - 1) // 2. They alternate, beginning with
          the direction of the part.

        Without other ranks in the level, nothing is yielded.
        """
        size = self._shape.sizes[level]
        if not self._shape.is_ring[level]:
            for hop in range(1, size):
                yield hop, 0, -hop
            return
        # The longer half, if the halves differ, goes in the direction of the part.
        reach = {self._direction: size // 2, -self._direction: (size - 1) // 2}
        for distance in range(1, size // 2 + 1):
            for direction, limit in reach.items():
                if distance <= limit:
                    before = (distance - 1) * direction
                    yield direction, self._wrap(level, -before), -distance * direction

    def _list_keys(
        self, phase: int, displacement: int, before: int | None = None
    ) -> Iterator[_Key]:
        """Yield the keys of the ranges of units that move together in a phase.

        A key has one entry per level: a displacement from the rank's own coordinate, or
        None for all coordinates as one range. Phases handle one level each, in order;
        `phase` is the position of a level in this order. The entries are:

        - Level of this phase: `displacement`.
        - Level of the phase before, if `before` is given: `before`.
        - Levels of other earlier phases: None if messages are contiguous ranges;
          otherwise every displacement, with one key per combination. The last level
          changes fastest.
        - Levels of later phases: 0.
        """
        key: list[Sequence[int | None]] = [(0,)] * len(self._shape.sizes)
        for level in self._order[:phase]:
            size = self._shape.sizes[level]
            key[level] = (None,) if self._is_contiguous else range(size)
        if before is not None:
            key[self._order[phase - 1]] = (before,)
        key[self._order[phase]] = (displacement,)
        yield from product(*key)

    def _with(self, key: _Key, level: int, displacement: int | None) -> _Key:
        return (*key[:level], displacement, *key[level + 1 :])

    def _wrap(self, level: int, displacement: int) -> int:
        return displacement % self._shape.sizes[level]

    def _get_peer(self, level: int, hop: int) -> Int64Array:
        """Return for every rank the rank at the displacement `hop` along a level: int64[ranks].

        The coordinate in this level is taken modulo its size; all other coordinates are the same.
        """
        place, size = self._place[level], self._shape.sizes[level]
        return np.arange(len(place)) + ((place + hop) % size - place) * self._strides[level]

    def _compute_offset(self, key: _Key) -> Int64Array:
        """Return the offset of the first unit of a key's range for every rank: int64[ranks].

        Offsets are in units, in a buffer with the units of all ranks and streams. A key has one
        displacement per level. The offset is `_base` plus, for each level, a coordinate times the
        level's `_widths`. The coordinate is the rank's coordinate plus the displacement, modulo the
        size of the level. It is 0 for a displacement of None (all coordinates, the range starts at
        0), and for a level that does not divide the data (one shot).
        """
        offset = np.full(self._columns.num_ranks, self._base)
        for level, displacement in enumerate(key):
            if displacement is not None and self._shape.unit_sizes[level] > 1:
                size = self._shape.sizes[level]
                offset += (self._place[level] + displacement) % size * self._widths[level]
        return offset

    def _count_units(self, key: _Key) -> int:
        sizes = self._shape.unit_sizes
        return prod(size for size, each in zip(sizes, key, strict=True) if each is None)

    def _get_partial_buffer(self, key: _Key) -> Buffer:
        """Return the buffer that holds the current sum of the range `key`.

        It is INPUT until the first addition to the range. Then it is OUTPUT in an all-reduce
        without `one_shot_levels`, and SCRATCH in any other: an all-reduce that later exchanges
        the sums in one shot, and a reduce-scatter.
        """
        if not self._writers.get(key):
            return Buffer.INPUT
        is_all_reduce = self._kind is CollectiveKind.ALL_REDUCE and not self._shape.one_shot_levels
        return Buffer.OUTPUT if is_all_reduce else Buffer.SCRATCH

    def _add_send(self, key: _Key, peer: Int64Array, buffer: Buffer) -> int:
        """Add the row in which every rank sends the range `key` from `buffer` to `peer`.

        Returns the position of the row. It depends on the rows that wrote the range, if any, and by
        control dependencies on the rows of the barrier of `columns`.
        """
        parents = self._writers.get(key, [])
        offset = {"src_offset": self._compute_offset(key)}
        count = self._count_units(key)
        row = self._columns.add(StepKind.SEND, peer, count, parents, {"src_buffer": buffer}, offset)
        self._columns.add_controls(self._columns.barrier, row)
        return row

    def _add_sum(self, key: _Key, source: Int64Array, is_last: bool) -> int:
        """Add the row that receives the range `key` from `source` and adds it; return its position.

        `source`: sending rank of every rank. The other operand is the current sum of the range, in
        the buffer of `_get_partial_buffer`, at the offset of the range. The row depends on all
        writers of the range, and replaces them as its only writer. The result is written to:

        - reduce-scatter: OUTPUT with `is_last`, at the offset of the rank's unit of this stream,
          unless the shape moves the results at the end (`is_moved`). Otherwise SCRATCH.
        - all-reduce: SCRATCH with `one_shot_levels` (ranks then exchange complete sums),
          otherwise OUTPUT. `is_last` has no effect.

        Except in the first case, its offset is that of the range.
        """
        offset = target_offset = self._compute_offset(key)
        target = Buffer.OUTPUT
        if self._kind is CollectiveKind.REDUCE_SCATTER:
            is_last &= not self._shape.is_moved
            target = Buffer.OUTPUT if is_last else Buffer.SCRATCH
            if is_last:
                target_offset = np.full_like(offset, self._own_offset)
        elif self._shape.one_shot_levels:
            target = Buffer.SCRATCH
        row = self._columns.add(
            StepKind.RECV_REDUCE,
            source,
            self._count_units(key),
            self._writers.get(key, []),
            {"src_buffer": self._get_partial_buffer(key), "dst_buffer": target},
            {"src_offset": offset, "dst_offset": target_offset},
        )
        self._writers[key] = [row]
        return row
