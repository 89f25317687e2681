"""Conditions of transformations, and the construction of the transformed program.

Records of legality, refusals, and the conditions of a fused stage; removal of dead operations,
checks of stages, and replacement of operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from collhub_coconet.program.operations import (
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    REPLICATED,
    Argument,
    Kind,
    Operand,
    Operation,
    TensorType,
    distance_from_end,
    has_dimension,
)
from collhub_coconet.program.program import (
    BUCKET,
    Program,
    Stage,
    find_axis_positions,
    find_between,
    find_descendants,
)
from hub_core.model import Diagnostic, InputError, Location

Parameter = str | int | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class LegalityRecord:
    """A legal transformation with its parameters and the conditions that were checked.

    `conditions`: texts of the form `condition: operation`. `notes`: facts that are not conditions
    but determine the gain, such as the resources of the members of a chain.
    """

    transformation: str
    parameters: Mapping[str, Parameter]
    conditions: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Transformed program, with the record of why it is equivalent to the original."""

    program: Program
    record: LegalityRecord


class RefusedMoveError(InputError):
    """Error of a transformation whose precondition does not hold.

    `condition`: name of the precondition, such as `closed`; `operation`: name of the operation that
    violates it.
    """

    def __init__(self, diagnostic: Diagnostic, condition: str = "", operation: str = "") -> None:
        super().__init__(diagnostic)
        self.condition = condition
        self.operation = operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.diagnostics[0], self.condition, self.operation)


class Conditions:
    """Checks the conditions of one transformation of one program, and records those that hold."""

    def __init__(
        self, transformation: str, program: Program, parameters: Mapping[str, Parameter]
    ) -> None:
        self._transformation = transformation
        self._parameters = parameters
        self._program = program
        self._met: list[str] = []

    def require(
        self, is_met: bool, condition: str, operation: str, message: str, cure: str
    ) -> None:
        """Record that `condition` holds for `operation`; raise `RefusedMoveError` if not `is_met`.

        `message` and `cure` are texts for the error: the violation, and how to avoid it. The record
        is the text `condition: operation`. After an error no record is added.
        """
        if not is_met:
            raise self.build_refusal(condition, operation, message, cure)
        self._met.append(f"{condition}: {operation}")

    def build_refusal(
        self, condition: str, operation: str, message: str, cure: str
    ) -> RefusedMoveError:
        """Build, but do not raise, the error for a condition that an operation violates.

        Its code is `refused-<condition>`. Its location is the name of the program; the line is the
        place of the operation in the program, from 1, and None if no operation has this name.
        """
        names = [entry.name for entry in self._program.operations]
        line = names.index(operation) + 1 if operation in self._program.by_name else None
        text = f"{self._transformation} refused: {operation}: {message} ({condition})"
        location = Location(self._program.name, line)
        diagnostic = Diagnostic(f"refused-{condition}", text, location=location, cure=cure)
        return RefusedMoveError(diagnostic, condition, operation)

    def to_record(self, notes: tuple[str, ...] = ()) -> LegalityRecord:
        """Return the record of all conditions met so far, in order and without duplicates.

        `notes`: further texts of the record.
        """
        met = tuple(dict.fromkeys(self._met))
        return LegalityRecord(self._transformation, self._parameters, met, notes)


_FUSIBLE_COMPUTATIONS = POINTWISE | REDUCTIONS_TO_SCALARS | {Kind.UPDATE, Kind.SLICE}
# Family of a stage by its kinds of communication.
_FAMILIES = {
    (): "pointwise",
    (Kind.ALL_REDUCE,): "AllReduce",
    (Kind.REDUCE_SCATTER,): "ReduceScatter",
    (Kind.REDUCE_SCATTER, Kind.ALL_GATHER): "RS-C-AG",
    (Kind.REDUCE_SCATTER_V,): "ReduceScatterV",
    (Kind.REDUCE_SCATTER_V, Kind.ALL_GATHER_V): "RSV-C-AGV",
    (Kind.SEND,): "Send",
}


def check_stage(program: Program, members: Sequence[str], conditions: Conditions) -> str:
    """Check that operations can be one kernel, and return the family of this stage.

    `members`: names of at least one operation (`KeyError` if unknown); repeated names count once.
    The conditions are checked in this order, for the members in program order. Each one that holds
    is recorded in `conditions`; the first violated one raises `RefusedMoveError`.

    1. `no-cycle`: no other operation depends on a member and is needed by a member.
    2. `one-communication`: the communications give a family (`_find_family`), i.e. the result.
    3. `pointwise`: each computation is pointwise, a reduction to a scalar, an Update or a Slice.
    4. `one-space`: a reduction to a scalar, AllGather(V) or Send iterates over its first operand,
       any other operation over its result. Each of these tensors fits (`_fits`) the first one with
       the most dimensions.
    5. `slices-only`: only for the families `RS-C-AG` (`_check_slices`: operations need only slices)
       and `RSV-C-AGV` (`_check_equal_counts`: each AllGatherV depends on the ReduceScatterV and has
       its counts).
    """
    inside = set(members)
    operations = [program.by_name[name] for name in sorted(inside, key=program.places.__getitem__)]
    outside = find_between(program, inside)
    culprit = outside[0].name if outside else operations[0].name
    message = "it reads a member and a member reads it"
    cure = "take it into the set, or leave its readers out"
    conditions.require(not outside, "no-cycle", culprit, message, cure)
    family = _find_family(operations, conditions)
    for operation in operations:
        if operation.kind not in _FUSIBLE_COMPUTATIONS and not operation.is_communication:
            message = f"{operation.kind} is not pointwise"
            cure = "fuse pointwise operations, norms, sums and one communication"
            raise conditions.build_refusal("pointwise", operation.name, message, cure)
        conditions.require(True, "pointwise", operation.name, "", "")
    # Refuse operations that do not iterate over one shape, in one layout, on one group.
    gathers = {Kind.ALL_GATHER, Kind.ALL_GATHER_V, Kind.SEND}
    spaces = []
    for operation in operations:
        is_of_operand = operation.kind in REDUCTIONS_TO_SCALARS | gathers
        spaces.append(program.types[operation.reads[0] if is_of_operand else operation.name])
    largest = max(spaces, key=lambda space: len(space.shape))
    for operation, space in zip(operations, spaces, strict=True):
        # Copies of equal tensors share the object of their type.
        if space is not largest and not _fits(space, largest):
            message = f"it runs over {space}, others over {largest}"
            cure = "fuse operations of one shape, layout and group"
            raise conditions.build_refusal("one-space", operation.name, message, cure)
        conditions.require(True, "one-space", operation.name, "", "")
    if family == "RS-C-AG":
        _check_slices(program, operations, conditions)
    if family == "RSV-C-AGV":
        _check_equal_counts(operations, conditions)
    return family


def select_live(operations: Sequence[Operation], outputs: Iterable[str]) -> tuple[Operation, ...]:
    """Select the operations that an output or Update needs, also indirectly, in their order.

    All Updates are needed themselves. `operations` must be in an order in which values are
    defined before they are read. `outputs`: names of values; names of no operation are ignored.
    """
    needed = set(outputs)
    live = []
    # In reverse, all readers of a value are visited before the value.
    for operation in reversed(operations):
        if operation.name in needed or operation.kind is Kind.UPDATE:
            needed.update(operation.reads)
            live.append(operation)
    return tuple(reversed(live))


def remove_dead(program: Program) -> Rewrite:
    """Remove the operations that no output and no Update needs, directly or indirectly.

    They are also removed from their stages. Stages that become empty are removed, and so
    are buckets with one remaining member. Arguments and chains are not changed. The record
    has one condition per removed operation, none if all are needed. `program` is not
    changed. Raise `InputError` (`stage`) if a chain names a removed operation or stage.
    """
    conditions = Conditions("dead", program, {})
    operations = select_live(program.operations, program.outputs)
    live_names = {operation.name for operation in operations}
    for operation in program.operations:
        if operation.name not in live_names:
            conditions.require(True, "no use, no output, no effect", operation.name, "", "")
    stages = _update_stages(program, live_names, {})
    return Rewrite(replace(program, operations=operations, stages=stages), conditions.to_record())


def build_program(
    program: Program,
    operations: Iterable[Operation],
    conditions: Conditions,
    arguments: tuple[Argument, ...] | None = None,
    renamed: Mapping[str, str] | None = None,
) -> Program:
    """Build a program with new operations, and check its types and stages; `program` is unchanged.

    `operations`: each after the operations that it reads. Those that no output and no Update needs
    are removed. `arguments`: the new arguments; None keeps those of `program`. `renamed`: new names
    of stage members by old name; None renames none. Stages lose members that are not left, then
    empty stages and buckets of one member are dropped. Errors, in the order of the checks:

    1. invalid program, such as wrong types: `InputError` with fewer than two mesh axes, otherwise
       `RefusedMoveError` (`nesting`)
    2. a stage, not a bucket, that is not one kernel: `RefusedMoveError` of `check_stage`. This
       check also adds the conditions that stages meet to `conditions`.
    3. `program` has chains: `RefusedMoveError` (`order`)
    4. an invalid bucket, or stages that wait for each other: `RefusedMoveError` (`stages`)
    """
    live = select_live(tuple(operations), program.outputs)
    stages = _update_stages(program, {operation.name for operation in live}, renamed or {})
    changed = program.arguments if arguments is None else arguments
    try:
        result = replace(program, arguments=changed, operations=live, stages=(), chains=())
    except InputError as error:
        if len(program.mesh) < 2:
            raise
        # Conditions hold for one axis; the others may slice the same dimension.
        mistake = error.diagnostics[0]
        cure = mistake.cure or "leave the operation out"
        name = live[0].name if live else program.name
        raise conditions.build_refusal("nesting", name, mistake.message, cure) from None
    for stage in stages:
        if stage.family != BUCKET:
            check_stage(result, stage.members, conditions)
    if program.chains:
        first = program.chains[0].members[0]
        cure = "overlap is the last transformation"
        raise conditions.build_refusal("order", first, "a chain is overlapped already", cure)
    if not stages:
        return result
    try:
        return replace(result, stages=stages)
    except InputError as error:
        mistake = error.diagnostics[0]
        name, cure = stages[0].members[0], mistake.cure or "fuse less"
        raise conditions.build_refusal("stages", name, mistake.message, cure) from None


def choose_name(program: Program, proposal: str, taken: Iterable[str] = ()) -> str:
    """Choose an unused name: `proposal`, or the first free one of `proposal_2`, `proposal_3`, ...

    `taken`: names that are in use in addition to the values of the program.
    """
    names = {*program.types, *taken}
    if proposal not in names:
        return proposal
    number = 2
    while f"{proposal}_{number}" in names:
        number += 1
    return f"{proposal}_{number}"


def replace_operands(operation: Operation, names: Mapping[str, str]) -> Operation:
    """Copy an operation, with operands renamed according to `names` (new name by old name).

    Numbers, and operands that are not in `names`, stay. Returns the operation itself if nothing
    changes.
    """
    if names.keys().isdisjoint(operation.reads):
        return operation
    operands: list[Operand] = [
        names.get(operand, operand) if isinstance(operand, str) else operand
        for operand in operation.operands
    ]
    return replace(operation, operands=tuple(operands))


def find_operation(program: Program, name: str, kind: Kind, conditions: Conditions) -> Operation:
    """Find the operation with this name, which must have this kind.

    Raises `RefusedMoveError` (condition `target`) if it has another kind or no operation has the
    name. `conditions` is unchanged.
    """
    operation = program.by_name.get(name)
    if operation is None or operation.kind is not kind:
        actual = f"it is {operation.kind}" if operation else "no operation has this name"
        message = f"{kind} is expected, {actual}"
        raise conditions.build_refusal("target", name, message, f"name a {kind}")
    return operation


def find_members(program: Program, names: Sequence[str], conditions: Conditions) -> list[Operation]:
    """Return the named operations in program order, each once; [] without names.

    Raises `RefusedMoveError` (condition `target`) for the first name that no operation has,
    also if a stage has it.
    """
    for name in names:
        if name not in program.by_name:
            raise conditions.build_refusal("target", name, "no operation has this name", "name one")
    return [program.by_name[name] for name in sorted(set(names), key=program.places.__getitem__)]


def _find_family(operations: list[Operation], conditions: Conditions) -> str:
    """Return the family of a stage (operations of one kernel), which its communications determine.

    - no communication: `pointwise`
    - one AllReduce, one ReduceScatter, one ReduceScatterV or one Send, and nothing else: the name
      of its kind
    - one ReduceScatter and at least one AllGather, in any order: `RS-C-AG`
    - one ReduceScatterV and at least one AllGatherV, in any order: `RSV-C-AGV`

    All communications must have the same mesh axes. Otherwise, and for any other combination such
    as AllGathers only, raises `RefusedMoveError` (condition `one-communication`) for the last
    communication. If the condition holds, it is recorded in `conditions` for this operation, or for
    the first operation if there is no communication. `operations` must not be empty.
    """
    communications = [operation for operation in operations if operation.is_communication]
    gathers = (Kind.ALL_GATHER, Kind.ALL_GATHER_V)
    kinds: list[Kind] = [entry.kind for entry in communications if entry.kind not in gathers]
    # All AllGathers of a stage count as one.
    kinds += [kind for kind in gathers if any(entry.kind is kind for entry in communications)]
    has_one_group = len({operation.axes for operation in communications}) <= 1
    family = _FAMILIES.get(tuple(kinds)) if has_one_group else None
    last = communications[-1].name if communications else operations[0].name
    message = f"{' and '.join(kinds)} are no one communication" if kinds else ""
    cure = "fuse one AllReduce, one ReduceScatter with its AllGathers, or one Send"
    if kinds in ([Kind.ALL_TO_ALL_V], [Kind.ALL_GATHER_V]):
        message = f"{kinds[0]} only moves rows, so that its kernel has no elements to compute with"
        cure = "overlap it with the computations"
    conditions.require(family is not None, "one-communication", last, message, cure)
    return family or ""


def _fits(space: TensorType, largest: TensorType) -> bool:
    """Check whether a tensor fits the iteration over `largest`, possibly by broadcast.

    Three conditions must hold. The groups are equal. With shapes aligned at the end, each dimension
    is 1 or equal to that of `largest`, which may have more dimensions. On every axis of the mesh:

    - If `largest` is not sliced, the layouts are equal.
    - Otherwise the tensor is sliced along the same dimension, counted from the end, or is
      replicated and lacks that dimension (missing or of size 1).
    """
    if space.group != largest.group or len(space.shape) > len(largest.shape):
        return False
    pairs = zip(reversed(space.shape), reversed(largest.shape), strict=False)
    if not all(size in (1, largest_size) for size, largest_size in pairs):
        return False
    for layout, target in zip(space.layout.by_axis, largest.layout.by_axis, strict=True):
        if not target.is_sliced:
            is_fitting = layout == target
        elif layout.is_sliced:
            distance = distance_from_end(layout.dimension, len(space.shape))
            is_fitting = distance == distance_from_end(target.dimension, len(largest.shape))
        else:
            distance = distance_from_end(target.dimension, len(largest.shape))
            is_fitting = layout == REPLICATED and not has_dimension(space.shape, distance)
        if not is_fitting:
            return False
    return True


def _check_slices(program: Program, operations: list[Operation], conditions: Conditions) -> None:
    """Refuse operations of a stage with AllGathers that need more than a slice of an operand.

    The first ReduceScatter in `operations` defines the mesh axis and the scattered dimension, which
    is counted from the end of a shape. ReduceScatters and Slices are not checked. All others are
    checked in order:

    1. An AllGather must depend on that ReduceScatter, directly or not.
    2. No operand may be local, partial or on a root on the axis. An operand that is replicated on
       the axis must not have the scattered dimension, or only with size 1. Sliced operands are
       permitted, along any dimension.

    The first violation raises `RefusedMoveError` (`slices-only`). Conditions that hold before it
    are recorded in `conditions`. Raises `StopIteration` without a ReduceScatter.
    """
    scatter = next(entry for entry in operations if entry.kind is Kind.REDUCE_SCATTER)
    scattered = program.types[scatter.name]
    axis = find_axis_positions(program, scatter)[0]
    dimension = scattered.layout.by_axis[axis].dimension
    distance = distance_from_end(dimension, len(scattered.shape))
    dependent = find_descendants(operations, [scatter.name])
    for operation in operations:
        if operation.kind in (Kind.REDUCE_SCATTER, Kind.SLICE):
            continue
        is_allowed = operation.kind is not Kind.ALL_GATHER or operation.name in dependent
        message = f"it gathers nothing that {scatter.name} scatters"
        cure = "leave it out"
        conditions.require(is_allowed, "slices-only", operation.name, message, cure)
        for name in operation.reads:
            operand = program.types[name]
            layout = operand.layout.by_axis[axis]
            has_all = layout == REPLICATED and has_dimension(operand.shape, distance)
            is_slice = not has_all and not layout.is_local
            message = f"it reads all of {name}, not a slice"
            cure = f"Slice {name} along the dimension of {scatter.name}"
            conditions.require(is_slice, "slices-only", operation.name, message, cure)


def _check_equal_counts(operations: list[Operation], conditions: Conditions) -> None:
    """Require that the AllGatherVs of a stage gather the rows that its ReduceScatterV delivers.

    The AllGatherVs are checked in the order of `operations`. Each must meet two rules:

    - It depends on the first ReduceScatterV of `operations`, directly or through other
      operations of this list.
    - Its counts (rows per rank) are equal to those of that ReduceScatterV.

    One that meets both adds the condition `slices-only` to `conditions`. The first one that
    does not raises `RefusedMoveError`; conditions added before it remain. Without an
    AllGatherV, no condition is added. Raise `StopIteration` without a ReduceScatterV.
    """
    scatter = next(entry for entry in operations if entry.kind is Kind.REDUCE_SCATTER_V)
    dependent = find_descendants(operations, [scatter.name])
    for operation in operations:
        if operation.kind is Kind.ALL_GATHER_V:
            is_allowed = operation.name in dependent and operation.counts == scatter.counts
            message = f"it gathers other rows than {scatter.name} delivers"
            cure = "leave it out"
            conditions.require(is_allowed, "slices-only", operation.name, message, cure)


def _update_stages(
    program: Program, live_names: set[str], renamed: Mapping[str, str]
) -> tuple[Stage, ...]:
    """Return the stages of a program with renamed members and without dead members.

    `renamed` has new names by old name; other members keep their names. `live_names` are new names.
    Stages without members are removed, and so are buckets with a single member.
    """
    stages = []
    for stage in program.stages:
        members = [renamed.get(name, name) for name in stage.members]
        live_members = tuple(name for name in members if name in live_names)
        if len(live_members) > (stage.family == BUCKET):
            stages.append(replace(stage, members=live_members))
    return tuple(stages)
