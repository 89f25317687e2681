"""Bytes of the full buffer of a collective, in which all blocks are as long as the longest."""

from __future__ import annotations

from collhub_coconet.program.operations import Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.tensors import Binding


def full_bytes(program: Program, binding: Binding, operation: Operation) -> int:
    """Bytes of the full buffer: of all ranks, or of one where each has a buffer of its own.

    Of a reduction to a scalar that is all-reduced, those of the scalar.
    """
    kind, ranks = program.types[operation.name], binding.num_ranks
    if not operation.is_communication:
        return binding.bytes_of_rank(kind)
    # A block of the longest rank stands for each.
    if operation.kind is Kind.REDUCE_SCATTER:
        return binding.bytes_of_rank(kind) * ranks
    operand = program.types[operation.reads[0]]
    size = binding.bytes_of_rank(operand)
    if operation.kind is Kind.ALL_GATHER:
        return size * ranks
    if operation.kind is Kind.ALL_TO_ALL:
        # Of its block of one dimension a rank sends each a block of the other.
        length = binding.shape(kind.shape)[kind.layout.dimension]
        return size // length * -(-length // ranks) * ranks
    return size
