"""Split an AllReduce: into ReduceScatter and AllGather, or into Reduce and Broadcast."""

from __future__ import annotations

from dataclasses import replace

from collhub_coconet.program.operations import Kind, Operation, Reduction
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import sliced
from collhub_coconet.transformations.legality import Conditions, Rewrite
from collhub_coconet.transformations.rewriting import fresh, operation_of, rewritten


def split(program: Program, target: str, dimension: int = 0) -> Rewrite:
    """`a = AllReduce(op, x)` becomes `s = ReduceScatter(op, x, d); a = AllGather(s)`.

    The operator is associative and commutative, and x has the dimension. Raises `RefusedMoveError`.
    """
    conditions = Conditions("split", program, {"target": target, "dimension": dimension})
    operation = _splittable(program, target, conditions)
    shape = program.types[target].shape
    has_dimension = 0 <= dimension < len(shape) and shape[dimension] != 1
    message = f"there is no dimension {dimension} of more than one element"
    cure = "name a dimension to scatter along"
    conditions.require(has_dimension, "dimension", target, message, cure)
    scattered = fresh(program, f"{target}_{sliced(dimension)}")
    first = replace(operation, name=scattered, kind=Kind.REDUCE_SCATTER, dimension=dimension)
    second = Operation(target, Kind.ALL_GATHER, (scattered,))
    return _replaced(program, operation, (first, second), conditions)


def split_at_root(program: Program, target: str, root: int = 0) -> Rewrite:
    """`a = AllReduce(op, x)` becomes `s = Reduce(op, x, root); a = Broadcast(s, root)`."""
    conditions = Conditions("split-at-root", program, {"target": target, "root": root})
    operation = _splittable(program, target, conditions)
    conditions.require(root >= 0, "root", target, f"root {root} is no rank", "count from 0")
    at_root = fresh(program, f"{target}_root")
    first = replace(operation, name=at_root, kind=Kind.REDUCE, root=root)
    second = Operation(target, Kind.BROADCAST, (at_root,), root=root)
    return _replaced(program, operation, (first, second), conditions)


def _splittable(program: Program, target: str, conditions: Conditions) -> Operation:
    """The AllReduce with this name, whose operator commutes."""
    operation = operation_of(program, target, Kind.ALL_REDUCE, conditions)
    reduction = operation.reduction or Reduction.SUM
    message = f"{reduction} depends on the order of the ranks"
    # No rewriting makes another order right.
    cure = "keep the AllReduce"
    conditions.require(reduction.is_commutative, "commutative", target, message, cure)
    return operation


def _replaced(
    program: Program, old: Operation, new: tuple[Operation, ...], conditions: Conditions
) -> Rewrite:
    """The program with two operations instead of one."""
    operations: list[Operation] = []
    for operation in program.operations:
        # In its place, so that readers stay behind it.
        operations.extend(new if operation is old else (operation,))
    return Rewrite(rewritten(program, operations, conditions), conditions.record())
