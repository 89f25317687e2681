"""All-to-alls on tori, dimension by dimension, with few messages.

Every rank first collects the data of its own line along one dimension, which then move along the
next dimension, as in the all-to-all by dimensions of Bokhari and Berryman (Complete exchange on a
circuit switched mesh, SHPCC 1992). On a ring, data take the shorter way, hop by hop; in each round
a rank forwards all data that have not yet arrived in one message, so that links are never idle.
The data of each rank are divided by displacement into one class per dimension. Each class begins
with another dimension, so that the links of all dimensions work at the same time.

Between two dimensions, ranks copy their data into the order of the next messages, one step per
range that is consecutive before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
import numpy.typing as npt

from hub_core.columns import Int64Array, inverse
from hub_core.model import COLUMN_DEFAULTS, Buffer, InputError, StepKind, StepTable
from hub_core.network import Topology

# Units in buffers and messages of all ranks that verification can hold at once.
MAX_CELLS = 1 << 25
# Those up to which each class has units of its own, which are divided exactly.
_MAX_CELLS_BY_PART = 1 << 22
# Largest class of displacements, relative to the mean, with which dimensions work together.
_MAX_CLASS = 1.1
# Buffers of a phase: units in the order of its messages, units that other ranks sent and that have
# to be forwarded, and units that have arrived.
_TO_SEND, _TO_FORWARD, _ARRIVED, _BUFFERS = range(4)
# Columns of the steps in addition to rank and kind.
_COLUMNS = ("peer", "channel", "count", "src_buffer", "src_offset", "dst_buffer", "dst_offset")


@dataclass(frozen=True, slots=True)
class AllToAllSteps:
    """Steps of an all-to-all and their units: `units_per_pair` for each pair of ranks.

    `scratch_units`: units of SCRATCH on every rank.
    """

    steps: StepTable
    units_per_pair: int
    scratch_units: int


def build_torus_exchange(sizes: Sequence[int]) -> AllToAllSteps:
    """Build the steps of an all-to-all on a torus, out of place.

    `sizes`: ranks of each of the D dimensions, each at least 2; the first varies fastest with the
    rank. There are D phases, and the units are divided into D classes. In phase p, class c moves
    along dimension (c + p) mod D on channel c, so that all dimensions are used at the same time.
    On a ring, units take the shorter direction, hop by hop. Units at half of the ring are divided
    between both directions. A dimension of two ranks has one direction.

    `_choose_units` chooses the number of units of a pair of ranks and the rule of the classes:
    unit u is in class u mod D, or the displacement of the pair decides on the class of all its
    units.

    Before each phase, ranks copy units into the order of the next messages; after the last phase,
    to OUTPUT. The first sends of a phase wait for the last arrivals of all classes at their rank.
    Returns the step table, the units of a pair, and the SCRATCH units of a rank. Raises
    `InputError` (`too-large`) if buffers and messages of all ranks have more than 2^25 units.
    """
    ranks, count = prod(sizes), len(sizes)
    units, is_by_part = _choose_units(sizes)
    check_cells(count_cells(sizes, units), ranks)
    rows = StepRows(ranks)
    displacement = np.repeat(_list_places(sizes), units, axis=0)
    part = np.tile(np.arange(units), ranks)
    class_of = part % count
    if not is_by_part:
        class_of = _classify(displacement, sizes)
    classes = []
    base = 0
    for first in range(count):
        members = np.flatnonzero(class_of == first)
        order = [(first + axis) % count for axis in range(count)]
        classes.append(_Class(sizes, order, displacement[members], part[members], units, base))
        base += _BUFFERS * count * len(members)
    barrier: list[Int64Array] = []
    for phase in range(count):
        for each in classes:
            each.add_copies(rows, phase)
        rounds = max(each.count_rounds(phase) for each in classes)
        for number in range(1, rounds + 1):
            for channel, each in enumerate(classes):
                each.add_round(rows, phase, number, channel, barrier if number == 1 else ())
        barrier = [row for each in classes for row in each.last_arrivals.values()]
    for each in classes:
        each.add_copies(rows, count)
    return AllToAllSteps(rows.build(), units, base)


def check_cells(cells: int, ranks: int) -> None:
    """Raise `InputError` (`too-large`) for more than `MAX_CELLS` units in buffers and messages."""
    if cells > MAX_CELLS:
        raise InputError(
            f"{cells} units in buffers and messages of {ranks} ranks are too many "
            f"(limit {MAX_CELLS})",
            cure="choose fewer ranks",
            code="too-large",
        )


def estimate_torus_exchange_s(topology: Topology, sizes: Sequence[int], size: int) -> float:
    """Return the expected time in s of an all-to-all by the dimensions of a torus.

    It is the sum of two times. Copies take no time.

    - The time in which the slowest dimension's links transfer their data. Of `size` bytes
      per rank, each link carries in each direction size * k / 8 bytes in a ring of k
      ranks, size * (k^2 - 1) / (8 k) if k is odd, and size / 2 if k is 2.
    - The latencies of the longest way: k / 2 hops, rounded down, in every dimension.

    `sizes`: the sizes k of the dimensions of more than one rank, as in `topology`. Raises
    `ValueError` without such a dimension, and for another number of them than in
    `topology`.
    """
    dimensions = [dimension for dimension in topology.dimensions if dimension.size > 1]
    busy_s = max(
        size
        * _count_hops(length)
        / length
        / (2 if length > 2 else 1)
        / dimension.bandwidth_bytes_per_s
        for length, dimension in zip(sizes, dimensions, strict=True)
    )
    return busy_s + sum(each.size // 2 * each.latency_s for each in dimensions)


def _choose_units(sizes: Sequence[int]) -> tuple[int, bool]:
    """Return the units of every pair of ranks, and whether they are divided into classes by unit.

    If not, the displacement of the pair decides on the class of all its units. `sizes`:
    ranks of each of the D dimensions. Cells are the units in buffers and messages
    (`count_cells`). The first rule that applies:

    1. D does not divide all sizes, and D h units per pair have at most `_MAX_CELLS_BY_PART`
       cells: (D h, True). h is 2 if ranks / k is odd for an even size k > 2, so that the
       most distant units of a class on a ring could not be halved; otherwise 1.
    2. D does not divide all sizes, there are at most `_MAX_CELLS_BY_PART` ranks, and the largest
       class of displacements is larger than `_MAX_CLASS` times the mean: (D h, True), or (D, True)
       if D h units have more than `MAX_CELLS` cells.
    3. Otherwise: (1, False). But it is (2, False) if D divides all sizes, ranks / k // D is
       odd for an even size k > 2, and 2 units have at most `MAX_CELLS` cells.
    """
    ranks, count = prod(sizes), len(sizes)
    is_divisible = all(size % count == 0 for size in sizes)
    farthest = [ranks // size for size in sizes if size > 2 and size % 2 == 0]
    halves = 2 if any(number % 2 for number in farthest) else 1
    units = count * halves
    if not is_divisible and count_cells(sizes, units) <= _MAX_CELLS_BY_PART:
        return units, True
    if not is_divisible and ranks <= _MAX_CELLS_BY_PART:
        # Displacements would divide the data unevenly.
        lengths = np.bincount(_classify(_list_places(sizes), sizes), minlength=count)
        if lengths.max() > _MAX_CLASS * lengths.mean():
            return (units if count_cells(sizes, units) <= MAX_CELLS else count), True
    halves = 2 if is_divisible and any(number // count % 2 for number in farthest) else 1
    return (halves if count_cells(sizes, halves) <= MAX_CELLS else 1), False


def _list_places(sizes: Sequence[int]) -> Int64Array:
    """Return the place of every rank along each dimension, int64[ranks, D].

    It is also its displacement from rank 0. Dimension 0 varies fastest.
    """
    return np.indices(tuple(reversed(sizes))).reshape(len(sizes), -1)[::-1].T


def _classify(displacement: Int64Array, sizes: Sequence[int]) -> Int64Array:
    """Return the class of each displacement, in 0..D - 1 for D dimensions: int64[n].

    `displacement`: int64[n, D], the distances d_a from the sender to the receiver along
    each dimension a, in 0..k_a - 1. `sizes`: the numbers of ranks k_a. The class is
    sum(floor(D d_a / k_a)) mod D.
    """
    count = len(sizes)
    classes: Int64Array = (displacement * count // np.asarray(sizes)).sum(axis=1) % count
    return classes


def count_cells(sizes: Sequence[int], units: int) -> int:
    """Return the number of units in the buffers and messages of all ranks, rounded up.

    `sizes`: ranks per dimension; `units`: units of a pair of ranks. A rank has units for
    every rank. Each of them counts in INPUT, in OUTPUT, in 3 (`_BUFFERS`) buffers per
    dimension, and in one message per hop; the number of hops is the mean over all
    displacements.
    """
    hops = sum(_count_hops(size) / size for size in sizes)
    return ceil(prod(sizes) ** 2 * units * (2 + _BUFFERS * len(sizes) + hops))


def _count_hops(size: int) -> int:
    """Return the sum of the distances from one rank of a ring to all other ranks."""
    return size * size // 4


class StepRows:
    """Steps of all ranks as columns, in the order of every rank's program."""

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.ranks = np.arange(num_ranks)
        self._columns: list[dict[str, npt.NDArray[np.int64]]] = []
        self._data: list[Int64Array] = []
        self._control: list[Int64Array] = []
        self._count = 0

    def add(self, rank: Int64Array, kind: StepKind, **values: Int64Array | int) -> Int64Array:
        """Add a step per entry of `rank`, all of one kind; return the numbers of their rows, int64.

        `values`: columns of `_COLUMNS`, each one number or an array like `rank`. Missing ones have
        their defaults (`COLUMN_DEFAULTS`). Rows are numbered from 0 in the order of addition.
        """
        columns = {name: values.get(name, COLUMN_DEFAULTS[name]) for name in _COLUMNS}
        self._columns.append(
            {
                name: np.broadcast_to(np.asarray(column, np.int64), rank.shape)
                for name, column in {"rank": rank, "kind": int(kind), **columns}.items()
            }
        )
        rows = np.arange(self._count, self._count + len(rank))
        self._count += len(rank)
        return rows

    def add_data(self, parents: Int64Array, rows: Int64Array) -> None:
        """Make each row use the data of the parent at the same position."""
        self._data.append(np.stack([parents, rows]))

    def add_controls(self, parents: Int64Array, rows: Int64Array) -> None:
        """Make each row wait for the parent at the same position, without using its data."""
        self._control.append(np.stack([parents, rows]))

    def build(self) -> StepTable:
        """Build the step table of all added rows with their dependencies.

        Rows of a rank keep the order in which they were added, unless a dependency requires another
        order. Repeated dependencies count once. This object is not changed. Raises `IndexError` if
        no step was added, and the errors of `StepTable.from_columns`, for example for a cycle.
        """
        names = self._columns[0]
        columns = {name: np.concatenate([part[name] for part in self._columns]) for name in names}
        empty = np.zeros((2, 0), np.int64)
        data, control = (
            np.concatenate([empty, *pairs], axis=1) for pairs in (self._data, self._control)
        )
        return StepTable.from_columns(
            self.num_ranks, columns, (data[0], data[1]), (control[0], control[1])
        )


class _Class:
    """The data of all ranks whose displacement belongs to one class, and where they are.

    Rank r holds one unit for each of the m displacements of the class throughout: those that it
    sends, or those that have come to it instead. The units are stored in the order of the next
    messages in the first of two buffers per dimension; received ones are stored at the same
    positions of the second one. `base`: first unit of these buffers in SCRATCH.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        order: Sequence[int],
        displacement: Int64Array,
        part: Int64Array,
        units: int,
        base: int,
    ) -> None:
        self._sizes, self._order, self._displacement = sizes, order, displacement
        self._part, self._units, self._base = part, units, base
        self._strides = np.cumprod([1, *sizes[:-1]])
        self._place = _list_places(sizes)
        # By phase: units in the order of the messages, by displacement along its dimension, then
        # along the last dimension, and so on, then by part. Along a dimension in which the data
        # have moved, the rank counts from which they come (the negated displacement), so that units
        # of consecutive ranks are consecutive, and fewer copies are needed.
        self._sorted = []
        for phase, axis in enumerate(order):
            keys = [part]
            for other, size in enumerate(sizes):
                along = displacement[:, other]
                keys.append(-along % size if other in order[:phase] else along)
            self._sorted.append(np.lexsort([*keys, displacement[:, axis]]))
        # By phase: first position of each distance.
        self._first = [
            np.searchsorted(displacement[members, axis], np.arange(sizes[axis] + 1))
            for members, axis in zip(self._sorted, order, strict=True)
        ]
        # Rows by phase: of the copy of every unit, int64[ranks, m], and of the receives of a round.
        self._copy_rows: Int64Array = np.zeros((0, 0), np.int64)
        self.last_arrivals: dict[int, Int64Array] = {}
        self._receives: dict[int, Int64Array] = {}
        self._arrivals: dict[tuple[int, int], Int64Array] = {}
        self._send_writers: dict[int, tuple[Int64Array, Int64Array]] = {}

    def count_rounds(self, phase: int) -> int:
        """Return the number of messages of a rank in each direction of the ring of a phase."""
        return self._sizes[self._order[phase]] // 2

    def _get_range(self, phase: int, direction: int, number: int) -> tuple[int, int]:
        """Return the first position, and the one after the last, of the message of a round.

        Positions count the units of the class in the order of the phase (`_sort`). `number`: round,
        from 1 to size // 2 + 1, where size is the number of ranks in the ring of the phase. Round 1
        sends all units that move in `direction` (1 or -1) on the ring, round t those of them with
        at least t hops. The range is empty if the first position is not below the second one.

        Of the units with exactly size / 2 hops, each direction gets one half; direction 1 has the
        lower positions. With two ranks, all units move in direction 1.
        """
        size, first = self._sizes[self._order[phase]], self._first[phase]
        half = int(first[size // 2] + first[size // 2 + 1] + 1) // 2
        if size == 2:
            half = int(first[2])
        middle = half if size % 2 == 0 else int(first[size // 2 + 1])
        if direction > 0:
            return int(first[number]), middle
        return middle, int(first[size - number + 1])

    def _locate(self, phase: int, buffer: int) -> int:
        """Return the first unit in SCRATCH of a buffer of a phase, such as `_TO_SEND`."""
        return self._base + (_BUFFERS * phase + buffer) * len(self._displacement)

    def _find_senders(self, phase: int) -> tuple[Int64Array, Int64Array]:
        """Return how each unit moves along the dimension of a phase, as two int64 arrays.

        Both have one entry per unit, in the order of the phase. The first has the direction: 1,
        -1, or 0 for units that stay. The second has the number of hops in this direction, 0 for
        units that stay.

        Each unit takes the shorter way around the ring. Of units that must move by half the size
        of the ring, the first half (rounded up) takes direction 1, the rest -1. On a ring of two
        ranks all take direction 1.
        """
        size = self._sizes[self._order[phase]]
        distance = self._displacement[self._sorted[phase], self._order[phase]]
        direction = np.zeros(len(distance), np.int64)
        for sign in (1, -1):
            first, end = self._get_range(phase, sign, 1)
            direction[first:end] = sign
        return direction, np.where(direction < 0, size - distance, distance)

    def add_copies(self, rows: StepRows, phase: int) -> None:
        """Add the copies before `phase` (from 0), which put units in the order of its messages.

        A phase moves units along one dimension. It has two buffers in SCRATCH: to send, and
        arrived. If `phase` is the number of phases, units go to OUTPUT. Otherwise they go to the
        send buffer of `phase`. They come from INPUT before phase 0. Later they come from the
        arrived buffer of the previous phase if they moved in it, otherwise from its send buffer.

        One copy takes the longest range that is consecutive in source and target, had one
        direction and distance before, and has one direction now. Copies are added to `rows` by
        rank, then in order, also for units that do not move. After phase 0, a copy depends on the
        arrival of its units if they moved, otherwise on their previous copies. Except at the end,
        this object records the copies for the sends and the next call.
        """
        count, ranks = len(self._order), rows.num_ranks
        total = len(self._displacement)
        members = self._sorted[min(phase, count - 1)]
        # Units that are copied together: of one receive, and for one message.
        groups = []
        if phase == 0:
            source = self._compute_offsets(members, 1)
        else:
            position = inverse(self._sorted[phase - 1])
            direction, hops = (
                values[position[members]] for values in self._find_senders(phase - 1)
            )
            buffers = [self._locate(phase - 1, buffer) for buffer in (_TO_SEND, _ARRIVED)]
            offset = position[members] + np.where(direction == 0, *buffers)
            source = np.broadcast_to(offset, (ranks, total))
            groups += [direction, hops]
        if phase == count:
            target = self._compute_offsets(members, -1)
        else:
            offset = self._locate(phase, _TO_SEND) + np.arange(total)
            target = np.broadcast_to(offset, (ranks, total))
            next_direction = self._find_senders(phase)[0]
            groups.append(next_direction)
        begins = np.ones((ranks, total), np.bool_)
        begins[:, 1:] = (np.diff(source) != 1) | (np.diff(target) != 1)
        for group in groups:
            begins[:, 1:] |= np.diff(group) != 0
        rank, first = np.nonzero(begins)
        size = np.diff(np.append(np.flatnonzero(begins.ravel()), ranks * total))
        copies = rows.add(
            rank,
            StepKind.COPY,
            count=size,
            src_buffer=Buffer.SCRATCH if phase else Buffer.INPUT,
            src_offset=source[rank, first],
            dst_buffer=Buffer.OUTPUT if phase == count else Buffer.SCRATCH,
            dst_offset=target[rank, first],
        )
        row_of = copies[np.cumsum(begins.ravel()) - 1].reshape(ranks, total)
        if phase:
            self._wait_for_units(rows, rank, copies, (direction[first], hops[first]))
            is_still = direction == 0
            parents = self._copy_rows[:, members[is_still]]
            rows.add_data(parents.ravel(), row_of[:, is_still].ravel())
        if phase < count:
            sign = next_direction[first]
            self._send_writers = {
                each: (rank[sign == each], copies[sign == each]) for each in (1, -1)
            }
            self._copy_rows = np.empty((ranks, total), np.int64)
            self._copy_rows[:, members] = row_of

    def _wait_for_units(
        self,
        rows: StepRows,
        rank: Int64Array,
        copies: Int64Array,
        origin: tuple[Int64Array, Int64Array],
    ) -> None:
        """Let copies wait for the steps by which their units arrived in the phase before.

        `rank`, `copies`: rank and row of each copy; `origin`: direction and hops of its
        units, which determine the recorded arrival. A data dependency is added to `rows` for
        each such copy. Copies of units that did not move (direction 0) get none here. All
        recorded arrivals are removed.
        """
        direction, hops = origin
        for (sign, number), arrivals in self._arrivals.items():
            is_of = (direction == sign) & (hops == number)
            rows.add_data(arrivals[rank[is_of]], copies[is_of])
        self._arrivals.clear()

    def _compute_offsets(self, members: Int64Array, sign: int) -> Int64Array:
        """Return the positions of units in INPUT or OUTPUT of every rank: int64[ranks, m].

        `members`: the m units of the class, in the order of the result. `sign`: 1 for INPUT,
        ordered by the rank to which a unit goes (the own place plus its displacement); -1 for
        OUTPUT, ordered by the rank from which it comes (minus its displacement).
        """
        number = np.zeros((len(self._place), len(members)), np.int64)
        for axis, (size, stride) in enumerate(zip(self._sizes, self._strides, strict=True)):
            along = sign * self._displacement[members, axis]
            number += (self._place[:, axis, None] + along) % size * stride
        return number * self._units + self._part[members]

    def add_round(
        self,
        rows: StepRows,
        phase: int,
        number: int,
        channel: int,
        barrier: Sequence[Int64Array],
    ) -> None:
        """Add to `rows` the messages of round `number` (from 1) of a phase.

        With k ranks in the phase's dimension, nothing is added if `number` is above k // 2.
        Direction +1 is before -1; a direction without units is skipped. Every rank sends the next
        rank of the direction one message on `channel`, with the units that need at least `number`
        hops.

        - Data: a send of round 1 depends on the copies that stored its units. A send of a later
          round depends on the receive of the round before.
        - Control: a send waits for the step of its rank in each array of `barrier`. A receive
          waits for the send of its rank, except in round 1 and in the last round of a direction.
        - In the last round of a direction all received units have arrived. In earlier rounds the
          receive stores units to forward. A copy then takes those that have arrived, if any.

        `last_arrivals[direction]` becomes the copies of this round, without copies its receives.
        It does not change for a skipped direction.
        """
        if number > self.count_rounds(phase):
            return
        axis = self._order[phase]
        size, stride = self._sizes[axis], self._strides[axis]
        for direction in (1, -1):
            first, end = self._get_range(phase, direction, number)
            if first >= end:
                continue
            place = self._place[:, axis]
            peers = [
                rows.ranks + ((place + hop) % size - place) * stride
                for hop in (direction, -direction)
            ]
            begin, stop = self._get_range(phase, direction, number + 1)
            is_last = begin >= stop
            sends = rows.add(
                rows.ranks,
                StepKind.SEND,
                peer=peers[0],
                channel=channel,
                count=end - first,
                src_buffer=Buffer.SCRATCH,
                src_offset=self._locate(phase, _TO_FORWARD if number > 1 else _TO_SEND) + first,
            )
            receives = rows.add(
                rows.ranks,
                StepKind.RECV,
                peer=peers[1],
                channel=channel,
                count=end - first,
                dst_buffer=Buffer.SCRATCH,
                dst_offset=self._locate(phase, _ARRIVED if is_last else _TO_FORWARD) + first,
            )
            if number == 1:
                writer_ranks, writers = self._send_writers[direction]
                rows.add_data(writers, sends[writer_ranks])
            else:
                rows.add_data(self._receives[direction], sends)
                if not is_last:
                    rows.add_controls(sends, receives)
            for parents in barrier:
                rows.add_controls(parents, sends)
            self._receives[direction] = self._arrivals[direction, number] = receives
            if not is_last:
                # Units that have arrived; the other units are forwarded.
                group = (first, begin) if direction > 0 else (stop, end)
                if group[0] < group[1]:
                    self._arrivals[direction, number] = self._add_arrival(rows, phase, group)
                    rows.add_data(receives, self._arrivals[direction, number])
            self.last_arrivals[direction] = self._arrivals[direction, number]

    def _add_arrival(self, rows: StepRows, phase: int, group: tuple[int, int]) -> Int64Array:
        """Add copies of received units, from `group[0]` to `group[1]`, to those that have arrived.

        Messages then refer to long ranges only, which are fast to verify.
        """
        return rows.add(
            rows.ranks,
            StepKind.COPY,
            count=group[1] - group[0],
            src_buffer=Buffer.SCRATCH,
            src_offset=self._locate(phase, _TO_FORWARD) + group[0],
            dst_buffer=Buffer.SCRATCH,
            dst_offset=self._locate(phase, _ARRIVED) + group[0],
        )
