"""Orders with a warm-up: forward passes ahead, then a backward and a forward pass in turn.

GPipe (Huang et al., arXiv 1811.06965) runs all forward passes first; 1F1B (Narayanan et al.,
arXiv 1806.03377) as few as fill the pipeline; eager 1F1B (Zhuang et al., MLSys 2023) twice as many,
so that transfers hide.
"""

from __future__ import annotations

from collections.abc import Sequence

from collhub_pipeline.timing import Operation, Pass, PassTimes, Schedule, greedy, in_a_row
from hub_core import UsageError


def gpipe_warmups(stages: int, micros: int) -> list[int]:
    """All forward passes before the first backward one."""
    return [micros] * stages


def one_forward_one_backward_warmups(stages: int, micros: int) -> list[int]:
    """As many as there are stages from here on."""
    return [min(micros, stages - stage) for stage in range(stages)]


def eager_warmups(stages: int, micros: int) -> list[int]:
    """Of 1F1B, twice as many but one."""
    return [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]


def in_turns(name: str, warmups: Sequence[int], micros: int, *, delayed: bool) -> Schedule:
    """Stage i runs `warmups[i]` forward passes, then a backward and a forward pass in turn.

    `delayed`: the gradient of the weights waits until that of the input has left.
    """
    orders = [
        _order_with_warmup(stage, warmup, micros, delayed=delayed)
        for stage, warmup in enumerate(warmups)
    ]
    return in_a_row(name, orders)


def _order_with_warmup(stage: int, warmup: int, micros: int, *, delayed: bool) -> list[Operation]:
    def step(kind: Pass, micro: int) -> Operation:
        """A pass of the one chunk of this stage."""
        return Operation(kind, 0, stage, micro)

    order = [step(Pass.FORWARD, micro) for micro in range(warmup)]
    for micro in range(micros):
        if delayed:
            order += [step(Pass.INPUT_GRADIENT, micro), step(Pass.WEIGHT_GRADIENT, micro)]
        else:
            order.append(step(Pass.BACKWARD, micro))
        # One forward pass for each backward one, while there are any.
        if warmup + micro < micros:
            order.append(step(Pass.FORWARD, warmup + micro))
    return order


def interleaved(devices: int, micros: int, chunks: int) -> Schedule:
    """Device i holds stages i, i + p, ... of p devices.

    Raises `UsageError` unless the devices divide the micro-batches.
    """
    if micros % devices:
        message = f"{micros} micro-batches are no multiple of {devices} stages"
        cure = "interleaving needs one: change -O micro_batches"
        raise UsageError(message, cure=cure, code="micro-batches")
    # Chunks go round the devices.
    device_of = tuple(stage % devices for stage in range(devices * chunks))
    orders = tuple(_order_chunks(device, devices, micros, chunks) for device in range(devices))
    return Schedule("interleaved", (device_of,), orders)


def _order_chunks(device: int, devices: int, micros: int, chunks: int) -> tuple[Operation, ...]:
    units = micros * chunks
    ahead = min(units, 2 * (devices - device - 1) + (chunks - 1) * devices)
    # With as many micro-batches as devices there is no steady part.
    warmup = units if micros == devices else ahead
    steady = units - warmup
    order = [_forward(unit, device, devices, chunks) for unit in range(warmup)]
    for unit in range(steady):
        order.append(_forward(warmup + unit, device, devices, chunks))
        order.append(_backward(unit, device, devices, chunks))
    order += [_backward(unit, device, devices, chunks) for unit in range(steady, units)]
    return tuple(order)


def _forward(unit: int, device: int, devices: int, chunks: int) -> Operation:
    chunk = unit // devices % chunks
    return Operation(Pass.FORWARD, 0, chunk * devices + device, _micro(unit, devices, chunks))


def _backward(unit: int, device: int, devices: int, chunks: int) -> Operation:
    chunk = chunks - 1 - unit // devices % chunks
    return Operation(Pass.BACKWARD, 0, chunk * devices + device, _micro(unit, devices, chunks))


def _micro(unit: int, devices: int, chunks: int) -> int:
    """Micro-batches go through all chunks of a device in groups of as many as there are devices."""
    return unit // (devices * chunks) * devices + unit % devices


def two_directions(devices: int, micros: int, times: PassTimes) -> Schedule:
    """Half of the micro-batches each way. Raises `UsageError` for odd numbers."""
    for number, what in ((micros, "micro_batches"), (devices, "stages")):
        if number % 2:
            message = f"{number} {what.replace('_', '-')} cannot be split in two directions"
            raise UsageError(message, cure=f"make -O {what} even", code="two-directions")
    up = tuple(range(devices))
    passes = [
        Operation(kind, way, stage, micro)
        for way in range(2)
        for stage in range(devices)
        for micro in range(micros // 2)
        for kind in (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
    ]
    # As 1F1B each way, which together is one more than there are devices.
    most = [devices - stage for stage in range(devices)]
    return greedy("two-directions", (up, up[::-1]), passes, times, most_held=(most, most))


def zb_h1(stages: int, micros: int) -> Schedule:
    """ZB-H1: the memory of 1F1B, a third of its bubble where all passes take equally long."""
    warmups = [min(micros, stages - stage) for stage in range(stages)]
    return with_delays("zb-h1", warmups, list(range(stages)), micros)


def zb_h2(stages: int, micros: int) -> Schedule:
    """ZB-H2: twice the memory, and no bubble where all passes take equally long."""
    warmups = [min(micros, 2 * (stages - stage) - 1) for stage in range(stages)]
    return with_delays("zb-h2", warmups, [2 * stage for stage in range(stages)], micros)


def with_delays(name: str, warmups: Sequence[int], delays: Sequence[int], micros: int) -> Schedule:
    """Stage i runs `warmups[i]` forward passes, then for every backward pass its input's gradient.

    Behind it one gradient of weights as soon as more than `delays[i]` are open, then one forward
    pass while there are any; at the end the gradients that are open.
    """
    orders = [
        _order_with_delay(stage, warmup, delay, micros)
        for stage, (warmup, delay) in enumerate(zip(warmups, delays, strict=True))
    ]
    return in_a_row(name, orders)


def _order_with_delay(stage: int, warmup: int, delay: int, micros: int) -> list[Operation]:
    def step(kind: Pass, micro: int) -> Operation:
        """A pass of the one chunk of this stage."""
        return Operation(kind, 0, stage, micro)

    order = [step(Pass.FORWARD, micro) for micro in range(warmup)]
    finished = 0
    for micro in range(micros):
        order.append(step(Pass.INPUT_GRADIENT, micro))
        if micro + 1 - finished > delay:
            order.append(step(Pass.WEIGHT_GRADIENT, finished))
            finished += 1
        if warmup + micro < micros:
            order.append(step(Pass.FORWARD, warmup + micro))
    return order + [step(Pass.WEIGHT_GRADIENT, micro) for micro in range(finished, micros)]
