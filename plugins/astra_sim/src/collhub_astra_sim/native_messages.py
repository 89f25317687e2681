"""The messages of ASTRA-sim's native algorithms, with their delays and contents.

Classes of ASTRA-sim: `Ring`, `AllToAll` (direct), `HalvingDoubling`. The delay of the endpoint
precedes every message, plus the time of a reduction if the preceding data are reduced. A rank does
not wait for the completion of the messages that it sends. Steps that only define the position of
data take no time. `RankSteps` adds one step to all ranks per call, in columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import BoolArray, Int64Array
from hub_core.model import (
    COLUMN_DEFAULTS,
    COLUMN_DTYPES,
    Buffer,
    CollectiveKind,
    InputError,
    StepKind,
    StepTable,
)

INPUT, OUTPUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH
_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
_LEFT_HALF = 2


@dataclass(frozen=True, slots=True)
class NativeTask:
    """A native collective: `delay_ns` before every message, `reduce_ns(bytes)` of a reduction.

    `size`: bytes of the full buffer. `width`: concurrent messages of direct. `is_small`: of a group
    smaller than the system. `is_lowest`: use the tree whose root is the lowest rank.
    """

    kind: CollectiveKind
    num_ranks: int
    size: int
    delay_ns: int
    reduce_ns: Callable[[int], int]
    width: int = 0
    is_small: bool = False
    is_lowest: bool = False


class NativePlan(NamedTuple):
    """The steps of an algorithm and the units of its buffers.

    `unit_count`: units of the full buffer. `scratch_units`: units of SCRATCH on every rank.
    `in_place`: whether the steps are also correct in place.
    """

    steps: RankSteps
    unit_count: int
    scratch_units: int
    in_place: bool = True


def ring(task: NativeTask) -> NativePlan:
    """Return ASTRA-sim's ring algorithm: every rank sends to the next one, in rounds.

    Rank r sends one of the n units per round to (r + 1) mod n, in n - 1 rounds. An all-reduce has n
    - 1 rounds that reduce and then n - 1 that gather. The first unit that rank r sends (modulo n):

    - reduce-scatter: r - 1 of INPUT. It reduces in SCRATCH; the last sum, of unit r, is written to
      unit 0 of OUTPUT.
    - all-reduce: r of INPUT, then r + 1 of OUTPUT for the gathering. It reduces in OUTPUT.
    - all-gather: r of OUTPUT, after a copy of unit 0 of INPUT to it.

    Each later round sends the unit that the previous round received. The first message starts after
    `task.delay_ns`. Each later one starts after the receive of the previous round, this delay and,
    if the received unit was reduced, the time of reducing one unit. With one rank there is no
    message, and only an all-gather copies.

    An all-to-all is built by `_build_ring_all_to_all`. Any other kind is not refused and gets the
    steps of an all-gather without the copy.
    """
    ranks = task.num_ranks
    steps, me = RankSteps(ranks), np.arange(ranks)
    if task.kind is CollectiveKind.ALL_TO_ALL:
        return _build_ring_all_to_all(task)
    previous_rank, next_rank = (me - 1) % ranks, (me + 1) % ranks
    part = task.size // ranks
    reduced_ns = task.delay_ns + task.reduce_ns(part)
    ready = steps.wait(task.delay_ns, [])
    rounds = ranks - 1
    is_scatter = task.kind is CollectiveKind.REDUCE_SCATTER
    work = SCRATCH if is_scatter else OUTPUT
    # A reduce-scatter finishes with the rank's part, an all-reduce gathers from the part that was
    # reduced last.
    lag = 1 if is_scatter else 0
    if task.kind in _REDUCING:
        for step in range(rounds):
            sent, arriving = (me - step - lag) % ranks, (me - step - lag - 1) % ranks
            steps.send(next_rank, BufferRegion(work if step else INPUT, sent), [ready])
            target = BufferRegion(work, arriving)
            if is_scatter and step == rounds - 1:
                target = BufferRegion(OUTPUT, 0)
            operand = BufferRegion(INPUT, arriving)
            ready = steps.receive_reduced(previous_rank, operand, target, reduced_ns, [ready])
    if not is_scatter:
        first, copies = int(task.kind is CollectiveKind.ALL_REDUCE), []
        if task.kind is CollectiveKind.ALL_GATHER:
            copies = [steps.copy(BufferRegion(INPUT, 0), BufferRegion(OUTPUT, me), [])]
        for step in range(rounds):
            sent, arriving = (me + first - step) % ranks, (me + first - step - 1) % ranks
            steps.send(next_rank, BufferRegion(OUTPUT, sent), [ready, *copies])
            arrived = steps.receive(previous_rank, BufferRegion(OUTPUT, arriving), [ready])
            ready = steps.wait(task.delay_ns, [arrived])
    return NativePlan(steps, ranks, ranks if is_scatter else 0)


def _build_ring_all_to_all(task: NativeTask) -> NativePlan:
    """Build the ring all-to-all: data for the rank at distance d are forwarded over d links.

    With n ranks, the full buffer has n units of one receiver or sender each. For each distance d
    from 1 to n - 1 there are d rounds, 0 to d - 1. In every round each rank sends one unit to the
    next rank (rank + 1) and receives one from the previous rank. In round 0 it sends its INPUT
    unit for the rank at distance d, later the unit that it received in the round before.

    A received unit is stored in SCRATCH (n^2 units) at d * n + round, in round d - 1 in OUTPUT at
    the number of the rank that it comes from. Each receive is followed by a delay of
    `task.delay_ns`, and the next round waits for this delay. The first round waits for a delay of
    this length, too. A rank's unit for itself is copied at any time. The result is not valid in
    place.
    """
    ranks = task.num_ranks
    steps, me = RankSteps(ranks), np.arange(ranks)
    previous_rank, next_rank = (me - 1) % ranks, (me + 1) % ranks
    ready = steps.wait(task.delay_ns, [])
    for distance in range(1, ranks):
        source = BufferRegion(INPUT, (me + distance) % ranks)
        for hop in range(distance):
            steps.send(next_rank, source, [ready])
            origin = (me - hop - 1) % ranks
            is_last_hop = hop == distance - 1
            source = (
                BufferRegion(OUTPUT, origin)
                if is_last_hop
                else BufferRegion(SCRATCH, distance * ranks + hop)
            )
            arrived = steps.receive(previous_rank, source, [ready])
            ready = steps.wait(task.delay_ns, [arrived])
    steps.copy(BufferRegion(INPUT, me), BufferRegion(OUTPUT, me), [])
    return NativePlan(steps, ranks, ranks * ranks, in_place=False)


def direct(task: NativeTask) -> NativePlan:
    """Return ASTRA-sim's direct algorithm: every rank sends to all n - 1 other ranks.

    Buffers have one unit per rank. Rank r sends to r + 1, then r + 2, ... (mod n). At most w =
    `task.width` messages of a rank are under way (0: no limit). The first w start after a delay.
    The message to r + d with d > w starts when the one from r - (d - w) has been received, plus a
    delay. Delays are `task.delay_ns`; exceptions are below. With one rank there are only copies.

    - All-gather: the rank copies its part from INPUT to unit r of OUTPUT before the first delay,
      and sends this unit.
    - All-to-all: the rank copies its part r from INPUT to OUTPUT. Part d is sent to rank d, which
      stores it at unit r of OUTPUT. The plan is not valid in place.
    - Reduce-scatter: received parts are stored in SCRATCH. Once all delays are over, part r is
      copied to unit 0 of OUTPUT. Then the parts of r - 1, r - 2, ... are added in no time. Delays
      after a receive are longer by the time to reduce `task.size` // n bytes.
    - All-reduce, and any other kind: as reduce-scatter, with the sum at unit r of OUTPUT. An
      all-gather of these sums follows without a first delay. With `task.is_small`, its delays are
      also longer.
    """
    ranks = task.num_ranks
    steps, me = RankSteps(ranks), np.arange(ranks)
    if task.kind is CollectiveKind.ALL_GATHER:
        copied = steps.copy(BufferRegion(INPUT, 0), BufferRegion(OUTPUT, me), [])
        ready = steps.wait(task.delay_ns, [copied])
        _send_to_all(task, steps, BufferRegion(OUTPUT, me), [ready], task.delay_ns)
        return NativePlan(steps, ranks, 0)
    if task.kind is CollectiveKind.ALL_TO_ALL:
        _send_parts(task, steps, OUTPUT, task.delay_ns)
        steps.copy(BufferRegion(INPUT, me), BufferRegion(OUTPUT, me), [])
        return NativePlan(steps, ranks, 0, in_place=False)
    reduced_ns = task.delay_ns + task.reduce_ns(task.size // ranks)
    arrived = _send_parts(task, steps, SCRATCH, reduced_ns)
    is_scatter = task.kind is CollectiveKind.REDUCE_SCATTER
    sums = BufferRegion(OUTPUT, 0 if is_scatter else me)
    # Parts are not added on arrival but when all have arrived.
    reduced = steps.copy(BufferRegion(INPUT, me), sums, arrived)
    for distance in range(1, ranks):
        reduced = steps.reduce(BufferRegion(SCRATCH, (me - distance) % ranks), sums, [reduced])
    if not is_scatter:
        # In a small group ASTRA-sim applies the time of a reduction to the second half, too.
        _send_to_all(task, steps, sums, [reduced], reduced_ns if task.is_small else task.delay_ns)
    return NativePlan(steps, ranks, ranks)


def _count_concurrent_messages(task: NativeTask) -> int:
    """Return the number of concurrent messages per rank: `width` (0: any), at most one per peer."""
    return min(task.width or task.num_ranks, task.num_ranks - 1)


def _send_parts(
    task: NativeTask, steps: RankSteps, buffer: Buffer, delay_ns: int
) -> list[Int64Array]:
    """Add steps by which every rank sends each other rank its part of INPUT.

    There is one message of each rank r per distance d = 1 to n - 1, to rank r + d (mod n).
    The receiver stores the part in `buffer`, in the place with the number of the sender.
    Then it waits `delay_ns`.

    At most w messages of a rank are under way at once: w is `task.width`, or n - 1 if that is
    0 or larger. Sends and receives of a rank start as follows:

    - distances 1 to w: after an initial wait of `task.delay_ns`;
    - distance d > w: after the wait that follows the receive of distance d - w.

    Return the handles of the waits after the receives, by distance; [] with one rank.
    """
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    ready = [steps.wait(task.delay_ns, [])] * _count_concurrent_messages(task)
    for distance in range(1, ranks):
        to, origin = (me + distance) % ranks, (me - distance) % ranks
        after = [ready[distance - 1]]
        steps.send(to, BufferRegion(INPUT, to), after)
        arrived = steps.receive(origin, BufferRegion(buffer, origin), after)
        ready.append(steps.wait(delay_ns, [arrived]))
    return ready[-(ranks - 1) :]


def _send_to_all(
    task: NativeTask, steps: RankSteps, source: BufferRegion, first: list[Int64Array], delay_ns: int
) -> None:
    """Add steps by which every rank sends the region `source` to all other ranks.

    Receivers store it in OUTPUT at the number of the sender. Rank r sends to r + d (mod n)
    for the distances d = 1, 2, ..., n - 1. With a limit of w concurrent messages
    (`_count_concurrent_messages`), the messages of the first w distances start after the
    step with the handle `first[0]`; `first` has one entry. The message of distance d > w
    starts `delay_ns` after the receive of distance d - w.
    """
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    ready = first * _count_concurrent_messages(task)
    for distance in range(1, ranks):
        to, origin = (me + distance) % ranks, (me - distance) % ranks
        after = [ready[distance - 1]]
        steps.send(to, source, after)
        arrived = steps.receive(origin, BufferRegion(OUTPUT, origin), after)
        ready.append(steps.wait(delay_ns, [arrived]))


def halving_doubling(task: NativeTask) -> NativePlan:
    """Return the plan of halving-doubling: partners exchange halves, then gathered data.

    The full buffer has one unit per rank. Halving has partners at distances 1, 2, 4, ...; at
    each level a rank sends one half of its data and reduces the other half. Doubling has the
    same partners from the largest distance to 1; each level doubles the gathered data.

    An all-reduce halves and doubles in OUTPUT, without SCRATCH. A reduce-scatter only halves
    and an all-gather only doubles, both in SCRATCH of one unit per rank, with copies from INPUT
    before and to OUTPUT after. In SCRATCH unit i is at the position with the reversed bits of
    i, so that messages are contiguous.

    The first message starts after `task.delay_ns`. Each level ends with this delay; a halving
    level except the last also with the time of a reduction of the bytes that the next level
    sends. With one rank there are no messages; an all-reduce then does not copy INPUT to
    OUTPUT.

    Raises `InputError` (`no-implementation`) unless the number of ranks is a power of two, and
    for an all-to-all. Other collectives than these three are not refused, and their plan is
    wrong.
    """
    ranks = task.num_ranks
    if ranks & (ranks - 1) or task.kind is CollectiveKind.ALL_TO_ALL:
        message = f"ASTRA-sim has no halving-doubling {task.kind} of {ranks} ranks"
        raise InputError(message, cure="use ring or direct", code="no-implementation")
    levels = ranks.bit_length() - 1
    steps, me = RankSteps(ranks), np.arange(ranks)
    position = _reverse_bits(me, levels)
    work = OUTPUT if task.kind is CollectiveKind.ALL_REDUCE else SCRATCH
    ready = [steps.wait(task.delay_ns, [])]
    if task.kind is CollectiveKind.REDUCE_SCATTER:
        for unit in range(ranks):
            stored = BufferRegion(SCRATCH, int(position[unit]))
            ready.append(steps.copy(BufferRegion(INPUT, unit), stored, []))
    if task.kind is CollectiveKind.ALL_GATHER:
        ready.append(steps.copy(BufferRegion(INPUT, 0), BufferRegion(SCRATCH, position), []))
    else:
        is_first = task.kind is CollectiveKind.ALL_REDUCE
        ready = _reduce_halves(task, steps, Buffer(INPUT if is_first else SCRATCH), work, ready)
    if task.kind is CollectiveKind.REDUCE_SCATTER:
        steps.copy(BufferRegion(SCRATCH, position), BufferRegion(OUTPUT, 0), ready)
        return NativePlan(steps, ranks, ranks)
    ready = _join_halves(task, steps, work, ready)
    if task.kind is CollectiveKind.ALL_GATHER:
        for unit in range(ranks):
            steps.copy(
                BufferRegion(SCRATCH, int(position[unit])), BufferRegion(OUTPUT, unit), ready
            )
        return NativePlan(steps, ranks, ranks)
    return NativePlan(steps, ranks, 0)


def _reverse_bits(numbers: Int64Array, levels: int) -> Int64Array:
    """Return the numbers with their lowest `levels` bits in reverse order.

    Higher bits are dropped, so results are below 2^`levels`.
    """
    result = np.zeros_like(numbers)
    for bit in range(levels):
        result |= (numbers >> bit & 1) << (levels - 1 - bit)
    return result


def _reduce_halves(
    task: NativeTask, steps: RankSteps, first: Buffer, work: Buffer, ready: list[Int64Array]
) -> list[Int64Array]:
    """Add the halving levels: each rank reduces one half of its data and sends the other half.

    The number of ranks n must be a power of two; the data have n units. At level k, from 0 on, the
    partner of a rank is the rank that differs in bit k. A rank keeps the lower half if its bit k is
    0, else the upper half. `first`: buffer of the data at level 0; `work`: buffer of the sums, and
    of the data at later levels. `ready`: handles of the steps before level 0.

    A receive with reduction takes `task.delay_ns` plus, except at the last level, the time of a
    reduction of the bytes that the next level sends. Returns a list of one handle, the receives of
    the last level, int64[n]; with one rank, `ready`.
    """
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    levels = ranks.bit_length() - 1
    low, count = np.zeros_like(me), ranks
    for level in range(levels):
        count //= 2
        bit = me >> level & 1
        partner = me ^ (1 << level)
        source = first if level == 0 else work
        sent, retained = low + (1 - bit) * count, low + bit * count
        steps.send(partner, BufferRegion(source, sent, count), ready)
        # A reduction takes the time of the next message's size, and the last one takes none.
        reduction_ns = (
            task.reduce_ns(task.size >> (level + _LEFT_HALF)) if level < levels - 1 else 0
        )
        operand, target = BufferRegion(source, retained, count), BufferRegion(work, retained, count)
        duration_ns = task.delay_ns + reduction_ns
        ready = [steps.receive_reduced(partner, operand, target, duration_ns, ready)]
        low = retained
    return ready


def _join_halves(
    task: NativeTask, steps: RankSteps, work: Buffer, ready: list[Int64Array]
) -> list[Int64Array]:
    """Add the steps of a recursive-doubling all-gather; return the handles of its last steps.

    In each level, every rank sends all data that it has to its partner, and receives as many. The
    partner differs in one bit of the rank: the highest bit in the first level, the lowest bit in
    the last level. The number of ranks must be a power of two.

    `work`: buffer with one unit per rank. The unit of rank r is at the position that has the bits
    of r in reverse order. `ready`: handles of the steps for which the first level waits. Each level
    ends with a delay of `task.delay_ns` after the receive, for which the next level waits. Nothing
    waits for the sends. The steps are added to `steps`. Returns `ready` itself for one rank.
    """
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    levels = ranks.bit_length() - 1
    position, count = _reverse_bits(me, levels), 1
    for level in reversed(range(levels)):
        partner = me ^ (1 << level)
        low = position - position % count
        partner_position = _reverse_bits(partner, levels)
        steps.send(partner, BufferRegion(work, low, count), ready)
        arriving = BufferRegion(work, partner_position - partner_position % count, count)
        arrived = steps.receive(partner, arriving, ready)
        ready = [steps.wait(task.delay_ns, [arrived])]
        count *= 2
    return ready


Value = int | npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class BufferRegion:
    """Units of a buffer, by rank: `offset` and `count` are one number or int64[ranks]."""

    buffer: Buffer
    offset: Value
    count: Value = 1


class RankSteps:
    """Collects steps of ranks 0..num_ranks-1.

    Every method returns a handle: the row of each rank's new step, int64[ranks], -1 for ranks
    without a step. `after`: handles of the steps on which the new one depends. `on`: the ranks that
    get the step, by default all.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        # For each call: the ranks, and the values of their steps.
        self._added: list[tuple[Int64Array, dict[str, Value]]] = []
        self._parents: list[Int64Array] = []
        self._children: list[Int64Array] = []
        self._rows = 0

    def wait(self, duration_ns: Value, after: Sequence[Int64Array], on: BoolArray | None = None
    ) -> Int64Array:  # fmt: skip
        """Add a delay of the endpoint, the only work between messages in ASTRA-sim."""
        return self._add_step(StepKind.COMPUTE, after, on, duration_ns=duration_ns)

    def send(
        self, to: Int64Array, source: BufferRegion, after: Sequence[Int64Array],
        on: BoolArray | None = None,
    ) -> Int64Array:  # fmt: skip
        """Add a SEND of the region `source` to rank `to[r]` on every rank r; return its handle.

        A handle is int64[ranks]: the row of the step on each rank, -1 for ranks without it. The
        step starts after the steps of the handles `after` on the same rank. `on`: mask of the ranks
        that send; None for all.
        """
        read = {"src_buffer": source.buffer, "src_offset": source.offset, "count": source.count}
        return self._add_step(StepKind.SEND, after, on, peer=to, **read)

    def receive(
        self, origin: Int64Array, target: BufferRegion, after: Sequence[Int64Array],
        on: BoolArray | None = None,
    ) -> Int64Array:  # fmt: skip
        """Add a RECV from rank `origin[r]` into region `target` on each rank r; return its handle.

        A handle is int64[ranks]: the row of the step on each rank, -1 for ranks without it. The
        step starts after the steps of the handles `after` on the same rank. `on`: mask of the ranks
        that receive; None for all. The message has the size of `target`.
        """
        # The message has the size of the target.
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add_step(StepKind.RECV, after, on, peer=origin, count=target.count, **written)

    def receive_reduced(
        self, origin: Int64Array, operand: BufferRegion, target: BufferRegion, duration_ns: Value,
        after: Sequence[Int64Array],
    ) -> Int64Array:  # fmt: skip
        """Add to every rank a receive that writes the sum of message and `operand` to `target`.

        `origin[r]`: sender of rank r. `duration_ns`: duration of the step, one number or an
        array by rank. The count of `target` is the size of the message and of `operand`. The
        step starts after the steps of the handles `after` on the same rank. Return its handle,
        int64[ranks]: the row of the step on each rank.
        """
        read = {"src_buffer": operand.buffer, "src_offset": operand.offset}
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add_step(
            StepKind.RECV_REDUCE, after, None, peer=origin, count=target.count,
            duration_ns=duration_ns, **read, **written,
        )  # fmt: skip

    def copy(self, source: BufferRegion, target: BufferRegion, after: Sequence[Int64Array],
             on: BoolArray | None = None) -> Int64Array:  # fmt: skip
        """Add a copy without duration; it only defines the position of data."""
        return self._add_local(StepKind.COPY, source, target, after, on)

    def reduce(self, source: BufferRegion, target: BufferRegion, after: Sequence[Int64Array],
               on: BoolArray | None = None) -> Int64Array:  # fmt: skip
        """Add a reduction that takes no time, because a preceding delay includes it."""
        return self._add_local(StepKind.REDUCE, source, target, after, on)

    def table(self, npus: Sequence[int], total: int) -> StepTable:
        """Return all steps as a step table of `total` NPUs, with rank r on NPU `npus[r]`.

        The columns `rank` and `peer` contain NPUs; a peer of -1 (none) remains. Rows are
        grouped by NPU; those of an NPU are in the order in which they were added. Raise
        `ValueError` if no steps were added.
        """
        columns = {name: self._build_column(name) for name in COLUMN_DTYPES}
        npu_of_rank = np.asarray(npus, np.int64)
        columns["rank"] = npu_of_rank[columns["rank"]]
        columns["peer"] = np.where(columns["peer"] < 0, -1, npu_of_rank[columns["peer"]])
        empty = [np.zeros(0, np.int64)]
        edges = np.concatenate(empty + self._parents), np.concatenate(empty + self._children)
        return StepTable.from_columns(total, columns, edges)

    def _add_local(
        self,
        kind: StepKind,
        source: BufferRegion,
        target: BufferRegion,
        after: Sequence[Int64Array],
        on: BoolArray | None,
    ) -> Int64Array:
        """Add a local step (copy or reduction) that takes 0 ns; return its handle.

        It reads `source` and writes `target`; its size is that of `source`. It starts after the
        steps of the handles `after` on the same rank. `on`: mask of the ranks; None for all. A
        handle is int64[ranks]: the row of the step on each rank, -1 for ranks without it.
        """
        read = {"src_buffer": source.buffer, "src_offset": source.offset}
        written = {"dst_buffer": target.buffer, "dst_offset": target.offset}
        return self._add_step(kind, after, on, count=source.count, duration_ns=0, **read, **written)

    def _add_step(
        self, kind: StepKind, after: Sequence[Int64Array], on: BoolArray | None, **values: Value
    ) -> Int64Array:
        """Add one step to each rank of the mask `on` (None: all ranks); return its handle.

        A handle is int64[ranks]: the number of the rank's step among all added steps, from 0;
        -1 for ranks without it. `values`: columns of the step, each one number or an array by
        rank. `after`: handles of steps that must finish before, on the same rank; ranks without
        such a step get no dependency.
        """
        ranks = np.arange(self.num_ranks) if on is None else np.flatnonzero(on)
        self._added.append((ranks, {"kind": int(kind), **values}))
        handle = np.full(self.num_ranks, -1, np.int64)
        handle[ranks] = self._rows + np.arange(len(ranks))
        self._rows += len(ranks)
        for parents in after:
            both = ranks[parents[ranks] >= 0]
            self._parents.append(parents[both])
            self._children.append(handle[both])
        return handle

    def _build_column(self, name: str) -> Int64Array:
        """Return the column `name` of all added steps, int64[rows], in the order of addition.

        A step that was added to several ranks has one row per rank, in ascending order of ranks.
        Its value is one number for all its ranks, or an array with an entry for each rank of the
        system. Steps without a value get that of `COLUMN_DEFAULTS`, or 0. The column `rank` is the
        rank of each row. Without steps, the columns are empty, except `rank`, which raises
        `ValueError`.
        """
        if name == "rank":
            return np.concatenate([ranks for ranks, _ in self._added])
        default = COLUMN_DEFAULTS.get(name, 0)
        values = [stated.get(name, default) for _, stated in self._added]
        counts = [len(ranks) for ranks, _ in self._added]
        numbers = [value if isinstance(value, int) else 0 for value in values]
        column = np.repeat(np.asarray(numbers, np.int64), counts)
        begin = 0
        for (ranks, _), value, count in zip(self._added, values, counts, strict=True):
            if not isinstance(value, int):
                column[begin : begin + count] = value[ranks] if value.ndim else value
            begin += count
        return column
