"""Lower MSCCL-IR steps to plain steps: a fused step becomes two, a nop none.

The semantics are those of `src/collectives/device/msccl_interpreter.h` of microsoft/msccl: `rcs` is
RECV and SEND, `rrc` RECV_REDUCE, `rrcs` RECV_REDUCE and SEND, `rrs` RECV_REDUCE and SEND of a value
that is not stored. The value of `rrs` is stored in scratch appended to the declared scratch: one
slot per thread block suffices, because its `rrs` run one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.dependencies import fuse_reductions, resolve_dependencies
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram, allocate_slots
from collhub_msccl.true_dependencies import insert_true_dependencies
from hub_core.columns import BoolArray, Int64Array, first_positions
from hub_core.model import Buffer, Collective, StepKind, StepTable


@dataclass(frozen=True, slots=True, eq=False)
class _StepTraits:
    """Properties of the step types, arrays indexed by `StepType`."""

    rows: Int64Array  # number of plain steps; a second one is a SEND
    kind: Int64Array  # `StepKind` of the first plain step
    uses_src: BoolArray
    uses_dst: BoolArray
    receives: BoolArray
    reduces_received: BoolArray


# Plain steps, kind of the first, and flags: uses src, uses dst, receives, reduces received data.
_TRAITS_OF_TYPE = {
    StepType.SEND: (1, StepKind.SEND, 1, 0, 0, 0),
    StepType.RECV: (1, StepKind.RECV, 0, 1, 1, 0),
    StepType.RECV_COPY_SEND: (2, StepKind.RECV, 0, 1, 1, 0),
    StepType.RECV_REDUCE_COPY: (1, StepKind.RECV_REDUCE, 1, 1, 1, 1),
    StepType.RECV_REDUCE_SEND: (2, StepKind.RECV_REDUCE, 1, 0, 1, 1),
    StepType.RECV_REDUCE_COPY_SEND: (2, StepKind.RECV_REDUCE, 1, 1, 1, 1),
    StepType.COPY: (1, StepKind.COPY, 1, 1, 0, 0),
    StepType.REDUCE: (1, StepKind.REDUCE, 1, 1, 0, 0),
    # It becomes no row; the kind is never read.
    StepType.NOP: (0, StepKind.COMPUTE, 0, 0, 0, 0),
}


_ROWS, _KINDS, *_FLAGS = zip(*(_TRAITS_OF_TYPE[one] for one in StepType), strict=True)
_TRAITS = _StepTraits(
    np.asarray(_ROWS, np.int64),
    np.asarray(_KINDS, np.int64),
    *(np.asarray(flags, np.bool_) for flags in _FLAGS),
)


@dataclass(frozen=True, slots=True, eq=False)
class LoweredRows:
    """Rows of a step table, with data and control edges.

    `data`: declared dependencies and the edges within fused steps; `control`: program order;
    `block_indptr`: int64[ranks + 1], first thread block of each rank; `scratch_units`: int64 per
    rank.
    """

    columns: dict[str, Int64Array]
    data: Edges
    control: Edges
    block_indptr: Int64Array
    scratch_units: Int64Array

    def build_table(self, collective: Collective, file: str) -> StepTable:
        """Build the step table of the lowered program for a collective.

        Data edges are added between steps that access the same memory in program order
        (`insert_true_dependencies`); the modes of the collective decide which buffers share memory.
        Raises `InputError` with a line of `file` if the dependencies form a cycle.
        """
        num_ranks = len(self.scratch_units)
        table = StepTable.from_columns(num_ranks, self.columns, self.data, self.control, file)
        return insert_true_dependencies(table, collective, self.scratch_units, self.block_indptr)


def lower(
    program: ThreadBlockProgram,
    is_dsl_reading: bool,
    findings: FileFindings,
) -> LoweredRows:
    """Convert a checked thread-block program to rows of a step table, in the order of the steps.

    - A nop gives no row. A dependency on it becomes dependencies on the steps before it and on
      those that it waits for.
    - A step that receives and sends gives two rows; the second sends what the first stores. An
      `rrs` stores it in scratch behind the declared scratch of its rank.
    - Every other step gives one row. `re` steps that runtimes fuse get the last count
      (`fuse_reductions`).
    - Reductions of received data add to dst with `is_dsl_reading`, as in MSCCLang, else to src.

    Also returns data dependencies (declared, and second row on first), pairs of consecutive rows of
    a thread block, first block of each rank, and scratch units per rank with those for `rrs`.

    Warnings are added to `findings`. Raises `InputError` for a wait that no step ends, a wait for a
    later step of the same block, a cycle of nops, and a step beyond the declared scratch of a rank
    with `rrs` steps. Other cycles and other ranks are not checked.
    """
    fusion = fuse_reductions(program, findings)
    declared = resolve_dependencies(program, fusion, findings)
    # All members of a chain of `re` move the count of the last one.
    program = program.with_counts(fusion.count)
    is_rrs = program.is_type(StepType.RECV_REDUCE_SEND)
    slot, scratch_units = allocate_slots(
        program.count[is_rrs], program.block[is_rrs], program.block_rank, program.scratch_chunks
    )
    if is_rrs.any():
        _check_scratch(program, scratch_units - program.scratch_chunks, findings)
    # Plain rows of each step: 0, 1 or 2.
    width = _TRAITS.rows[program.type]
    first = first_positions(width)
    last = first + width - 1
    second = last[width == 2]
    # The flag is raised after the last row of a step, and a wait delays the first row. The second
    # row of a fused step depends on the first.
    parents, children = declared
    data = (
        np.concatenate([last[parents], second - 1]),
        np.concatenate([first[children], second]),
    )
    # Program order within a thread block. Nops have no rows: the steps around them follow each
    # other.
    moves = np.flatnonzero(width)
    before, after = moves[:-1], moves[1:]
    is_together = program.block[before] == program.block[after]
    control = last[before[is_together]], first[after[is_together]]
    # The second row of a step sends the data that the first row stored.
    rows = {
        name: np.repeat(column, width)
        for name, column in _build_first_rows(program, slot, is_dsl_reading).items()
    }
    rows["kind"][second] = StepKind.SEND
    rows["peer"][second] = program.send[program.block[width == 2]]
    for part, unused in (("buffer", Buffer.UNKNOWN), ("offset", 0)):
        rows[f"src_{part}"][second] = rows[f"dst_{part}"][second]
        rows[f"dst_{part}"][second] = unused
    return LoweredRows(rows, data, control, program.block_indptr, scratch_units)


def _check_scratch(
    program: ThreadBlockProgram,
    slots_of_rank: Int64Array,
    findings: FileFindings,
) -> None:
    """Raise `InputError` for steps that access scratch beyond `s_chunks`, in ranks with slots.

    `slots_of_rank`: units of all slots of each rank (see `allocate_slots`). A step reaches beyond
    if its offset plus count exceeds `s_chunks` (`scratch-range`). Other errors recorded in
    `findings` are raised too. In ranks without slots, the verification reports such steps instead.
    """
    rank = program.rank
    limit = program.scratch_chunks[rank]
    is_outside = np.zeros(len(program), np.bool_)
    for buffer, offset, is_used in (
        (program.src_buffer, program.src_offset, _TRAITS.uses_src[program.type]),
        (program.dst_buffer, program.dst_offset, _TRAITS.uses_dst[program.type]),
    ):
        # Declared sizes; the parsers compare only the first chunk with them.
        reaches_beyond = offset + program.count > limit
        is_outside |= is_used & (buffer == Buffer.SCRATCH) & reaches_beyond
    findings.add_errors_at(
        "scratch-range",
        is_outside & (slots_of_rank[rank] > 0),
        program.line,
        lambda row: f"{program.name(row)}: reaches beyond the s_chunks of {limit[row]}",
        rank=rank,
    )
    findings.raise_errors()


def _build_first_rows(
    program: ThreadBlockProgram,
    slot: Int64Array,
    is_dsl_reading: bool,
) -> dict[str, Int64Array]:
    """Build the columns of the first row of every step, by name, one entry per step.

    A step that receives and sends has its receive as the first row. `rank`, `count` and
    `source_line` are those of the step, `lane` is the id of its thread block, `kind` that of the
    first row. `peer` is the source of a receive, the destination of a send, -1 for a local step.
    `channel` is that of the thread block, 0 for a local step.

    `src_buffer`, `src_offset`, `dst_buffer` and `dst_offset` are those of the file, or UNKNOWN and
    0 for a side that the first row does not use. There are two exceptions. With `is_dsl_reading`,
    the source of a step that reduces received data is the destination in the file. The destination
    of an `rrs` is in SCRATCH, at `slot` of its thread block.
    """
    block, step_type = program.block, program.type
    src_buffer, src_offset = program.src_buffer, program.src_offset
    if is_dsl_reading:
        # MSCCLang prints the sender's location in src and means dst = dst + received; the runtimes
        # add the local src.
        reduces = _TRAITS.reduces_received[step_type]
        src_buffer = np.where(reduces, program.dst_buffer, src_buffer)
        src_offset = np.where(reduces, program.dst_offset, src_offset)
    is_rrs = step_type == StepType.RECV_REDUCE_SEND
    dst_buffer = np.where(is_rrs, Buffer.SCRATCH, program.dst_buffer)
    dst_offset = np.where(is_rrs, slot[block], program.dst_offset)
    uses_src = _TRAITS.uses_src[step_type]
    uses_dst = _TRAITS.uses_dst[step_type] | is_rrs
    peer = np.where(step_type == StepType.SEND, program.send[block], -1)
    peer = np.where(_TRAITS.receives[step_type], program.recv[block], peer)
    return {
        "rank": program.rank,
        "kind": _TRAITS.kind[step_type],
        "peer": peer,
        # Local steps use no connection, so the channel of their thread block does not matter.
        "channel": np.where(peer >= 0, program.channel[block], 0),
        # In the file, the unused side of a step documents the location at the peer.
        "src_buffer": np.where(uses_src, src_buffer, Buffer.UNKNOWN),
        "src_offset": np.where(uses_src, src_offset, 0),
        "dst_buffer": np.where(uses_dst, dst_buffer, Buffer.UNKNOWN),
        "dst_offset": np.where(uses_dst, dst_offset, 0),
        "count": program.count,
        "lane": program.block_id[block],
        "source_line": program.line,
    }
