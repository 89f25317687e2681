"""Steps of all-gathers, reduce-scatters and all-reduces level by level, as columns.

Every level is an exchange of all pairs, or a ring in both directions: half of the blocks travel one
way and half the other, as in ASTRA-sim's and TPUs' collectives on tori. The program of every rank
has the same shape, so that a row is added to all ranks at once. Cost: linear in the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from collhub_classic.nested_columns import (
    StepColumns,
    add_moves_from_owners,
    add_moves_to_owners,
)
from hub_core.columns import Int64Array
from hub_core.model import Buffer, CollectiveKind, StepKind, StepTable

# Displacement of a rank's coordinates from those of another one, by level; None: all coordinates.
_Key = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class NestedShape:
    """Levels of the ranks and the parts of the data.

    `sizes`: ranks of each level, the first level varies fastest with the rank. `is_ring`: whether
    the ranks of a level form a ring. `parts`: (order of the levels in the all-gather, direction of
    the longer half of its rings) of every part of the data; a reduce-scatter uses the reversed
    order. `chunks`: chunks of every part, which overlap. `is_moved`: an all-gather first moves the
    units to the ranks that start with them in an all-reduce, whose messages are ranges; a
    reduce-scatter moves the results from these ranks at the end.
    """

    sizes: tuple[int, ...]
    is_ring: tuple[bool, ...]
    parts: tuple[tuple[tuple[int, ...], int], ...]
    chunks: int = 1
    is_moved: bool = False

    @classmethod
    def direct(cls, sizes: Sequence[int], chunks: int = 1) -> NestedShape:
        """Return exchanges of all pairs in every level of more than one rank, with one part.

        The all-gather begins with the last level, whose links are often the slowest, so that only
        the own data passes them.
        """
        used = tuple(size for size in sizes if size > 1)
        order = tuple(reversed(range(len(used))))
        return cls(used, (False,) * len(used), ((order, 1),), chunks)

    @property
    def units_per_rank(self) -> int:
        """Chunks of all parts."""
        return len(self.parts) * self.chunks

    def count_steps(self, kind: CollectiveKind) -> int:
        """Count the steps of all ranks, without copies.

        Messages of an all-reduce, and with `is_moved` also those of other collectives, are one
        range each. Without it, the latter are single units if a rank has several, or if the first
        level is not gathered first.
        """
        if kind is CollectiveKind.ALL_REDUCE:
            messages = 2 * sum(size - 1 for size in self.sizes)
        elif self.is_moved:
            messages = 1 + sum(size - 1 for size in self.sizes)
        elif self.units_per_rank > 1 or self.parts[0][0] != tuple(range(len(self.sizes))):
            messages = prod(self.sizes) - 1
        else:
            messages = sum(size - 1 for size in self.sizes)
        return 2 * prod(self.sizes) * messages * self.units_per_rank


def build_nested_steps(shape: NestedShape, kind: CollectiveKind) -> StepTable:
    """Build the steps of an all-gather, a reduce-scatter or an all-reduce (one after the other).

    Units: in an all-reduce, chunk by chunk and part by part, one per rank, numbered such that every
    message is one range; in other collectives, rank by rank, a unit per part and chunk. With
    `is_moved`, the latter are numbered as in an all-reduce: the unit at which a rank starts is
    moved from and to the rank that has it. Partial sums of a reduce-scatter are in SCRATCH, of as
    many units as INPUT; those of an all-reduce in OUTPUT. Rings exchange the messages of all parts
    and chunks in turn; groups exchange chunk by chunk.
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
        row = _add_copy(columns, shape.units_per_rank)
        for stream in streams:
            stream.start_gather(row)
    levels = range(len(shape.sizes))
    merge = _interleave if any(shape.is_ring) else _concatenate
    if kind is not CollectiveKind.ALL_GATHER:
        for phase in reversed(levels):
            merge([stream.reduce_level(phase) for stream in streams])
    if kind is not CollectiveKind.REDUCE_SCATTER:
        # After reductions of different duration, large messages of one part would delay the small
        # ones that other parts need before their own large messages.
        is_uneven = kind is CollectiveKind.ALL_REDUCE and len(set(shape.sizes)) > 1
        has_barriers = is_uneven or shape.is_moved
        for phase in levels:
            if has_barriers and len(shape.parts) > 1:
                columns.barrier = [stream.last_row for stream in streams]
            merge([stream.gather_level(phase) for stream in streams])
    elif shape.is_moved:
        add_moves_from_owners(columns, owned, [stream.own_writer for stream in streams])
    return columns.build()


def _add_copy(columns: StepColumns, units: int) -> int:
    """Add the copy of every rank's own units from INPUT to OUTPUT; return its position."""
    number = np.arange(columns.num_ranks)
    offsets = {"src_offset": np.zeros_like(number), "dst_offset": number * units}
    buffers = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT}
    return columns.add(StepKind.COPY, np.full_like(number, -1), units, [], buffers, offsets)


def _interleave(generators: Sequence[Iterator[None]]) -> None:
    """Advance all generators in turn until all are exhausted."""
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
            self._base, self._widths = stream * len(number), [0] * len(sizes)
            for position, level in enumerate(self._order):
                gathered = self._order[:position]
                self._widths[level] = prod(sizes[each] for each in gathered)
        else:
            self._base = stream
            self._widths = [stride * shape.units_per_rank for stride in self._strides]
            is_in_order = self._order == tuple(range(len(sizes)))
            self._is_contiguous = is_in_order and shape.units_per_rank == 1
        self._writers: dict[_Key, list[int]] = {}
        # Finishes after all receives of the latest phase.
        self.last_row = 0

    def start_gather(self, copy: int) -> None:
        """Register the row that copied the own unit to OUTPUT."""
        self._writers[self._own_key] = [copy]
        self.last_row = copy

    def gather_level(self, phase: int) -> Iterator[None]:
        """Gather along the level of a phase; yields after every row of all ranks."""
        level = self._order[phase]
        receives: list[int] = []
        for is_send, (hop, displacement, onward) in self._list_rows(level, is_reversed=False):
            for key in self._list_keys(
                phase, displacement if is_send else self._wrap(level, onward)
            ):
                if is_send:
                    peer = self._get_peer(level, hop)
                    self._add_send(key, peer, Buffer.OUTPUT)
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
        if self._is_contiguous:
            own = next(iter(self._list_keys(phase, 0)))
            rows = [
                row
                for displacement in range(self._shape.sizes[level])
                for row in self._writers.pop(self._with(own, level, displacement), [])
            ]
            self._writers[self._with(own, level, None)] = rows

    def reduce_level(self, phase: int) -> Iterator[None]:
        """Reduce along the level of a phase, in the reversed order of `gather_level`.

        Yields after every row of all ranks.
        """
        level = self._order[phase]
        if self._is_contiguous:
            # The ranges of this level have the writers of the range that contains them.
            own = next(iter(self._list_keys(phase, 0)))
            rows = self._writers.pop(self._with(own, level, None), [])
            for displacement in range(self._shape.sizes[level]):
                self._writers[self._with(own, level, displacement)] = rows
        receives: list[int] = []
        additions = sum(1 for hop in self._list_hops(level) if hop[1] == 0)
        for is_send, (hop, displacement, onward) in self._list_rows(level, is_reversed=True):
            if is_send:
                for key in self._list_keys(phase, self._wrap(level, onward)):
                    peer = self._get_peer(level, -hop)
                    self._add_send(key, peer, self._get_partial_buffer(key))
            else:
                additions -= displacement == 0
                is_last = phase == 0 and displacement == 0 and not additions
                for key in self._list_keys(phase, displacement):
                    row = self._add_sum(key, self._get_peer(level, hop), is_last)
                    receives.append(row)
            yield None
        self._end_phase(receives)
        if self._is_contiguous:
            for displacement in range(1, self._shape.sizes[level]):
                del self._writers[self._with(own, level, displacement)]

    def _end_phase(self, receives: Sequence[int]) -> None:
        """Let the last receive of a phase wait for all other ones, so that rows can wait for it."""
        self.last_row = receives[-1]
        self._columns.add_controls(receives[:-1], self.last_row)

    @property
    def own_writer(self) -> int:
        """Position of the row that wrote the own unit."""
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
        self, level: int, *, is_reversed: bool
    ) -> list[tuple[bool, tuple[int, int, int]]]:
        """List (whether it sends, message of `_list_hops`) in the order of the program.

        On a ring, the receive of every message follows its send; with all pairs, all sends come
        first.
        """
        hops = list(self._list_hops(level))
        if is_reversed:
            hops.reverse()
        if self._shape.is_ring[level]:
            return [(is_send, hop) for hop in hops for is_send in (True, False)]
        return [(is_send, hop) for is_send in (True, False) for hop in hops]

    def _list_hops(self, level: int) -> Iterator[tuple[int, int, int]]:
        """Yield the messages of a gather along a level, the first ones first.

        Each is (displacement of the receiver from the sender, displacement of the sent block from
        the sender, and from the receiver); displacements are not reduced modulo the size.
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

    def _list_keys(self, phase: int, displacement: int) -> Iterator[_Key]:
        """Yield the keys of the units at a displacement along the level of a phase.

        Levels of earlier phases are complete: one key for all of their coordinates if the units are
        one range, else a key per unit. Levels of later phases have the own coordinates.
        """
        key: list[Sequence[int | None]] = [(0,)] * len(self._shape.sizes)
        for level in self._order[:phase]:
            size = self._shape.sizes[level]
            key[level] = (None,) if self._is_contiguous else range(size)
        key[self._order[phase]] = (displacement,)
        yield from product(*key)

    def _with(self, key: _Key, level: int, displacement: int | None) -> _Key:
        return (*key[:level], displacement, *key[level + 1 :])

    def _wrap(self, level: int, displacement: int) -> int:
        return displacement % self._shape.sizes[level]

    def _get_peer(self, level: int, hop: int) -> Int64Array:
        """Return the rank at a displacement along a level, for every rank."""
        place, size = self._place[level], self._shape.sizes[level]
        return np.arange(len(place)) + ((place + hop) % size - place) * self._strides[level]

    def _compute_offset(self, key: _Key) -> Int64Array:
        """Compute the first unit of a key in a full buffer, for every rank."""
        offset = np.full(self._columns.num_ranks, self._base)
        for level, displacement in enumerate(key):
            if displacement is not None:
                size = self._shape.sizes[level]
                offset += (self._place[level] + displacement) % size * self._widths[level]
        return offset

    def _count_units(self, key: _Key) -> int:
        sizes = self._shape.sizes
        return prod(size for size, each in zip(sizes, key, strict=True) if each is None)

    def _get_partial_buffer(self, key: _Key) -> Buffer:
        """Return the buffer with the current sum of a range: INPUT before the first addition."""
        if not self._writers.get(key):
            return Buffer.INPUT
        is_all_reduce = self._kind is CollectiveKind.ALL_REDUCE
        return Buffer.OUTPUT if is_all_reduce else Buffer.SCRATCH

    def _add_send(self, key: _Key, peer: Int64Array, buffer: Buffer) -> None:
        """Add the row that sends a range, after the barrier of the columns if there is one."""
        parents = self._writers.get(key, [])
        offset = {"src_offset": self._compute_offset(key)}
        count = self._count_units(key)
        row = self._columns.add(StepKind.SEND, peer, count, parents, {"src_buffer": buffer}, offset)
        self._columns.add_controls(self._columns.barrier, row)

    def _add_sum(self, key: _Key, source: Int64Array, is_last: bool) -> int:
        """Add the row that receives and adds a range; return its position.

        `is_last`: the own result is complete.
        """
        offset = target_offset = self._compute_offset(key)
        target = Buffer.OUTPUT
        if self._kind is CollectiveKind.REDUCE_SCATTER:
            is_last &= not self._shape.is_moved
            target = Buffer.OUTPUT if is_last else Buffer.SCRATCH
            if is_last:
                target_offset = np.full_like(offset, self._own_offset)
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
