"""Generate a training step as a job: passes of a schedule, messages between stages, collectives.

A layout distributes activations to ranks and defines the messages between stages. After every pass
except weight gradients, ranks with equal tiles reduce their partial results; at the end of the
step, ranks with equal weights reduce their gradients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from collhub_templates import RankProgram, RankPrograms, job_of

from collhub_pipeline.layouts import ROLES, ActivationLayout, EvenSlices, Leg, MeshLayout, Ranks
from collhub_pipeline.passes import Pass, PassTimes, PipelinePass
from collhub_pipeline.plugin import PipelineOptions
from collhub_pipeline.schedule_csv import read_schedule_file
from collhub_pipeline.search import schedule_of
from collhub_pipeline.shapes import PipelineShape
from collhub_pipeline.timing import Schedule
from hub_core import HubError, UsageError
from hub_core.model import JobCollective, NodeKind, Workload, parse_time
from hub_core.plugin_api import MAX_INTEGER, SearchBudget

_MAX_PASSES = 10**6
# Numbers with such exponents have too many digits to compare.
_LARGE_EXPONENT = re.compile(r"e[+-]?0*[1-9]\d\d", re.IGNORECASE | re.ASCII)


def generate(options: PipelineOptions, budget: SearchBudget | None = None) -> Workload:
    """Generate one training step of a pipeline on all ranks as a workload.

    Ranks are ordered by replica, then stage, then member of the stage. Each rank of a replica has
    a separate program: the passes of its device in the order of the schedule, with messages and
    all-reduces, and at the end the reduction of gradients. All replicas repeat these programs.
    `budget`: limit of the search, None for no limit. It applies only to the schedule `search`.

    The errors, in the order of the checks:

    - the errors of `shape_of` (`UsageError`) and `layout_of` (`UsageError`, `HubError`)
    - `UsageError` (`too-large`) if the number of passes is above 10^6. It is 3 x stages x chunks x
      micro-batches x slices x ranks of the widest stage, with 1 for chunks that are not given.
    - the errors of `schedule_from`, such as `InputError` for an invalid file
    """
    shape, layout = shape_of(options), layout_of(options)
    widths = layout.ranks.widths
    passes = 3 * options.stages * (options.chunks or 1) * options.micro_batches * max(widths)
    passes *= options.slices
    if passes > _MAX_PASSES:
        message = f"{passes} passes are too many (limit {_MAX_PASSES})"
        raise UsageError(message, cure="choose fewer micro-batches or stages", code="too-large")
    schedule = schedule_from(options, shape, budget)
    programs = []
    for device, width in enumerate(widths):
        for member in range(width):
            writer = _Writer(schedule, layout, options, (device, member))
            for operation in schedule.orders[device]:
                writer.run(operation)
            writer.finish()
            ranks = layout.ranks.in_replicas(layout.ranks.rank(device, member))
            programs.append(RankPrograms(writer.program, ranks))
    return job_of(programs, layout.groups(), "pipeline")


def layout_of(options: PipelineOptions) -> ActivationLayout:
    """Build the layout of ranks and activations from the options of a pipeline.

    With `activation_tensor` and `meshes`, the meshes define the ranks of each stage and
    their tiles of the activation. Without both, the option `tensor` gives the ranks of each
    stage (one number for all stages, or one per stage), which hold even slices of the
    activation.

    Raises `UsageError` (`option-value`) if only one of the two options is given, if they
    are given and `tensor` is not 1, and if `tensor` is no positive number for every stage.
    Raises `HubError` for an invalid tensor or invalid meshes.
    """
    tensor, meshes = options.activation_tensor, options.meshes
    if tensor is None and meshes is None:
        widths = _parse_numbers(options.tensor)
        if len(widths) == 1:
            widths *= options.stages
        if len(widths) != options.stages or min(widths) < 1:
            message = (
                f"-O tensor={options.tensor} does not state the ranks of {options.stages} stages"
            )
            cure = "write one number, or one for every stage, such as 4,4,2,2"
            raise UsageError(message, cure=cure, code="option-value")
        return EvenSlices(Ranks(tuple(widths), options.data), options.activation)
    if tensor is None or meshes is None or options.tensor != "1":
        message = "meshes need -O activation_tensor and -O meshes, and take the place of -O tensor"
        cure = "write -O activation_tensor=8x1024x4096:bfloat16 -O 'meshes=mesh(2,2): S0 R S1'"
        raise UsageError(message, cure=cure, code="option-value")
    return MeshLayout.of(tensor, meshes, options.stages, options.data, options.hand_over)


def schedule_from(
    options: PipelineOptions, shape: PipelineShape, budget: SearchBudget | None = None
) -> Schedule:
    """Read the schedule from the file `options.csv`; if that is None, build `options.schedule`.

    A schedule from a file recomputes all stages if `options.recompute` is `all`, otherwise none.
    The file is not compared with `shape`. Its errors are `InputError` for an invalid or unreadable
    file, and `UsageError` (`option-value`) if its number of devices differs from `options.stages`,
    or its number of microbatches from `options.micro_batches`.

    A schedule that is built must fit `shape`. Only `search` uses the limit `budget` (None: no
    limit); at the limit the best schedule so far is returned. Errors are:
    - `UsageError`, with code `memory` if no schedule, or not the named one, fits the memory.
    - `BudgetReached` if `search` has no schedule at the limit.
    """
    if options.csv is None:
        return schedule_of(options.schedule, shape, budget)
    schedule = read_schedule_file(options.csv)
    micros = 1 + max(operation.micro for order in schedule.orders for operation in order)
    stages = len(schedule.device_of[0])
    if (schedule.num_devices, micros) != (options.stages, options.micro_batches):
        message = (
            f"{options.csv} has {schedule.num_devices} ranks and {micros} micro-batches, the "
            f"options {options.stages} and {options.micro_batches}"
        )
        cure = f"-O stages={schedule.num_devices} -O micro_batches={micros}"
        raise UsageError(message, cure=cure, code="option-value")
    is_recomputed = options.recompute == "all"
    return replace(schedule, recomputed=frozenset(range(stages) if is_recomputed else ()))


def shape_of(options: PipelineOptions) -> PipelineShape:
    """Convert the options to the shape of a pipeline.

    Times of passes and of the transfer are in s; they are rounded to integer ns. Transfers
    block if `transport` is `blocking`. The shape is steady if `objective` is `steady`. Memory,
    stage sizes, attention and the kept fraction become exact fractions.

    - `memory`: one number applies to all devices. Several are a tuple, whose length is not
      checked here. Missing: None.
    - Warm-ups, stage times and stage sizes are () if not given.
    - `embedding` and `head` are None if not given.

    Raises `UsageError` (`option-value`) for memory, stage times, stage sizes, embedding or
    head that cannot be parsed. Invalid warm-ups become (0,), which other functions refuse.
    """
    seconds = options.forward, options.input_gradient, options.weight_gradient, options.transfer
    forward, inputs, weights, transfer = (round(duration * 1e9) for duration in seconds)
    times = PassTimes(forward, inputs, weights, transfer, options.transport == "blocking")
    warmups = () if options.warmups is None else tuple(_parse_numbers(options.warmups))
    memory = None if options.memory is None else _parse_fractions("memory", str(options.memory))
    sizes = _parse_fractions("stage_sizes", options.stage_sizes) if options.stage_sizes else ()
    parts = options.stage_times.split(";") if options.stage_times else []
    return PipelineShape(
        options.stages,
        options.micro_batches,
        times,
        options.chunks,
        options.delay_weights,
        memory[0] if memory is not None and len(memory) == 1 else memory,
        warmups,
        tuple(_parse_times("stage_times", part) for part in parts),
        sizes,
        _parse_times("embedding", options.embedding) if options.embedding else None,
        _parse_times("head", options.head) if options.head else None,
        options.slices,
        _to_fraction(options.attention),
        options.recompute,
        _to_fraction(options.kept),
        options.objective == "steady",
    )


def _to_fraction(number: float) -> Fraction:
    """Return the decimal number that the user wrote."""
    return Fraction(str(number))


def _parse_times(name: str, text: str) -> PassTimes:
    """Parse the times of a forward pass, input gradient and weight gradient, as integer ns.

    `text`: three times with units, separated by `/`, such as `1ms/1ms/500ns`; blanks are
    ignored. A time is rounded to the nearest ns, a half to the even one; 0 is accepted with
    a unit. The transfer time of the result is 0. `name`: option, for the error. Raises
    `UsageError` (`option-value`) for other text.
    """
    try:
        forward, inputs, weights = (round(parse_time(part) * 1e9) for part in text.split("/"))
    except (ValueError, HubError):
        message = f"-O {name}: {text.strip()!r} is no three times"
        cure = "write forward/input gradient/weight gradient, such as 1ms/1ms/0.5ms"
        raise UsageError(message, cure=cure, code="option-value") from None
    return PassTimes(forward, inputs, weights)


def _parse_fractions(name: str, text: str) -> tuple[Fraction, ...]:
    """Parse numbers of at least 0, separated by commas, as exact fractions.

    A number is an integer, a decimal number such as `0.5` or `1e3`, or a fraction such as
    `1/3`. Blanks around a number are ignored. `name`: the option, for the error.

    Raises `UsageError` (`option-value`) for empty or other text, for an empty entry, for
    a negative number, for one above `MAX_INTEGER` (2^31 - 1), for a fraction with
    denominator 0, and for an exponent of more than two digits (leading zeros do not
    count).
    """
    try:
        if _LARGE_EXPONENT.search(text):
            raise ValueError
        numbers = tuple(Fraction(part.strip()) for part in text.split(","))
    except (ValueError, ZeroDivisionError):
        numbers = ()
    if not numbers or min(numbers) < 0 or max(numbers) > MAX_INTEGER:
        message = f"-O {name}={text} does not state numbers of at least 0"
        raise UsageError(message, cure="write for example 8 or 8,8,6,6", code="option-value")
    return numbers


def _parse_numbers(text: str) -> list[int]:
    """Parse comma-separated numbers; returns [0], which callers refuse, for invalid text."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        return [0]


class _Writer:
    """Writes the passes of one rank; `_before`: rows that must precede the next pass."""

    def __init__(
        self,
        schedule: Schedule,
        layout: ActivationLayout,
        options: PipelineOptions,
        position: tuple[int, int],
    ) -> None:
        self.program = RankProgram(ROLES)
        self._schedule, self._layout, self._options = schedule, layout, options
        self._position = position
        self._rank = layout.ranks.rank(*position)
        self._legs: dict[tuple[int, int], Mapping[bool, Sequence[Leg]]] = {}
        self._summed = layout.summed_bytes(*position)
        self._times = shape_of(options).times_in(schedule)
        self._before: list[int] = []
        self._row_of_result: dict[tuple[bool, int, int, int], int] = {}

    def run(self, operation: PipelinePass) -> None:
        """Add a pass of this rank, with its receives before and its sends after it.

        The pass depends on the data of its inputs and receives, and starts after the previous pass
        of this device. Its duration is rounded to ns, at least 1. If the layout has bytes to sum,
        every pass except a weight gradient is followed by an all-reduce in the group `tensor`; its
        sends and later passes then depend on the all-reduce. With blocking communication, the next
        pass also waits for the sends.
        """
        kind, direction, stage, micro = operation
        after = [*self._find_inputs(operation), *self._add_receives(operation)]
        same_device = [row for row in self._before if row not in after]
        duration = max(1, round(self._times.duration(operation)))
        name = f"{kind.value} {stage}"
        row = self.program.compute(name, after, same_device, duration_ns=duration)
        if kind is not Pass.WEIGHT_GRADIENT:
            if self._summed:
                kind_of_sum = JobCollective.ALL_REDUCE
                size = self._cut(self._summed, micro)
                row = self.program.collective(f"{name} reduce", kind_of_sum, size, "tensor", [row])
            self._row_of_result[kind.is_backward, direction, stage, micro] = row
        self._before = [row]
        receiver = self._find_neighbour(operation, 1)
        if receiver is None or receiver == self._position[0]:
            return
        legs = self._select_legs(self._position[0], receiver)
        sent = self._add_messages(NodeKind.SEND, operation, operation.stage, legs[False], [row])
        if self._times.is_blocking:
            self._before += sent

    def _cut(self, size: int, unit: int) -> int:
        """Return the bytes of one token slice of `size` bytes.

        `unit`: number of the unit (one slice of one microbatch); its slice is i = `unit` %
        slices. Slice i has the bytes from i * `size` // slices to (i + 1) * `size` // slices,
        so that the slices of a microbatch differ by at most one byte, and have `size` bytes
        together.
        """
        slices = self._schedule.slices
        at = unit % slices
        return (at + 1) * size // slices - at * size // slices

    def finish(self) -> None:
        """Add the reduction of gradients of shared weights."""
        if self._layout.has_copies(self._position[0]):
            size = self._options.gradients
            kind = JobCollective.ALL_REDUCE
            self.program.collective("gradients", kind, size, "data", self._before[:1])

    def _find_inputs(self, operation: PipelinePass) -> list[int]:
        """Return the rows whose results a pass reads: at most one per rule, in this order.

        1. The same stage, direction and unit (`micro` of `operation`): a weight gradient reads the
           input gradient; an input gradient or full backward pass reads the forward pass; a forward
           pass reads none.
        2. The adjacent stage, if it exists and is on the same device: a forward pass reads the
           forward pass of stage - 1. An input gradient or full backward pass reads the backward
           pass of stage + 1. On another device nothing is added, because a message brings the
           result.

        The row of a pass is that of its all-reduce, if it has one. Raises `KeyError` if the
        schedule is in a wrong order, i.e. a pass that is read has not been added yet.
        """
        kind, direction, stage, micro = operation
        keys = []
        if kind is Pass.WEIGHT_GRADIENT:
            keys.append((True, direction, stage, micro))
        elif kind.is_backward:
            keys.append((False, direction, stage, micro))
        before = self._find_neighbour(operation, -1)
        if before is not None and before == self._position[0]:
            # The previous chunk is on the same device: no message.
            onward = stage + 1 if kind.is_backward else stage - 1
            keys.append((kind.is_backward, direction, onward, micro))
        return [self._row_of_result[key] for key in keys]

    def _find_neighbour(self, operation: PipelinePass, step: int) -> int | None:
        """Return the device that sends a pass's input (`step` -1) or gets its result (`step` 1).

        It runs the stage before or after that of the pass in the direction of data, which is
        reversed for backward passes; it may be the device of the pass itself. None before the
        first stage, after the last one, and for weight gradients.
        """
        kind, direction, stage, _ = operation
        devices = self._schedule.device_of[direction]
        at = stage - step if kind.is_backward else stage + step
        exists = 0 <= at < len(devices) and kind is not Pass.WEIGHT_GRADIENT
        return devices[at] if exists else None

    def _add_receives(self, operation: PipelinePass) -> list[int]:
        """Add the receives that bring the input of a pass from another device; return their rows.

        Nodes are added in this order:

        1. receives from the other device
        2. sends of received data to other ranks of this device, if the layout forwards data;
           they depend on all receives of 1
        3. receives of data that other ranks of this device forward

        The result has the rows of 1, then of 3. It is empty, and no node is added, if the input
        comes from a stage on the same device, or if the pass has no input from another stage:
        the first forward pass, the last backward pass, and weight gradients.
        """
        device = self._find_neighbour(operation, -1)
        if device is None or device == self._position[0]:
            return []
        before = operation.stage + 1 if operation.kind.is_backward else operation.stage - 1
        legs = self._select_legs(device, self._position[0])
        arrived = self._add_messages(NodeKind.RECV, operation, before, legs[False], ())
        # Forward before receiving forwarded data: neighbours wait for these messages.
        self._add_messages(NodeKind.SEND, operation, before, legs[True], arrived)
        return arrived + self._add_messages(NodeKind.RECV, operation, before, legs[True], ())

    def _select_legs(self, sender: int, receiver: int) -> Mapping[bool, Sequence[Leg]]:
        """Return the messages from device `sender` to `receiver` in which this rank takes part.

        The result always has two keys: False for direct messages, and True for data that ranks of
        the receiving device forward to each other. Each list is in the order of the layout, and
        empty if the rank takes no part. The result is cached in `_legs`: do not change it.
        """
        if (sender, receiver) not in self._legs:
            legs = [
                leg
                for leg in self._layout.legs(sender, receiver)
                if self._rank in (leg.source, leg.destination)
            ]
            self._legs[sender, receiver] = {
                is_forwarded: [leg for leg in legs if leg.is_forwarded == is_forwarded]
                for is_forwarded in (False, True)
            }
        return self._legs[sender, receiver]

    def _add_messages(
        self,
        kind: NodeKind,
        operation: PipelinePass,
        sender: int,
        legs: Sequence[Leg],
        after: Sequence[int],
    ) -> list[int]:
        """Add the sends or receives of this rank among `legs`; return their rows in that order.

        `kind`: SEND or RECV. Of each leg only the side of this rank counts: its source for SEND,
        its destination for RECV; other legs are skipped. `after`: rows whose data every message
        needs.

        The name is `gradient` for a backward pass, otherwise `activation`. The size is that part of
        the leg's bytes that belongs to the token slice of the unit (`_cut`). Peers are given as the
        number of the peer minus that of this rank. The tag is (f * stages + `sender`) * units +
        unit, with f = 2 * direction + 1 for a backward pass, 2 * direction otherwise. `sender`: the
        stage that sends. Units are micro-batches times slices. So both sides of a message have
        equal tags.
        """
        name = "gradient" if operation.kind.is_backward else "activation"
        units = self._options.micro_batches * self._schedule.slices
        stages = len(self._schedule.device_of[operation.direction])
        # The tag distinguishes the messages between two ranks.
        flow = 2 * operation.direction + operation.kind.is_backward
        tag = (flow * stages + sender) * units + operation.micro
        rows = []
        for leg in legs:
            rank_pair = (leg.source, leg.destination)
            mine, peer = rank_pair if kind is NodeKind.SEND else reversed(rank_pair)
            if mine == self._rank:
                shift = peer - self._rank
                size = self._cut(leg.bytes, operation.micro)
                row = self.program.message(kind, name, size, shift, tag, after)
                rows.append(row)
        return rows
