"""What no schedule of a pipeline can beat, and closed forms of what some take.

One way, one stage a device, `p` stages, `m` micro-batches. With the gradient of weights glued
behind that of the input, the last stage cannot start before p - 1 forward passes and transfers,
works m times both passes, and its last gradient has to come back. Where gradients of weights may
float, they hide behind the way back.
"""

from __future__ import annotations

from fractions import Fraction

from collhub_pipeline.timing import PassTimes, Time


def least(stages: int, micros: int, times: PassTimes, *, floating: bool, delayed: bool) -> Time:
    """The bound of the makespan.

    `delayed`: gradients leave before those of weights; `floating`: these may wait for long.
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
    """The makespan of `gpipe`, `1f1b` or `eager-1f1b` by formula; None outside its range."""
    backward = times.input_gradient + times.weight_gradient
    both, transfer = times.forward + backward, times.transfer
    hidden = times.weight_gradient if delayed else 0
    whole = (micros + stages - 1) * both
    lag = 2 * transfer - hidden
    if stages == 1:
        return micros * both
    if times.is_blocking:
        return None if delayed else _blocking(schedule, stages, micros, times, whole)
    if schedule == "gpipe":
        slowest = max(times.forward, transfer) + max(backward, transfer)
        return (stages - 1) * (both - hidden + 2 * transfer) + both + (micros - 1) * slowest
    if schedule == "eager-1f1b":
        return whole + (stages - 1) * lag if transfer <= Fraction(both) / 2 else None
    if schedule != "1f1b" or transfer > both:
        return None
    if lag <= 0:
        return whole + (stages - 1) * lag
    rounds = micros + stages - 3 - (micros - 2) // stages
    return whole + lag * max(stages - 1, rounds)


def _blocking(
    schedule: str, stages: int, micros: int, times: PassTimes, whole: Time
) -> Time | None:
    """Of senders that wait for their transfers."""
    backward = times.input_gradient + times.weight_gradient
    if times.transfer > min(times.forward, backward) or schedule == "eager-1f1b" or micros < 2:
        return None
    if schedule == "gpipe":
        return whole + times.transfer * (2 * micros + 2 * stages - 4)
    sends = micros + 1 if stages == 2 else 2 * micros + 2 * stages - 5
    return whole + times.transfer * sends
