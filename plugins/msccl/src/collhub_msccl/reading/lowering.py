"""Lower MSCCL-IR steps to plain steps: fused steps become two, nops none."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.conflicts.true_dependencies import with_true_dependencies
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import resolve_dependencies
from collhub_msccl.reading.fusion import fuse_reductions
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from hub_core.collectives import Buffer, Collective
from hub_core.steps import StepKind, StepTable

Int64Array = npt.NDArray[np.int64]

# In the order of StepType: s, r, rcs, rrc, rrs, rrcs, cpy, re, nop.
_ROWS = np.asarray([1, 1, 2, 1, 2, 2, 1, 1, 0])
_FIRST_KIND = np.asarray(
    [
        StepKind.SEND,
        StepKind.RECV,
        StepKind.RECV,
        *[StepKind.RECV_REDUCE] * 3,
        StepKind.COPY,
        StepKind.REDUCE,
        StepKind.COMPUTE,
    ],
    np.int64,
)


@dataclass(frozen=True, slots=True)
class Lowered:
    """Rows of a step table, program order and stated dependencies. `block_indptr`, `scratch_units`: int64 per rank."""

    columns: dict[str, Int64Array]
    data: Edges
    control: Edges
    block_indptr: Int64Array
    scratch_units: Int64Array

    def table(self, collective: Collective, file: str) -> StepTable:
        """The step table for a collective, whose in-placeness tells what memory is shared. Raises `InputError` for cycles."""
        table = StepTable.from_columns(
            len(self.scratch_units), self.columns, self.data, self.control, file
        )
        return with_true_dependencies(table, collective, self.scratch_units, self.block_indptr)


def lower(program: ThreadBlockProgram, is_dsl_reading: bool, findings: FileFindings) -> Lowered:
    """Lower a checked program. Raises `InputError` for dependencies that never end and for scratch outside its buffer
    in a rank with `rrs`, whose intermediate values lie behind the declared scratch."""
    fusion = fuse_reductions(program, findings)
    parents, children = resolve_dependencies(program, fusion, findings)
    program = program.with_counts(fusion.count)
    slot, scratch_units = _slots(program, findings)
    width = _ROWS[program.type]
    first = np.cumsum(width) - width
    last = first + width - 1
    second = last[width == 2]
    data = np.concatenate([last[parents], second - 1]), np.concatenate([first[children], second])
    moves = np.flatnonzero(width)
    same_block = program.block[moves[1:]] == program.block[moves[:-1]]
    control = last[moves[:-1][same_block]], first[moves[1:][same_block]]
    return Lowered(
        _columns(program, slot, is_dsl_reading, width),
        data,
        control,
        program.block_indptr,
        scratch_units,
    )


def _slots(program: ThreadBlockProgram, findings: FileFindings) -> tuple[Int64Array, Int64Array]:
    """Where each thread block's `rrs` put their values, and the scratch that every rank needs in all."""
    size = np.zeros(len(program.block_id), np.int64)
    is_rrs = program.is_type(StepType.RECV_REDUCE_SEND)
    np.maximum.at(size, program.block[is_rrs], program.count[is_rrs])
    before = np.cumsum(size) - size
    total = np.zeros(program.num_ranks, np.int64)
    np.add.at(total, program.block_rank, size)
    before_rank = np.cumsum(total) - total
    slot = program.scratch_chunks[program.block_rank] + before - before_rank[program.block_rank]
    if is_rrs.any():
        _check_scratch(program, total, findings)
    return slot, program.scratch_chunks + total


def _check_scratch(
    program: ThreadBlockProgram, slots_of_rank: Int64Array, findings: FileFindings
) -> None:
    rank = program.rank
    limit = program.scratch_chunks[rank]
    is_outside = np.zeros(len(program), np.bool_)
    for buffer, offset, used in (
        (program.src_buffer, program.src_offset, _USES_SRC[program.type]),
        (program.dst_buffer, program.dst_offset, _USES_DST[program.type]),
    ):
        is_outside |= used & (buffer == Buffer.SCRATCH) & (offset + program.count > limit)
    findings.errors_at(
        "scratch-range",
        is_outside & (slots_of_rank[rank] > 0),
        program.line,
        lambda row: f"{program.name(row)}: reaches beyond the s_chunks of {limit[row]}",
        rank=rank,
    )
    findings.raise_errors()


_USES_SRC = np.asarray([1, 0, 0, 1, 1, 1, 1, 1, 0], np.bool_)
_USES_DST = np.asarray([0, 1, 1, 1, 0, 1, 1, 1, 0], np.bool_)
_RECEIVES = np.asarray([0, 1, 1, 1, 1, 1, 0, 0, 0], np.bool_)
_SENDS_FIRST = np.asarray([1, 0, 0, 0, 0, 0, 0, 0, 0], np.bool_)
_REDUCES_RECEIVED = np.asarray([0, 0, 0, 1, 1, 1, 0, 0, 0], np.bool_)


def _columns(
    program: ThreadBlockProgram, slot: Int64Array, is_dsl_reading: bool, width: Int64Array
) -> dict[str, Int64Array]:
    step_type = program.type
    src_buffer, src_offset, dst_buffer, dst_offset = _regions(program, slot, is_dsl_reading)
    is_rrs = step_type == StepType.RECV_REDUCE_SEND
    has_src, has_dst = _USES_SRC[step_type], _USES_DST[step_type] | is_rrs
    peer = np.where(_SENDS_FIRST[step_type], program.send[program.block], -1)
    peer = np.where(_RECEIVES[step_type], program.recv[program.block], peer)
    columns = {
        "rank": program.rank,
        "kind": _FIRST_KIND[step_type],
        "peer": peer,
        "channel": np.where(peer >= 0, program.channel[program.block], 0),
        "src_buffer": np.where(has_src, src_buffer, Buffer.UNKNOWN),
        "src_offset": np.where(has_src, src_offset, 0),
        "dst_buffer": np.where(has_dst, dst_buffer, Buffer.UNKNOWN),
        "dst_offset": np.where(has_dst, dst_offset, 0),
        "count": program.count,
        "lane": program.block_id[program.block],
        "source_line": program.line,
    }
    rows = {name: np.repeat(column, width) for name, column in columns.items()}
    second = np.cumsum(width)[width == 2] - 1
    rows["kind"][second] = StepKind.SEND
    rows["peer"][second] = program.send[program.block[width == 2]]
    for part, unused in (("buffer", Buffer.UNKNOWN), ("offset", 0)):
        rows[f"src_{part}"][second] = rows[f"dst_{part}"][second]
        rows[f"dst_{part}"][second] = unused
    return rows


def _regions(
    program: ThreadBlockProgram, slot: Int64Array, is_dsl_reading: bool
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Source and destination of every step's first row; unused sides are not blanked yet."""
    src_buffer, src_offset = program.src_buffer, program.src_offset
    if is_dsl_reading:
        # MSCCLang prints the sender's place in src and means dst = dst + received; the runtimes add the local src.
        reduces = _REDUCES_RECEIVED[program.type]
        src_buffer = np.where(reduces, program.dst_buffer, src_buffer)
        src_offset = np.where(reduces, program.dst_offset, src_offset)
    is_rrs = program.type == StepType.RECV_REDUCE_SEND
    dst_buffer = np.where(is_rrs, Buffer.SCRATCH, program.dst_buffer)
    dst_offset = np.where(is_rrs, slot[program.block], program.dst_offset)
    return src_buffer, src_offset, dst_buffer, dst_offset
