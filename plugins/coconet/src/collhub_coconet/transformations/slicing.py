"""Replace replicated computations by slices: split an AllReduce, store states as slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from collhub_coconet.program.operations import (
    REPLICATED,
    Argument,
    Kind,
    Operation,
    Reduction,
    on_mesh,
    sliced,
)
from collhub_coconet.program.program import Program, collect_readers, find_axis_positions
from collhub_coconet.transformations.legality import (
    Conditions,
    Rewrite,
    build_program,
    choose_name,
    find_operation,
    replace_operands,
    select_live,
)


def split(program: Program, target: str, dimension: int = 0) -> Rewrite:
    """Replace `a = AllReduce(op, x)` by `s = ReduceScatter(op, x, d); a = AllGather(s)`.

    `target`: name of the AllReduce, which the AllGather takes over. `dimension`: d, from 0.
    The ReduceScatter is named `TARGET_S_d`, or `TARGET_S_d_2` and so on if that name is in
    use. Raises `RefusedMoveError` if no AllReduce has the name `target`, if the reduction
    is not commutative, if x has no such dimension or its size is 1, and if `build_program`
    refuses the new program.
    """
    conditions = Conditions("split", program, {"target": target, "dimension": dimension})
    operation = _check_target(program, target, conditions)
    shape = program.types[target].shape
    has_dimension = 0 <= dimension < len(shape) and shape[dimension] != 1
    message = f"there is no dimension {dimension} of more than one element"
    cure = "name a dimension to scatter along"
    conditions.require(has_dimension, "dimension", target, message, cure)
    scattered = choose_name(program, f"{target}_{sliced(dimension)}")
    first = replace(operation, name=scattered, kind=Kind.REDUCE_SCATTER, dimension=dimension)
    second = Operation(target, Kind.ALL_GATHER, (scattered,), axes=operation.axes)
    return _replace_operation(program, operation, (first, second), conditions)


def split_at_root(program: Program, target: str, root: int = 0) -> Rewrite:
    """Replace `a = AllReduce(op, x)` by `s = Reduce(op, x, root); a = Broadcast(s, root)`.

    `target`: name of the AllReduce, which the Broadcast takes over. The Reduce is named
    `TARGET_root`, or `TARGET_root_2` and so on if that name is taken. `root`: a rank of the group,
    counted from 0; it is not compared with the number of ranks, which a program does not define.

    Raises `RefusedMoveError` if no AllReduce has the name `target`, if its operator is not
    commutative, if the root is negative, and if `build_program` refuses the new program.
    """
    conditions = Conditions("split-at-root", program, {"target": target, "root": root})
    operation = _check_target(program, target, conditions)
    conditions.require(root >= 0, "root", target, f"root {root} is no rank", "count from 0")
    at_root = choose_name(program, f"{target}_root")
    first = replace(operation, name=at_root, kind=Kind.REDUCE, root=root)
    second = Operation(target, Kind.BROADCAST, (at_root,), root=root, axes=operation.axes)
    return _replace_operation(program, operation, (first, second), conditions)


def _check_target(program: Program, target: str, conditions: Conditions) -> Operation:
    """Return the AllReduce with the name `target`, whose reduction must be commutative.

    An AllReduce without a reduction counts as a sum. The condition `commutative` is recorded
    in `conditions`. Raises `RefusedMoveError` with one of these conditions; then none is
    recorded:

    - `target`: no operation has the name, or it is no AllReduce.
    - `commutative`: the result depends on the order of the ranks.
    """
    operation = find_operation(program, target, Kind.ALL_REDUCE, conditions)
    reduction = operation.reduction or Reduction.SUM
    message = f"{reduction} depends on the order of the ranks"
    cure = "keep the AllReduce"
    conditions.require(reduction.is_commutative, "commutative", target, message, cure)
    return operation


def _replace_operation(
    program: Program, old: Operation, new: tuple[Operation, ...], conditions: Conditions
) -> Rewrite:
    """Return the rewrite in which the operations `new` take the position of `old`.

    Raises `RefusedMoveError` if `build_program` refuses the new program.
    """
    operations: list[Operation] = []
    for operation in program.operations:
        operations.extend(new if operation is old else (operation,))
    return Rewrite(build_program(program, operations, conditions), conditions.to_record())


def as_slice(program: Program, states: Sequence[str]) -> Rewrite:
    """Return the rewrite that changes the replicated states `states` to sliced states.

    A state is sliced along the dimension and mesh axis of its uses; other axes keep their layout.
    The new value of a state is the result of its Update. `program` is not changed. The changes:

    - Slices of a state or of its new value are removed; their readers read the sliced state.
    - An Update writes the slice that its AllGather reads. Later readers of that slice read the
      new value instead. An output that is the new value so becomes a slice.
    - Operations that no output and no Update needs are removed.

    Raises `RefusedMoveError` (`refused-CONDITION`) for the first violated condition by state:

    1. `replicated-state`: a state has the name, and is replicated on the mesh axis of its uses.
    2. `not-needed-whole`: it is not declared `whole_after`.
    3. `sliced-use`, `gathered-value`, `one-axis`: its readers need only a slice (`_check_use`).
    4. `one-dimension`: it has a reader, and all readers use the same dimension.

    Errors of building the new program pass through.
    """
    conditions = Conditions("as-slice", program, {"states": tuple(states)})
    dimensions = {name: _find_dimension(program, name, conditions) for name in states}
    axis_of = {name: _find_axis(program, name) for name in states}
    names: dict[str, str] = {}
    for operation in program.operations:
        if operation.kind is Kind.SLICE and operation.reads[0] in dimensions:
            names[operation.name] = operation.reads[0]
    operations: list[Operation] = []
    for operation in program.operations:
        if operation.name in names:
            continue
        if _writes(operation, dimensions):
            # The Update writes the slice that its AllGather reads.
            state, value = operation.reads
            operands = state, program.by_name[value].reads[0]
            operation = replace(operation, operands=operands)
        operations.append(operation)
    for operation in program.operations:
        source = program.by_name.get(operation.reads[0]) if operation.reads else None
        if operation.kind is Kind.SLICE and source and _writes(source, dimensions):
            names[operation.name] = source.name
    remaining = [
        replace_operands(operation, names)
        for operation in operations
        if operation.name not in names
    ]
    remaining, renamed = _read_new_states(program, remaining, dimensions)
    arguments: list[Argument] = []
    for argument in program.arguments:
        if argument.name in dimensions:
            # The other axes of the mesh keep their layouts.
            layouts = list(argument.type.layout.by_axis)
            layouts[axis_of[argument.name]] = sliced(dimensions[argument.name])
            argument = replace(argument, type=replace(argument.type, layout=on_mesh(*layouts)))
        arguments.append(argument)
    result = build_program(program, remaining, conditions, tuple(arguments), renamed)
    return Rewrite(result, conditions.to_record())


def _find_axis(program: Program, name: str) -> int:
    """Return the position of the mesh axis along which the uses of a state slice it.

    The operations that read the state are examined in program order. An Update is replaced by
    the operation that computes its new value, if there is one. The first Slice or AllGather
    among them decides: the result is the lowest position of its mesh axes. Without one it is
    0.
    """
    for reader in program.readers.get(name, ()):
        source = reader
        if reader.kind is Kind.UPDATE:
            source = program.by_name.get(reader.reads[1], reader)
        if source.kind in (Kind.SLICE, Kind.ALL_GATHER):
            return find_axis_positions(program, source)[0]
    return 0


def _writes(operation: Operation, states: dict[str, int]) -> bool:
    """Whether an operation is an Update of one of the states."""
    return operation.kind is Kind.UPDATE and operation.reads[0] in states


def _read_new_states(
    program: Program, operations: list[Operation], states: dict[str, int]
) -> tuple[list[Operation], dict[str, str]]:
    """Redirect readers of a value that an Update writes to the Update, i.e. to the new state.

    Only operations after the Update are redirected. `states`: sliced dimension by name of a state;
    Updates of other states do not count. Returns (operations in the same order, new name by old
    name of renamed values).

    After this, the written value is renamed, which frees its name, if all these conditions hold:

    - Its name is `UPDATE_LAYOUT`, as `reorder` gives it: the name of the Update and the layout
      sliced along the dimension of the state.
    - It is not an output.
    - Only one operation still reads it, the Update. Operations that neither an output nor an Update
      needs are ignored.

    The new name is `_` and the old name, with `_2`, `_3`, ... if that is in use.
    """
    renamed: dict[str, str] = {}
    # Name of the Update by name of the value that it writes.
    new_state: dict[str, str] = {}
    redirected = []
    for operation in operations:
        redirected.append(replace_operands(operation, new_state))
        if _writes(operation, states):
            new_state[operation.reads[1]] = operation.name
    readers = collect_readers(select_live(redirected, program.outputs))
    for value, update in new_state.items():
        dimension = states[program.by_name[update].reads[0]]
        is_named_by_reorder = (
            value == f"{update}_{sliced(dimension)}" and value not in program.outputs
        )
        if is_named_by_reorder and len(readers[value]) == 1:
            renamed[value] = choose_name(program, f"_{value}")
    results = [
        replace(operation, name=renamed.get(operation.name, operation.name))
        for operation in redirected
    ]
    return [replace_operands(operation, renamed) for operation in results], renamed


def _find_dimension(program: Program, name: str, conditions: Conditions) -> int:
    """Return the one dimension, counted from 0, along which all uses of a state slice it.

    Conditions that hold are recorded in `conditions`. The first violated one raises
    `RefusedMoveError`. They are, in this order:

    1. `replicated-state`: a state has this name. It is replicated on the mesh axis of its first use
       that is a Slice or the AllGather of an Update (without one, on the first axis).
    2. `not-needed-whole`: the state is not declared `whole_after`.
    3. The conditions of `_check_use`: every reader, in program order, needs only a slice.
    4. `one-dimension`: all readers slice along the same dimension, and there is a reader.
    """
    state = program.states.get(name)
    message = "it is no replicated state"
    axis = _find_axis(program, name)
    is_replicated = state is not None and state.type.layout.by_axis[axis] == REPLICATED
    conditions.require(is_replicated, "replicated-state", name, message, "name a replicated state")
    is_needed = state is not None and state.whole_after
    message = "every rank reads all of it after the program"
    cure = "keep it replicated, or declare it without whole_after"
    conditions.require(not is_needed, "not-needed-whole", name, message, cure)
    readers = program.readers.get(name, ())
    used_dimensions = {_check_use(program, name, reader, conditions) for reader in readers}
    message = "its uses are slices along no dimension, or along several"
    cure = "reorder its readers before an AllGather first"
    conditions.require(len(used_dimensions) == 1, "one-dimension", name, message, cure)
    return used_dimensions.pop()


def _check_use(program: Program, name: str, reader: Operation, conditions: Conditions) -> int:
    """Check that a reader uses only a slice of the state `name`; return the sliced dimension.

    The dimension counts from 0. Conditions that hold are recorded. The first violated one
    raises `RefusedMoveError`. The axis is the mesh axis along which the uses slice the state.

    - A Slice is over that axis only (`one-axis`), then it is no output (`sliced-use`).
    - Any other reader is an Update of this state (`sliced-use`). Its value is the result of
      an AllGather (`gathered-value`) over that axis only (`one-axis`). Then each reader of
      the Update is a Slice of the gathered dimension (`sliced-use`), over that axis only, and
      no output.

    The dimension is that of the Slice or AllGather. An Update may have no readers.
    """
    axis = _find_axis(program, name)
    if reader.kind is Kind.SLICE:
        _check_axis(program, reader, axis, conditions)
        _check_no_output(program, reader, conditions)
        return reader.dimension or 0
    message = f"it reads all of state {name}"
    cure = "reorder it before an AllGather first"
    is_update = reader.kind is Kind.UPDATE and reader.reads[0] == name
    conditions.require(is_update, "sliced-use", reader.name, message, cure)
    # None if the value is an argument.
    gather = program.by_name.get(reader.reads[1])
    is_gather = gather is not None and gather.kind is Kind.ALL_GATHER
    message = "its value is no AllGather of a slice"
    conditions.require(is_gather, "gathered-value", reader.name, message, cure)
    source = gather.reads[0] if gather else name
    _check_axis(program, gather or reader, axis, conditions)
    dimension = program.types[source].layout.by_axis[axis].dimension
    for later in program.readers.get(reader.name, ()):
        is_slice = later.kind is Kind.SLICE and later.dimension == dimension
        message = f"it reads all of the new value of state {name}"
        conditions.require(is_slice, "sliced-use", later.name, message, cure)
        _check_axis(program, later, axis, conditions)
        _check_no_output(program, later, conditions)
    return dimension


def _check_axis(program: Program, use: Operation, axis: int, conditions: Conditions) -> None:
    """Check that a Slice or AllGather (`use`) goes over exactly one mesh axis, `axis`.

    `axis` is a position in the mesh. Records the condition `one-axis`, or raises
    `RefusedMoveError` if the operation has another axis or several.
    """
    is_along = find_axis_positions(program, use) == (axis,)
    message = "other uses of the state slice it along another axis"
    conditions.require(is_along, "one-axis", use.name, message, "slice it along one axis")


def _check_no_output(program: Program, cut: Operation, conditions: Conditions) -> None:
    """Check that the Slice `cut` is no output, since `as_slice` removes it.

    Records the condition `sliced-use`, or raises `RefusedMoveError` if it is an output.
    """
    is_output = cut.name in program.outputs
    cure = "make the new value of the state the output"
    conditions.require(not is_output, "sliced-use", cut.name, "it is an output", cure)
