"""All-to-alls of hundreds of ranks on one line or ring, in two phases of long messages.

A displacement d to the right is a * width + b with 0 <= b < width; data to the left have a mirrored
one. In the first phase, a rank sends all data with the same a to the rank a * width places further
on, in the second phase that rank sends the data with the same b over the remaining b places. As in
the store-and-forward exchange of Bruck, Ho, Kipnis, Upfal, Weathersby (IEEE Transactions on
Parallel and Distributed Systems 8, 1997) there are about 4 sqrt(n) instead of 2 n messages per
rank, but here data take the shortest way, so that no link carries more than necessary. Every unit
is in two messages, so that the algorithm of a thousand ranks can be verified; the network forwards
messages to distant ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

import numpy as np

from collhub_classic.torus_exchange import (
    MAX_CELLS,
    AllToAllSteps,
    StepRows,
    check_cells,
    count_cells,
)
from hub_core.columns import Int64Array
from hub_core.model import Buffer, StepKind
from hub_core.network import Topology

# Units of a rank's buffers and messages per unit of its INPUT: INPUT, OUTPUT, two copies of INPUT,
# three regions of both directions, and two messages.
_CELLS_PER_UNIT = 9


def is_in_two_phases(sizes: Sequence[int], is_ring: Sequence[bool]) -> bool:
    """Return whether `build_line_exchange` builds the all-to-all of a torus or mesh.

    `sizes`, `is_ring`: number of ranks and kind (ring or line) of each dimension. True
    for a single dimension that is a line, or a ring for which `build_torus_exchange`
    would need more than `MAX_CELLS` units of memory (`count_cells`). False for several
    dimensions.
    """
    if len(sizes) != 1:
        return False
    return not is_ring[0] or count_cells(sizes, 1) > MAX_CELLS


def estimate_line_exchange_s(topology: Topology, size: int) -> float:
    """Return the expected time in s of an all-to-all on a line, for buffers of `size` bytes
    per rank.

    It is the time of all data from the lower half of the ranks to the upper half on the
    link in the middle, plus the latencies of all n - 1 links. For n ranks these data are
    floor(n / 2) ceil(n / 2) messages of `size` / n bytes. `topology` must have exactly
    one dimension of more than one rank, whose bandwidth and latency are used; otherwise
    raises `ValueError`.
    """
    (line,) = (dimension for dimension in topology.dimensions if dimension.size > 1)
    busy_bytes = (line.size // 2) * (line.size - line.size // 2) / line.size * size
    return busy_bytes / line.bandwidth_bytes_per_s + (line.size - 1) * line.latency_s


def build_line_exchange(num_ranks: int, *, is_ring: bool) -> AllToAllSteps:
    """Build an all-to-all on a line or ring in two phases, with one unit per pair of ranks.

    Data go right (ascending ranks, channel 0) or left (channel 1): on a line towards the target, on
    a ring the shorter way. At the opposite rank of an even ring, data of even ranks go right,
    others left. A distance d is a * width + b with 0 <= b < width, where width is
    floor(sqrt(largest d)) + 1. INPUT is unchanged; a result is in OUTPUT at the index of its
    source. Steps of a rank, each to the right first:

    1. Copy INPUT twice to SCRATCH, and the rank's unit for itself to OUTPUT.
    2. Send all units with the same a in one message to the rank a * width away; then receive.
    3. Copy the units by b. Send those of the same b in one message to the rank b away.
    4. Receive the second messages, and copy their units to OUTPUT.

    Raises `InputError` (`too-large`) if 9 * `num_ranks`^2 > `MAX_CELLS`: above 1930 ranks.
    `num_ranks` must be 2 or more (not checked).
    """
    check_cells(_CELLS_PER_UNIT * num_ranks**2, num_ranks)
    rank = np.arange(num_ranks)
    rows = StepRows(num_ranks)
    # INPUT twice in a row, so that every message is one range.
    copies = [
        rows.add(
            rank, StepKind.COPY, count=num_ranks, src_buffer=Buffer.INPUT,
            dst_buffer=Buffer.SCRATCH, dst_offset=begin,
        )
        for begin in (0, num_ranks)
    ]  # fmt: skip
    rows.add(
        rank, StepKind.COPY, count=1, src_buffer=Buffer.INPUT, src_offset=rank,
        dst_buffer=Buffer.OUTPUT, dst_offset=rank,
    )  # fmt: skip
    base = 2 * num_ranks
    directions = []
    for direction in (1, -1):
        each = _Direction(num_ranks, direction, base, is_ring=is_ring)
        directions.append(each)
        base += 3 * each.blocks * each.width
    for each in directions:
        each.send_blocks(rows, copies)
    for each in directions:
        each.receive_blocks(rows)
    for each in directions:
        each.add_sends(rows, copies)
    for each in directions:
        each.add_receives(rows)
    return AllToAllSteps(rows.build(), 1, base)


class _Direction:
    """Data that move in one direction, and the steps that move them.

    `reach[r]`: rank r sends to the ranks at the distances 1 to `reach[r]`. A distance has the block
    `distance // width` and the place `distance % width`. SCRATCH has three regions from `base` on,
    of `blocks * width` units: received blocks, and the units of the second phase by place, to be
    sent and received. `block_rows`: by block, the row of its receive on every rank, -1 without one.
    """

    def __init__(self, num_ranks: int, direction: int, base: int, *, is_ring: bool) -> None:
        rank = np.arange(num_ranks)
        self._rank, self._direction, self._base = rank, direction, base
        if is_ring:
            is_opposite = (num_ranks % 2 == 0) & (rank % 2 == (direction < 0))
            self._reach = (num_ranks - 1) // 2 + is_opposite.astype(np.int64)
        else:
            self._reach = num_ranks - 1 - rank if direction > 0 else rank
        farthest = int(self._reach.max())
        self.width = isqrt(farthest) + 1
        self.blocks = farthest // self.width + 1
        self._block_rows: dict[int, Int64Array] = {}

    def _move(self, distance: int) -> Int64Array:
        """Return for every rank r the rank at `distance` places from r in the direction:
        int64[ranks].

        A negative distance is against the direction. Ranks are modulo the number of ranks,
        also on a line.
        """
        moved: Int64Array = (self._rank + self._direction * distance) % len(self._rank)
        return moved

    def _count(self, block: int) -> Int64Array:
        """Return the number of units of `block` that every rank has to send: int64[ranks].

        The units of a block are for the ranks at the distances `block` * `width` and the next
        `width` - 1 ones, up to the reach of the rank. In block 0 the rank's own unit
        (distance 0) counts too.
        """
        count: Int64Array = np.clip(self._reach - block * self.width + 1, 0, self.width)
        return count

    def _locate(self, block: int, place: Int64Array) -> Int64Array:
        """Return the positions in SCRATCH of the units of received `block` with the given
        places.

        The place of a unit is its distance modulo `width`. The units of a block are sorted by
        their destination rank, in ascending order, so with direction -1 the farthest is
        first.
        """
        along = place if self._direction > 0 else self.width - 1 - place
        return self._base + block * self.width + along

    def send_blocks(self, rows: StepRows, copies: list[Int64Array]) -> None:
        """Add to `rows` the sends of the first phase: by block from 1 on, then by rank.

        Block b has the units for the ranks at the distances b x width to (b + 1) x width - 1 in
        this direction. A rank sends only the units up to its reach, in one message to the rank at
        distance b x width, modulo the number of ranks. A rank with no such unit sends nothing.
        Block 0 stays on its rank. Channel 0 is to the right, 1 to the left.

        The message is read from SCRATCH units 0 to 2 x ranks - 1, which hold INPUT twice. Its units
        are in ascending order of the destination rank. `copies[c]`: for each rank, the row of the
        COPY step of copy c (0 or 1). A send depends on each of the two steps whose units it reads.
        """
        size = len(self._rank)
        for block in range(1, self.blocks):
            count = self._count(block)
            sender = np.flatnonzero(count)
            count = count[sender]
            first = sender + block * self.width
            if self._direction < 0:
                first = sender - block * self.width - count + 1 + size
            sends = rows.add(
                sender, StepKind.SEND, peer=self._move(block * self.width)[sender],
                channel=int(self._direction < 0), count=count, src_buffer=Buffer.SCRATCH,
                src_offset=first,
            )  # fmt: skip
            for copy, is_read in zip(copies, (first < size, first + count > size), strict=True):
                rows.add_data(copy[sender[is_read]], sends[is_read])

    def receive_blocks(self, rows: StepRows) -> None:
        """Add the receives of the first phase, in the order of the sends."""
        for block in range(1, self.blocks):
            source = self._move(-block * self.width)
            count = self._count(block)[source]
            receiver = np.flatnonzero(count)
            count = count[receiver]
            first = self._locate(block, count - 1 if self._direction < 0 else np.zeros_like(count))
            receives = rows.add(
                receiver, StepKind.RECV, peer=source[receiver], channel=int(self._direction < 0),
                count=count, dst_buffer=Buffer.SCRATCH, dst_offset=first,
            )  # fmt: skip
            self._block_rows[block] = np.full(len(self._rank), -1)
            self._block_rows[block][receiver] = receives

    def add_sends(self, rows: StepRows, copies: list[Int64Array]) -> None:
        """Add the copies and sends of the second phase, in which units reach their targets.

        Each rank now has units in blocks. A unit's place is its remaining distance to its target,
        from 0 to `width` - 1. The steps are added to `rows` by ascending place:

        1. By ascending block, each rank with a unit of this block and place copies it. Place 0 goes
           to OUTPUT, at the index of the source rank. Others go to SCRATCH, sorted by block.
        2. Unless the place is 0, each rank with such units sends them in one message to the rank at
           this distance, on channel 0 (to the right) or 1 (to the left), after their copies.

        A copy waits for the receive of its block (`receive_blocks`, called before). Units of block
        0 are copied from `copies`: two arrays with the row, per rank, of a step that copied INPUT
        to SCRATCH. Such a copy waits for this step. The rank's unit for itself is omitted.
        """
        size = len(self._rank)
        for place in range(self.width):
            written, count = [], np.zeros(size, np.int64)
            for block in range(self.blocks):
                source = self._move(-block * self.width)
                has_unit = self._count(block)[source] > place
                rank = np.flatnonzero(has_unit)
                if block == 0 and place == 0:
                    continue
                count[rank] += 1
                if block:
                    offset = np.broadcast_to(self._locate(block, np.asarray(place)), rank.shape)
                    writer = self._block_rows[block][rank]
                else:
                    # A copy of INPUT in which the unit is behind the own one, in the direction.
                    offset = rank + place if self._direction > 0 else rank - place + size
                    writer = np.where(offset < size, copies[0][rank], copies[1][rank])
                target = self._base + (self.blocks * self.width) + place * self.blocks + block
                copied = rows.add(
                    rank, StepKind.COPY, count=1, src_buffer=Buffer.SCRATCH, src_offset=offset,
                    dst_buffer=Buffer.SCRATCH if place else Buffer.OUTPUT,
                    dst_offset=target if place else source[rank],
                )  # fmt: skip
                rows.add_data(writer, copied)
                written.append((rank, copied))
            if not place:
                continue
            sender = np.flatnonzero(count)
            sends = np.full(size, -1)
            sends[sender] = rows.add(
                sender, StepKind.SEND, peer=self._move(place)[sender],
                channel=int(self._direction < 0), count=count[sender], src_buffer=Buffer.SCRATCH,
                src_offset=self._base + (self.blocks * self.width) + place * self.blocks,
            )  # fmt: skip
            for rank, copied in written:
                rows.add_data(copied, sends[rank])

    def add_receives(self, rows: StepRows) -> None:
        """Add the receives of the second phase, each with the copies of its units to OUTPUT.

        A unit from the rank at distance d against the direction has place d % `width` and block
        d // `width`. For each place from 1 to `width` - 1, ascending, these steps are added to
        `rows`:

        1. A rank with units of the place receives all of them in one message, into its range of
           SCRATCH. The sender is at the distance of the place, against the direction. The channel
           is 0 to the right, 1 to the left. A rank without such units has no steps.
        2. Block by block, ascending, each such rank copies its unit to OUTPUT, at the index of the
           rank from which the unit comes. The copy depends on the receive.
        """
        size = len(self._rank)
        for place in range(1, self.width):
            sender = self._move(-place)
            source_of = [self._move(-place - block * self.width) for block in range(self.blocks)]
            has_unit = np.asarray(
                [self._count(block)[source] > place for block, source in enumerate(source_of)]
            )
            count = has_unit.sum(axis=0)
            receiver = np.flatnonzero(count)
            first = self._base + 2 * self.blocks * self.width + place * self.blocks
            receives = np.full(size, -1)
            receives[receiver] = rows.add(
                receiver, StepKind.RECV, peer=sender[receiver], channel=int(self._direction < 0),
                count=count[receiver], dst_buffer=Buffer.SCRATCH, dst_offset=first,
            )  # fmt: skip
            for block, source in enumerate(source_of):
                rank = np.flatnonzero(has_unit[block])
                copied = rows.add(
                    rank, StepKind.COPY, count=1, src_buffer=Buffer.SCRATCH,
                    src_offset=first + block, dst_buffer=Buffer.OUTPUT, dst_offset=source[rank],
                )  # fmt: skip
                rows.add_data(receives[rank], copied)
