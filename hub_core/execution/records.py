"""Write levelled steps out as sends, receives, copies and reductions, with scratch for what must not land at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from hub_core.execution.ordering import Levels
from hub_core.execution.program import RecordKind
from hub_core.execution.slots import place_slots
from hub_core.model.kinds import Buffer, StepKind
from hub_core.model.messages import Messages
from hub_core.model.steps import StepTable
from hub_core.verification.regions import Regions

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Columns = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Records:
    """Sorted columns of a `LevelledProgram`, the `rank` of every record, and the blocks of SCRATCH that every rank needs."""

    columns: Columns
    rank: Int64Array
    scratch: Int64Array


class _Place(IntEnum):
    """The sides of a record: what the step reads, what it writes, its slot in scratch, nothing."""

    SOURCE = 0
    TARGET = 1
    SLOT = 2
    NOTHING = 3


_SOURCE, _TARGET, _SLOT, _NOTHING = _Place
_Record = tuple[RecordKind, _Place, _Place]
_Template = tuple[_Record, ...]
_SEND, _RECV, _COPY, _REDUCE = RecordKind

# What a step becomes. Apart: what it reads and writes shares no unit; onto: both are the same units; across: they overlap.
_SENT: _Template = ((_SEND, _SOURCE, _NOTHING),)
_RECEIVED: _Template = ((_RECV, _NOTHING, _TARGET),)
_RECEIVED_LATER: _Template = ((_RECV, _NOTHING, _SLOT), (_COPY, _SLOT, _TARGET))
_REDUCED_APART: _Template = ((_RECV, _NOTHING, _TARGET), (_REDUCE, _SOURCE, _TARGET))
_REDUCED_ONTO: _Template = ((_RECV, _NOTHING, _SLOT), (_REDUCE, _SLOT, _TARGET))
_REDUCED_ACROSS: _Template = (
    (_RECV, _NOTHING, _SLOT),
    (_REDUCE, _SOURCE, _SLOT),
    (_COPY, _SLOT, _TARGET),
)
_COPIED: _Template = ((_COPY, _SOURCE, _TARGET),)
_COPIED_ACROSS: _Template = ((_COPY, _SOURCE, _SLOT), (_COPY, _SLOT, _TARGET))
_ADDED: _Template = ((_REDUCE, _SOURCE, _TARGET),)
_ADDED_ACROSS: _Template = ((_COPY, _SOURCE, _SLOT), (_REDUCE, _SLOT, _TARGET))


def expand_steps(
    steps: StepTable,
    messages: Messages,
    regions: Regions,
    levels: Levels,
    scratch: Int64Array,
    unit: int,
) -> Records:
    """Make the records of all steps. `regions` and `scratch`, the size of SCRATCH at every rank, are in blocks of `unit` units.

    A slot lives from the level in which it is filled to that in which it is emptied; slots are placed behind the SCRATCH of
    the algorithm and share its blocks where they do not live at one time.
    """
    cases = _cases(steps, regions, levels)
    slotted = np.concatenate(
        [rows for template, rows in cases if any(_SLOT in record[1:] for record in template)]
    )
    first = np.where(
        levels.message_level[slotted] >= 0, levels.message_level[slotted], levels.level[slotted]
    )
    offsets, sizes = place_slots(
        steps.rank[slotted], first, levels.level[slotted], regions.count[slotted], scratch
    )
    slot, number = np.full((2, len(steps)), -1, np.int64)
    slot[slotted] = offsets
    number[messages.send] = number[messages.receive] = np.arange(len(messages.send))
    sheet = _Sheet(steps, unit, regions.count, levels, slot, number)
    parts = [
        sheet.part(rows, record, index)
        for template, rows in cases
        for index, record in enumerate(template)
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    key = np.where(columns["message"] >= 0, columns["message"], columns.pop("place"))
    order = np.lexsort(
        (columns.pop("index"), key, columns["message"] < 0, columns["level"], columns["rank"])
    )
    columns = {name: column[order] for name, column in columns.items()}
    return Records(columns, columns.pop("rank"), sizes)


def _cases(
    steps: StepTable, regions: Regions, levels: Levels
) -> Sequence[tuple[_Template, Int64Array]]:
    """The steps by what becomes of them; a copy of units onto themselves becomes nothing."""
    gap = np.abs(regions.source - regions.destination)
    onto, apart = gap == 0, gap >= regions.count
    across = ~onto & ~apart
    staged = levels.is_staged
    sends, receives, reducing, copies, reduces = (
        steps.is_kind(kind) for kind in list(StepKind)[:5]
    )
    masks: list[tuple[_Template, BoolArray]] = [
        (_SENT, sends),
        (_RECEIVED, receives & ~staged),
        (_RECEIVED_LATER, receives & staged),
        (_REDUCED_APART, reducing & apart & ~staged),
        (_REDUCED_ONTO, reducing & onto),
        (_REDUCED_ACROSS, reducing & (across | (apart & staged))),
        (_COPIED, copies & apart),
        (_COPIED_ACROSS, copies & across),
        (_ADDED, reduces & ~across),
        (_ADDED_ACROSS, reduces & across),
    ]
    return [(template, np.flatnonzero(mask)) for template, mask in masks]


@dataclass(frozen=True, slots=True)
class _Sheet:
    """What the records are written from, one entry a step: blocks, levels, offset of its slot, number of its message."""

    steps: StepTable
    unit: int
    count: Int64Array
    levels: Levels
    slot: Int64Array
    number: Int64Array

    def part(self, rows: Int64Array, record: _Record, index: int) -> Columns:
        """The records that `rows` have in one place of their template; `index` is that place."""
        kind, source, target = record
        is_message = kind <= RecordKind.RECV
        nothing = np.full(len(rows), -1, np.int64)
        src_buffer, src_offset = self._side(rows, source)
        dst_buffer, dst_offset = self._side(rows, target)
        return {
            "rank": self.steps.rank[rows].astype(np.int64),
            "kind": np.full(len(rows), kind, np.int64),
            "level": (self.levels.message_level if is_message else self.levels.level)[rows],
            "peer": self.steps.peer[rows].astype(np.int64) if is_message else nothing,
            "message": self.number[rows] if is_message else nothing,
            "src_buffer": src_buffer,
            "src_offset": src_offset,
            "dst_buffer": dst_buffer,
            "dst_offset": dst_offset,
            "count": self.count[rows],
            "row": rows,
            "place": self.levels.position[rows],
            "index": np.full(len(rows), index, np.int64),
        }

    def _side(self, rows: Int64Array, place: _Place) -> tuple[Int64Array, Int64Array]:
        """(buffer, offset) of one side of the records."""
        steps = self.steps
        if place is _SOURCE:
            return steps.src_buffer[rows].astype(np.int64), steps.src_offset[rows] // self.unit
        if place is _TARGET:
            return steps.dst_buffer[rows].astype(np.int64), steps.dst_offset[rows] // self.unit
        buffer = Buffer.SCRATCH if place is _SLOT else Buffer.UNKNOWN
        return np.full(len(rows), buffer, np.int64), self.slot[
            rows
        ] if place is _SLOT else np.zeros(len(rows), np.int64)
