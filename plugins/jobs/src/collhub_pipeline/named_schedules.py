"""Schedules by name, for a shape: chunks, warm-ups, token slices and recomputation.

Warm-up orders alternate backward and forward passes after initial forward passes: GPipe (Huang et
al., arXiv 1811.06965) runs all forward passes first; 1F1B (Narayanan et al., arXiv 1806.03377) the
minimum that fills the pipeline; eager 1F1B (Zhuang et al., MLSys 2023) twice as many, to hide
transfers. Zero-bubble orders (Qi et al., arXiv 2401.10241) fill idle times with weight gradients.

Two directions follow DualPipe (DeepSeek-V3, arXiv 2412.19437) and Chimera (Li and Hoefler, SC
2021): micro-batches enter at both ends, each device has a stage of both directions, and parameters
are stored twice. The order has not been published as a rule. Here each device selects, among the
ready passes, input gradients first, then forward passes while it has fewer activations of the
direction than 1F1B (p + 1 in total), then weight gradients. The order depends on exact times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_pipeline.building_blocks import v_half, v_min
from collhub_pipeline.list_search import build_by_readiness
from collhub_pipeline.orders_of_chunks import (
    dualpipe_v,
    interleaved,
    interleaved_zero_bubble,
    looped_bfs,
    place_in_waves,
    zbv,
)
from collhub_pipeline.passes import Pass, PassTimes
from collhub_pipeline.shapes import PipelineShape, order_backward_units
from collhub_pipeline.timing import PipelinePass, Schedule, greedy, in_a_row
from hub_core import UsageError

_LOOPS = {
    "interleaved": interleaved,
    "interleaved-zb": interleaved_zero_bubble,
    "looped-bfs": looped_bfs,
}
_V_SHAPES = {"zbv": zbv, "dualpipe-v": dualpipe_v, "v-half": v_half, "v-min": v_min}


def gpipe_warmups(stages: int, micros: int) -> list[int]:
    """Return warm-ups that run all forward passes before the first backward pass."""
    return [micros] * stages


def one_forward_one_backward_warmups(stages: int, micros: int) -> list[int]:
    """Return warm-ups equal to the number of remaining stages, including the stage itself."""
    return [min(micros, stages - stage) for stage in range(stages)]


def eager_warmups(stages: int, micros: int) -> list[int]:
    """Return per stage twice the warm-ups of 1F1B minus one; at most all micro-batches."""
    return [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]


def in_turns(name: str, warmups: Sequence[int], micros: int, *, delayed: bool) -> Schedule:
    """Build a schedule with `warmups[i]` forward passes on stage i, then alternating passes.

    Stage i is on device i. After the warm-up, each backward pass is followed by a forward pass
    while any remain. Both kinds run in ascending order of microbatches: a warm-up of 2 with 3
    microbatches gives F0 F1 B0 F2 B1 B2. No warm-up may exceed `micros`. `delayed`: a backward pass
    is an input gradient, directly followed by a weight gradient; otherwise it is one pass.
    """
    if delayed:
        return with_delays(name, warmups, [0] * len(warmups), micros)
    orders = []
    for stage, warmup in enumerate(warmups):
        order = [PipelinePass(Pass.FORWARD, 0, stage, micro) for micro in range(warmup)]
        for micro in range(micros):
            order.append(PipelinePass(Pass.BACKWARD, 0, stage, micro))
            if warmup + micro < micros:
                order.append(PipelinePass(Pass.FORWARD, 0, stage, warmup + micro))
        orders.append(order)
    return in_a_row(name, orders)


def two_directions(devices: int, micros: int, times: PassTimes) -> Schedule:
    """Build a schedule with half of the microbatches in each direction, in a greedy order.

    Each device has a stage of both directions: in direction 0, stage s is on device s; in
    direction 1 on device `devices` - 1 - s. Microbatches are numbered 0 to `micros` / 2 - 1 in
    each direction. Forward passes, input gradients and weight gradients are separate passes.

    The pass that can start first is started next (`greedy`). Of passes with equal start, input
    gradients precede forward passes, and these weight gradients; then the lower microbatch,
    direction and device decide. In each direction, stage s stores the activations of at most
    `devices` - s microbatches, as in 1F1B. An activation is stored from the forward pass to the
    weight gradient.

    Raises `UsageError` (`two-directions`) for an odd number of microbatches, then for an odd
    number of devices.
    """
    for number, option in ((micros, "micro_batches"), (devices, "stages")):
        if number % 2:
            message = f"{number} {option.replace('_', '-')} cannot be split in two directions"
            raise UsageError(message, cure=f"make -O {option} even", code="two-directions")
    up = tuple(range(devices))
    passes = [
        PipelinePass(kind, direction, stage, micro)
        for direction in range(2)
        for stage in range(devices)
        for micro in range(micros // 2)
        for kind in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
    ]
    # As in 1F1B per direction; the sum is the number of devices plus 1.
    max_held = [devices - stage for stage in range(devices)]
    return greedy("two-directions", (up, up[::-1]), passes, times, most_held=(max_held, max_held))


def with_delays(name: str, warmups: Sequence[int], delays: Sequence[int], micros: int) -> Schedule:
    """Build a schedule with `warmups[i]` forward passes and delayed weight gradients on stage i.

    Stage i is on device i. After the warm-up, each input gradient is followed by the oldest
    pending weight gradient, if more than `delays[i]` are pending including the new one,
    then by a forward pass while any remain. The weight gradients that are still pending are
    last. Each kind runs in ascending order of microbatches. No warm-up may exceed `micros`.
    Raise `ValueError` if `warmups` and `delays` differ in length.
    """
    orders = []
    for stage, (warmup, delay) in enumerate(zip(warmups, delays, strict=True)):
        order = [PipelinePass(Pass.FORWARD, 0, stage, micro) for micro in range(warmup)]
        finished = 0
        for micro in range(micros):
            order.append(PipelinePass(Pass.INPUT_GRADIENT, 0, stage, micro))
            if micro + 1 - finished > delay:
                order.append(PipelinePass(Pass.WEIGHT_GRADIENT, 0, stage, finished))
                finished += 1
            if warmup + micro < micros:
                order.append(PipelinePass(Pass.FORWARD, 0, stage, warmup + micro))
        for micro in range(finished, micros):
            order.append(PipelinePass(Pass.WEIGHT_GRADIENT, 0, stage, micro))
        orders.append(order)
    return in_a_row(name, orders)


_TURNS = {
    "gpipe": gpipe_warmups,
    "1f1b": one_forward_one_backward_warmups,
    "eager-1f1b": eager_warmups,
}
_DELAYS = {"zb-h1": (one_forward_one_backward_warmups, 1), "zb-h2": (eager_warmups, 2)}
NAMED = ("gpipe", *_DELAYS, "1f1b", "eager-1f1b", *_LOOPS, *_V_SHAPES, "hanayo")
"""Schedules in one direction, in the order in which a search tries them."""


def build_named(name: str, shape: PipelineShape) -> Schedule:
    """Build the schedule with this name for a shape, without a check of its memory.

    With the recomputation `all`, all stages recompute their activations; with `auto` only
    if the schedule does not fit the memory otherwise. The warm-ups and the delayed weight
    gradients of the shape apply to 1F1B, eager 1F1B and GPipe only; other names ignore
    them. V-shaped schedules have 2 chunks per device, Hanayo any even number.

    Raise `UsageError` for chunks, microbatches, slices, stages and warm-ups that the
    schedule does not support (`_build`), and `KeyError` for an unknown name.
    """
    schedule = _build(name, shape)
    stages = range(len(schedule.device_of[0]))
    if shape.recompute == "all" or (shape.recompute == "auto" and not shape.fits(schedule)):
        return replace(schedule, recomputed=frozenset(stages))
    return schedule


def _build(name: str, shape: PipelineShape) -> Schedule:
    """Build the schedule with a name for a shape, without recomputation and memory check.

    The first broken rule raises `UsageError` with its code; an unknown name raises `KeyError`:

    - `slices`: several token slices only for gpipe, 1f1b, eager-1f1b, zb-h1 and zb-h2. Then
      `slices` - 1 more forward passes, at most all, precede the first backward pass, and the
      gradients of a microbatch run from its last slice to its first one.
    - `chunks` per device: any number for interleaved, interleaved-zb and looped-bfs (default 1).
      An even number for hanayo, and 2 for zbv, dualpipe-v, v-half and v-min (default 2 for these
      five). 1 for all other names.
    - `micro-batches`: for interleaved and interleaved-zb a multiple of max(1, microbatches //
      devices); for dualpipe-v at least 2 per device
    - `two-directions`, for this name: equal stages, then even numbers of microbatches and devices
    - `option-value`: the warm-ups of the shape, which only gpipe, 1f1b and eager-1f1b use, are one
      per device, each at least 1
    """
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
        # Without warm-up, the backward pass would precede the forward pass of a stage.
        if shape.warmups and (len(shape.warmups) != devices or min(shape.warmups) < 1):
            message = f"{len(shape.warmups)} warm-ups do not state one, 1 or more, for each stage"
            cure = "write as many numbers as -O stages, such as 4,3,2,1"
            raise UsageError(message, cure=cure, code="option-value")
        warmups = shape.warmups or _TURNS[name](devices, shape.units)
        ahead = [min(shape.units, warmup + lead) for warmup in warmups]
        schedule = in_turns(name, ahead, shape.units, delayed=shape.delayed)
    else:
        rule, lag = _DELAYS[name]
        ahead = [min(shape.units, warmup + lead) for warmup in rule(devices, shape.units)]
        delays = [lag * stage for stage in range(devices)]
        schedule = with_delays(name, ahead, delays, shape.units)
    return _reverse_slices(schedule, shape) if lead else schedule


def _reverse_slices(schedule: Schedule, shape: PipelineShape) -> Schedule:
    """Return the schedule with the token slices of each microbatch reversed in all gradients.

    With 2 slices, the gradients of the units 0, 1, 2, 3 become those of 1, 0, 3, 2. Forward
    passes and the positions of passes are unchanged. The result has the number of slices of
    `shape`.
    """
    unit_of = order_backward_units(shape.micros, shape.slices)
    orders = tuple(
        tuple(
            pass_ if pass_.kind is Pass.FORWARD else pass_._replace(micro=unit_of[pass_.micro])
            for pass_ in order
        )
        for order in schedule.orders
    )
    return replace(schedule, orders=orders, slices=shape.slices)
