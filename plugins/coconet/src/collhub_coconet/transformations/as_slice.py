"""Keep states as slices: every rank stores its block only, and their AllGathers go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_coconet.program.graph import readers_of
from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import REPLICATED, sliced
from collhub_coconet.transformations.dead import live
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.transformations.rewriting import fresh, rewritten, with_operands


def as_slice(program: Program, states: Sequence[str]) -> Rewrite:
    """Declare replicated states as sliced.

    Every use of a state is a Slice along one dimension, or the target of its own Update by an
    AllGather of a slice; nobody reads it as a whole after the program. Outputs that are the new
    value of such a state become slices too. Raises `RefusedMoveError`.
    """
    conditions = Conditions("as-slice", program, {"states": tuple(states)})
    # The conditions, which also tell the dimension of every state.
    dimensions = {name: _dimension(program, name, conditions) for name in states}
    names: dict[str, str] = {}
    for operation in program.operations:
        if operation.kind is Kind.SLICE and operation.reads[0] in dimensions:
            names[operation.name] = operation.reads[0]
    operations = [
        _sliced_update(program, operation) if _writes(operation, dimensions) else operation
        for operation in program.operations
        if operation.name not in names
    ]
    # Slices of the new value are the new value.
    for operation in program.operations:
        source = program.by_name.get(operation.reads[0]) if operation.reads else None
        if operation.kind is Kind.SLICE and source and _writes(source, dimensions):
            names[operation.name] = source.name
    kept = [
        with_operands(operation, names) for operation in operations if operation.name not in names
    ]
    kept, renamed = _merged(program, kept, dimensions)
    arguments = tuple(
        replace(one, type=replace(one.type, layout=sliced(dimensions[one.name])))
        if one.name in dimensions
        else one
        for one in program.arguments
    )
    result = rewritten(program, kept, conditions, arguments, renamed)
    return Rewrite(result, conditions.record())


def _writes(operation: Operation, states: dict[str, int]) -> bool:
    """Whether an operation writes one of the states."""
    return operation.kind is Kind.UPDATE and operation.reads[0] in states


def _merged(
    program: Program, operations: list[Operation], states: dict[str, int]
) -> tuple[list[Operation], dict[str, str]]:
    """Operations behind an Update read the new state, so that the value needs no name of its own.

    Returns the operations, and new names of values that `reorder` had named after their Update.
    """
    # Values by the Update that writes them.
    renamed: dict[str, str] = {}
    new_state: dict[str, str] = {}
    found = []
    for operation in operations:
        found.append(with_operands(operation, new_state))
        if _writes(operation, states):
            new_state[operation.reads[1]] = operation.name
    readers = readers_of(live(found, program.outputs))
    for value, update in new_state.items():
        dimension = states[program.by_name[update].reads[0]]
        is_ours = value == f"{update}_{sliced(dimension)}" and value not in program.outputs
        if is_ours and len(readers[value]) == 1:
            renamed[value] = fresh(program, f"_{value}")
    named = [replace(one, name=renamed.get(one.name, one.name)) for one in found]
    return [with_operands(one, renamed) for one in named], renamed


def _sliced_update(program: Program, update: Operation) -> Operation:
    """The Update with the slice instead of its AllGather."""
    # The AllGather itself goes as dead code.
    state, value = update.reads
    return replace(update, operands=(state, program.by_name[value].reads[0]))


def _dimension(program: Program, name: str, conditions: Conditions) -> int:
    """The dimension along which a state may be sliced."""
    state = program.states.get(name)
    message = "it is no replicated state"
    is_whole = state is not None and state.type.layout == REPLICATED
    conditions.require(is_whole, "replicated-state", name, message, "name a replicated state")
    is_needed = state is not None and state.whole_after
    message = "every rank reads all of it after the program"
    cure = "keep it replicated, or declare it without whole_after"
    conditions.require(not is_needed, "not-needed-whole", name, message, cure)
    found = {_use(program, name, reader, conditions) for reader in program.readers.get(name, ())}
    message = "its uses are slices along no dimension, or along several"
    cure = "reorder its readers before an AllGather first"
    conditions.require(len(found) == 1, "one-dimension", name, message, cure)
    return found.pop()


def _use(program: Program, name: str, reader: Operation, conditions: Conditions) -> int:
    """The dimension that one use of a state asks for."""
    if reader.kind is Kind.SLICE:
        _check_no_output(program, reader, conditions)
        return reader.dimension or 0
    message = f"it reads all of state {name}"
    cure = "reorder it before an AllGather first"
    is_update = reader.kind is Kind.UPDATE and reader.reads[0] == name
    conditions.require(is_update, "sliced-use", reader.name, message, cure)
    # An argument is made by no operation.
    gather = program.by_name.get(reader.reads[1])
    is_gather = gather is not None and gather.kind is Kind.ALL_GATHER
    message = "its value is no AllGather of a slice"
    conditions.require(is_gather, "gathered-value", reader.name, message, cure)
    source = gather.reads[0] if gather else name
    dimension = program.types[source].layout.dimension
    for later in program.readers.get(reader.name, ()):
        is_slice = later.kind is Kind.SLICE and later.dimension == dimension
        message = f"it reads all of the new value of state {name}"
        conditions.require(is_slice, "sliced-use", later.name, message, cure)
        _check_no_output(program, later, conditions)
    return dimension


def _check_no_output(program: Program, cut: Operation, conditions: Conditions) -> None:
    """A slice goes, so that it can be no output."""
    is_output = cut.name in program.outputs
    # The Update gives it whole.
    cure = "make the new value of the state the output"
    conditions.require(not is_output, "sliced-use", cut.name, "it is an output", cure)
