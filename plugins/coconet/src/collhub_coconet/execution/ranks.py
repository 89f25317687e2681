"""Simulate a program on p ranks with numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from collhub_coconet.execution.array_operations import (
    Array,
    OnRanks,
    apply_dropout,
    apply_pointwise,
    collect,
    compute_global_indices,
    convolve,
    distribute,
    draw_dropout_mask,
    mix_operands,
    multiply_batches,
    multiply_matrices,
    reduce_over_ranks,
    reduce_to_scalar,
    take_block,
)
from collhub_coconet.program.operations import (
    CONTRACTIONS,
    REDUCTIONS_TO_SCALARS,
    Binding,
    Kind,
    Operation,
    Reduction,
    Rule,
    TensorType,
    block_bounds,
    distance_from_end,
    has_dimension,
)
from collhub_coconet.program.program import Program
from hub_core.model import InputError, Location

Replacement = Callable[[Operation, OnRanks, OnRanks], OnRanks]
"""Callback (operation, its first operand, its value) -> value with which the run continues."""


@dataclass(slots=True)
class SimulatedRun:
    """Values of all operations on all ranks of their group, by name; masks of Dropout, complete."""

    program: Program
    binding: Binding
    values: dict[str, OnRanks] = field(default_factory=dict)
    masks: list[Array] = field(default_factory=list)


def simulate_ranks(
    program: Program,
    binding: Binding,
    arguments: Mapping[str, OnRanks],
    replacement: Replacement | None = None,
) -> SimulatedRun:
    """Run a program on all ranks of its groups, kernel by kernel; returns all values.

    `arguments`: one array per rank, by name. `replacement(operation, operand, value)` may exchange
    the value of an operation. Raises `InputError` for a root that is not a rank of the group.
    """
    run = SimulatedRun(program, binding, dict(arguments))
    _check_roots(program, binding)
    # Random data may overflow, in both programs alike.
    with np.errstate(all="ignore"):
        for kernel in program.kernels():
            for operation in kernel:
                value = _compute_value(run, operation)
                if replacement is not None:
                    value = replacement(operation, run.values[operation.reads[0]], value)
                run.values[operation.name] = value
    return run


def _check_roots(program: Program, binding: Binding) -> None:
    for line, operation in enumerate(program.operations, 1):
        # Checked here, since a program does not determine the number of ranks.
        root = operation.root or 0
        if not 0 <= root < binding.num_ranks:
            location = Location(program.name, line)
            message = f"{operation.name}: root {root} is no rank of {binding.num_ranks}"
            raise InputError(message, location=location, cure="count ranks from 0", code="root")


def _compute_value(run: SimulatedRun, operation: Operation) -> OnRanks:
    function_of_all_ranks = _FUNCTIONS_OF_ALL_RANKS.get(operation.kind)
    if function_of_all_ranks is not None:
        return function_of_all_ranks(run, operation)
    if operation.kind in REDUCTIONS_TO_SCALARS:
        return _compute_scalar(run, operation)
    ranks = range(run.binding.num_ranks)
    if operation.kind in CONTRACTIONS:
        function = _CONTRACTIONS[operation.kind]
        x, w = (run.values[name] for name in operation.reads)
        return [function(x[rank], w[rank]) for rank in ranks]
    return [_compute_pointwise(run, operation, rank) for rank in ranks]


def _compute_pointwise(run: SimulatedRun, operation: Operation, rank: int) -> Array:
    kind = run.program.types[operation.name]
    operands = [run.values[name][rank] for name in operation.reads]
    if operation.kind is Kind.CAST:
        return operands[0].astype(kind.element)
    # Collect the operands of a pointwise operation on one rank; numbers adopt their type.
    result = run.program.types[operation.name]
    # The condition of a Select is bool; its values determine the type of the numbers.
    candidates = operation.operands[1:] if operation.kind is Kind.SELECT else operation.operands
    name = next(operand for operand in candidates if isinstance(operand, str))
    dtype = np.dtype(str(run.program.types[name].element))
    parts = []
    for operand in operation.operands:
        if isinstance(operand, str):
            parts.append(_take_operand(run, operand, result, rank))
        else:
            parts.append(np.asarray(operand, dtype))
    return apply_pointwise(operation.kind, parts)


def _take_operand(run: SimulatedRun, name: str, result: TensorType, rank: int) -> Array:
    """Return an operand on one rank, as the operation needs it.

    If the result is sliced and a replicated operand has the sliced dimension, this is the block of
    the rank; otherwise its entire array.
    """
    kind = run.program.types[name]
    value = run.values[name][rank]
    if not result.layout.is_sliced or kind.layout.is_sliced:
        return value
    # Operands with fewer dimensions are aligned at the end.
    distance = distance_from_end(result.layout.dimension, len(result.shape))
    if not has_dimension(kind.shape, distance):
        return value
    return take_block(value, len(kind.shape) - distance, run.binding.num_ranks, rank)


def _compute_all_reduce(run: SimulatedRun, operation: Operation) -> OnRanks:
    # All ranks can share one array, since arrays are never modified.
    reduced = reduce_over_ranks(
        run.values[operation.reads[0]], operation.reduction or Reduction.SUM
    )
    return [reduced] * run.binding.num_ranks


def _compute_reduce_scatter(run: SimulatedRun, operation: Operation) -> OnRanks:
    num_ranks, dimension = run.binding.num_ranks, operation.dimension or 0
    contributions = run.values[operation.reads[0]]
    blocks = [
        [take_block(contribution, dimension, num_ranks, rank) for contribution in contributions]
        for rank in range(num_ranks)
    ]
    return [reduce_over_ranks(parts, operation.reduction or Reduction.SUM) for parts in blocks]


def _compute_all_gather(run: SimulatedRun, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    tensor = collect(run.values[name], run.program.types[name])
    return [tensor] * run.binding.num_ranks


def _compute_all_to_all(run: SimulatedRun, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    tensor = collect(run.values[name], run.program.types[name])
    return distribute(tensor, run.program.types[operation.name], run.binding.num_ranks)


def _compute_broadcast(run: SimulatedRun, operation: Operation) -> OnRanks:
    return [run.values[operation.reads[0]][operation.root or 0]] * run.binding.num_ranks


def _compute_reduce(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Reduce on the root; the remaining ranks keep their operand."""
    values = list(run.values[operation.reads[0]])
    values[operation.root or 0] = reduce_over_ranks(values, operation.reduction or Reduction.SUM)
    return values


def _compute_send(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Copy the values to the other group: values are stored by name, and a name has one group."""
    return list(run.values[operation.reads[0]])


def _compute_slice(run: SimulatedRun, operation: Operation) -> OnRanks:
    values, num_ranks = run.values[operation.reads[0]], run.binding.num_ranks
    dimension = operation.dimension or 0
    return [take_block(value, dimension, num_ranks, rank) for rank, value in enumerate(values)]


def _compute_update(run: SimulatedRun, operation: Operation) -> OnRanks:
    # The old value of the state is not read.
    return run.values[operation.reads[1]]


def _compute_dropout(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Apply Dropout on every rank; random numbers depend on the index in the complete tensor.

    So ranks with the same element drop it alike. Rate and seed are 0 if not stated. Returns one
    array per rank; the mask of the complete tensor (True: kept) is appended to `run.masks`.
    """
    kind = run.program.types[operation.name]
    shape = run.binding.shape(kind.shape)
    rate, seed = operation.rate or 0.0, operation.seed or 0
    keeps, results = [], []
    for rank, values in enumerate(run.values[operation.reads[0]]):
        dimension, bounds = 0, None
        if kind.layout.is_sliced:
            dimension = kind.layout.dimension
            bounds = block_bounds(shape[dimension], run.binding.num_ranks, rank)
        keep = draw_dropout_mask(compute_global_indices(shape, dimension, bounds), rate, seed)
        keeps.append(keep)
        results.append(apply_dropout(values, keep, rate))
    run.masks.append(collect(keeps, kind))
    return results


def _compute_scalar(run: SimulatedRun, operation: Operation) -> OnRanks:
    name = operation.reads[0]
    values = run.values[name]
    if not run.program.types[name].layout.is_sliced:
        return [reduce_to_scalar(operation.kind, [value]) for value in values]
    return [reduce_to_scalar(operation.kind, values)] * run.binding.num_ranks


def _compute_transpose(run: SimulatedRun, operation: Operation) -> OnRanks:
    # A block along one of the dimensions becomes a block along the other.
    values = run.values[operation.reads[0]]
    return [np.ascontiguousarray(np.swapaxes(value, -1, -2)) for value in values]


def _compute_opaque(run: SimulatedRun, operation: Operation) -> OnRanks:
    """Compute a stand-in for an operator that the language does not describe; see `mix_operands`.

    Views between local values and blocks keep the values.
    """
    operands = [run.values[name] for name in operation.reads]
    if operation.rule in (Rule.TO_BLOCKS, Rule.TO_LOCAL):
        return list(operands[0])
    kind = run.program.types[operation.name]
    shape = run.binding.shape(kind.shape)
    results = []
    for rank in range(run.binding.num_ranks):
        rows = range(0)
        if kind.layout.is_sliced:
            rows = range(*block_bounds(shape[0], run.binding.num_ranks, rank))
        seed = rank if operation.rule is Rule.RANDOM else 0
        shape_of_rank = (len(rows), *shape[1:]) if kind.layout.is_sliced else shape
        # Operands with as many rows as the block are read row by row.
        values = [operand[rank] for operand in operands]
        results.append(mix_operands(operation.call or "", seed, values, shape_of_rank, kind))
    return results


_CONTRACTIONS = {
    Kind.MATMUL: multiply_matrices,
    Kind.BATCH_MATMUL: multiply_batches,
    Kind.CONV: convolve,
}
_FUNCTIONS_OF_ALL_RANKS: dict[Kind, Callable[[SimulatedRun, Operation], OnRanks]] = {
    Kind.ALL_REDUCE: _compute_all_reduce,
    Kind.REDUCE_SCATTER: _compute_reduce_scatter,
    Kind.ALL_GATHER: _compute_all_gather,
    Kind.ALL_TO_ALL: _compute_all_to_all,
    Kind.BROADCAST: _compute_broadcast,
    Kind.REDUCE: _compute_reduce,
    Kind.SEND: _compute_send,
    Kind.SLICE: _compute_slice,
    Kind.TRANSPOSE: _compute_transpose,
    Kind.UPDATE: _compute_update,
    Kind.DROPOUT: _compute_dropout,
    Kind.OPAQUE: _compute_opaque,
}
