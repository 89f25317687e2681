"""Elements of the units of an uneven collective in the tensors of a flat program."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from collhub_coconet.lowering.flat_program import RowRuns
from collhub_coconet.program.operations import Binding, Kind, Operation
from collhub_coconet.program.program import Program
from collhub_coconet.program.uneven_rows import list_row_blocks, read_counts
from hub_core.columns import Int64Array, counted_positions


@dataclass(frozen=True, slots=True, eq=False)
class UnitRows:
    """Rows of the units of one side of a chunk of an uneven collective: int64 by unit.

    Units are numbered on all ranks. Each belongs to a block of rows of the chunk, from one rank to
    another: `first_row` and `row_count` of this block in the tensor of the rank, `unit`: number of
    the unit in the block, `unit_count`: units of the block.
    """

    first_row: Int64Array
    row_count: Int64Array
    unit: Int64Array
    unit_count: Int64Array

    def find_elements(self, unit: int, width: int) -> Int64Array:
        """Return the flat row-major indices of the elements of a unit: int64, ascending.

        `unit`: number of the unit among those of all ranks, i.e. its entry in the columns.
        `width`: number of elements of a row. The indices refer to the tensor of the rank.

        The unit belongs to a block of `row_count` rows from `first_row` on. They have n =
        `row_count` * `width` elements, counted from 0 at the first row. With u = `unit[unit]` and c
        = `unit_count[unit]`, the unit has the elements u * n // c to (u + 1) * n // c - 1. The
        result is empty if there is none.
        """
        first, rows = int(self.first_row[unit]), int(self.row_count[unit])
        number, count = int(self.unit[unit]), int(self.unit_count[unit])
        size = rows * width
        return first * width + np.arange(number * size // count, (number + 1) * size // count)


def locate_units(part: RowRuns) -> tuple[UnitRows, UnitRows]:
    """Return the rows of all units of the inputs, and of the outputs, of one chunk of a collective.

    The collective must be uneven (with counts), else `AssertionError`. A block has the rows that a
    rank sends to one rank or contributes to all, or in the outputs those that it receives from one
    rank. Of a block of n rows from row f on, chunk c of C has the rows from f + n * c // C to f + n
    * (c + 1) // C - 1.

    The arrays have one entry per unit: rank by rank, then block by block, then within the block. A
    block without units has no entry.

    - `first_row`, `row_count`: the rows of this chunk in the unit's block, counted from the start
      of the rank's tensor
    - `unit`: number of the unit in its block, from 0
    - `unit_count`: number of units of the block, i.e. its entry in the algorithm's table of counts
    """
    counts = part.contents.algorithm.collective.counts
    assert counts is not None
    table = counts.table
    if counts.is_per_pair:
        units = list(table), list(table.T)
    elif part.operation.kind is Kind.ALL_GATHER_V:
        units = [table[rank : rank + 1] for rank in range(len(table))], [table] * len(table)
    else:
        units = [table] * len(table), [table[rank : rank + 1] for rank in range(len(table))]
    sides = []
    for blocks, units_of_blocks in zip(list_row_blocks(part.operation), units, strict=True):
        pairs = np.array([pair for entry in blocks for pair in entry], np.int64).reshape(-1, 2)
        first = pairs[:, 0] + pairs[:, 1] * part.chunk // part.chunks
        end = pairs[:, 0] + pairs[:, 1] * (part.chunk + 1) // part.chunks
        number = np.concatenate(units_of_blocks)
        block = np.repeat(np.arange(len(number)), number)
        sides.append(
            UnitRows(first[block], (end - first)[block], counted_positions(number), number[block])
        )
    return sides[0], sides[1]


def find_terms(
    program: Program, binding: Binding, operation: Operation, position: int, elements: Int64Array
) -> Int64Array:
    """Return, for elements of the result of a ReduceScatterV, their indices in its operand.

    `elements`: flat indices into the result of the rank at `position` in its group. Entry i
    of the result is the flat index of the element that is summed over all ranks to
    `elements[i]`: the rows of the rank follow those of all earlier ranks.
    """
    first = read_counts(operation).first_units()[0][position]
    return elements + int(first) * count_row_elements(program, binding, operation)


def find_unfilled(
    program: Program, binding: Binding, operation: Operation, position: int
) -> Int64Array:
    """Return the flat indices of the elements after the rows that a rank receives: int64.

    They are zeros in the result of the uneven collective `operation`. `position`: of the
    rank in its group. The result is empty if the rank receives as many rows as the result
    has. Raises `InputError` for missing or invalid counts (`invalid-counts`), and for a symbol
    without a number (`symbol`).
    """
    width = count_row_elements(program, binding, operation)
    received = sum(count for _, count in list_row_blocks(operation)[1][position])
    rows = binding.shape(program.types[operation.name].shape)[0]
    return np.arange(received * width, rows * width)


def count_row_elements(program: Program, binding: Binding, operation: Operation) -> int:
    """Return the number of elements of a row of an uneven collective."""
    return prod(binding.shape(program.types[operation.name].shape[1:]))
