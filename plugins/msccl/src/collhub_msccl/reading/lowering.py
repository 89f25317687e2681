"""Lower MSCCL-IR steps to plain steps: fused steps become two, nops none.

What each type does at run time is that of `src/collectives/device/msccl_interpreter.h` of
microsoft/msccl: `rcs` is RECV and SEND, `rrc` RECV_REDUCE, `rrcs` RECV_REDUCE and SEND, `rrs`
RECV_REDUCE and SEND of a value that is stored nowhere. For the last one scratch is added behind the
declared one, a slot for each thread block, as its `rrs` run one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, first_positions

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.conflicts.true_dependencies import with_true_dependencies
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import resolve_dependencies
from collhub_msccl.reading.fusion import fuse_reductions
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from hub_core.model import Buffer, Collective, StepKind, StepTable


@dataclass(frozen=True, slots=True, eq=False)
class _StepTraits:
    """Traits of the step types, arrays indexed by `StepType`."""

    rows: Int64Array  # plain steps that it becomes; the second one is a SEND
    kind: Int64Array  # `StepKind` of the first one
    uses_src: BoolArray
    uses_dst: BoolArray
    receives: BoolArray
    reduces_received: BoolArray


# Type: rows, kind of the first, and whether it uses src, uses dst, receives, reduces what it gets.
_TRAITS_OF_TYPE = {
    StepType.SEND: (1, StepKind.SEND, 1, 0, 0, 0),
    StepType.RECV: (1, StepKind.RECV, 0, 1, 1, 0),
    StepType.RECV_COPY_SEND: (2, StepKind.RECV, 0, 1, 1, 0),
    StepType.RECV_REDUCE_COPY: (1, StepKind.RECV_REDUCE, 1, 1, 1, 1),
    StepType.RECV_REDUCE_SEND: (2, StepKind.RECV_REDUCE, 1, 0, 1, 1),
    StepType.RECV_REDUCE_COPY_SEND: (2, StepKind.RECV_REDUCE, 1, 1, 1, 1),
    StepType.COPY: (1, StepKind.COPY, 1, 1, 0, 0),
    StepType.REDUCE: (1, StepKind.REDUCE, 1, 1, 0, 0),
    # No row is made of it; the kind is never read.
    StepType.NOP: (0, StepKind.COMPUTE, 0, 0, 0, 0),
}


def _traits() -> _StepTraits:
    """The table above by column."""
    rows, kind, *facts = zip(*(_TRAITS_OF_TYPE[step_type] for step_type in StepType), strict=True)
    masks = [np.asarray(fact, np.bool_) for fact in facts]
    return _StepTraits(np.asarray(rows, np.int64), np.asarray(kind, np.int64), *masks)


_TRAITS = _traits()


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """Rows of a step table, program order and stated dependencies.

    `block_indptr`, `scratch_units`: int64 per rank.
    """

    columns: dict[str, Int64Array]
    data: Edges
    control: Edges
    block_indptr: Int64Array
    scratch_units: Int64Array

    def table(self, collective: Collective, file: str) -> StepTable:
        """The step table for a collective, whose in-placeness tells what memory is shared.

        Raises `InputError` for cycles.
        """
        num_ranks = len(self.scratch_units)
        table = StepTable.from_columns(num_ranks, self.columns, self.data, self.control, file)
        return with_true_dependencies(table, collective, self.scratch_units, self.block_indptr)


def lower(
    program: ThreadBlockProgram,
    is_dsl_reading: bool,
    findings: FileFindings,
) -> Lowered:
    """Lower a checked program.

    Raises `InputError` for dependencies that never end and for scratch outside its buffer in a rank
    with `rrs`, whose intermediate values lie behind the declared scratch.
    """
    fusion = fuse_reductions(program, findings)
    stated = resolve_dependencies(program, fusion, findings)
    # A chain of `re` moves as many chunks as its last member says.
    program = program.with_counts(fusion.count)
    slot, scratch_units = _slots(program, findings)
    # Plain rows of each step: 0, 1 or 2.
    width = _TRAITS.rows[program.type]
    regions = _regions(program, slot, is_dsl_reading)
    return Lowered(
        _rows(_first_rows(program, regions), program, width),
        _data(stated, width),
        _program_order(program, width),
        program.block_indptr,
        scratch_units,
    )


def _data(stated: Edges, width: Int64Array) -> Edges:
    """Stated dependencies between rows, and each SEND of a fused step after its first row."""
    parents, children = stated
    first = first_positions(width)
    last = first + width - 1
    second = last[width == 2]
    # The flag is raised when all of a step is done, and a wait holds up all of it.
    parent_rows = np.concatenate([last[parents], second - 1])
    child_rows = np.concatenate([first[children], second])
    return parent_rows, child_rows


def _program_order(program: ThreadBlockProgram, width: Int64Array) -> Edges:
    """Each step after the one before it in its thread block, nops left out."""
    first = first_positions(width)
    last = first + width - 1
    # Nops became no rows: the steps around them follow each other.
    moves = np.flatnonzero(width)
    before, after = moves[:-1], moves[1:]
    is_together = program.block[before] == program.block[after]
    return last[before[is_together]], first[after[is_together]]


def _slots(program: ThreadBlockProgram, findings: FileFindings) -> tuple[Int64Array, Int64Array]:
    """First unit of the slot of each thread block, and units of scratch of each rank, int64.

    A slot holds the intermediate values of `rrs`. Slots of a rank lie one after the other behind
    its declared scratch, each as large as the largest `rrs` of its thread block.
    """
    size = np.zeros(len(program.block_id), np.int64)
    is_rrs = program.is_type(StepType.RECV_REDUCE_SEND)
    np.maximum.at(size, program.block[is_rrs], program.count[is_rrs])
    before = first_positions(size)
    total = np.zeros(program.num_ranks, np.int64)
    np.add.at(total, program.block_rank, size)
    # Slots count up within each rank.
    before_rank = first_positions(total)
    rank = program.block_rank
    slot = program.scratch_chunks[rank] + before - before_rank[rank]
    if is_rrs.any():
        _check_scratch(program, total, findings)
    return slot, program.scratch_chunks + total


def _check_scratch(
    program: ThreadBlockProgram,
    slots_of_rank: Int64Array,
    findings: FileFindings,
) -> None:
    """Refuse steps whose scratch would overlap the slots; elsewhere `verify` tells such steps."""
    rank = program.rank
    limit = program.scratch_chunks[rank]
    is_outside = np.zeros(len(program), np.bool_)
    for buffer, offset, is_used in (
        (program.src_buffer, program.src_offset, _TRAITS.uses_src[program.type]),
        (program.dst_buffer, program.dst_offset, _TRAITS.uses_dst[program.type]),
    ):
        # Declared sizes, which the parsers hold against the first chunk only.
        reaches_beyond = offset + program.count > limit
        is_outside |= is_used & (buffer == Buffer.SCRATCH) & reaches_beyond
    findings.errors_at(
        "scratch-range",
        is_outside & (slots_of_rank[rank] > 0),
        program.line,
        lambda row: f"{program.name(row)}: reaches beyond the s_chunks of {limit[row]}",
        rank=rank,
    )
    findings.raise_errors()


def _regions(
    program: ThreadBlockProgram,
    slot: Int64Array,
    is_dsl_reading: bool,
) -> dict[str, Int64Array]:
    """Source and destination of every step's first row; unused sides are not blanked yet."""
    src_buffer, src_offset = program.src_buffer, program.src_offset
    if is_dsl_reading:
        # MSCCLang prints the sender's place in src and means dst = dst + received; the runtimes add
        # the local src.
        reduces = _TRAITS.reduces_received[program.type]
        src_buffer = np.where(reduces, program.dst_buffer, src_buffer)
        src_offset = np.where(reduces, program.dst_offset, src_offset)
    is_rrs = program.type == StepType.RECV_REDUCE_SEND
    return {
        "src_buffer": src_buffer,
        "src_offset": src_offset,
        "dst_buffer": np.where(is_rrs, Buffer.SCRATCH, program.dst_buffer),
        "dst_offset": np.where(is_rrs, slot[program.block], program.dst_offset),
    }


def _first_rows(
    program: ThreadBlockProgram,
    regions: dict[str, Int64Array],
) -> dict[str, Int64Array]:
    """Columns of the first plain step of every step."""
    block, step_type = program.block, program.type
    uses_src = _TRAITS.uses_src[step_type]
    is_rrs = step_type == StepType.RECV_REDUCE_SEND
    uses_dst = _TRAITS.uses_dst[step_type] | is_rrs
    peer = np.where(step_type == StepType.SEND, program.send[block], -1)
    peer = np.where(_TRAITS.receives[step_type], program.recv[block], peer)
    return {
        "rank": program.rank,
        "kind": _TRAITS.kind[step_type],
        "peer": peer,
        # Local steps use no connection, whatever channel their thread block has.
        "channel": np.where(peer >= 0, program.channel[block], 0),
        # Sides that a step does not use are documentation of the other end in the file.
        "src_buffer": np.where(uses_src, regions["src_buffer"], Buffer.UNKNOWN),
        "src_offset": np.where(uses_src, regions["src_offset"], 0),
        "dst_buffer": np.where(uses_dst, regions["dst_buffer"], Buffer.UNKNOWN),
        "dst_offset": np.where(uses_dst, regions["dst_offset"], 0),
        "count": program.count,
        "lane": program.block_id[block],
        "source_line": program.line,
    }


def _rows(
    first: dict[str, Int64Array],
    program: ThreadBlockProgram,
    width: Int64Array,
) -> dict[str, Int64Array]:
    """Columns of all rows: each second row sends on what the first one stored."""
    rows = {name: np.repeat(column, width) for name, column in first.items()}
    second = first_positions(width)[width == 2] + 1
    rows["kind"][second] = StepKind.SEND
    # The second row alone differs from the first: kind, peer, and where it reads.
    rows["peer"][second] = program.send[program.block[width == 2]]
    for part, unused in (("buffer", Buffer.UNKNOWN), ("offset", 0)):
        rows[f"src_{part}"][second] = rows[f"dst_{part}"][second]
        rows[f"dst_{part}"][second] = unused
    return rows
