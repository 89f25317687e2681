"""Counts of uneven collectives: the rows that each rank sends and receives.

A row is a position of the first dimension of a tensor. Rank i sends its first rows to rank 0, the
following ones to rank 1, and so on; received rows are in the order of their senders. Rows of an
operand after those that a rank sends are ignored, rows of a result after those that it receives
are zero, so that tensors have the same shape on all ranks.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

from collhub_coconet.program.operations import UNEVEN_COLLECTIVES, Binding, Kind, Operation
from hub_core.model import CollectiveKind, InputError, Location

if TYPE_CHECKING:
    from collhub_coconet.program.program import Program
    from hub_core.columns import Int64Array
    from hub_core.model import UnitCounts

# The counts in bytes are counts of units, whose sum is at most 2^62.
_MAX_BYTES = 1 << 62

COLLECTIVE_KINDS = {
    Kind.ALL_TO_ALL_V: CollectiveKind.ALL_TO_ALL_V,
    Kind.ALL_GATHER_V: CollectiveKind.ALL_GATHER_V,
    Kind.REDUCE_SCATTER_V: CollectiveKind.REDUCE_SCATTER_V,
}
"""Kinds of the collectives of algorithms, by those of programs."""


def compute_byte_counts(
    program: Program, binding: Binding, operation: Operation, *others: Operation
) -> UnitCounts:
    """Return the counts of an uneven collective in bytes: rows times the bytes of a row.

    `others`: further members of its bucket, which have equal counts; their rows are added. Raise
    `InputError` (`size`) if the counts sum to more than 2^62 bytes, and in the cases of
    `read_counts` and `count_row_bytes`.
    """
    row_bytes = sum(count_row_bytes(program, binding, one) for one in (operation, *others))
    counts = read_counts(operation)
    if counts.total * row_bytes > _MAX_BYTES:
        message = f"{operation.name}: the rows of its counts have more than 2^62 bytes"
        location, cure = Location(program.name), "state other sizes or counts"
        raise InputError(message, location=location, cure=cure, code="size")
    return counts.multiplied(row_bytes)


def count_row_bytes(program: Program, binding: Binding, operation: Operation) -> int:
    """Return the bytes of one row of the operand of an uneven collective.

    A row has the elements at one position of dimension 0: the product of all other sizes, 1
    for an operand with one dimension. Raise `InputError` (`symbol`) for a symbol without a
    number.
    """
    operand = program.types[operation.reads[0]]
    return binding.elements(operand.shape[1:]) * operand.element.element_bytes


def read_counts(operation: Operation) -> UnitCounts:
    """Return the counts of an uneven collective in rows, per pair of ranks or per rank.

    An AllToAllV has n * n counts, row by row: first the rows that rank 0 sends to ranks 0,
    1, ... The other kinds have one count per rank. Raise `InputError` (`invalid-counts`)
    for missing or negative counts, for a sum of 0 or above 2^62, and for an AllToAllV whose
    number of counts is no square. Raise `AssertionError` for an operation of another kind.
    """
    assert operation.kind in UNEVEN_COLLECTIVES
    kind, values = COLLECTIVE_KINDS[operation.kind], operation.counts or ()
    ranks = isqrt(len(values)) if kind.traits.has_counts_per_pair else len(values)
    if not ranks:
        message = f"{operation.kind} has no counts"
        raise InputError(message, cure="state one per rank or pair of ranks", code="invalid-counts")
    # Imported here: programs without counts need no numpy.
    from hub_core.model import UnitCounts

    return UnitCounts.from_flat(values, kind, ranks)


def select_chunk(counts: UnitCounts, chunk: int, chunks: int) -> UnitCounts | None:
    """Return the counts of one of `chunks` chunks of an uneven collective; None if it has no rows.

    Each count c is divided separately: with k = `chunk`, from 0, and n = `chunks`, the
    chunk has the rows from c * k // n to c * (k + 1) // n (exclusive), counted from the
    start of the part.
    """
    # Imported here: programs without counts need no numpy.
    import numpy as np

    from hub_core.model import UnitCounts

    # Without products of the counts, which may be near 2^62.
    whole, rest = np.divmod(counts.table, chunks)
    rows = whole + rest * (chunk + 1) // chunks - rest * chunk // chunks
    if not rows.any():
        return None
    return UnitCounts.from_table(rows, counts.is_per_pair)


RowBlocks = tuple[tuple[tuple[int, int], ...], ...]
"""Blocks of rows of a tensor on every rank, as (first row, number of rows), by position."""


def list_row_blocks(operation: Operation) -> tuple[RowBlocks, RowBlocks]:
    """Return the blocks of rows of the operand and of the result of an uneven collective, by rank.

    A block is (first row, number of rows); blocks with 0 rows are included. The blocks of a
    rank are, in order:

    - AllToAllV: in the operand the rows for each receiver, in the result those from each
      sender.
    - AllGatherV: in the operand one block, the rank's rows; in the result the rows of each
      rank.
    - ReduceScatterV: in the operand the rows of each rank; in the result one block, the
      rank's.

    Raise `InputError` in the cases of `read_counts`.
    """
    counts = read_counts(operation)
    table, (sent, received) = counts.table, counts.first_units()
    ranks = range(counts.num_ranks)
    if operation.kind is Kind.ALL_TO_ALL_V:
        operand = tuple(_pair_rows(sent[rank], table[rank]) for rank in ranks)
        return operand, tuple(_pair_rows(received[:, rank], table[:, rank]) for rank in ranks)
    apart = tuple(((0, int(count)),) for count in table)
    joined = (_pair_rows(sent, table),) * len(ranks)
    return (apart, joined) if operation.kind is Kind.ALL_GATHER_V else (joined, apart)


def _pair_rows(first: Int64Array, count: Int64Array) -> tuple[tuple[int, int], ...]:
    return tuple(zip(first.tolist(), count.tolist(), strict=True))


def count_rows(operation: Operation, counts: UnitCounts) -> tuple[int, int]:
    """Return the rows that an operand needs and that a result has, each the maximum over the ranks.

    - AllToAllV: the largest sum of the counts of a sender, and of a receiver.
    - AllGatherV: the largest count, and the sum of all counts.
    - ReduceScatterV: the sum of all counts, and the largest count.
    """
    table = counts.table
    match operation.kind:
        case Kind.ALL_TO_ALL_V:
            return int(table.sum(axis=1).max()), int(table.sum(axis=0).max())
        case Kind.ALL_GATHER_V:
            return int(table.max()), counts.total
    return counts.total, int(table.max())
