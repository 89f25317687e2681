"""A training step as a job: the passes of a schedule, the messages between stages, the collectives.

Ranks of a replica stand together, stage by stage. The activations of a micro-batch are cut evenly
among the ranks of a stage; between stages with other numbers of ranks every rank sends what the
other one is to hold of its slice. Behind every pass but that of the gradient of weights, the ranks
of a stage add up their partial results; at the end replicas add up their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_templates import RankProgram, RankPrograms, job_of

from collhub_pipeline.catalogue import Shape, schedule_of
from collhub_pipeline.options import PipelineOptions
from collhub_pipeline.schedules.schedule import Operation, Pass, Schedule
from collhub_pipeline.timing import PassTimes
from hub_core import UsageError
from hub_core.model import JobCollective, NodeKind, Workload

_ROLES = ("tensor", "data")
_MOST_PASSES = 10**6


def generate(options: PipelineOptions) -> Workload:
    """One step. Raises `UsageError` for options that fit no pipeline."""
    shape, widths = shape_of(options), _widths(options)
    passes = 3 * options.stages * options.chunks * options.micro_batches * max(widths)
    if passes > _MOST_PASSES:
        message = f"{passes} passes are too many (limit {_MOST_PASSES})"
        raise UsageError(message, cure="choose fewer micro-batches or stages", code="too-large")
    schedule = schedule_of(options.schedule, shape)
    layout = _Layout(tuple(widths), options.data)
    programs = [
        _programs(schedule, layout, options, (device, member))
        for device, width in enumerate(widths)
        for member in range(width)
    ]
    return job_of(programs, layout.groups(), "pipeline")


def shape_of(options: PipelineOptions) -> Shape:
    """The pipeline in nanoseconds. Raises `UsageError` for warm-ups that are no numbers."""
    seconds = options.forward, options.input_gradient, options.weight_gradient, options.transfer
    forward, inputs, weights, transfer = (round(one * 1e9) for one in seconds)
    times = PassTimes(forward, inputs, weights, transfer, options.transport == "blocking")
    warmups = () if options.warmups is None else tuple(_numbers(options.warmups))
    return Shape(
        options.stages,
        options.micro_batches,
        times,
        options.chunks,
        options.delay_weights,
        options.memory,
        warmups,
    )


def _widths(options: PipelineOptions) -> list[int]:
    """Ranks of every stage."""
    cure = "write one number, or one for every stage, such as 4,4,2,2"
    widths = _numbers(options.tensor)
    if len(widths) == 1:
        widths *= options.stages
    if len(widths) != options.stages or min(widths) < 1:
        message = f"-O tensor={options.tensor} does not state the ranks of {options.stages} stages"
        raise UsageError(message, cure=cure, code="option-value")
    return widths


def _numbers(text: str) -> list[int]:
    """Numbers with commas between them; for what is none, a 0 that nothing allows."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return [0]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where ranks stand: `widths` ranks a device, `replicas` times."""

    widths: tuple[int, ...]
    replicas: int

    def rank(self, device: int, member: int) -> int:
        """The rank of a member of a device in the first replica."""
        # Stages of fewer ranks take fewer numbers.
        return sum(self.widths[:device]) + member

    def ranks(self, device: int, member: int) -> np.typing.NDArray[np.int64]:
        """The rank of a member in every replica: int64[replicas]."""
        return self.rank(device, member) + sum(self.widths) * np.arange(self.replicas)

    def groups(self) -> dict[str, np.typing.NDArray[np.int64]]:
        """Ranks of one device, and the same rank of all replicas; -1 for no rank."""
        whole, most = sum(self.widths), max(self.widths)
        tensor = np.full((self.replicas, len(self.widths), most), -1, np.int64)
        for device, width in enumerate(self.widths):
            first = self.rank(device, 0) + whole * np.arange(self.replicas)
            tensor[:, device, :width] = first[:, None] + np.arange(width)
        data = np.arange(whole * self.replicas, dtype=np.int64).reshape(self.replicas, whole).T
        return dict(zip(_ROLES, (tensor.reshape(-1, most), data), strict=True))

    def shared(self, here: tuple[int, int], device: int, size: int) -> Iterator[tuple[int, int]]:
        """(rank, bytes) of the members of another device that hold a part of a member's slice."""
        begin, end = _slice(here[1], self.widths[here[0]], size)
        for member in range(self.widths[device]):
            first, last = _slice(member, self.widths[device], size)
            common = min(end, last) - max(begin, first)
            if common > 0:
                yield self.rank(device, member), common


def _slice(member: int, members: int, size: int) -> tuple[int, int]:
    """First byte and end of the slice of a member."""
    return member * size // members, (member + 1) * size // members


def _programs(
    schedule: Schedule, layout: _Layout, options: PipelineOptions, place: tuple[int, int]
) -> RankPrograms:
    """What a member of a device does in a step, on its rank of every replica."""
    writer = _Writer(schedule, layout, options, place)
    for operation in schedule.orders[place[0]]:
        writer.run(operation)
    # Gradients come last.
    writer.finish()
    return RankPrograms(writer.program, layout.ranks(*place))


class _Writer:
    """Writes the passes of one rank; `_before`: what the next pass has to stand behind."""

    def __init__(
        self, schedule: Schedule, layout: _Layout, options: PipelineOptions, place: tuple[int, int]
    ) -> None:
        self.program = RankProgram(_ROLES)
        self._schedule, self._layout, self._options = schedule, layout, options
        self._place = place
        self._times = shape_of(options).times_in(schedule)
        self._before: list[int] = []
        self._made: dict[tuple[bool, int, int, int], int] = {}

    def run(self, operation: Operation) -> None:
        """A pass: what it waits for, itself, and what it sends."""
        kind, way, stage, micro = operation
        after = [*self._own_inputs(operation), *self._received(operation)]
        behind = [row for row in self._before if row not in after]
        duration = max(1, round(self._times.of(kind)))
        name = f"{kind.value} {stage}"
        row = self.program.compute(name, after, behind, duration_ns=duration)
        if kind is not Pass.WEIGHT_GRADIENT:
            if self._layout.widths[self._place[0]] > 1:
                size = self._options.activation
                row = self.program.collective(
                    f"{name} reduce", JobCollective.ALL_REDUCE, size, "tensor", [row]
                )
            self._made[kind.is_backward, way, stage, micro] = row
        self._before = [row]
        sent = self._sent(operation, row)
        if self._times.is_blocking:
            self._before += sent

    def finish(self) -> None:
        """Gradients of all replicas are added up."""
        if self._layout.replicas > 1:
            size = self._options.gradients
            kind = JobCollective.ALL_REDUCE
            self.program.collective("gradients", kind, size, "data", self._before[:1])

    def _own_inputs(self, operation: Operation) -> list[int]:
        """Results of this rank that a pass reads: its activations, or the gradient of its input."""
        kind, way, stage, micro = operation
        keys = []
        if kind is Pass.WEIGHT_GRADIENT:
            keys.append((True, way, stage, micro))
        elif kind.is_backward:
            keys.append((False, way, stage, micro))
        before = self._neighbour(operation, -1)
        if before is not None and before == self._place[0]:
            # A chunk of the same device: nothing is sent.
            onward = stage + 1 if kind.is_backward else stage - 1
            keys.append((kind.is_backward, way, onward, micro))
        return [self._made[key] for key in keys]

    def _neighbour(self, operation: Operation, step: int) -> int | None:
        """The device that a pass gets its input from (-1), or sends its result to (1), if any."""
        kind, way, stage, _ = operation
        devices = self._schedule.device_of[way]
        at = stage - step if kind.is_backward else stage + step
        exists = 0 <= at < len(devices) and kind is not Pass.WEIGHT_GRADIENT
        return devices[at] if exists else None

    def _received(self, operation: Operation) -> list[int]:
        device = self._neighbour(operation, -1)
        before = operation.stage + 1 if operation.kind.is_backward else operation.stage - 1
        return self._messages(NodeKind.RECV, operation, before, device, ())

    def _sent(self, operation: Operation, row: int) -> list[int]:
        device = self._neighbour(operation, 1)
        return self._messages(NodeKind.SEND, operation, operation.stage, device, [row])

    def _messages(
        self,
        kind: NodeKind,
        operation: Operation,
        sender: int,
        device: int | None,
        after: Sequence[int],
    ) -> list[int]:
        """Messages with the members of another device; `sender`: the stage that sends."""
        if device is None or device == self._place[0]:
            return []
        name = "gradient" if operation.kind.is_backward else "activation"
        own = self._layout.rank(*self._place)
        micros = self._options.micro_batches
        stages = len(self._schedule.device_of[operation.way])
        # Tells messages apart that two ranks exchange.
        flow = 2 * operation.way + operation.kind.is_backward
        tag = (flow * stages + sender) * micros + operation.micro
        shared = self._layout.shared(self._place, device, self._options.activation)
        return [
            self.program.message(kind, name, size, rank - own, tag, after) for rank, size in shared
        ]
