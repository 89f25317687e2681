"""Shape of a pipeline: its work per stage, activation memory, and lower bounds for a placement.

Unit of memory: the activations of one micro-batch on one device, if the model is divided equally
among the devices. A stage of a schedule with v chunks per device then holds 1/v per micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

from collhub_pipeline.passes import (
    Pass,
    PassTimes,
    PipelinePass,
    StageTimes,
    Time,
    attention_slices,
    split_work,
)
from collhub_pipeline.timing import Schedule, Timing, compute_period, timed
from hub_core import UsageError

Memory = int | Fraction


@dataclass(frozen=True, slots=True)
class Bounds:
    """Proven lower bounds of the objective for all schedules with one placement of stages.

    `critical_path`: one micro-batch alone through all passes. `work`: the device with the most
    work, behind the first forward passes that precede it. `memory`: activations times their minimum
    lifetimes, divided by the memory limit; 0 without a limit.
    """

    critical_path: Time
    work: Time
    memory: Time

    @property
    def value(self) -> Time:
        """The largest of the three."""
        return max(self.critical_path, self.work, self.memory)


@dataclass(frozen=True, slots=True)
class PipelineShape:
    """Pipeline: devices, micro-batches, chunks per device, and times.

    `chunks`: of a schedule with a name, None for its default; a search uses all divisors of it,
    with None 1 and 2. `times`: of the passes of a complete device's part of the model. `delayed`:
    `gpipe`, `1f1b` and `eager-1f1b` send gradients before they compute weight gradients. `memory`:
    limit of activations per device, one number or one per device, None for any. `warmups`: forward
    passes before the first backward pass per stage; empty for the defaults of the schedule.

    `parts`: times of equal consecutive parts of the model, instead of `times` in every device;
    `sizes`: activations of equal consecutive parts, relative to an equally divided model.
    `embedding`, `head`: additional times of the first and the last stage. `slices`: token slices of
    a micro-batch; `attention`: part of the work in causal attention, which grows with the slices.
    `recompute`: `none`, `all`, or `auto`: a search may choose both. `kept`: part of an activation
    that recomputation keeps until the backward pass. `is_steady`: the objective is the time per
    step of many steps without a flush, otherwise the time of one step.
    """

    devices: int
    micros: int
    times: PassTimes
    chunks: int | None = None
    delayed: bool = False
    memory: Memory | tuple[Memory, ...] | None = None
    warmups: tuple[int, ...] = ()
    parts: tuple[PassTimes, ...] = ()
    sizes: tuple[Memory, ...] = ()
    embedding: PassTimes | None = None
    head: PassTimes | None = None
    slices: int = 1
    attention: Fraction = Fraction(0)
    recompute: str = "none"
    kept: Fraction = Fraction(0)
    is_steady: bool = False

    @property
    def units(self) -> int:
        """Micro-batches times token slices: passes of each kind in a stage."""
        return self.micros * self.slices

    @property
    def limits(self) -> tuple[Memory, ...] | None:
        """Memory limit of each device, as a tuple; None without a limit.

        A single limit is used for every device. A tuple of limits must have one entry per device,
        also if it has only one entry; otherwise `UsageError` (`option-value`) is raised.
        """
        if self.memory is None or not isinstance(self.memory, tuple):
            return None if self.memory is None else (self.memory,) * self.devices
        if len(self.memory) != self.devices:
            message = f"{len(self.memory)} memory limits do not state one for each device"
            cure = f"write one number, or {self.devices} numbers with , between"
            raise UsageError(message, cure=cure, code="option-value")
        return self.memory

    @property
    def is_uniform(self) -> bool:
        """Whether all stages are equal, without recomputation and without token slices.

        False if the shape has its own times of parts, sizes of stages, an embedding or a head.
        """
        is_plain = self.slices == 1 and self.recompute == "none" and not self.sizes
        return is_plain and not self.parts and self.embedding is None and self.head is None

    def stage_times(self, stages: int, recomputed: Collection[int] = ()) -> StageTimes:
        """Return the times of all stages of a schedule with `stages` stages, as exact fractions.

        The work of the model is that of its equal consecutive `parts`, or of `devices` equal
        parts with `times` if `parts` is empty. Stage i gets the work between i / `stages` and
        (i + 1) / `stages` of the model; within a part work is uniform. Example: with `times`
        and 4 devices, each of 8 stages gets half of `times`, each of 2 stages twice.

        Then the times of `embedding` are added to the first stage and those of `head` to the
        last one, if given. With one stage it gets both. Transfer time and blocking of every
        stage are those of `times`. The result also has the share of the work of each token
        slice (`attention_slices`). It has the set of the stages in `recomputed`; their times do
        not yet include the recomputation. Raises `ZeroDivisionError` for 0 stages.
        """
        parts = self.parts or (self.times,)
        share = Fraction(self.devices if not self.parts else len(self.parts), len(parts))
        divided = [part.scaled(share) for part in split_work(parts, stages)]
        for at, extra in ((0, self.embedding), (-1, self.head)):
            if extra is not None:
                sums = [a + b for a, b in zip(divided[at].parts, extra.parts, strict=True)]
                divided[at] = PassTimes(sums[0], sums[1], sums[2])
        transfer, is_blocking = self.times.transfer, self.times.is_blocking
        return StageTimes(
            tuple(replace(part, transfer=transfer, is_blocking=is_blocking) for part in divided),
            attention_slices(self.slices, self.attention),
            frozenset(recomputed),
        )

    def stage_sizes(self, stages: int) -> list[Fraction]:
        """Return the memory of the activations of one microbatch in each of `stages` stages.

        The model is divided equally among the stages. The unit is the memory of one microbatch on
        one device if all parts of the model have equal activations. The sum is then the number of
        devices. With `sizes`, part i of the model has `sizes[i]` times its equal share, so that the
        sum is the number of devices times the mean of `sizes`.
        """
        parts = [PassTimes(Fraction(size), 0, 0) for size in self.sizes or (1,)]
        # `split_work` returns sums over parts; the sum of an equally divided model is `devices`.
        share = Fraction(self.devices, len(parts))
        return [Fraction(part.forward) * share for part in split_work(parts, stages)]

    def times_in(self, schedule: Schedule) -> StageTimes | PassTimes:
        """Return the durations of the passes of a schedule, in the time unit of the shape.

        If `is_uniform` (all stages are equal, without recomputation and without token slices),
        these are the `PassTimes` of one stage. The three passes are those of `times`, divided by
        the number of stages of a device. The time of a transfer is not divided.

        Otherwise they are `StageTimes` (`stage_times`), with one entry per stage, the shares of the
        token slices and the set of the stages that the schedule recomputes. The durations in it do
        not yet include the recomputation.
        """
        stages = len(schedule.device_of[0])
        if self.is_uniform:
            return self.times.shared(stages // self.devices)
        return self.stage_times(stages, schedule.recomputed)

    def timed(self, schedule: Schedule) -> Timing:
        """Compute the times of a schedule from the times of its chunks."""
        return timed(schedule, self.times_in(schedule))

    def measure(self, schedule: Schedule) -> Time:
        """Return the objective of a schedule, in the time unit of the shape.

        It is the time per step of many steps without a flush if `is_steady`, else the makespan of
        one step. Raises `UsageError` (`deadlock`) if passes wait for each other.
        """
        if self.is_steady:
            return compute_period(schedule, self.times_in(schedule))
        return self.timed(schedule).makespan

    def peaks(self, schedule: Schedule) -> list[Fraction]:
        """Return the maximum memory of the activations on each device over the step, by device.

        Unit: the activations of one microbatch on one device if the model is divided equally.
        Passes run in the order of the schedule; times have no effect. With s = size of the stage
        (`stage_sizes`) / `slices`, the memory of a device, at first 0, changes as follows:

        - forward pass: + s; in a stage that the schedule recomputes only + s * `kept`
        - begin of a backward or input-gradient pass in such a stage: + s * (1 - `kept`)
        - after a backward or weight-gradient pass: - s

        The maximum includes the memory during each pass. It is 0 for a device without passes.
        """
        sizes = self.stage_sizes(len(schedule.device_of[0]))
        peaks = []
        for order in schedule.orders:
            level = peak = Fraction(0)
            for kind, _, stage, _ in order:
                size = sizes[stage] / self.slices
                kept = size * self.kept if stage in schedule.recomputed else size
                if kind is Pass.FORWARD:
                    level += kept
                elif kind.is_backward:
                    level += size - kept
                peak = max(peak, level)
                if kind in (Pass.BACKWARD, Pass.WEIGHT_GRADIENT):
                    level -= size
            peaks.append(peak)
        return peaks

    def fits(self, schedule: Schedule) -> bool:
        """Return whether the activations of a schedule fit in the memory of every device.

        True without a limit; a peak equal to the limit fits. Raises `UsageError` if the number of
        limits is not that of the devices.
        """
        limits = self.limits
        if limits is None:
            return True
        return all(peak <= limit for peak, limit in zip(self.peaks(schedule), limits, strict=True))

    def minimum_memory(self, device_of: Sequence[int], recomputed: Collection[int]) -> Memory:
        """Return the memory of the device with the largest minimum.

        No schedule has less: before the first input gradient, all stages and slices of a
        micro-batch are stored. One micro-batch after the other needs no more.
        """
        return max(self.minimum_memories(device_of, recomputed))

    def minimum_memories(
        self, device_of: Sequence[int], recomputed: Collection[int]
    ) -> list[Fraction]:
        """Return the minimum memory of each device for a placement.

        `device_of`: device of each stage; every device needs a stage (else `ValueError`). The
        memory is one microbatch in all stages of the device, after recomputation in the stages
        `recomputed` (only the fraction `kept` remains), plus the largest restored activation of
        one token slice.
        """
        sizes = self.stage_sizes(len(device_of))
        minimum = []
        for device in range(self.devices):
            stages = [stage for stage, place in enumerate(device_of) if place == device]
            kept = {s: sizes[s] * (self.kept if s in recomputed else 1) for s in stages}
            restored = max((sizes[s] - kept[s]) / self.slices for s in stages)
            minimum.append(sum(kept.values(), Fraction(0)) + restored)
        return minimum

    def compute_bounds(self, device_of: Sequence[int], recomputed: Collection[int] = ()) -> Bounds:
        """Return three lower bounds of the objective for all orders of passes with this placement.

        `device_of`: device of each stage. `recomputed`: stages that recompute activations. Times
        have the unit of the stage times. The lead time of a device is the time until one token
        slice can reach the first of its stages: earlier forward passes and transfers between
        devices.

        - `critical_path`: the time of one microbatch in an empty pipeline
        - `work`: maximum over the devices of lead time + `micros` * (passes of one microbatch)
        - `memory`: maximum over the devices with a limit above 0 of lead time + `micros` * (memory
          * minimum lifetime of the activations of one microbatch) / limit; 0 without such devices

        With `is_steady` (long run), `critical_path` and all lead times are 0. Otherwise a device
        without a stage raises `ValueError`.
        """
        times = self.stage_times(len(device_of), recomputed)
        transfers = [
            times.transfer if before != after else 0 for before, after in pairwise(device_of)
        ]
        forward = [times.at(Pass.FORWARD, stage) for stage in range(len(device_of))]
        ahead = [0, *accumulate(f + t for f, t in zip(forward, transfers, strict=False))]
        whole = replace(times, slices=(Fraction(1),)) if self.slices > 1 else times
        work, memory = [], []
        for device in range(self.devices):
            stages = [stage for stage, place in enumerate(device_of) if place == device]
            start = 0 if self.is_steady else min(ahead[stage] for stage in stages)
            passes = (Pass.FORWARD, Pass.INPUT_GRADIENT, Pass.WEIGHT_GRADIENT)
            each = sum(whole.at(kind, stage) for kind in passes for stage in stages)
            work.append(start + self.micros * each)
            if self.limits is not None and self.limits[device] > 0:
                volume = self._compute_volume(times, transfers, stages, recomputed)
                memory.append(start + self.micros * volume / Fraction(self.limits[device]))
        path = 0 if self.is_steady else self._compute_critical_path(times, transfers)
        return Bounds(path, max(work), max(memory, default=0))

    def _compute_volume(
        self,
        times: StageTimes,
        transfers: Sequence[Time],
        stages: Sequence[int],
        recomputed: Collection[int],
    ) -> Fraction:
        """Return memory times minimum lifetime, summed over the activations of one microbatch.

        Only the activations of `stages`, those of one device, count; the result is 0 without
        stages. Each of the `slices` token slices has an activation of `size` = `stage_sizes` /
        `slices` in a stage. It contributes kept * (F + L) + size * B, with the times of this slice:

        - F, B: forward pass and full backward pass in this stage. B includes its recomputation.
        - L: the sum over all later stages of forward pass, input gradient, and twice the transfer
          to this later stage from the one before it (`transfers[i]`: from stage i to i + 1). Weight
          gradients of later stages do not count.
        - kept: `size`, in a stage of `recomputed` times the fraction `self.kept`.
        """
        sizes = self.stage_sizes(len(times.stages))
        total = Fraction(0)
        for stage in stages:
            size = sizes[stage] / self.slices
            kept = size * self.kept if stage in recomputed else size
            for slice_ in range(self.slices):
                there = sum(
                    times.at(Pass.FORWARD, later, slice_)
                    + times.at(Pass.INPUT_GRADIENT, later, slice_)
                    + 2 * transfers[later - 1]
                    for later in range(stage + 1, len(times.stages))
                )
                backward = times.at(Pass.BACKWARD, stage, slice_)
                total += kept * (times.at(Pass.FORWARD, stage, slice_) + there) + size * backward
        return total

    def _compute_critical_path(self, times: StageTimes, transfers: Sequence[Time]) -> Time:
        """Return the time of one microbatch in an empty pipeline, until its last gradient.

        Passes wait for their inputs; no other microbatch uses the devices. `transfers[i]` is the
        time between stages i and i + 1, added in each direction.

        - Forward: a stage runs its token slices in order, each after the same slice of the previous
          stage.
        - Backward: a stage runs its slices in reverse order. A slice waits for the same slice of
          the next stage, and for its forward pass on this stage.
        - Weight gradient: begins when the input gradient of the slice ends, and delays no other
          pass.

        The result is the latest end of a weight gradient, in the unit of `times`.
        """
        stages = len(times.stages)
        forward_end: list[list[Time]] = []
        for stage in range(stages):
            line: list[Time] = []
            for slice_ in range(self.slices):
                ready = forward_end[-1][slice_] + transfers[stage - 1] if stage else 0
                start = max(ready, line[-1] if line else 0)
                line.append(start + times.at(Pass.FORWARD, stage, slice_))
            forward_end.append(line)
        following: dict[int, Time] = {}
        longest: Time = 0
        for stage in reversed(range(stages)):
            line_end: Time = 0
            for slice_ in reversed(range(self.slices)):
                arrival = following[slice_] + transfers[stage] if stage < stages - 1 else 0
                start = max(forward_end[stage][slice_], line_end, arrival)
                line_end = start + times.at(Pass.INPUT_GRADIENT, stage, slice_)
                following[slice_] = line_end
                weight = times.at(Pass.WEIGHT_GRADIENT, stage, slice_)
                longest = max(longest, line_end + weight)
        return longest


def order_backward_units(micros: int, slices: int) -> list[int]:
    """Return units in the order of backward passes: micro-batches ascend, slices descend."""
    return [
        micro * slices + slice_ for micro in range(micros) for slice_ in reversed(range(slices))
    ]


def format_memory(memory: Memory) -> str:
    """Write a memory as an integer, or with at most three decimals, rounded up.

    1/3 gives `0.334`, 4 gives `4`, 1234567 gives `1234567`.
    """
    thousandths = int(-(-Fraction(memory) * 1000 // 1))
    sign = "-" if thousandths < 0 else ""
    integer, decimals = divmod(abs(thousandths), 1000)
    return f"{sign}{integer}.{decimals:03}".rstrip("0").rstrip(".")


def format_limits(shape: PipelineShape) -> str:
    """Write the memory limits of a shape as text, such as `4` or `4,3.5,3`; `any` without a limit.

    There is one number per device, separated by commas, or only one if all are equal. Numbers have
    at most three decimals and are rounded up. Raises `UsageError` (`option-value`) if the shape has
    several limits, but not one per device.
    """
    limits = shape.limits
    if limits is None:
        return "any"
    distinct = limits[:1] if len(set(limits)) == 1 else limits
    return ",".join(format_memory(limit) for limit in distinct)


def find_defect(schedule: Schedule, micros: int) -> str:
    """Return the first reason why a schedule does not run every pass exactly once; '' if it does.

    A unit is a token slice of a microbatch. Each direction has the units 0 to N - 1, where
    N is `micros` * slices / (number of directions), rounded down. The checks, in this
    order:

    1. For each device, in the order of its passes: a pass does not occur twice, and its
       stage is on this device.
    2. For each direction, stage and unit: the passes are either forward and full backward,
       or forward, input gradient and weight gradient; no others.
    3. No unit is N or more.

    Dependencies are not checked here; `timed` does. A stage that does not exist raises
    `IndexError`.
    """
    seen: set[PipelinePass] = set()
    for device, order in enumerate(schedule.orders):
        for operation in order:
            if operation in seen:
                return f"{operation} runs twice"
            if schedule.device_of[operation.direction][operation.stage] != device:
                return f"{operation} is on device {device}"
            seen.add(operation)
    units = micros * schedule.slices // len(schedule.device_of)
    for direction, row in enumerate(schedule.device_of):
        for stage in range(len(row)):
            for unit in range(units):
                kinds = {
                    kind for kind in Pass if PipelinePass(kind, direction, stage, unit) in seen
                }
                if kinds not in ({Pass.FORWARD, Pass.BACKWARD}, set(Pass) - {Pass.BACKWARD}):
                    return f"stage {stage}, unit {unit} has {sorted(k.value for k in kinds)}"
    if any(operation.micro >= units for operation in seen):
        return f"a unit is beyond the {units} of the schedule"
    return ""
