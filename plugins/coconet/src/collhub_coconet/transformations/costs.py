"""Costs of a program on one rank: bytes sent, bytes in memory, operations, bytes of states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import prod

from collhub_coconet.program.operations import (
    CONTRACTIONS,
    POINTWISE,
    REDUCTIONS_TO_SCALARS,
    Kind,
    Operation,
)
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding
from collhub_coconet.typing.contraction import axes_of


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one rank; where ranks differ, of the one with the longest block.

    `sent_bytes`: over links, by ring collectives. `memory_bytes`: read and written by kernels.
    `operations`: arithmetic, a multiplication and an addition of a contraction counted as two.
    `state_bytes`: of states that stay. `kernels`: launches.
    """

    sent_bytes: int
    memory_bytes: int
    operations: int
    state_bytes: int
    kernels: int

    def as_fields(self) -> dict[str, int]:
        """All of them by name, in words."""
        return {name.replace("_", " "): value for name, value in asdict(self).items()}

    def __sub__(self, other: Costs) -> Costs:
        return Costs(
            self.sent_bytes - other.sent_bytes,
            self.memory_bytes - other.memory_bytes,
            self.operations - other.operations,
            self.state_bytes - other.state_bytes,
            self.kernels - other.kernels,
        )


def costs(program: Program, binding: Binding) -> Costs:
    """Costs of one run with these sizes. Raises `InputError` for a symbol that is not bound."""
    # Launches follow the order of execution.
    kernels = program.kernels()
    states = (argument.type for argument in program.states.values())
    return Costs(
        sum(_sent_bytes(program, one, binding) for one in program.operations),
        sum(memory_bytes(program, kernel, binding) for kernel in kernels),
        sum(operations_of(program, one, binding) for one in program.operations),
        sum(binding.bytes_of_rank(state) for state in states),
        sum(any(one.kind is not Kind.SLICE for one in kernel) for kernel in kernels),
    )


def _sent_bytes(program: Program, operation: Operation, binding: Binding) -> int:
    """Ring algorithms: a rank passes on p - 1 of p blocks of a vector, twice in an all-reduce."""
    kind = program.types[operation.name]
    # What an all-gather gives, and what the others begin with.
    whole = binding.elements(kind.shape) * kind.element.element_bytes
    share = whole * (binding.num_ranks - 1) // binding.num_ranks
    if operation.kind is Kind.SEND:
        return binding.bytes_of_rank(kind)
    if operation.kind in REDUCTIONS_TO_SCALARS:
        is_sliced = program.types[operation.reads[0]].layout.is_sliced
        return 2 * share if is_sliced else 0
    if operation.kind is Kind.ALL_REDUCE:
        return 2 * share
    if operation.kind is Kind.ALL_TO_ALL:
        # Of its own block.
        return share // binding.num_ranks
    return share if operation.is_communication else 0


def memory_bytes(
    program: Program,
    kernel: Sequence[Operation],
    binding: Binding,
    beside: Iterable[str] = (),
) -> int:
    """Distinct outside operands are read once, values that live on are written once.

    `beside`: further operations of the same kernel, whose values are in registers.
    """
    inside = {operation.name for operation in kernel}.union(beside)
    # A slice is a view: whoever reads it reads a part of the original.
    working = [operation for operation in kernel if operation.kind is not Kind.SLICE]
    views = {operation.name for operation in kernel if operation.kind is Kind.SLICE}
    read = {name for one in working for name in one.reads if name not in inside or name in views}
    written = {one.name for one in working if _lives_on(program, one, inside)}
    return sum(binding.bytes_of_rank(program.types[name]) for name in read | written)


def _lives_on(program: Program, operation: Operation, inside: set[str]) -> bool:
    """Whether somebody outside a kernel needs a value."""
    # A value within a kernel stays in registers.
    readers = program.readers.get(operation.name, ())
    is_read = any(reader.name not in inside for reader in readers)
    return is_read or operation.name in program.outputs or operation.kind is Kind.UPDATE


def operations_of(program: Program, operation: Operation, binding: Binding) -> int:
    """Arithmetic of one operation on the rank with the longest block."""
    if operation.kind in CONTRACTIONS:
        return 2 * _products(program, operation, binding)
    if operation.kind in REDUCTIONS_TO_SCALARS:
        return binding.elements_of_rank(program.types[operation.reads[0]])
    if operation.kind in POINTWISE:
        return binding.elements_of_rank(program.types[operation.name])
    return 0


def _products(program: Program, operation: Operation, binding: Binding) -> int:
    """Multiplications of a contraction: elements of the result times terms of each sum."""
    # Those of the rank with the longest block.
    x, w = (program.types[name] for name in operation.reads)
    axes = axes_of(operation.kind, len(x.shape))
    terms = binding.shape(x.shape)[axes.x_sum]
    if operation.kind is Kind.CONV:
        terms *= prod(binding.shape(w.shape[2:]))
    result = program.types[operation.name]
    if x.layout.is_sliced and x.layout.dimension == axes.x_sum:
        terms = -(-terms // binding.num_ranks)
    return binding.elements_of_rank(result) * terms
