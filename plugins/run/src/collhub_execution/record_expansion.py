"""Expand levelled steps into sends, receives, copies and reductions.

Data that must not be stored immediately, or must not be overwritten while it is read, gets a slot
in scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from collhub_execution.program_levels import RecordKind, StepLevels
from hub_core.columns import BoolArray, Int64Array, IntArray, run_mask
from hub_core.model import Buffer, Messages, StepKind, StepTable
from hub_core.verification import Regions

Columns = dict[str, Int64Array]


@dataclass(frozen=True, slots=True)
class SortedRecords:
    """Columns of a `LevelledProgram`, int64, in its order.

    `rank`: of every record. `scratch`: int64[num_ranks], blocks of SCRATCH that every rank needs.
    """

    columns: Columns
    rank: Int64Array
    scratch: Int64Array


class _RecordSide(IntEnum):
    """A side of a record: the step's source or target, its slot in scratch, or unused."""

    SOURCE = 0
    TARGET = 1
    SLOT = 2
    NOTHING = 3


_SOURCE, _TARGET, _SLOT, _NOTHING = _RecordSide
_SEND, _RECV, _COPY, _REDUCE = RecordKind

# (kind, side read, side written), and the records of a step as a sequence of these.
_Line = tuple[RecordKind, _RecordSide, _RecordSide]
_Template = tuple[_Line, ...]

# APART: source and target of the step share no unit; ONTO: they are the same units; ACROSS: they
# overlap, so the source has to be saved before the target is written.
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

_Case = tuple[_Template, Int64Array]


def expand_steps(
    steps: StepTable,
    messages: Messages,
    regions: Regions,
    levels: StepLevels,
    scratch: Int64Array,
    block_units: int,
) -> SortedRecords:
    """Create the records of all steps: sends, receives, copies and reductions of memory blocks.

    Records are sorted by rank, then level. In a level, messages come first, by row in `messages`,
    then local records by `levels.position` of their step. Records of one step are in the order of
    execution. COMPUTE steps, and copies of units onto themselves, have no records.

    `regions` (memory of each step) and `scratch` (SCRATCH of the algorithm, int64[ranks]) are in
    blocks of `block_units` units. A step has a slot, i.e. additional SCRATCH after that of the
    algorithm, in these cases: a staged message; a reducing receive unless source and target are
    separate; a local step whose source and target overlap partly. The slot is reserved from the
    level of its message, or of the local step, to the level of the step. Slots not used at the same
    time may share blocks. `SortedRecords.scratch` is the SCRATCH of every rank with slots, in
    blocks.
    """
    cases = _group_steps(steps, regions, levels)
    slot, sizes = _assign_slots(steps, regions, levels, scratch, cases)
    number = np.full(len(steps), -1, np.int64)
    number[messages.send] = np.arange(len(messages.send))
    number[messages.receive] = number[messages.send]
    sheet = _StepSheet(steps, block_units, regions.count, levels, slot, number)
    parts = [
        sheet.part(rows, line, index)
        for template, rows in cases
        for index, line in enumerate(template)
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    # Sort records by rank, level, messages before local ones, then message number or position.
    # Messages of a level by number, so that both ends of a pair of ranks have them in one order.
    message = columns["message"]
    is_local = message < 0
    within_level = np.where(is_local, columns.pop("place"), message)
    index = columns.pop("index")
    order = np.lexsort((index, within_level, is_local, columns["level"], columns["rank"]))
    ordered = {name: column[order] for name, column in columns.items()}
    rank = ordered.pop("rank")
    return SortedRecords(ordered, rank, sizes)


def _assign_slots(
    steps: StepTable,
    regions: Regions,
    levels: StepLevels,
    scratch: Int64Array,
    cases: Sequence[_Case],
) -> tuple[Int64Array, Int64Array]:
    """Give a slot (additional blocks of SCRATCH) to each step that needs one.

    `cases`: pairs of a template (the records that a kind of step becomes) and its steps; the step
    needs a slot if a record of the template uses it. The slot has the size of the step's region. It
    is used from the level that fills it (that of the message, else that of the step) to the level
    of the step. Slots of a rank that are not used in the same levels may share blocks
    (`place_slots`).

    Returns (first block of each step's slot, -1 without; SCRATCH of every rank with slots, which
    follow that of the algorithm), both int64 in blocks.
    """
    slotted = np.concatenate(
        [
            rows
            for template, rows in cases
            if any(_SLOT in (source, target) for _, source, target in template)
        ]
    )
    last = levels.level[slotted]
    filled = levels.message_level[slotted]
    # A local step fills its slot in the level in which it runs.
    first = np.where(filled >= 0, filled, last)
    offsets, sizes = place_slots(steps.rank[slotted], first, last, regions.count[slotted], scratch)
    slot = np.full(len(steps), -1, np.int64)
    slot[slotted] = offsets
    return slot, sizes


def _group_steps(steps: StepTable, regions: Regions, levels: StepLevels) -> Sequence[_Case]:
    """Group steps by the records that each becomes; return (template, ascending rows).

    Source and target of a step are equal, separate (their distance is at least the count), or
    overlap partly. Addresses count, because INPUT and OUTPUT may share memory. The slot is extra
    SCRATCH. There is one group per case, in this order; it may be empty:

    1. SEND: send.
    2. RECV, not staged: receive into the target.
    3. RECV, staged: receive into the slot, then copy to the target.
    4. RECV_REDUCE, separate and not staged: receive into the target, then add the source.
    5. RECV_REDUCE, equal: receive into the slot, then add it to the target.
    6. RECV_REDUCE, otherwise: receive into the slot, add the source to it, then copy it to the
       target.
    7. COPY, separate: copy.
    8. COPY, overlapping partly: copy into the slot, then to the target.
    9. REDUCE, equal or separate: add the source to the target.
    10. REDUCE, overlapping partly: copy the source into the slot, then add it to the target.

    A COPY with equal source and target is in no group.
    """
    # Addresses refer to one flat memory, so aliases of INPUT and OUTPUT overlap too.
    distance = np.abs(regions.source - regions.destination)
    onto = distance == 0
    is_apart = distance >= regions.count
    across = ~onto & ~is_apart
    staged = levels.is_staged
    sends = steps.is_kind(StepKind.SEND)
    receives = steps.is_kind(StepKind.RECV)
    reducing = steps.is_kind(StepKind.RECV_REDUCE)
    copies = steps.is_kind(StepKind.COPY)
    reduces = steps.is_kind(StepKind.REDUCE)
    masks: list[tuple[_Template, BoolArray]] = [
        (_SENT, sends),
        (_RECEIVED, receives & ~staged),
        (_RECEIVED_LATER, receives & staged),
        (_REDUCED_APART, reducing & is_apart & ~staged),
        (_REDUCED_ONTO, reducing & onto),
        # Staged and apart is treated as across: the message may not be stored in the target either.
        (_REDUCED_ACROSS, reducing & (across | (is_apart & staged))),
        (_COPIED, copies & is_apart),
        (_COPIED_ACROSS, copies & across),
        (_ADDED, reduces & ~across),
        (_ADDED_ACROSS, reduces & across),
    ]
    return [(template, np.flatnonzero(mask)) for template, mask in masks]


@dataclass(frozen=True, slots=True)
class _StepSheet:
    """Data from which records are created, one entry per step.

    `count`: blocks; `slot`: offset of its slot; `number`: of its message.
    """

    steps: StepTable
    block_units: int
    count: Int64Array
    levels: StepLevels
    slot: Int64Array
    number: Int64Array

    def part(self, rows: Int64Array, line: _Line, index: int) -> Columns:
        """Return the records of steps for one line of their template, as int64 columns by name.

        There is one record per step, in the order of `rows`. `line`: kind of the record, the
        side that it reads and the side that it writes (source or target of the step, its slot,
        or unused).

        - `rank`, `count` (blocks): of the step; `kind`: of `line`; `row`: `rows`
        - `level`, `peer`, `message`: for sends and receives the level, peer and number of the
          step's message; for copies and reductions the step's own level, -1 and -1
        - `src_buffer`, `src_offset`, `dst_buffer`, `dst_offset`: the two sides, offsets in
          blocks; UNKNOWN and 0 for an unused side
        - `place`: position of the step in `levels`; `index`: the argument `index`, which is the
          position of the line in the template
        """
        kind, source, target = line
        # The messages and the local records of a staged step are in different levels.
        is_message = kind <= RecordKind.RECV
        nothing = np.full(len(rows), -1, np.int64)
        level = self.levels.message_level if is_message else self.levels.level
        src_buffer, src_offset = self._get_side(rows, source)
        dst_buffer, dst_offset = self._get_side(rows, target)
        return {
            "rank": self.steps.rank[rows].astype(np.int64),
            "kind": np.full(len(rows), kind, np.int64),
            "level": level[rows],
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

    def _get_side(self, rows: Int64Array, side: _RecordSide) -> tuple[Int64Array, Int64Array]:
        """Return the buffers, and the offsets in blocks, of one side of the steps `rows`.

        `side` selects the place: the source of each step, its target, or its slot (additional
        SCRATCH). For `NOTHING` (the record does not use this side) the buffers are UNKNOWN and
        the offsets 0. Both results are int64, in the order of `rows`.
        """
        # A template names sides, not buffers: the same template serves every buffer.
        steps = self.steps
        if side is _SOURCE:
            return steps.src_buffer[rows].astype(np.int64), self._to_blocks(steps.src_offset, rows)
        if side is _TARGET:
            return steps.dst_buffer[rows].astype(np.int64), self._to_blocks(steps.dst_offset, rows)
        if side is _SLOT:
            return np.full(len(rows), Buffer.SCRATCH, np.int64), self.slot[rows]
        return np.full(len(rows), Buffer.UNKNOWN, np.int64), np.zeros(len(rows), np.int64)

    def _to_blocks(self, units: Int64Array, rows: Int64Array) -> Int64Array:
        """Return the offsets of `rows` in blocks; the block size divides all offsets."""
        return units[rows] // self.block_units


# (offset, end, last level) of a slot that is in use.
_LivingSlot = tuple[int, int, int]


def place_slots(
    rank: IntArray,
    first: Int64Array,
    last: Int64Array,
    count: Int64Array,
    occupied: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """Allocate slots in SCRATCH; return the offset of each slot, and the SCRATCH size of each rank.

    All sizes and offsets are in blocks. Slot i belongs to rank `rank[i]`, has `count[i]` blocks and
    is used from level `first[i]` to level `last[i]`, both included. `occupied`: int64[ranks], the
    used blocks at the start of SCRATCH. The sizes include these blocks and all slots.

    1. Slots with `first` = `last` start directly after the occupied blocks. Those of one rank and
       level are adjacent, in the given order. Those of different levels may share blocks.
    2. All other slots of a rank are above these. They are placed by ascending `first`, equal ones
       in the given order. Each gets the lowest free offset. A block is free if no slot placed
       before in this step is still used at `first` there. This is first fit (Knuth, TAOCP 1,
       section 2.5); optimal packing is NP-hard, and these slots are few.
    """
    offsets = np.zeros(len(rank), np.int64)
    sizes = occupied.copy()
    is_short = first == last
    short = np.flatnonzero(is_short)
    # One running sum over all ranks and levels, from which the origin of each is subtracted.
    short = short[np.lexsort((first[short], rank[short]))]
    owner = rank[short].astype(np.int64)
    ends = np.cumsum(count[short])
    starts = ends - count[short]
    is_origin = run_mask(owner, first[short])
    origin = starts[is_origin][np.cumsum(is_origin) - 1]
    offsets[short] = occupied[owner] + starts - origin
    np.maximum.at(sizes, owner, occupied[owner] + ends - origin)
    long = np.flatnonzero(~is_short)
    by_start = long[np.argsort(first[long], kind="stable")]
    base = sizes.tolist()
    living: dict[int, list[_LivingSlot]] = {}
    for row in by_start.tolist():
        owner_rank, start, length = int(rank[row]), int(first[row]), int(count[row])
        # Starts ascend, so expired slots are never needed again.
        alive = [slot for slot in living.get(owner_rank, ()) if slot[2] >= start]
        offset = _find_first_gap(alive, base[owner_rank], length)
        end = offset + length
        living[owner_rank] = sorted([*alive, (offset, end, int(last[row]))])
        offsets[row] = offset
        sizes[owner_rank] = max(int(sizes[owner_rank]), end)
    return offsets, sizes


def _find_first_gap(alive: list[_LivingSlot], base: int, length: int) -> int:
    """Return the smallest offset from `base` on at which `length` blocks are free.

    `alive`: slots in use as (start, end, ...), sorted by start; the space after the last one is
    free.
    """
    offset = base
    for start, end, _ in alive:
        if start - offset >= length:
            break
        offset = max(offset, end)
    return offset
