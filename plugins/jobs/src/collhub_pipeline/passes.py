"""Passes of a pipeline, and their durations per stage: recomputation, embedding, token slices.

A step has `micros` micro-batches. With token slices (TeraPipe, arXiv 2102.07988; Seq1F1B, arXiv
2406.03488) each micro-batch is cut along the sequence, and a unit of work is one slice. Units are
numbered micro-batch by micro-batch. Attention is causal: the forward pass of a slice reads the keys
and values of the previous slices of its stage, and the backward pass adds to their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, Protocol

Time = int | Fraction


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


class PipelinePass(NamedTuple):
    """Pass of unit `micro` (a micro-batch, or a slice of one) in stage `stage` of a direction."""

    kind: Pass
    direction: int
    stage: int
    micro: int


class Durations(Protocol):
    """Durations of passes and transfers of a schedule."""

    @property
    def transfer(self) -> Time:
        """Time of one transfer between two devices."""

    @property
    def is_blocking(self) -> bool:
        """Whether the sender does not compute during a transfer."""

    def duration(self, operation: PipelinePass) -> Time:
        """Return the duration of a pass."""


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
        return self.scaled(Fraction(1, chunks))

    def scaled(self, share: Fraction) -> PassTimes:
        """Return the times of the three passes multiplied by a share of the work, as fractions.

        Transfer time and blocking are unchanged.
        """
        forward, inputs, weights = (time * share for time in self.parts)
        return PassTimes(forward, inputs, weights, self.transfer, self.is_blocking)

    @property
    def parts(self) -> tuple[Time, Time, Time]:
        """Durations of forward, input-gradient and weight-gradient pass."""
        return self.forward, self.input_gradient, self.weight_gradient

    def of(self, kind: Pass) -> Time:
        """Return the duration of a pass; a full backward pass takes both of its gradients."""
        if kind is Pass.BACKWARD:
            return self.input_gradient + self.weight_gradient
        return {
            Pass.FORWARD: self.forward,
            Pass.INPUT_GRADIENT: self.input_gradient,
            Pass.WEIGHT_GRADIENT: self.weight_gradient,
        }[kind]

    def duration(self, operation: PipelinePass) -> Time:
        """Return the duration of a pass: it is equal in all stages."""
        return self.of(operation.kind)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Durations that differ between stages.

    `stages`: times of the passes of a whole micro-batch in each stage. `slices`: share of the work
    of each token slice. A transfer takes the time of the first stage, divided by the slices.
    `recomputed`: stages that repeat the forward pass before the input gradient.
    """

    stages: tuple[PassTimes, ...]
    slices: tuple[Fraction, ...] = (Fraction(1),)
    recomputed: frozenset[int] = frozenset()

    @property
    def transfer(self) -> Time:
        """Transfer time of one token slice: that of a microbatch, divided by the number of slices.

        It is that of the first stage, in its time unit; a fraction if there are several slices.
        """
        whole = self.stages[0].transfer
        return whole if len(self.slices) == 1 else Fraction(whole) / len(self.slices)

    @property
    def is_blocking(self) -> bool:
        """Whether the sender does not compute during a transfer."""
        return self.stages[0].is_blocking

    def duration(self, operation: PipelinePass) -> Time:
        """Return the duration of a pass of a unit, including its recomputation."""
        return self.at(operation.kind, operation.stage, operation.micro % len(self.slices))

    def at(self, kind: Pass, stage: int, slice_: int = 0) -> Time:
        """Return the duration of a pass of one token slice in a stage.

        In the stages of `recomputed`, a full backward pass and an input gradient include a forward
        pass. With several slices, the duration of the complete microbatch is multiplied by the
        share of the slice; with one, `slice_` has no effect.
        """
        whole = self.stages[stage].of(kind)
        if kind.is_backward and stage in self.recomputed:
            whole += self.stages[stage].forward
        return whole * self.slices[slice_] if len(self.slices) > 1 else whole


def split_work(parts: Sequence[PassTimes], stages: int) -> list[PassTimes]:
    """Divide the work of a model into `stages` equal stages; return the times of each, in order.

    `parts`: times of consecutive parts of equal size, in which work is uniform. Stage i gets
    the work between i / stages and (i + 1) / stages of the model, so the numbers of parts and
    stages may differ. Parts with forward times 4, 2 and 6 give stages with 5 and 7.

    The times of forward, input-gradient and weight-gradient pass are exact fractions. Transfer
    time and blocking of all stages are those of the first part. Raises `ZeroDivisionError`
    without parts or stages.
    """
    bounds = sorted(
        {Fraction(at, len(parts)) for at in range(len(parts) + 1)}
        | {Fraction(at, stages) for at in range(stages + 1)}
    )
    sums = [[Fraction(0)] * 3 for _ in range(stages)]
    for begin, end in pairwise(bounds):
        part = parts[int(begin * len(parts))]
        for at, time in enumerate(part.parts):
            sums[int(begin * stages)][at] += time * (end - begin) * len(parts)
    first = parts[0]
    return [
        PassTimes(forward, inputs, weights, first.transfer, first.is_blocking)
        for forward, inputs, weights in sums
    ]


def attention_slices(slices: int, attention: Fraction) -> tuple[Fraction, ...]:
    """Return the share of the work of a micro-batch in each of its token slices.

    `attention`: part of the work in causal attention, 0 to 1. Slice i attends to the tokens of i
    slices completely and to half of its own, so it has (2 i + 1) / slices^2 of that part; the rest
    is divided equally.
    """
    return tuple(
        (1 - attention) / slices + attention * Fraction(2 * at + 1, slices * slices)
        for at in range(slices)
    )
