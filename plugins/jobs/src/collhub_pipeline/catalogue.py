"""Schedules by name, bounds, closed forms, and the search for the fastest schedule.

Bounds apply to one direction with one stage per device, `p` stages and `m` micro-batches. If the
weight gradient directly follows the input gradient, the last stage cannot start before p - 1
forward passes and transfers, computes both passes m times, and its last gradient must return to the
first stage. If weight gradients may be delayed, they hide this return time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from collhub_pipeline.orders import (
    eager_warmups,
    gpipe_warmups,
    in_turns,
    interleaved,
    one_forward_one_backward_warmups,
    two_directions,
    with_delays,
    zb_h1,
    zb_h2,
)
from collhub_pipeline.plugin import SEARCHED
from collhub_pipeline.timing import (
    Operation,
    Pass,
    PassTimes,
    Schedule,
    Time,
    Timing,
    greedy,
    timed,
)
from hub_core import UsageError
from hub_core.plugin_api import BudgetReached, SearchBudget


def compute_lower_bound(
    stages: int, micros: int, times: PassTimes, *, floating: bool, delayed: bool
) -> Time:
    """Return the lower bound of the makespan.

    `delayed`: gradients are sent before weight gradients are computed; `floating`: weight gradients
    may be delayed without limit.
    """
    work = micros * (times.forward + times.input_gradient + times.weight_gradient)
    ahead = (stages - 1) * (times.forward + times.transfer)
    if floating:
        return ahead + work
    way_back = times.input_gradient if delayed else times.input_gradient + times.weight_gradient
    return ahead + work + (stages - 1) * (times.transfer + way_back)


def closed_form(
    schedule: str, stages: int, micros: int, times: PassTimes, *, delayed: bool
) -> Time | None:
    """Return the makespan of `gpipe`, `1f1b` or `eager-1f1b` in closed form, or None.

    `stages`, `micros`: number of stages and micro-batches; `delayed`: the input gradient is sent
    before the weight gradient is computed. With one stage it is that of all passes in sequence, for
    any name. None for other schedules, where passes are blocking and delayed, for `1f1b` if a
    transfer takes longer than forward and backward pass together, and for `eager-1f1b` if longer
    than half.
    """
    backward = times.input_gradient + times.weight_gradient
    both, transfer = times.forward + backward, times.transfer
    hidden = times.weight_gradient if delayed else 0
    base = (micros + stages - 1) * both
    lag = 2 * transfer - hidden
    if stages == 1:
        return micros * both
    if times.is_blocking:
        return None if delayed else _compute_blocking_form(schedule, stages, micros, times, base)
    if schedule == "gpipe":
        slowest = max(times.forward, transfer) + max(backward, transfer)
        return (stages - 1) * (both - hidden + 2 * transfer) + both + (micros - 1) * slowest
    if schedule == "eager-1f1b":
        return base + (stages - 1) * lag if transfer <= Fraction(both) / 2 else None
    if schedule != "1f1b" or transfer > both:
        return None
    if lag <= 0:
        return base + (stages - 1) * lag
    rounds = micros + stages - 3 - (micros - 2) // stages
    return base + lag * max(stages - 1, rounds)


def _compute_blocking_form(
    schedule: str, stages: int, micros: int, times: PassTimes, base: Time
) -> Time | None:
    """Return the makespan in closed form if senders wait for their transfers, or None.

    `base`: makespan without transfers. None for `eager-1f1b`, fewer than 2 micro-batches, and
    transfers that take longer than a forward or a backward pass. Any name other than `gpipe` counts
    as 1F1B.
    """
    backward = times.input_gradient + times.weight_gradient
    if times.transfer > min(times.forward, backward) or schedule == "eager-1f1b" or micros < 2:
        return None
    if schedule == "gpipe":
        return base + times.transfer * (2 * micros + 2 * stages - 4)
    sends = micros + 1 if stages == 2 else 2 * micros + 2 * stages - 5
    return base + times.transfer * sends


_TURNS = {
    "gpipe": gpipe_warmups,
    "1f1b": one_forward_one_backward_warmups,
    "eager-1f1b": eager_warmups,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Pipeline: devices, micro-batches, chunks per device (maximum in a search), and times.

    `times`: of the passes of a complete stage. `delayed`: `gpipe`, `1f1b` and `eager-1f1b` send
    gradients before they compute weight gradients. `memory`: maximum number of activations of
    complete stages per device, None for any. `warmups`: forward passes before the first backward
    pass per stage; empty for the defaults of the schedule.
    """

    devices: int
    micros: int
    times: PassTimes
    chunks: int = 1
    delayed: bool = False
    memory: int | None = None
    warmups: tuple[int, ...] = ()

    def times_in(self, schedule: Schedule) -> PassTimes:
        """Return the times of the passes of one chunk: those of a stage divided by its chunks."""
        return self.times.shared(self._chunks_of(schedule))

    def timed(self, schedule: Schedule) -> Timing:
        """Compute the times of a schedule from the times of its chunks."""
        return timed(schedule, self.times_in(schedule))

    def fits(self, schedule: Schedule) -> bool:
        """Return whether the activations of a schedule fit in the memory.

        `memory` counts micro-batches of a whole device: with c chunks per device, c chunks are one.
        True without a limit.
        """
        peak = max(schedule.peaks())
        return self.memory is None or peak <= self.memory * self._chunks_of(schedule)

    def _chunks_of(self, schedule: Schedule) -> int:
        """Return the model chunks per device: stages of one direction divided by the devices."""
        return len(schedule.device_of[0]) // self.devices


def schedule_of(name: str, shape: Shape, budget: SearchBudget | None = None) -> Schedule:
    """Build the schedule of a name; `budget`: of a search.

    Raises `UsageError` if it does not fit the shape or the memory.
    """
    if name == SEARCHED:
        return fastest(shape, budget)
    schedule = _named(name, shape)
    if not shape.fits(schedule):
        peak = -(-max(schedule.peaks()) // shape.chunks)
        message = f"{name} holds {peak} micro-batches, the memory is for {shape.memory}"
        raise UsageError(message, cure="choose search, or a larger -O memory", code="memory")
    return schedule


def fastest(shape: Shape, budget: SearchBudget | None = None) -> Schedule:
    """Search the schedule with the minimum makespan in the memory, then with the minimum peak.

    Candidates: all named schedules in one direction, interleaving with every divisor of the chunks,
    warm-ups from 1F1B to eager 1F1B with and without delayed weight gradients, delays of the
    zero-bubble orders, and greedy orders by urgency. The passes of each candidate count in
    `budget`; at its limit, the best candidate so far is returned. Raises `UsageError` if no
    schedule fits, `BudgetReached` if the limit is reached before a candidate fits.
    """
    budget = budget or SearchBudget()
    best: tuple[Time, int, Schedule] | None = None
    for number, schedule in enumerate(_generate_candidates(shape), 1):
        if shape.fits(schedule):
            key = shape.timed(schedule).makespan, max(schedule.peaks())
            if best is None or key < best[:2]:
                best = *key, schedule
        budget.count(sum(len(order) for order in schedule.orders))
        if budget.reason:
            budget.cut("search of schedules", f"those after the first {number}")
            break
    if best is not None:
        return best[2]
    if budget.reason:
        raise BudgetReached
    message = f"no schedule holds at most {shape.memory} micro-batches on each device"
    raise UsageError(message, cure="allow at least 1, or as many as -O stages", code="memory")


def bound(shape: Shape, name: str) -> Time:
    """Return the lower bound for schedules of this kind, one chunk per device, one direction."""
    floating = name in ("zb-h1", "zb-h2", SEARCHED)
    return compute_lower_bound(
        shape.devices, shape.micros, shape.times, floating=floating, delayed=shape.delayed
    )


def _named(name: str, shape: Shape) -> Schedule:
    """Build the schedule of a name, one of those of the catalogue.

    Warm-ups of the shape replace those of 1F1B, eager 1F1B and GPipe; delayed weight gradients
    concern these alone. Raises `UsageError` for more than one chunk, except for `interleaved`, and
    `KeyError` for other names.
    """
    devices, micros = shape.devices, shape.micros
    if name == "interleaved":
        return interleaved(devices, micros, shape.chunks)
    if shape.chunks > 1:
        message = f"{name} has one chunk a stage, not {shape.chunks}"
        raise UsageError(message, cure="choose interleaved, or -O chunks=1", code="chunks")
    if name == "two-directions":
        return two_directions(devices, micros, shape.times)
    if name in _TURNS:
        warmups = _warmups(shape) or _TURNS[name](devices, micros)
        return in_turns(name, warmups, micros, delayed=shape.delayed)
    return {"zb-h1": zb_h1, "zb-h2": zb_h2}[name](devices, micros)


def _warmups(shape: Shape) -> list[int]:
    """Return the given warm-ups, limited to the micro-batches. Raises `UsageError`."""
    # Without warm-up, the backward pass would precede the forward pass of a stage.
    if shape.warmups and (len(shape.warmups) != shape.devices or min(shape.warmups) < 1):
        message = f"{len(shape.warmups)} warm-ups do not state one, 1 or more, for each stage"
        cure = "write as many numbers as -O stages, such as 4,3,2,1"
        raise UsageError(message, cure=cure, code="option-value")
    return [min(shape.micros, warmup) for warmup in shape.warmups]


def _generate_candidates(shape: Shape) -> Iterator[Schedule]:
    """Yield the candidates of the search; they may repeat, and may need more memory than there is.

    In this order: interleaved schedules with 2 or more chunks, where the number of chunks divides
    `shape.chunks` and the devices divide the micro-batches; then, with one chunk, GPipe, ZB-H1 and
    ZB-H2; variants between 1F1B and eager 1F1B with 0 to min(micros, devices) additional forward
    passes, each with weight gradients before and behind the sending of input gradients, and with at
    most 0, 0.5, ... 3 times the stage number (rounded down) of weight gradients pending; finally
    greedy schedules.
    """
    devices, micros = shape.devices, shape.micros
    for chunks in range(2, shape.chunks + 1):
        # Interleaving processes groups of `devices` micro-batches.
        if shape.chunks % chunks == 0 and micros % devices == 0:
            yield interleaved(devices, micros, chunks)
    one_chunk = replace(shape, chunks=1, warmups=())
    for name in ("gpipe", "zb-h1", "zb-h2"):
        yield _named(name, one_chunk)
    # From 1F1B to eager 1F1B, with additional forward passes on every stage except the last.
    for more in range(micros + 1):
        warmups = [
            min(micros, devices - stage + min(more, devices - stage - 1))
            for stage in range(devices)
        ]
        for delayed in (False, True):
            yield in_turns(SEARCHED, warmups, micros, delayed=delayed)
        for tenths in range(0, 31, 5):
            delays = [tenths * stage // 10 for stage in range(devices)]
            yield with_delays(SEARCHED, warmups, delays, micros)
        if more >= devices:
            break
    yield from _generate_greedy(shape)


def _generate_greedy(shape: Shape) -> Iterator[Schedule]:
    """Yield greedy schedules with the memory of ZB-H1, of ZB-H2, and the available memory.

    These are at most devices, 2 x devices - 1, and `shape.memory` (without one, all micro-batches)
    micro-batches per device, in ascending order and each number once.
    """
    devices = shape.devices
    passes = [
        Operation(kind, 0, stage, micro)
        for stage in range(devices)
        for micro in range(shape.micros)
        for kind in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
    ]
    for memory in sorted({devices, 2 * devices - 1, shape.memory or shape.micros}):
        row = (tuple(range(devices)),)
        yield greedy(SEARCHED, row, passes, shape.times, most_held=([memory] * devices,))
