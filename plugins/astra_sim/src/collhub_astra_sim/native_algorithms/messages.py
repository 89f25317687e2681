"""The messages of ASTRA-sim's native algorithms, with their delays and what they carry.

Classes of ASTRA-sim: `Ring`, `AllToAll` (direct), `HalvingDoubling`, `DoubleBinaryTreeAllReduce`.
A delay of the endpoint precedes every message, and the time of a reduction, too, where what came
before is reduced. A rank goes on without waiting for its own messages. Steps that only state what
data are where take no time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from collhub_astra_sim.native_algorithms.rank_steps import RankSteps, Region
from hub_core.columns import Int64Array
from hub_core.model import Buffer, CollectiveKind, InputError

INPUT, OUTPUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH
_REDUCING = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
_LEFT_HALF = 2


@dataclass(frozen=True, slots=True)
class NativeTask:
    """A native collective: `delay_ns` before every message, `reduce_ns(bytes)` of a reduction.

    `size`: bytes of the full buffer. `width`: messages of direct at once. `is_small`: of a group
    smaller than the system. `is_lowest`: the tree whose root is the lowest rank.
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
    """Steps, the units of the full buffer, and those of SCRATCH on every rank."""

    steps: RankSteps
    unit_count: int
    scratch_units: int
    in_place: bool = True


def ring(task: NativeTask) -> NativePlan:
    """Every message goes to the next rank, and each waits for the one before."""
    ranks = task.num_ranks
    steps, me = RankSteps(ranks), np.arange(ranks)
    if task.kind is CollectiveKind.ALL_TO_ALL:
        return _ring_all_to_all(task)
    before, behind = (me - 1) % ranks, (me + 1) % ranks
    part = task.size // ranks
    reduced_ns = task.delay_ns + task.reduce_ns(part)
    ready = steps.wait(task.delay_ns, [])
    rounds = ranks - 1
    is_scatter = task.kind is CollectiveKind.REDUCE_SCATTER
    work = SCRATCH if is_scatter else OUTPUT
    # A reduce-scatter ends with the own part, an all-reduce gathers from the part that is there.
    lag = 1 if is_scatter else 0
    if task.kind in _REDUCING:
        for turn in range(rounds):
            sent, met = (me - turn - lag) % ranks, (me - turn - lag - 1) % ranks
            steps.send(behind, Region(work if turn else INPUT, sent), [ready])
            target = Region(work, met)
            if is_scatter and turn == rounds - 1:
                target = Region(OUTPUT, 0)
            operand = Region(INPUT, met)
            ready = steps.receive_reduced(before, operand, target, reduced_ns, [ready])
    if not is_scatter:
        first, own = int(task.kind is CollectiveKind.ALL_REDUCE), []
        if task.kind is CollectiveKind.ALL_GATHER:
            own = [steps.copy(Region(INPUT, 0), Region(OUTPUT, me), [])]
        for turn in range(rounds):
            sent, met = (me + first - turn) % ranks, (me + first - turn - 1) % ranks
            steps.send(behind, Region(OUTPUT, sent), [ready, *own])
            arrived = steps.receive(before, Region(OUTPUT, met), [ready])
            ready = steps.wait(task.delay_ns, [arrived])
    return NativePlan(steps, ranks, ranks if is_scatter else 0)


def _ring_all_to_all(task: NativeTask) -> NativePlan:
    """What is for a rank d places on is passed on d times; what is for nearer ones goes first."""
    ranks = task.num_ranks
    steps, me = RankSteps(ranks), np.arange(ranks)
    before, behind = (me - 1) % ranks, (me + 1) % ranks
    ready = steps.wait(task.delay_ns, [])
    for distance in range(1, ranks):
        source = Region(INPUT, (me + distance) % ranks)
        for hop in range(distance):
            steps.send(behind, source, [ready])
            origin = (me - hop - 1) % ranks
            is_there = hop == distance - 1
            source = Region(OUTPUT, origin) if is_there else Region(SCRATCH, distance * ranks + hop)
            arrived = steps.receive(before, source, [ready])
            ready = steps.wait(task.delay_ns, [arrived])
    steps.copy(Region(INPUT, me), Region(OUTPUT, me), [])
    return NativePlan(steps, ranks, ranks * ranks, in_place=False)


def direct(task: NativeTask) -> NativePlan:
    """Every rank sends to all others, the next one first, so many messages at once."""
    ranks = task.num_ranks
    steps, me = RankSteps(ranks), np.arange(ranks)
    if task.kind is CollectiveKind.ALL_GATHER:
        own = steps.copy(Region(INPUT, 0), Region(OUTPUT, me), [])
        ready = steps.wait(task.delay_ns, [own])
        _gather(task, steps, Region(OUTPUT, me), [ready], task.delay_ns)
        return NativePlan(steps, ranks, 0)
    if task.kind is CollectiveKind.ALL_TO_ALL:
        _exchange(task, steps, OUTPUT, task.delay_ns)
        steps.copy(Region(INPUT, me), Region(OUTPUT, me), [])
        return NativePlan(steps, ranks, 0, in_place=False)
    reduced_ns = task.delay_ns + task.reduce_ns(task.size // ranks)
    arrived = _exchange(task, steps, SCRATCH, reduced_ns)
    is_scatter = task.kind is CollectiveKind.REDUCE_SCATTER
    sums = Region(OUTPUT, 0 if is_scatter else me)
    # In the order of arrival nothing is added up: what is there is added when all is.
    whole = steps.copy(Region(INPUT, me), sums, arrived)
    for distance in range(1, ranks):
        whole = steps.reduce(Region(SCRATCH, (me - distance) % ranks), sums, [whole])
    if not is_scatter:
        # In a small group the second half counts as reduced, too.
        _gather(task, steps, sums, [whole], reduced_ns if task.is_small else task.delay_ns)
    return NativePlan(steps, ranks, ranks)


def _width(task: NativeTask) -> int:
    return min(task.width or task.num_ranks, task.num_ranks - 1)


def _exchange(
    task: NativeTask, steps: RankSteps, buffer: Buffer, delay_ns: int
) -> list[Int64Array]:
    """Parts for all others, those of others at their places; the delays behind the arrivals."""
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    ready = [steps.wait(task.delay_ns, [])] * _width(task)
    for distance in range(1, ranks):
        to, origin = (me + distance) % ranks, (me - distance) % ranks
        turn = [ready[distance - 1]]
        steps.send(to, Region(INPUT, to), turn)
        arrived = steps.receive(origin, Region(buffer, origin), turn)
        ready.append(steps.wait(delay_ns, [arrived]))
    return ready[-(ranks - 1) :]


def _gather(
    task: NativeTask, steps: RankSteps, source: Region, first: list[Int64Array], delay_ns: int
) -> None:
    """The part of every rank for all others."""
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    ready = first * _width(task)
    for distance in range(1, ranks):
        to, origin = (me + distance) % ranks, (me - distance) % ranks
        turn = [ready[distance - 1]]
        steps.send(to, source, turn)
        arrived = steps.receive(origin, Region(OUTPUT, origin), turn)
        ready.append(steps.wait(delay_ns, [arrived]))


def halving_doubling(task: NativeTask) -> NativePlan:
    """Partners at distances 1, 2, 4, ... exchange halves, and back whole parts.

    Units lie in the order of their numbers with reversed bits, so that what is sent lies together.
    Raises `InputError` where the ranks are not a power of two.
    """
    ranks = task.num_ranks
    if ranks & (ranks - 1) or task.kind is CollectiveKind.ALL_TO_ALL:
        message = f"ASTRA-sim has no halving-doubling {task.kind} of {ranks} ranks"
        raise InputError(message, cure="use ring or direct", code="no-implementation")
    levels = ranks.bit_length() - 1
    steps, me = RankSteps(ranks), np.arange(ranks)
    place = _reversed_bits(me, levels)
    work = OUTPUT if task.kind is CollectiveKind.ALL_REDUCE else SCRATCH
    ready = [steps.wait(task.delay_ns, [])]
    if task.kind is CollectiveKind.REDUCE_SCATTER:
        for unit in range(ranks):
            stored = Region(SCRATCH, int(place[unit]))
            ready.append(steps.copy(Region(INPUT, unit), stored, []))
    if task.kind is CollectiveKind.ALL_GATHER:
        ready.append(steps.copy(Region(INPUT, 0), Region(SCRATCH, place), []))
    else:
        is_first = task.kind is CollectiveKind.ALL_REDUCE
        ready = _halve(task, steps, Buffer(INPUT if is_first else SCRATCH), work, ready)
    if task.kind is CollectiveKind.REDUCE_SCATTER:
        steps.copy(Region(SCRATCH, place), Region(OUTPUT, 0), ready)
        return NativePlan(steps, ranks, ranks)
    ready = _double(task, steps, work, ready)
    if task.kind is CollectiveKind.ALL_GATHER:
        for unit in range(ranks):
            steps.copy(Region(SCRATCH, int(place[unit])), Region(OUTPUT, unit), ready)
        return NativePlan(steps, ranks, ranks)
    return NativePlan(steps, ranks, 0)


def _reversed_bits(numbers: Int64Array, levels: int) -> Int64Array:
    found = np.zeros_like(numbers)
    for bit in range(levels):
        found |= (numbers >> bit & 1) << (levels - 1 - bit)
    return found


def _halve(
    task: NativeTask, steps: RankSteps, first: Buffer, work: Buffer, ready: list[Int64Array]
) -> list[Int64Array]:
    """Keep the half of the own bit, lowest bit first, and send the other one."""
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    levels = ranks.bit_length() - 1
    low, count = np.zeros_like(me), ranks
    for level in range(levels):
        count //= 2
        own = me >> level & 1
        partner = me ^ (1 << level)
        source = first if level == 0 else work
        sent, kept = low + (1 - own) * count, low + own * count
        steps.send(partner, Region(source, sent, count), ready)
        # A reduction takes the time of the message behind it, and the last one none.
        behind = task.reduce_ns(task.size >> (level + _LEFT_HALF)) if level < levels - 1 else 0
        operand, target = Region(source, kept, count), Region(work, kept, count)
        duration_ns = task.delay_ns + behind
        ready = [steps.receive_reduced(partner, operand, target, duration_ns, ready)]
        low = kept
    return ready


def _double(
    task: NativeTask, steps: RankSteps, work: Buffer, ready: list[Int64Array]
) -> list[Int64Array]:
    """Exchange all that is there, highest bit first."""
    ranks, me = task.num_ranks, np.arange(task.num_ranks)
    levels = ranks.bit_length() - 1
    place, count = _reversed_bits(me, levels), 1
    for level in reversed(range(levels)):
        partner = me ^ (1 << level)
        low = place - place % count
        other = _reversed_bits(partner, levels)
        steps.send(partner, Region(work, low, count), ready)
        met = Region(work, other - other % count, count)
        arrived = steps.receive(partner, met, ready)
        ready = [steps.wait(task.delay_ns, [arrived])]
        count *= 2
    return ready
