"""Lower bounds of the time of one step, and makespans of named schedules in closed form.

Bounds apply to one direction with one stage per device, `p` stages and `m` micro-batches. If the
weight gradient directly follows the input gradient, the last stage cannot start before p - 1
forward passes and transfers, computes both passes m times, and its last gradient must return to the
first stage. If weight gradients may be delayed, they hide this return time.
"""

from __future__ import annotations

from fractions import Fraction

from collhub_pipeline.passes import PassTimes, Time
from collhub_pipeline.plugin import SEARCHED
from collhub_pipeline.shapes import PipelineShape


def bound(shape: PipelineShape, name: str) -> Time:
    """Return the lower bound of the time of one step for schedules with this name.

    It is in the unit of the shape's times, and assumes one stage per device and one direction. In
    `zb-h1`, `zb-h2` and `search`, weight gradients may be delayed without limit; all other names,
    also unknown ones, have one bound, which depends on the shape's `delayed`.
    """
    floating = name in ("zb-h1", "zb-h2", SEARCHED)
    return compute_lower_bound(
        shape.devices, shape.micros, shape.times, floating=floating, delayed=shape.delayed
    )


def compute_lower_bound(
    stages: int, micros: int, times: PassTimes, *, floating: bool, delayed: bool
) -> Time:
    """Return a lower bound of the time of one step of a pipeline, in the unit of `times`.

    There is one stage per device. With p stages and m microbatches it is m times all three passes,
    plus (p - 1) times forward pass and transfer until the last stage can begin, plus (p - 1) times
    the way back of the last gradient: a transfer and the input gradient, and the weight gradient
    too unless `delayed` (gradients are sent before the weight gradient is computed). With
    `floating` (weight gradients may be delayed without limit), the way back is hidden and does not
    count.
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
    """Return the makespan of a named schedule by a formula; None if no formula applies.

    The result is exact, in the unit of `times`. `delayed`: the input gradient is sent before the
    weight gradient is computed. Numbers are at least 1 and are not checked.

    p, m: `stages` and `micros`. f, t: forward pass and transfer. b: input and weight gradient
    together. h: the weight gradient if `delayed`, otherwise 0. base = (m + p - 1) (f + b). lag = 2
    t - h. The first rule that applies decides:

    1. p = 1: m (f + b), for any name.
    2. `times.is_blocking` (senders wait for transfers): None if `delayed`, for `eager-1f1b`, for m
       < 2, or if t > min(f, b). Otherwise `gpipe` takes base + (2 m + 2 p - 4) t. Every other name
       takes base + (m + 1) t for p = 2, and base + (2 m + 2 p - 5) t for more stages.
    3. `gpipe`: (p - 1) (f + b - h + 2 t) + f + b + (m - 1) (max(f, t) + max(b, t)).
    4. `eager-1f1b`: None if t > (f + b) / 2, otherwise base + (p - 1) lag.
    5. None for names other than `1f1b`, and if t > f + b.
    6. `1f1b`: base + (p - 1) lag if lag is at most 0. Otherwise base + lag x the larger of p - 1
       and m + p - 3 - floor((m - 2) / p).
    """
    backward = times.input_gradient + times.weight_gradient
    both, transfer = times.forward + backward, times.transfer
    hidden = times.weight_gradient if delayed else 0
    base = (micros + stages - 1) * both
    lag = 2 * transfer - hidden
    if stages == 1:
        return micros * both
    if times.is_blocking:
        is_slow = transfer > min(times.forward, backward)
        if delayed or is_slow or schedule == "eager-1f1b" or micros < 2:
            return None
        if schedule == "gpipe":
            return base + transfer * (2 * micros + 2 * stages - 4)
        sends = micros + 1 if stages == 2 else 2 * micros + 2 * stages - 5
        return base + transfer * sends
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
