"""Exact times of a schedule: every pass starts as early as order, data and transfers allow.

Model: section 2 of Narayanan et al. (SC 2021) with transfers. Two devices are connected by one
channel per direction, which transfers sequentially in send order.
Cost: linear in the passes.

`compute_period` returns the time per step of many training steps without a flush between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import itemgetter

from collhub_pipeline.passes import Durations, Pass, PassTimes, PipelinePass, Time
from hub_core import UsageError

__all__ = [
    "Pass",
    "PassTimes",
    "PipelinePass",
    "Schedule",
    "Time",
    "Timing",
    "format_pass",
    "greedy",
    "in_a_row",
    "timed",
]
Key = tuple[bool, int, int, int]
_LETTER = {
    Pass.FORWARD: "F",
    Pass.BACKWARD: "B",
    Pass.INPUT_GRADIENT: "I",
    Pass.WEIGHT_GRADIENT: "W",
}
_EAGER = {
    Pass.INPUT_GRADIENT: 0,
    Pass.BACKWARD: 0,
    Pass.FORWARD: 1,
    Pass.WEIGHT_GRADIENT: 2,
}
# Earlier than every time that follows a start at 0.
_FAR = -(10**40)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Orders of passes.

    `device_of[direction][stage]`: device of a stage; in a direction, micro-batches pass all stages.
    `orders`: ordered passes of each device. `slices`: token slices of a micro-batch; a pass then
    processes one slice, whose number is `micro` modulo `slices`. `overlapped`: forward passes that
    run together with the backward pass behind them (DualPipe); times have no gain from this.
    `recomputed`: stages that repeat the forward pass before the backward pass.
    """

    name: str
    device_of: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[PipelinePass, ...], ...]
    slices: int = 1
    overlapped: frozenset[PipelinePass] = frozenset()
    recomputed: frozenset[int] = frozenset()

    @property
    def num_devices(self) -> int:
        """Return the number of devices: one order of passes each."""
        return len(self.orders)

    def peaks(self) -> list[int]:
        """Return the maximum number of stored activations per device: micro-batches or chunks.

        Activations are stored from the start of the forward pass to the end of the weight gradient,
        or of the full backward pass.
        """
        peaks = []
        for order in self.orders:
            level = peak = 0
            for operation in order:
                if operation.kind is Pass.FORWARD:
                    level += 1
                    peak = max(peak, level)
                elif operation.kind is not Pass.INPUT_GRADIENT:
                    level -= 1
            peaks.append(peak)
        return peaks


def in_a_row(name: str, orders: Sequence[Sequence[PipelinePass]]) -> Schedule:
    """Create a schedule in one direction with stage i on device i.

    `orders`: passes by device, in the order in which it runs them; they are not checked.
    """
    device_of = (tuple(range(len(orders))),)
    return Schedule(name, device_of, tuple(tuple(order) for order in orders))


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
        """Return the largest idle time of any device, in the unit of the times.

        The idle time of a device is the time from its first start to its last end without the
        durations of its passes; 0 for a device without passes.
        """
        idle: list[Time] = [0]
        for starts, pass_ends in zip(self.starts, self.ends, strict=True):
            if starts:
                work = sum(end - start for start, end in zip(starts, pass_ends, strict=True))
                idle.append(pass_ends[-1] - starts[0] - work)
        return max(idle)


@dataclass(slots=True)
class Run:
    """State of a run: what is there, and when devices and channels are free.

    `finished`: passes that are over, by (is backward, direction, stage, micro-batch).
    `arrived`: when the input of a pass, under the same key, is on its device. `origin`: start of
    the run.
    """

    schedule: Schedule
    times: Durations
    finished: set[Key] = field(default_factory=set)
    arrived: dict[Key, Time] = field(default_factory=dict)
    channel: dict[tuple[int, int], Time] = field(default_factory=dict)
    origin: Time = 0

    def ready(self, operation: PipelinePass) -> Time | None:
        """Return the time from which a pass has its input; None if it still waits for another pass.

        `origin` is the start of the run. A weight gradient is ready at `origin` if its input
        gradient is finished. Any other pass needs all of these:

        - Its forward pass on the same stage is finished, if it is a backward pass or input
          gradient.
        - The slice of the microbatch that runs before it on this stage is finished. Slices run in
          ascending order in forward passes, in descending order otherwise.
        - The result of the neighbour stage has arrived: of the stage before for a forward pass,
          of the stage after otherwise. This arrival is the time, or `origin` without such a
          stage.

        The times at which passes of the same stage end do not count in the result.
        """
        kind, direction, stage, micro = operation
        if kind is Pass.WEIGHT_GRADIENT:
            return self.origin if (True, direction, stage, micro) in self.finished else None
        if kind.is_backward and (False, direction, stage, micro) not in self.finished:
            return None
        slices = self.schedule.slices
        first_slice, step = (slices - 1, 1) if kind.is_backward else (0, -1)
        slice_before = kind.is_backward, direction, stage, micro + step
        if micro % slices != first_slice and slice_before not in self.finished:
            return None
        last = len(self.schedule.device_of[direction]) - 1
        if stage == (last if kind.is_backward else 0):
            return self.origin
        return self.arrived.get((kind.is_backward, direction, stage, micro))

    def pass_on(self, operation: PipelinePass, end: Time) -> Time:
        """Send the result of a pass to the neighbour stage; return when the device is free again.

        `end`: time at which the pass has ended. A weight gradient sends nothing and changes no
        state. Any other pass is added to `finished`. The last forward stage and the first backward
        stage (stage 0) have no neighbour to which they send.

        The time at which the result arrives at the neighbour stage is stored in `arrived`. On the
        same device it is `end`. To another device it is the end of the transfer, which begins at
        `end`, or later if the channel between the two devices is still busy: it transfers one
        result at a time, and each direction has a channel of its own. The device is free at `end`,
        or at the arrival if communication is blocking.
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
            arrival = max(end, self.channel.get(device_pair, self.origin)) + self.times.transfer
            self.channel[device_pair] = arrival
        self.arrived[kind.is_backward, direction, onward, micro] = arrival
        return arrival if self.times.is_blocking else end


def timed(schedule: Schedule, times: Durations) -> Timing:
    """Run a schedule, and return start and end of every pass per device, in its order.

    Times are in the unit of `times`; all devices are free at 0. Each device runs its passes in
    their fixed order, as early as possible. A pass starts when its inputs have arrived and the
    device is free; blocking sends also occupy the device. Raises `UsageError` (`deadlock`) if
    passes wait for each other.
    """
    run = Run(schedule, times)
    starts, ends, _ = execute(run, [0] * schedule.num_devices)
    return Timing(schedule, starts, ends)


def execute(run: Run, free: list[Time]) -> tuple[list[list[Time]], list[list[Time]], list[Time]]:
    """Run all passes of a schedule as early as possible; return starts, ends, and `free`.

    Starts and ends are lists by device, in the order of its passes. A pass starts as soon as its
    input is ready and its device is free. `run` must be new, because its state is changed.

    `free`: the time at which each device can start. It is changed in place, and returned. At the
    end it is the end of the last pass of each device. Exception: with blocking communication, it is
    the time at which the result of this pass arrives at the neighbour stage, if the pass sends one.
    Weight gradients, forward passes of the last stage and backward passes of stage 0 send none.
    Devices without passes keep their time.

    Raises `UsageError` (`deadlock`) with the cycle if passes wait for each other. The passes that
    could run have changed `free` by then.
    """
    schedule = run.schedule
    starts: list[list[Time]] = [[] for _ in schedule.orders]
    ends: list[list[Time]] = [[] for _ in schedule.orders]
    is_moving = True
    while is_moving:
        is_moving = False
        for device, order in enumerate(schedule.orders):
            # As far as the device gets with what is there.
            while len(ends[device]) < len(order):
                operation = order[len(ends[device])]
                ready = run.ready(operation)
                if ready is None:
                    break
                start = max(ready, free[device])
                end = start + run.times.duration(operation)
                starts[device].append(start)
                ends[device].append(end)
                free[device] = run.pass_on(operation, end)
                is_moving = True
    reached = [len(line) for line in ends]
    if reached != [len(order) for order in schedule.orders]:
        cycle = _find_cycle(schedule, run, reached)
        message = f"the passes of {schedule.name} wait for one another: {cycle}"
        raise UsageError(message, cure="put every pass behind those that it needs", code="deadlock")
    return starts, ends, free


def format_pass(operation: PipelinePass) -> str:
    """Return stage, letter and unit of a pass, such as `3B1`; `'` is appended in direction 1.

    Letters: F forward, B full backward, I input gradient, W weight gradient.
    """
    mark = "'" * operation.direction
    return f"{operation.stage}{_LETTER[operation.kind]}{operation.micro}{mark}"


def _find_cycle(schedule: Schedule, run: Run, reached: Sequence[int]) -> str:
    """Return the chain of passes that wait for each other, as text for the error of a deadlock.

    `reached`: number of passes that each device has run. The chain starts at the lowest device
    with passes left; at least one must exist. Each next device is the one of the first
    unfinished pass that the next pass of the current device needs (`_find_missing`).

    An entry is `1B0 on device 1 waits for 1F0` (stage, letter, micro-batch or slice). A missing
    input gradient (I) is written as a backward pass (B). The chain ends in one of two cases:

    - The next device is already in the chain. The text has the entries from this device on,
      joined by ", "; earlier entries are dropped.
    - The next device has run all its passes. The text has all entries, joined by " -> ", and
      the suffix " (which never runs)".
    """
    device = next(at for at, order in enumerate(schedule.orders) if reached[at] < len(order))
    chain: list[tuple[int, str]] = []
    while device not in [at for at, _ in chain]:
        if reached[device] == len(schedule.orders[device]):
            return " -> ".join(text for _, text in chain) + " (which never runs)"
        operation = schedule.orders[device][reached[device]]
        is_backward, direction, stage, unit = _find_missing(schedule, run, operation)
        missing = PipelinePass(
            Pass.BACKWARD if is_backward else Pass.FORWARD, direction, stage, unit
        )
        chain.append((device, f"{format_pass(operation)} on device {device}"))
        device = schedule.device_of[direction][stage]
        chain[-1] = chain[-1][0], f"{chain[-1][1]} waits for {format_pass(missing)}"
    first = [at for at, _ in chain].index(device)
    return ", ".join(text for _, text in chain[first:])


def _find_missing(schedule: Schedule, run: Run, operation: PipelinePass) -> Key:
    """Return the key of the first unfinished pass that a given pass needs.

    A key is (is backward, direction, stage, unit); a unit is a microbatch or a token slice. The
    needed passes are, in this order:
    - Of a backward or input-gradient pass: the forward pass of the same stage and unit; the
      backward pass of the same unit at the next stage; the backward pass of the next slice at the
      same stage.
    - Of a forward pass: the forward pass of the same unit at the previous stage; the forward pass
      of the previous slice at the same stage.

    Passes beyond the first or last stage, or beyond the slices of a microbatch, are omitted. For a
    weight gradient the result is always its input gradient, finished or not. Raises `StopIteration`
    if all needed passes are finished (`run.finished`).
    """
    kind, direction, stage, unit = operation
    slices, last = schedule.slices, len(schedule.device_of[direction]) - 1
    if kind is Pass.WEIGHT_GRADIENT:
        return True, direction, stage, unit
    needed: list[Key] = []
    if kind.is_backward:
        needed.append((False, direction, stage, unit))
        if stage < last:
            needed.append((True, direction, stage + 1, unit))
        if unit % slices < slices - 1:
            needed.append((True, direction, stage, unit + 1))
    else:
        if stage > 0:
            needed.append((False, direction, stage - 1, unit))
        if unit % slices > 0:
            needed.append((False, direction, stage, unit - 1))
    return next(key for key in needed if key not in run.finished)


def greedy(
    name: str,
    device_of: tuple[tuple[int, ...], ...],
    passes: Sequence[PipelinePass],
    times: Durations,
    *,
    most_held: Sequence[Sequence[int]],
) -> Schedule:
    """Build a schedule by starting, again and again, the pass that can start first.

    `device_of`: device of each stage, by direction and stage. `passes`: all passes, in any order. A
    pass can start once the passes that it needs have been chosen, their results have arrived after
    the transfers in `times`, and its device is free. Of passes with equal start, the smallest
    decides, compared by kind (backward or input gradient, then forward, then weight gradient),
    microbatch, direction, device, stage.

    `most_held`: maximum number of stored activations by direction and stage. A forward pass stores
    one in its stage until the weight gradient or full backward pass is chosen. It cannot be chosen
    while its stage stores the maximum.

    The result has the orders of devices 0 to the highest one, empty for a device without passes. It
    has no token slices. Raises `UsageError` (`memory`) if passes remain but none can start, also if
    one needs a pass that is missing in `passes`.
    """
    run = Run(Schedule(name, device_of, ()), times)
    devices = 1 + max(max(row) for row in device_of)
    left: list[list[PipelinePass]] = [[] for _ in range(devices)]
    for pass_ in passes:
        left[device_of[pass_.direction][pass_.stage]].append(pass_)
    orders: list[list[PipelinePass]] = [[] for _ in range(devices)]
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
        free[device] = run.pass_on(operation, start + times.duration(operation))
        if operation.kind is Pass.FORWARD:
            held_count[operation.direction][operation.stage] += 1
        elif operation.kind is not Pass.INPUT_GRADIENT:
            held_count[operation.direction][operation.stage] -= 1
        left[device].remove(operation)
        orders[device].append(operation)
    return Schedule(name, device_of, tuple(tuple(order) for order in orders))


def compute_period(schedule: Schedule, times: Durations) -> Time:
    """Return the time per step if steps follow each other without a flush.

    All steps have the same order. A device starts the next step when it has completed its passes of
    this step, without waiting for other devices. A channel transfers the results of the next step
    after those of this step. After some steps the times repeat with a period of one or more steps;
    the result is the duration of the period divided by its number of steps.

    It is exact, in the unit of `times`: an int if it is whole, else a Fraction; 0 without passes.
    It is computed as a maximum cycle mean. The edge weights are the longest paths from the start to
    the end of a step, between all devices and channels. Cost: (devices + channels) x passes +
    (devices + channels)^3 (Karp, Discrete Mathematics 23, 1978). Raises `UsageError` (`deadlock`)
    if passes wait for each other.
    """
    reference = Run(schedule, times)
    execute(reference, [0] * schedule.num_devices)
    channels = sorted(reference.channel)
    nodes = schedule.num_devices + len(channels)
    paths: list[list[Time]] = []
    for node in range(nodes):
        run = Run(schedule, times, origin=_FAR)
        free: list[Time] = [_FAR] * schedule.num_devices
        run.channel = dict.fromkeys(channels, _FAR)
        if node < schedule.num_devices:
            free[node] = 0
        else:
            run.channel[channels[node - schedule.num_devices]] = 0
        _, _, free = execute(run, free)
        paths.append([*free, *(run.channel[pair] for pair in channels)])
    return _find_cycle_mean(paths, _FAR // 2)


def _find_cycle_mean(paths: Sequence[Sequence[Time]], far: int) -> Time:
    """Return the maximum mean weight of a cycle in a graph, exactly (int if whole, else Fraction).

    `paths`: square table of exact numbers; the entry in row i and column j is the weight of the
    edge from i to j. Entries of at most `far` are no edges. An edge from a node to itself is a
    cycle. The mean is the weight of a cycle divided by the number of its edges (Karp's algorithm).
    Raises `ValueError` for a graph without a cycle or without nodes.
    """
    nodes = range(len(paths))
    walks: list[list[Time | None]] = [[0 for _ in nodes]]
    for _ in nodes:
        before = walks[-1]
        longest: list[Time | None] = []
        for end in nodes:
            ways = [
                value + paths[start][end]
                for start, value in enumerate(before)
                if value is not None and paths[start][end] > far
            ]
            longest.append(max(ways, default=None))
        walks.append(longest)
    last = walks[-1]
    means = [
        min(
            Fraction(last[node] - value) / (len(paths) - count)  # type: ignore[operator]
            for count, row in enumerate(walks[:-1])
            if (value := row[node]) is not None
        )
        for node in nodes
        if last[node] is not None
    ]
    mean = max(means)
    return int(mean) if mean.denominator == 1 else mean
