"""Split an AllReduce: into ReduceScatter and AllGather, or into Reduce and Broadcast."""

from __future__ import annotations

from dataclasses import replace

from collhub_coconet.program.operations import Kind, Operation, Reduction
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import sliced
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.transformations.rewriting import build_program, choose_name, find_operation


def split(program: Program, target: str, dimension: int = 0) -> Rewrite:
    """Replace `a = AllReduce(op, x)` by `s = ReduceScatter(op, x, d); a = AllGather(s)`.

    `target`: name of the AllReduce; `dimension`: d, counted from 0. Raises `RefusedMoveError`
    unless the operator is commutative and x has more than one element along the dimension.
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
    second = Operation(target, Kind.ALL_GATHER, (scattered,))
    return _replace_operation(program, operation, (first, second), conditions)


def split_at_root(program: Program, target: str, root: int = 0) -> Rewrite:
    """Replace `a = AllReduce(op, x)` by `s = Reduce(op, x, root); a = Broadcast(s, root)`.

    `root`: a rank of the group, counted from 0. Raises `RefusedMoveError` unless the operator is
    commutative and the root is not negative.
    """
    conditions = Conditions("split-at-root", program, {"target": target, "root": root})
    operation = _check_target(program, target, conditions)
    conditions.require(root >= 0, "root", target, f"root {root} is no rank", "count from 0")
    at_root = choose_name(program, f"{target}_root")
    first = replace(operation, name=at_root, kind=Kind.REDUCE, root=root)
    second = Operation(target, Kind.BROADCAST, (at_root,), root=root)
    return _replace_operation(program, operation, (first, second), conditions)


def _check_target(program: Program, target: str, conditions: Conditions) -> Operation:
    """Find the AllReduce with this name, and check that its operator is commutative."""
    operation = find_operation(program, target, Kind.ALL_REDUCE, conditions)
    reduction = operation.reduction or Reduction.SUM
    message = f"{reduction} depends on the order of the ranks"
    cure = "keep the AllReduce"
    conditions.require(reduction.is_commutative, "commutative", target, message, cure)
    return operation


def _replace_operation(
    program: Program, old: Operation, new: tuple[Operation, ...], conditions: Conditions
) -> Rewrite:
    """Build the program in which the operations `new` are at the position of `old`."""
    operations: list[Operation] = []
    for operation in program.operations:
        operations.extend(new if operation is old else (operation,))
    return Rewrite(build_program(program, operations, conditions), conditions.to_record())
