"""A schedule as columns: chunks of the data, their transfers between NPUs, and local work times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    counted_positions,
    first_positions,
    ordinals,
    run_mask,
    stable_order_by,
)
from hub_core.model import ALL_RANKS, MAX_UNITS, Collective, InputError, StepKind, StepTable
from hub_core.network import link_times_ns

NO_RANK = -1


@dataclass(frozen=True, slots=True, eq=False)
class Chunks(ColumnTable):
    """The chunks of a collective as int64 columns of equal length, in its units and ranks.

    `origin`: the rank whose INPUT initially contains the chunk; -1 if all ranks contribute and the
    chunk is reduced. `input_offset`, `output_offset`: its offsets in INPUT before and in OUTPUT
    after the collective. `count`: its size in units. `target`: the rank that must receive it; -1
    for all ranks.
    """

    origin: Int64Array
    input_offset: Int64Array
    output_offset: Int64Array
    count: Int64Array
    target: Int64Array

    @classmethod
    def cut(cls, collective: Collective, sizes: Sequence[int] | Int64Array) -> Chunks:
        """Divide every block of a collective into chunks of the given sizes in units.

        A block is the part of one rank, in an all-to-all the part of one pair of ranks. It is all
        data if the kind does not split them. A block has `collective.units_per_rank` units. Blocks
        are numbered by rank, those of an all-to-all `source * num_ranks + destination`.

        The number of a chunk is `block * len(sizes) + i`. The chunks of a block follow each other
        without gaps, from the position of the block in INPUT and in OUTPUT. They have the block's
        origin and target (see the class).

        Raises `InputError` (`uneven-parts`) for an uneven collective, then `InputError` unless all
        sizes are positive and add up to a block. A custom collective is treated as a single block,
        which has no meaning; this is not checked.
        """
        counts = np.asarray(sizes, np.int64)
        units = collective.units_per_rank
        total = int(counts.sum())
        if total != units or int(counts.min(initial=1)) < 1:
            raise InputError(f"chunks of {total} units do not add up to a block of {units} units")
        blocks = _RankBlocks.from_collective(collective)
        offsets = first_positions(counts)
        return cls(
            np.repeat(blocks.origin, len(counts)),
            (blocks.input_index[:, None] * units + offsets).ravel(),
            (blocks.output_index[:, None] * units + offsets).ravel(),
            np.tile(counts, len(blocks.origin)),
            np.repeat(blocks.target, len(counts)),
        )

    @classmethod
    def of_blocks(cls, collective: Collective, max_units: int = MAX_UNITS) -> Chunks:
        """Divide the blocks of a collective, which may be uneven, into chunks of similar size.

        A block of n units becomes p = ceil(n / `max_units`) chunks; an empty block has none. Chunk
        k has the units k n // p to (k + 1) n // p - 1 of the block: 7 units with the limit 4 give 3
        and 4. Chunks are sorted by block, in the order of `_RankBlocks`, then by offset.
        `max_units` must be positive and the collective not custom; neither is checked.
        """
        blocks, counts = _RankBlocks.from_collective(collective), collective.counts
        if counts is None:
            units = np.full(len(blocks.origin), collective.units_per_rank)
            first_input, first_output = blocks.input_index * units, blocks.output_index * units
        else:
            units = counts.table.ravel()
            zeros = np.zeros_like(units)
            sent, received = (first.ravel() for first in counts.first_units())
            traits = collective.kind.traits
            # The buffer that is one rank's part has only this part.
            first_input = zeros if traits.input_is_part else sent
            first_output = zeros if traits.output_is_part else received
        parts = -(-units // max_units)
        block = np.repeat(np.arange(len(units)), parts)
        number = counted_positions(parts)
        begin = number * units[block] // parts[block]
        end = (number + 1) * units[block] // parts[block]
        return cls(
            blocks.origin[block],
            first_input[block] + begin,
            first_output[block] + begin,
            end - begin,
            blocks.target[block],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Transfers(ColumnTable):
    """A schedule as columns of equal length, one row per transfer.

    Chunk `chunk[i]` is sent from NPU `source[i]` to NPU `destination[i]`. `start`, `finish`: int64
    times in any common unit; only their order matters. `link`: id of the first link of the route,
    chosen by the caller; transfers of one link are sent in the order of `start`. `reduces`: the
    chunk is added to the destination's data; otherwise it replaces them. `window`: maximum number
    of messages that are in flight on the link, int64 per transfer; 0 for any number, in any order.
    `channel`: int64 per transfer, None for `link_channels`; transfers between two NPUs on one
    channel arrive in the order in which they were sent.
    """

    chunk: Int64Array
    source: Int64Array
    destination: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray
    window: Int64Array
    channel: Int64Array | None = None

    def touching(self, npus: Sequence[int]) -> Transfers:
        """Return the transfers whose source or destination is one of `npus`, in their order.

        Links and chunks keep their numbers. If `channel` is None, it remains None.
        """
        rows = np.flatnonzero(np.isin(self.destination, npus) | np.isin(self.source, npus))
        names = [field.name for field in fields(self)]
        if self.channel is None:
            names.remove("channel")
        return Transfers(**{name: getattr(self, name)[rows] for name in names})


def link_channels(transfers: Transfers) -> Int64Array:
    """Return the channel of every transfer, int64: the number of its link within its pair of NPUs.

    A pair is (source, destination). Of each pair, the links that its transfers use are numbered
    from 0 in the order of their ids: transfers of a pair on the links 9, 4 and 9 get 1, 0 and 1. A
    link that several pairs use has a number in each. So messages of a pair share a channel only if
    they use the same link, and only messages on different links can overtake each other. The result
    has the order of the transfers and is empty without transfers.
    """
    if not len(transfers):
        return transfers.link
    nodes = int(transfers.destination.max()) + 1
    pair = transfers.source * nodes + transfers.destination
    largest = int(transfers.link.max())
    if largest < 4 * len(transfers):
        # Fast path for links that serve one pair each: number the links, not the transfers.
        pair_of_link = np.full(largest + 1, -1, np.int64)
        pair_of_link[transfers.link] = pair
        if np.array_equal(pair_of_link[transfers.link], pair):
            return ordinals(pair_of_link)[transfers.link]
    # A link may be the first link of the routes of several pairs.
    link = transfers.link
    order = stable_order_by(pair, link)
    pair, link = pair[order], link[order]
    is_new = run_mask(pair, link)
    number = ordinals(pair[is_new])
    distinct = np.cumsum(is_new) - 1
    channel = np.empty(len(pair), np.int64)
    channel[order] = number[distinct]
    return channel


def work_times_ns(
    steps: StepTable, sizes: Int64Array, reduce_rate: float | None, copy_rate: float | None
) -> Int64Array:
    """Return the duration of the local work of each step in ns: int64[rows].

    It is the step's `duration_ns` if that is at least 0. Otherwise a REDUCE, RECV_REDUCE or COPY
    takes `sizes` (bytes per step) divided by its rate in bytes/s, truncated to ns, and at least 1
    ns. All other steps, and work whose rate is None, take 1 ns. Raises `InputError` (`too-long`) if
    any of `sizes`, also of a step without such work, would take 2^62 ns or more at a given rate.
    """
    # At least 1 ns, the resolution of some simulators, so that no step takes no time.
    times = np.ones(len(steps), np.int64)
    reduces = steps.is_kind(StepKind.REDUCE, StepKind.RECV_REDUCE)
    for rate, rows in ((reduce_rate, reduces), (copy_rate, steps.is_kind(StepKind.COPY))):
        if rate is not None:
            busy, _ = link_times_ns(np.asarray([rate]), np.zeros(1), sizes)
            times = np.where(rows, np.maximum(busy, 1), times)
    return np.where(steps.duration_ns >= 0, steps.duration_ns, times)


@dataclass(frozen=True, slots=True, eq=False)
class _RankBlocks:
    """Blocks as int64 columns.

    `origin`, `target`: as in `Chunks`. `input_index`, `output_index`: the position of the block
    among the blocks of INPUT and of OUTPUT.
    """

    origin: Int64Array
    input_index: Int64Array
    output_index: Int64Array
    target: Int64Array

    @classmethod
    def from_collective(cls, collective: Collective) -> _RankBlocks:
        """Build the blocks of a standard or uneven collective, in the order of chunk ids.

        Block b of an all-to-all has source b // num_ranks and destination b % num_ranks. With
        other split data, block b has rank b as both. Data that are not split are one block, 0.
        The columns are int64[blocks]; the first rule that applies gives the value:

        - `origin`: `ALL_RANKS` for a reduction; the root if data come from it; the source
        - `target`: the root if data go to it; the destination if data are split by target;
          `ALL_RANKS`
        - `input_index`, position in INPUT of the origin: the destination if data are split by
          target; 0
        - `output_index`, position in OUTPUT: the source if data are split by source; 0
        """
        ranks, traits = collective.num_ranks, collective.kind.traits
        if traits.split_by_source and traits.split_by_target:
            # All-to-all: a block for every pair of ranks.
            source, destination = np.divmod(np.arange(ranks * ranks), ranks)
        else:
            source = np.arange(ranks if traits.is_split else 1)
            destination = source
        zeros = np.zeros(len(source), np.int64)
        origin = source
        if traits.reduces:
            origin = zeros + ALL_RANKS
        elif traits.from_root:
            origin = np.full_like(source, collective.root)
        target = zeros + ALL_RANKS
        if traits.to_root:
            target = np.full_like(source, collective.root)
        elif traits.split_by_target:
            target = destination
        return cls(
            origin,
            input_index=destination if traits.split_by_target else zeros,
            output_index=source if traits.split_by_source else zeros,
            target=target,
        )
