"""Exact times of a schedule: every pass starts as early as order, data and transfers allow.

Model: section 2 of Narayanan et al. (SC 2021) with transfers. Two devices are connected by one
channel per direction, which transfers sequentially in send order.
Cost: linear in the passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from operator import itemgetter
from typing import NamedTuple

from hub_core import UsageError


class Pass(Enum):
    """Kind of work of a stage on a micro-batch.

    `BACKWARD` computes the gradients of inputs and weights. `INPUT_GRADIENT` and `WEIGHT_GRADIENT`
    are its halves; the gradient is sent after the first half.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"

    @property
    def is_backward(self) -> bool:
        """Whether the result is sent to the previous stage: full and input-gradient passes."""
        return self in (Pass.BACKWARD, Pass.INPUT_GRADIENT)


class Operation(NamedTuple):
    """Pass of micro-batch `micro` in stage `stage` of a direction."""

    kind: Pass
    direction: int
    stage: int
    micro: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Orders of passes.

    `device_of[direction][stage]`: device of a stage; in a direction, micro-batches pass all stages.
    `orders`: ordered passes of each device.
    """

    name: str
    device_of: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[Operation, ...], ...]

    @property
    def num_devices(self) -> int:
        """Return the number of devices: one order of passes each."""
        return len(self.orders)

    def peaks(self) -> list[int]:
        """Return the maximum number of stored activations per device: micro-batches or chunks.

        Activations are stored from the start of the forward pass to the end of the weight gradient.
        """
        return [_peak(order) for order in self.orders]


def _peak(order: Sequence[Operation]) -> int:
    """Return the maximum number of stored activations in an order of passes.

    A forward pass stores one; a full backward or weight-gradient pass frees one.
    """
    level = peak = 0
    for operation in order:
        if operation.kind is Pass.FORWARD:
            level += 1
            peak = max(peak, level)
        elif operation.kind is not Pass.INPUT_GRADIENT:
            level -= 1
    return peak


def in_a_row(name: str, orders: Sequence[Sequence[Operation]]) -> Schedule:
    """Create a schedule in one direction with stage i on device i; `orders`: passes by device."""
    device_of = (tuple(range(len(orders))),)
    return Schedule(name, device_of, tuple(tuple(order) for order in orders))


Time = int | Fraction
_Key = tuple[bool, int, int, int]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Durations of the passes of one stage: exact numbers in any common unit.

    `transfer`: of one activation, or its gradient, between two devices. `is_blocking`: the sender
    does not compute during a transfer.
    """

    forward: Time
    input_gradient: Time
    weight_gradient: Time
    transfer: Time = 0
    is_blocking: bool = False

    def shared(self, chunks: int) -> PassTimes:
        """Return the times of one of `chunks` equal chunks of a stage, with equal transfer time."""
        passes = (self.forward, self.input_gradient, self.weight_gradient)
        forward, inputs, weights = (Fraction(time) / chunks for time in passes)
        return PassTimes(forward, inputs, weights, self.transfer, self.is_blocking)

    def of(self, kind: Pass) -> Time:
        """Return the duration of a pass; a full backward pass takes both of its gradients."""
        if kind is Pass.BACKWARD:
            return self.input_gradient + self.weight_gradient
        return {
            Pass.FORWARD: self.forward,
            Pass.INPUT_GRADIENT: self.input_gradient,
            Pass.WEIGHT_GRADIENT: self.weight_gradient,
        }[kind]


@dataclass(frozen=True, slots=True)
class Timing:
    """Start and end times of passes, per device in schedule order."""

    schedule: Schedule
    starts: list[list[Time]]
    ends: list[list[Time]]

    @property
    def makespan(self) -> Time:
        """Return the time from 0 to the end of the last pass of any device; 0 without passes."""
        # A device without passes has no end.
        return max((pass_ends[-1] for pass_ends in self.ends if pass_ends), default=0)

    def bubble(self) -> Time:
        """Return the maximum idle time of a device between its first start and its last end."""
        idle: list[Time] = [0]
        for starts, pass_ends in zip(self.starts, self.ends, strict=True):
            if starts:
                work = sum(end - start for start, end in zip(starts, pass_ends, strict=True))
                idle.append(pass_ends[-1] - starts[0] - work)
        return max(idle)


@dataclass(slots=True)
class _Run:
    """State of a run: what is there, and when devices and channels are free.

    `finished`: passes that are over, by (is backward, direction, stage, micro-batch).
    `arrived`: when the input of a pass, under the same key, is on its device.
    """

    schedule: Schedule
    times: PassTimes
    finished: set[_Key] = field(default_factory=set)
    arrived: dict[_Key, Time] = field(default_factory=dict)
    channel: dict[tuple[int, int], Time] = field(default_factory=dict)

    def ready(self, operation: Operation) -> Time | None:
        """From when on a pass has its input; None where somebody must make it first."""
        kind, direction, stage, micro = operation
        if kind is Pass.WEIGHT_GRADIENT:
            return 0 if (True, direction, stage, micro) in self.finished else None
        if kind.is_backward and (False, direction, stage, micro) not in self.finished:
            return None
        last = len(self.schedule.device_of[direction]) - 1
        if stage == (last if kind.is_backward else 0):
            return 0
        return self.arrived.get((kind.is_backward, direction, stage, micro))

    def pass_on(self, operation: Operation, end: Time) -> Time:
        """Send what a pass has made to the next stage; return when its device is free again.

        Weight gradients, and passes whose neighbour stage does not exist, send nothing. On the
        channel between two devices one transfer follows another; on the same device the result
        arrives at `end`. The device is free at `end`, with blocking communication at the arrival.
        """
        kind, direction, stage, micro = operation
        if kind is Pass.WEIGHT_GRADIENT:
            return end
        self.finished.add((kind.is_backward, direction, stage, micro))
        devices = self.schedule.device_of[direction]
        onward = stage - 1 if kind.is_backward else stage + 1
        if not 0 <= onward < len(devices):
            return end
        device_pair = devices[stage], devices[onward]
        arrival = end
        if device_pair[0] != device_pair[1]:
            # On a channel one transfer follows another.
            arrival = max(end, self.channel.get(device_pair, 0)) + self.times.transfer
            self.channel[device_pair] = arrival
        self.arrived[kind.is_backward, direction, onward, micro] = arrival
        return arrival if self.times.is_blocking else end


def timed(schedule: Schedule, times: PassTimes) -> Timing:
    """Run a schedule, and return start and end of every pass per device, in its order.

    Time is in the unit of `times`. Every device executes its passes in their fixed order; a pass
    starts as soon as its inputs have arrived and the device is free. After a pass the device is
    free at the time that `_Run.pass_on` returns, which includes sends that block. Raises
    `UsageError` with the code `deadlock` if passes wait for one another.
    """
    run = _Run(schedule, times)
    starts: list[list[Time]] = [[] for _ in schedule.orders]
    ends_of_device: list[list[Time]] = [[] for _ in schedule.orders]
    free: list[Time] = [0] * schedule.num_devices
    is_moving = True
    while is_moving:
        is_moving = False
        for device, order in enumerate(schedule.orders):
            # As far as the device gets with what is there.
            while len(ends_of_device[device]) < len(order):
                operation = order[len(ends_of_device[device])]
                ready = run.ready(operation)
                if ready is None:
                    break
                start = max(ready, free[device])
                end = start + times.of(operation.kind)
                starts[device].append(start)
                ends_of_device[device].append(end)
                free[device] = run.pass_on(operation, end)
                is_moving = True
    if any(
        len(pass_ends) < len(order)
        for pass_ends, order in zip(ends_of_device, schedule.orders, strict=True)
    ):
        message = f"the passes of {schedule.name} wait for one another"
        raise UsageError(message, cure="put every pass behind those that it needs", code="deadlock")
    return Timing(schedule, starts, ends_of_device)


_EAGER = {
    Pass.INPUT_GRADIENT: 0,
    Pass.BACKWARD: 0,
    Pass.FORWARD: 1,
    Pass.WEIGHT_GRADIENT: 2,
}


def greedy(
    name: str,
    device_of: tuple[tuple[int, ...], ...],
    passes: Sequence[Operation],
    times: PassTimes,
    *,
    most_held: Sequence[Sequence[int]],
) -> Schedule:
    """The schedule in which every device always runs the most urgent pass that is there.

    Backward passes first, then forward ones while fewer than `most_held[direction][stage]`
    activations of the stage are held, then gradients of weights; of equals the lowest micro-batch.
    Raises `UsageError` where the memory lets nothing go on. Cost: passes squared over devices.
    """
    run = _Run(Schedule(name, device_of, ()), times)
    devices = 1 + max(max(row) for row in device_of)
    left: list[list[Operation]] = [[] for _ in range(devices)]
    for pass_ in passes:
        left[device_of[pass_.direction][pass_.stage]].append(pass_)
    orders: list[list[Operation]] = [[] for _ in range(devices)]
    free: list[Time] = [0] * devices
    held_count = [[0] * len(row) for row in device_of]
    while any(left):
        choices = []
        for device in range(devices):
            for operation in left[device]:
                ready = run.ready(operation)
                direction, stage = operation.direction, operation.stage
                is_full = held_count[direction][stage] >= most_held[direction][stage]
                if ready is not None and not (operation.kind is Pass.FORWARD and is_full):
                    urgency = _EAGER[operation.kind], operation.micro, operation.direction
                    start = max(ready, free[device])
                    choices.append((start, urgency, device, operation.stage, operation))
        if not choices:
            message = f"the memory of a stage is too small for {name}"
            raise UsageError(message, cure="allow more", code="memory")
        start, _, device, _, operation = min(choices, key=itemgetter(0, 1, 2, 3))
        free[device] = run.pass_on(operation, start + times.of(operation.kind))
        if operation.kind is Pass.FORWARD:
            held_count[operation.direction][operation.stage] += 1
        elif operation.kind is not Pass.INPUT_GRADIENT:
            held_count[operation.direction][operation.stage] -= 1
        left[device].remove(operation)
        orders[device].append(operation)
    return Schedule(name, device_of, tuple(tuple(order) for order in orders))
