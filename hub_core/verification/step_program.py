"""Compile steps to operations on one memory and run them: target := first (+) second.

Steps of one level of the order are independent, so that a level is one gather, one reduction and
one scatter of numpy. Regions of several units are expanded to operations on one unit each, some
levels at a time. Invariant: all conflicting accesses are ordered by the levels, so that all
operations of a batch may read before one writes. Cost: linear in unit operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hub_core.columns import (
    Float64Array,
    Int64Array,
    Order,
    counted_positions,
    distinct,
    first_positions,
    row_pointer,
    run_starts,
)
from hub_core.model import Messages, StepKind, StepTable
from hub_core.verification.regions import Regions
from hub_core.verification.values import Values

_Array = npt.NDArray[Any]

# Some hundred MB of columns at a time.
_OPERATIONS_AT_ONCE = 1 << 21
_LISTED = 64


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The steps that run, in order: target[i] := first[i] (+) second[i] on `count[i]` cells.

    Cells 0..`memory`-1 are the buffers of all ranks; the following cells, up to `cells`-1, hold
    messages in flight: a SEND copies into its message, a RECV copies from it. `second` is -1 for
    operations that only copy. `row`: row of the step table. Entries `batches[k]:batches[k + 1]` are
    independent: all of them read before any of them writes. All columns are int64.
    """

    first: Int64Array
    second: Int64Array
    target: Int64Array
    count: Int64Array
    row: Int64Array
    batches: Int64Array
    memory: int
    cells: int

    @property
    def work(self) -> int:
        """Number of operations on single cells."""
        return int(self.count.sum())

    def last_writer(self, cell: int) -> int | None:
        """Return the row (of the step table) of the last entry of the program that writes `cell`.

        None if no entry writes it; the initial content does not count.
        """
        writers = np.flatnonzero((self.target <= cell) & (cell < self.target + self.count))
        return int(self.row[writers[-1]]) if len(writers) else None


@dataclass(slots=True)
class UndefinedReads:
    """Number of reads of undefined units, and (row, cell) of the first ones."""

    count: int = 0
    listed: list[tuple[int, int]] = field(default_factory=list)


def compile_steps(
    steps: StepTable, messages: Messages, order: Order, regions: Regions
) -> StepProgram:
    """Return the steps that run as operations on memory cells, in the order of `order`.

    COMPUTE steps and steps with invalid regions are left out. Each message has a slot of cells
    after the buffers. The operation of a step is:

    - send: slot := source
    - receive: destination := slot
    - receive with a reduction: destination := slot op source
    - copy: destination := source
    - REDUCE: destination := source op destination

    The levels of `order` become batches; levels without operations are left out. All reads of a
    batch precede its writes, so `order` must order all conflicting accesses.
    """
    sends, receives = steps.sends, steps.receives
    # Slots of messages in flight follow the buffers, in the order of rows. A send and its receive
    # share the slot of the send; different counts are a finding of the matching.
    length = np.where(sends | receives, regions.count, 0)
    sent, received = regions.count[messages.send], regions.count[messages.receive]
    length[messages.receive] = 0
    length[messages.send] = np.maximum(sent, received)
    slot = regions.total + first_positions(length)
    slot[messages.receive] = slot[messages.send]
    is_reduction = steps.is_kind(StepKind.REDUCE)
    first = np.where(receives, slot, regions.source)
    # REDUCE: dst = dst op src; RECV_REDUCE: dst = received op src.
    second = np.where(is_reduction, regions.destination, -1)
    second = np.where(steps.is_kind(StepKind.RECV_REDUCE), regions.source, second)
    target = np.where(sends, slot, regions.destination)
    works = regions.is_valid & ~steps.is_kind(StepKind.COMPUTE)
    # Invalid regions are findings of `check_regions`; COMPUTE accesses no memory.
    selected = np.flatnonzero(works[order.nodes])
    rows = order.nodes[selected]
    return StepProgram(
        first=first[rows],
        second=second[rows],
        target=target[rows],
        count=regions.count[rows],
        row=rows,
        batches=distinct(np.searchsorted(selected, order.level_indptr)),
        memory=regions.total,
        cells=regions.total + int(length.sum()),
    )


def run_steps(program: StepProgram, values: Values, memory: _Array) -> UndefinedReads:
    """Run the program on `memory`; return the number of reads of undefined cells, and the first 64.

    `memory`: [cells, width], changed in place. A cell is undefined if its last column is 0. Entries
    of a batch read before any of them writes. An entry copies `first`, or writes the combination of
    `first` and `second` by `values.combine`. Undefined values are copied too; the run goes on.

    Reads of message slots are not counted, because the send has read the undefined cell before. The
    first 64 reads are listed as (row of the step, cell), by batch; within a batch, those of `first`
    precede those of `second`.
    """
    undefined = UndefinedReads()
    for part in _generate_operations(program):
        # Most operations only copy.
        adding = np.flatnonzero(part.second >= 0)
        borders = np.searchsorted(adding, part.batches).tolist()
        for batch, (low, high) in enumerate(pairwise(part.batches.tolist())):
            taken = memory[part.first[low:high]]
            selected = adding[borders[batch] : borders[batch + 1]]
            if len(selected):
                added = memory[part.second[selected]]
                taken[selected - low] = values.combine(taken[selected - low], added)
            if not taken[:, -1].all():
                _note_undefined(program, memory, part, (low, high), undefined)
            memory[part.target[low:high]] = taken
    return undefined


class _UnitOperations(NamedTuple):
    """Operations on single cells, of complete batches.

    `entry`: index of the operation in the program. `batches`: as in `StepProgram`.
    """

    first: Int64Array
    second: Int64Array
    target: Int64Array
    batches: Int64Array
    entry: Int64Array


def _note_undefined(
    program: StepProgram,
    memory: _Array,
    part: _UnitOperations,
    span: tuple[int, int],
    undefined: UndefinedReads,
) -> None:
    """Count the undefined operands of the entries in `span` of one batch in `undefined`.

    A cell is undefined if its last column is 0. Cells of messages are skipped, because the read at
    the send was counted. In total the first 64 are also listed as (row of the step, cell).
    """
    for operand in (part.first, part.second):
        cells = operand[span[0] : span[1]]
        # Cells of messages are skipped: the read at the send was recorded.
        bad = np.flatnonzero((cells >= 0) & (cells < program.memory))
        bad = bad[memory[cells[bad], -1] == 0]
        undefined.count += len(bad)
        for index in bad[: max(0, _LISTED - len(undefined.listed))].tolist():
            row = int(program.row[part.entry[span[0] + index]])
            undefined.listed.append((row, int(cells[index])))


def _generate_operations(
    program: StepProgram, backwards: bool = False
) -> Iterator[_UnitOperations]:
    """Yield the operations on single cells, several complete batches at a time.

    A part has about `_OPERATIONS_AT_ONCE` operations, and more if a single batch has more,
    because batches are never divided. With `backwards`, the parts are yielded from last to
    first; the operations within a part keep their order. Yield no part for a program
    without batches.
    """
    stops = row_pointer(program.count)
    if not len(program.batches):
        return
    # Batches are not split, because all their reads precede their writes.
    starts = run_starts(stops[program.batches[:-1]] // _OPERATIONS_AT_ONCE)
    cuts = [*starts.tolist(), len(program.batches) - 1]
    parts = list(pairwise(cuts))
    for first, after in reversed(parts) if backwards else parts:
        yield _expand(program, stops, program.batches[first : after + 1])


def _expand(program: StepProgram, stops: Int64Array, borders: Int64Array) -> _UnitOperations:
    """Return the entries `borders[0]:borders[-1]` of a program as operations on single cells.

    `borders`: entries at which batches begin, and the end of the last batch. `stops`: number of
    cells before each entry. An entry with a `count` of n becomes n operations on consecutive cells;
    `second` is -1 for all of them if the entry has no second operand (below 0). In the result,
    `batches` are positions of operations, counted from the first operation of the result. `entry`
    are numbers of entries of the whole program.
    """
    low, high = int(borders[0]), int(borders[-1])
    count = program.count[low:high]
    entry = np.arange(low, high)
    columns = (program.first, program.second, program.target)
    first, second, target = (column[low:high] for column in columns)
    if int(count.max(initial=0)) > 1:
        within = counted_positions(count)
        entry = np.repeat(entry, count)
        first, target = np.repeat(first, count) + within, np.repeat(target, count) + within
        second = np.repeat(second, count)
        second = np.where(second >= 0, second + within, -1)
    return _UnitOperations(first, second, target, stops[borders] - stops[low], entry)


def origins(program: StepProgram, cells: Int64Array) -> Float64Array:
    """Return how often each initial cell contributes to each of `cells` after the run.

    The result is float64[program.cells, len(cells)]: a row per cell of buffers and message slots, a
    column per entry of `cells`. A cell that no operation writes contributes once to itself. A copy
    hands on the contributions of its operand, and a combination those of both operands, added: for
    `x := x op x` the initial x contributes 2.0. Overwritten contents contribute nothing. Whether
    cells are defined is ignored.
    """
    shares = np.zeros((program.cells, len(cells)))
    shares[cells, np.arange(len(cells))] = 1.0
    for part in _generate_operations(program, backwards=True):
        for high, low in pairwise(part.batches[::-1].tolist()):
            moved = shares[part.target[low:high]]
            # The previous value of the target is overwritten and contributes to no cell.
            shares[part.target[low:high]] = 0.0
            if not moved.any():
                continue
            np.add.at(shares, part.first[low:high], moved)
            second = part.second[low:high]
            is_added = second >= 0
            np.add.at(shares, second[is_added], moved[is_added])
    return shares
