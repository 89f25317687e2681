"""Schedules by name, for a shape: chunks, warm-ups, token slices and recomputation."""

from __future__ import annotations

from dataclasses import replace

from collhub_pipeline.list_search import build_by_readiness
from collhub_pipeline.orders import (
    eager_warmups,
    gpipe_warmups,
    in_turns,
    one_forward_one_backward_warmups,
    two_directions,
    with_delays,
)
from collhub_pipeline.orders_of_chunks import (
    dualpipe_v,
    interleaved,
    interleaved_zero_bubble,
    looped_bfs,
    place_in_waves,
    v_half,
    v_min,
    zbv,
)
from collhub_pipeline.passes import Pass
from collhub_pipeline.shapes import Shape, order_backward_units
from collhub_pipeline.timing import Schedule
from hub_core import UsageError

_TURNS = {
    "gpipe": gpipe_warmups,
    "1f1b": one_forward_one_backward_warmups,
    "eager-1f1b": eager_warmups,
}
_DELAYS = {"zb-h1": (one_forward_one_backward_warmups, 1), "zb-h2": (eager_warmups, 2)}
_LOOPS = {
    "interleaved": interleaved,
    "interleaved-zb": interleaved_zero_bubble,
    "looped-bfs": looped_bfs,
}
_V_SHAPES = {"zbv": zbv, "dualpipe-v": dualpipe_v, "v-half": v_half, "v-min": v_min}
NAMED = ("gpipe", *_DELAYS, "1f1b", "eager-1f1b", *_LOOPS, *_V_SHAPES, "hanayo")
"""Schedules in one direction, in the order in which a search tries them."""


def build_named(name: str, shape: Shape) -> Schedule:
    """Build the schedule of a name, without regard to the memory limit.

    Warm-ups of the shape replace those of 1F1B, eager 1F1B and GPipe; delayed weight gradients
    concern these alone. V shapes have 2 chunks per device, Hanayo any even number. With
    recomputation `auto`, all stages recompute if the schedule does not fit otherwise. Raises
    `UsageError` for numbers of chunks, micro-batches and token slices that the schedule cannot
    have, and `KeyError` for other names.
    """
    schedule = _build(name, shape)
    stages = range(len(schedule.device_of[0]))
    if shape.recompute == "all" or (shape.recompute == "auto" and not shape.fits(schedule)):
        return replace(schedule, recomputed=frozenset(stages))
    return schedule


def _build(name: str, shape: Shape) -> Schedule:
    """Build the schedule of a name without recomputation."""
    devices, micros = shape.devices, shape.micros
    has_waves = name in _V_SHAPES or name == "hanayo"
    chunks = shape.chunks or (2 if has_waves else 1)
    is_sliced = name in _TURNS or name in _DELAYS
    if shape.slices > 1 and not is_sliced:
        message = f"{name} has no order for token slices"
        names = ", ".join((*_TURNS, *_DELAYS))
        raise UsageError(message, cure=f"choose search or one of {names}", code="slices")
    if name in _LOOPS:
        return _LOOPS[name](devices, micros, chunks)
    if has_waves:
        if chunks % 2 or (chunks > 2 and name != "hanayo"):
            count = "an even number of" if name == "hanayo" else "2"
            message = f"{name} has {count} chunks a device, not {chunks}"
            raise UsageError(message, cure="choose -O chunks=2", code="chunks")
        if name == "hanayo":
            return build_by_readiness(name, shape, place_in_waves(devices, chunks))
        return _V_SHAPES[name](devices, micros)
    if chunks > 1:
        message = f"{name} has one chunk a stage, not {chunks}"
        raise UsageError(message, cure="choose interleaved, or -O chunks=1", code="chunks")
    if name == "two-directions":
        if not shape.is_uniform:
            message = f"{name} needs equal stages without recomputation"
            raise UsageError(message, cure="choose another schedule", code="two-directions")
        return two_directions(devices, micros, shape.times)
    lead = shape.slices - 1
    # The first backward pass needs all slices of its micro-batch.
    if name in _TURNS:
        warmups = _parse_warmups(shape) or _TURNS[name](devices, shape.units)
        ahead = [min(shape.units, warmup + lead) for warmup in warmups]
        schedule = in_turns(name, ahead, shape.units, delayed=shape.delayed)
    else:
        rule, lag = _DELAYS[name]
        ahead = [min(shape.units, warmup + lead) for warmup in rule(devices, shape.units)]
        delays = [lag * stage for stage in range(devices)]
        schedule = with_delays(name, ahead, delays, shape.units)
    return _reverse_slices(schedule, shape) if lead else schedule


def _reverse_slices(schedule: Schedule, shape: Shape) -> Schedule:
    """Let the backward passes of a micro-batch run from its last slice to its first one."""
    unit_of = order_backward_units(shape.micros, shape.slices)
    orders = tuple(
        tuple(
            pass_ if pass_.kind is Pass.FORWARD else pass_._replace(micro=unit_of[pass_.micro])
            for pass_ in order
        )
        for order in schedule.orders
    )
    return replace(schedule, orders=orders, slices=shape.slices)


def _parse_warmups(shape: Shape) -> list[int]:
    """Return the given warm-ups, limited to the micro-batches. Raises `UsageError`."""
    # Without warm-up, the backward pass would precede the forward pass of a stage.
    if shape.warmups and (len(shape.warmups) != shape.devices or min(shape.warmups) < 1):
        message = f"{len(shape.warmups)} warm-ups do not state one, 1 or more, for each stage"
        cure = "write as many numbers as -O stages, such as 4,3,2,1"
        raise UsageError(message, cure=cure, code="option-value")
    return [min(shape.units, warmup) for warmup in shape.warmups]
