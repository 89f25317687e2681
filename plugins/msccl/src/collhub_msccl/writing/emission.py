"""Turn arranged rows into the steps of a file: fused or unfused types, nops, waits.

Each row that is not fused into an earlier one becomes a step (a "head"); reducing receives become
several where the runtime has no fused steps, and so do runs of reductions, all behind the waits of
the first; every wait but a step's last gets a nop. Linear in rows and waits, but for sorting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, run_mask, sorted_ordinals

from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission_order import Arrangement
from collhub_msccl.writing.emission_program import program_of
from collhub_msccl.writing.emission_waits import Knowledge, find_waits
from collhub_msccl.writing.forwarded import forwarded_only
from collhub_msccl.writing.scratch import allocated, touched
from collhub_msccl.writing.unfuse import REGION, Steps, unfused
from hub_core.model import StepKind

# Step type of a plain step, in the order of `StepKind`.
_PLAIN = np.asarray(
    [
        StepType.SEND,
        StepType.RECV,
        StepType.RECV_REDUCE_COPY,
        StepType.COPY,
        StepType.REDUCE,
        StepType.NOP,
    ],
    np.int64,
)
# All attributes are required on a nop too; these are what MSCCLang prints.
_NOP = {
    "src_buffer": 0,
    "src_offset": -1,
    "dst_buffer": 1,
    "dst_offset": -1,
    "count": 0,
    "type": int(StepType.NOP),
}


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Buffers of all ranks.

    `input_chunks`, `output_chunks`, `scratch_chunks`: int64 per rank, the last the least to
    declare. `bases`: for every mode that the file claims, int64[ranks, 3], first address of each
    buffer. `is_compact`: SCRATCH is allocated anew.
    """

    input_chunks: Int64Array
    output_chunks: Int64Array
    scratch_chunks: Int64Array
    bases: tuple[Int64Array, ...]
    is_compact: bool


def emit(
    draft: StepDraft,
    blocks: Blocks,
    arrangement: Arrangement,
    memory: Memory,
    has_fused_steps: bool,
) -> ThreadBlockProgram:
    """Make the program.

    `has_fused_steps`: the runtime can receive and do more in one step; else `rrc` becomes several.
    """
    heads = _heads(blocks, arrangement)
    step_of_row = _steps_of_rows(heads, arrangement)
    block = blocks.of_row[heads]
    ordinal = np.arange(len(heads)) - np.searchsorted(block, block)
    time = arrangement.position[heads]
    edges = draft.parents, draft.children
    # Waits do not depend on where SCRATCH lies, but SCRATCH can be used again where they order it.
    knowledge = find_waits(block, ordinal, time, step_of_row, edges)
    is_slot = forwarded_only(draft, arrangement)
    draft, scratch = _with_scratch(draft, arrangement, is_slot, memory, knowledge)
    steps = _main_steps(draft, arrangement, heads, is_slot)
    if not has_fused_steps:
        steps, scratch = unfused(steps, block, blocks.rank, scratch, memory.bases)
    steps = _with_runs(steps, draft, arrangement, step_of_row)
    steps = _with_waits(steps, knowledge)
    sizes = memory.input_chunks, memory.output_chunks, scratch
    return program_of(blocks, steps, knowledge, sizes)


def _heads(blocks: Blocks, arrangement: Arrangement) -> Int64Array:
    """The first row of every step, by (block, order)."""
    heads = np.flatnonzero(arrangement.fused_into < 0)
    # Within a thread block, document order is the order of execution.
    order = np.lexsort((arrangement.position[heads], blocks.of_row[heads]))
    return heads[order]


def _steps_of_rows(heads: Int64Array, arrangement: Arrangement) -> Int64Array:
    """The step of every row: what is fused has that of the row it is fused into."""
    fused_into = arrangement.fused_into
    result = np.empty(len(fused_into), np.int64)
    result[heads] = np.arange(len(heads))
    fused = np.flatnonzero(fused_into >= 0)
    result[fused] = result[fused_into[fused]]
    return result


def _with_scratch(
    draft: StepDraft,
    arrangement: Arrangement,
    is_slot: BoolArray,
    memory: Memory,
    knowledge: Knowledge,
) -> tuple[StepDraft, Int64Array]:
    """The rows with their places in SCRATCH, and the units of it that every rank needs."""
    fused_into = arrangement.fused_into
    # The sum of an `rrs` is stored nowhere: neither its receive nor the send touch SCRATCH.
    no_source = (fused_into >= 0) & is_slot[fused_into]
    if memory.is_compact:
        return allocated(draft, no_source, is_slot, knowledge)
    least = touched(draft, no_source, is_slot)
    return draft, np.maximum(memory.scratch_chunks, least)


def _main_steps(
    draft: StepDraft,
    arrangement: Arrangement,
    heads: Int64Array,
    is_slot: BoolArray,
) -> Steps:
    """One step a head row, fused with its send where it has one."""
    send = np.full(len(draft), -1, np.int64)
    fused = np.flatnonzero(draft.sends & (arrangement.fused_into >= 0))
    send[arrangement.fused_into[fused]] = fused
    send_of_head = send[heads]
    columns = {name: getattr(draft, name)[heads] for name in (*REGION, "count")}
    columns |= _documented_sides(draft, heads, send_of_head, is_slot)
    columns["type"] = _types(draft.kind[heads], send_of_head >= 0, is_slot[heads])
    return Steps(columns, np.arange(len(heads)), np.full(len(heads), 1))


def _types(
    kind: Int64Array,
    is_fused: BoolArray,
    is_slot: BoolArray,
) -> Int64Array:
    """Step type of every head, by its kind, whether a send is fused, and whether it is an `rrs`."""
    # A send is never the head of a fused step, so those are receives.
    plain = _PLAIN[kind]
    with_send = np.where(
        plain == StepType.RECV,
        StepType.RECV_COPY_SEND,
        StepType.RECV_REDUCE_COPY_SEND,
    )
    types = np.where(is_fused, with_send, plain)
    return np.where(is_slot, StepType.RECV_REDUCE_SEND, types)


def _documented_sides(
    draft: StepDraft,
    heads: Int64Array,
    send_of_head: Int64Array,
    is_slot: BoolArray,
) -> dict[str, Int64Array]:
    """The other rank's side of messages: where they come from, where they go.

    Documentation that no runtime reads. An `rrs` there has no place but its operand's.
    """
    # The receive at the other end, for fused steps that of their send.
    outgoing = draft.partner[np.where(send_of_head >= 0, send_of_head, heads)]
    incoming = draft.partner[heads]
    is_outward = draft.sends[heads] | is_slot[heads]
    is_inward = draft.kind[heads] == StepKind.RECV
    columns: dict[str, Int64Array] = {}
    for part in ("buffer", "offset"):
        source: Int64Array = getattr(draft, f"src_{part}")
        target: Int64Array = getattr(draft, f"dst_{part}")
        shown = np.where(is_slot, source, target)
        columns[f"dst_{part}"] = np.where(is_outward, shown[outgoing], target[heads])
        columns[f"src_{part}"] = np.where(is_inward, source[incoming], source[heads])
    return columns


def _with_runs(
    steps: Steps,
    draft: StepDraft,
    arrangement: Arrangement,
    step_of_row: Int64Array,
) -> Steps:
    """Add the later reductions of every run behind its first one, whose step they belong to."""
    later = np.flatnonzero(draft.is_kind(StepKind.REDUCE) & (arrangement.fused_into >= 0))
    leader = arrangement.fused_into[later]
    later = later[np.argsort(leader, kind="stable")]
    columns = {name: getattr(draft, name)[later] for name in (*REGION, "count")}
    columns["type"] = np.full(len(later), StepType.REDUCE, np.int64)
    key = 2 + sorted_ordinals(np.sort(leader))
    return Steps(
        {name: np.concatenate([steps.columns[name], columns[name]]) for name in steps.columns},
        np.concatenate([steps.row, step_of_row[later]]),
        np.concatenate([steps.key, key]),
    )


def _with_waits(steps: Steps, knowledge: Knowledge) -> Steps:
    """Add a column `wait`, the head that a step waits for or -1, and nops for further waits.

    A step has one `depid`: its last wait is its own, each before it stands on a nop.
    """
    parents, children = knowledge.parents, knowledge.children
    # The last of a run stands before the first of the next.
    is_last = np.roll(run_mask(children), -1)
    wait_of_head = np.full(int(steps.row.max(initial=-1)) + 1, -1, np.int64)
    wait_of_head[children[is_last]] = parents[is_last]
    # Of the steps that stand for one head, the first one waits.
    wait = np.where(steps.key == 1, wait_of_head[steps.row], -1)
    extra = np.flatnonzero(~is_last)
    nops = {name: np.full(len(extra), value, np.int64) for name, value in _NOP.items()}
    nops["wait"] = parents[extra]
    given = {**steps.columns, "wait": wait}
    row = np.concatenate([steps.row, children[extra]])
    key = np.concatenate([steps.key, np.zeros(len(extra), np.int64)])
    # Nops have key 0: before the first step of their head.
    order = np.lexsort((key, row))
    columns = {name: np.concatenate([column, nops[name]])[order] for name, column in given.items()}
    return Steps(columns, row[order], key[order])
