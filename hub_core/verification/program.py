"""Turn steps into unit operations on one memory and run them: target := first (+) second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hub_core.model.levels import Order
from hub_core.model.messages import Messages
from hub_core.model.steps import StepKind, StepTable
from hub_core.verification.regions import Regions
from hub_core.verification.values import Values

Array = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]

_CHUNK_UNITS = 1 << 21
_LISTED = 64


@dataclass(frozen=True, slots=True)
class Program:
    """The steps that run, in order: entry i does target[i] := first[i] (+) second[i] on `count[i]` cells.

    Cells 0..`memory`-1 are the memory of the collective, the cells behind it hold messages in flight: a SEND copies
    into the message, a RECV copies out of it. `second` is -1 where nothing is added. `row`: the step. Entries
    `batches[k]:batches[k + 1]` are independent: all read before one writes.
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
        """Number of unit operations."""
        return int(self.count.sum())

    def last_writer(self, cell: int) -> int | None:
        """The row of the last step that writes `cell`, or None."""
        writers = np.flatnonzero((self.target <= cell) & (cell < self.target + self.count))
        return int(self.row[writers[-1]]) if len(writers) else None


@dataclass(slots=True)
class UndefinedReads:
    """Reads of undefined units: how many, and (row, cell) of the first ones."""

    count: int = 0
    listed: list[tuple[int, int]] = field(default_factory=list)


def compile_program(
    steps: StepTable, messages: Messages, order: Order, regions: Regions
) -> Program:
    """Compile the steps that run; `order` must order all conflicting accesses."""
    slot, cells = _message_slots(steps, messages, regions)
    is_send, is_receive = steps.sends, steps.receives
    reduces = steps.is_kind(StepKind.RECV_REDUCE)
    first = np.where(is_receive, slot, regions.source)
    second = np.where(
        reduces, regions.source, np.where(steps.is_kind(StepKind.REDUCE), regions.destination, -1)
    )
    target = np.where(is_send, slot, regions.destination)
    keep = np.flatnonzero((regions.is_valid & ~steps.is_kind(StepKind.COMPUTE))[order.nodes])
    rows = order.nodes[keep]
    batches = np.unique(np.searchsorted(keep, order.level_indptr))
    return Program(
        first[rows],
        second[rows],
        target[rows],
        regions.count[rows],
        rows,
        batches,
        regions.total,
        cells,
    )


def _message_slots(
    steps: StepTable, messages: Messages, regions: Regions
) -> tuple[Int64Array, int]:
    """First cell of the message of every row, and the number of all cells; both ends share it."""
    lonely = np.concatenate([messages.lonely_sends, messages.lonely_receives])
    rows = np.flatnonzero(steps.sends | steps.receives)
    length = np.zeros(len(steps), np.int64)
    length[messages.send] = np.maximum(
        regions.count[messages.send], regions.count[messages.receive]
    )
    length[lonely] = regions.count[lonely]
    unplaced = np.setdiff1d(
        rows, np.concatenate([messages.send, messages.receive, lonely]), assume_unique=True
    )
    length[unplaced] = regions.count[unplaced]
    ends = np.cumsum(length)
    slot = regions.total + ends - length
    slot[messages.receive] = slot[messages.send]
    return slot, regions.total + (int(ends[-1]) if len(ends) else 0)


def run_program(program: Program, values: Values, memory: Array) -> UndefinedReads:
    """Execute on `memory` (cells x width, changed in place) and return which reads met undefined units."""
    undefined = UndefinedReads()
    for first, second, target, batches, base in _expanded(program):
        adding = np.flatnonzero(second >= 0)
        borders = np.searchsorted(adding, batches).tolist()
        for k, (low, high) in enumerate(
            zip(batches[:-1].tolist(), batches[1:].tolist(), strict=True)
        ):
            taken = memory[first[low:high]]
            some = adding[borders[k] : borders[k + 1]]
            if len(some):
                taken[some - low] = values.combine(taken[some - low], memory[second[some]])
            if not taken[:, -1].all():
                _note_undefined(program, memory, (first, second), base, (low, high), undefined)
            memory[target[low:high]] = taken
    return undefined


def _note_undefined(
    program: Program,
    memory: Array,
    operands: tuple[Int64Array, Int64Array],
    base: Int64Array,
    span: tuple[int, int],
    undefined: UndefinedReads,
) -> None:
    """Record the undefined operands of one batch; a message that carries undefined units was recorded where it was sent."""
    for operand in operands:
        cells = operand[span[0] : span[1]]
        bad = np.flatnonzero((cells >= 0) & (cells < program.memory))
        bad = bad[memory[cells[bad], -1] == 0]
        undefined.count += len(bad)
        for index in bad[: max(0, _LISTED - len(undefined.listed))].tolist():
            undefined.listed.append((int(program.row[base[span[0] + index]]), int(cells[index])))


_Expanded = tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]


def _expanded(program: Program, backwards: bool = False) -> Iterator[_Expanded]:
    """Chunks of whole batches in unit operations: (first, second, target, batches, entry of every operation)."""
    ends = np.concatenate([[0], np.cumsum(program.count)])
    chunk = (
        (ends[program.batches] // _CHUNK_UNITS)[:-1]
        if len(program.batches)
        else np.zeros(0, np.int64)
    )
    cuts = np.flatnonzero(np.diff(chunk)) + 1
    pieces = [piece for piece in np.split(np.arange(len(chunk)), cuts) if len(piece)]
    for piece in reversed(pieces) if backwards else pieces:
        borders = program.batches[piece[0] : piece[-1] + 2]
        yield _expand(program, ends, borders)


def _expand(program: Program, ends: Int64Array, borders: Int64Array) -> _Expanded:
    low, high = int(borders[0]), int(borders[-1])
    count = program.count[low:high]
    entry = np.arange(low, high)
    columns = [column[low:high] for column in (program.first, program.second, program.target)]
    if len(count) and int(count.max()) > 1:
        within = np.arange(int(count.sum())) - np.repeat(ends[low:high] - ends[low], count)
        entry = np.repeat(entry, count)
        first, second, target = (np.repeat(column, count) for column in columns)
        columns = [first + within, np.where(second >= 0, second + within, -1), target + within]
    return columns[0], columns[1], columns[2], ends[borders] - ends[low], entry


def origins(program: Program, cells: Int64Array) -> npt.NDArray[np.float64]:
    """How often each initial cell ends up in each of `cells`: float64[all cells, len(cells)], by running backwards."""
    shares = np.zeros((program.cells, len(cells)))
    shares[cells, np.arange(len(cells))] = 1.0
    for first, second, target, batches, _ in _expanded(program, backwards=True):
        for low, high in zip(batches[:-1][::-1].tolist(), batches[1:][::-1].tolist(), strict=True):
            moved = shares[target[low:high]]
            shares[target[low:high]] = 0.0
            if moved.any():
                np.add.at(shares, first[low:high], moved)
                added = second[low:high] >= 0
                np.add.at(shares, second[low:high][added], moved[added])
    return shares
