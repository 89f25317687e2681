"""Turn arranged rows into the steps of a file: fused or unfused types, nops, dependencies, hasdep."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks
from collhub_msccl.writing.draft import StepDraft
from collhub_msccl.writing.emission_order import Arrangement, forwarded_only
from collhub_msccl.writing.emission_waits import Knowledge, find_waits
from collhub_msccl.writing.scratch import allocated, touched
from collhub_msccl.writing.unfuse import REGION, Steps, unfused
from hub_core.collectives import Buffer
from hub_core.steps import StepKind

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_PROTECTED_REDUCTIONS = 16
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
_NOP = {
    "src_buffer": 0,
    "src_offset": -1,
    "dst_buffer": 1,
    "dst_offset": -1,
    "count": 0,
    "type": int(StepType.NOP),
}


@dataclass(frozen=True, slots=True)
class Memory:
    """Buffers of all ranks. `input_chunks`, `output_chunks`, `scratch_chunks`: int64 per rank. `scratch_chunks`: the least to
    declare. `bases`: for every mode that the file claims, int64[ranks, 3], first address of each buffer. `is_compact`:
    SCRATCH is allocated anew."""

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
    """Make the program. `has_fused_steps`: the runtime can receive and do more in one step; else `rrc` becomes several."""
    heads, step_of_row = _heads(draft, blocks, arrangement)
    block = blocks.of_row[heads]
    ordinal = np.arange(len(heads)) - np.searchsorted(block, block)
    knowledge = find_waits(
        block, ordinal, arrangement.position[heads], step_of_row, (draft.parents, draft.children)
    )
    slots = forwarded_only(draft, arrangement)
    fused = arrangement.fused_into
    dropped = (fused >= 0) & slots[fused], slots
    if memory.is_compact:
        draft, scratch = allocated(draft, *dropped, knowledge)
    else:
        scratch = np.maximum(memory.scratch_chunks, touched(draft, *dropped))
    steps = _main_steps(draft, arrangement, heads, slots)
    if not has_fused_steps:
        steps, scratch = unfused(steps, block, blocks.rank, scratch, memory.bases)
    steps = _with_waits(steps, knowledge)
    return _program(blocks, steps, knowledge, memory, scratch)


def _heads(
    draft: StepDraft, blocks: Blocks, arrangement: Arrangement
) -> tuple[Int64Array, Int64Array]:
    """The first row of every step, by (block, order), and the step of every row."""
    heads = np.flatnonzero(arrangement.fused_into < 0)
    heads = heads[np.lexsort((arrangement.position[heads], blocks.of_row[heads]))]
    head_of_row = np.empty(len(draft), np.int64)
    head_of_row[heads] = np.arange(len(heads))
    fused = np.flatnonzero(arrangement.fused_into >= 0)
    head_of_row[fused] = head_of_row[arrangement.fused_into[fused]]
    return heads, head_of_row


def _main_steps(
    draft: StepDraft, arrangement: Arrangement, heads: Int64Array, slots: BoolArray
) -> Steps:
    """One step a head row, fused with its send where it has one."""
    send = np.full(len(draft), -1, np.int64)
    fused = np.flatnonzero(arrangement.fused_into >= 0)
    send[arrangement.fused_into[fused]] = fused
    types = _PLAIN[draft.kind[heads]]
    is_fused = send[heads] >= 0
    types = np.where(
        is_fused,
        np.where(types == StepType.RECV, StepType.RECV_COPY_SEND, StepType.RECV_REDUCE_COPY_SEND),
        types,
    )
    types = np.where(slots[heads], StepType.RECV_REDUCE_SEND, types)
    columns = {name: getattr(draft, name)[heads] for name in (*REGION, "count")}
    # The other rank's side is documentation: where a message comes from, where it goes. An `rrs` there has no place but
    # its operand's.
    outgoing, incoming = draft.partner[np.where(is_fused, send[heads], heads)], draft.partner[heads]
    is_outward = draft.sends[heads] | slots[heads]
    is_inward = draft.kind[heads] == StepKind.RECV
    for part in ("buffer", "offset"):
        source, target = getattr(draft, f"src_{part}"), getattr(draft, f"dst_{part}")
        shown = np.where(slots, source, target)
        columns[f"dst_{part}"] = np.where(is_outward, shown[outgoing], columns[f"dst_{part}"])
        columns[f"src_{part}"] = np.where(is_inward, source[incoming], columns[f"src_{part}"])
    return Steps({**columns, "type": types}, np.arange(len(heads)), np.full(len(heads), 1))


def _with_waits(steps: Steps, knowledge: Knowledge) -> Steps:
    """Add a column `wait`, the head that a step waits for or -1, and a nop for every wait of a step but its last."""
    parents, children = knowledge.parents, knowledge.children
    is_last = np.append(children[1:] != children[:-1], True)[: len(children)]
    wait = np.full(len(steps.row), -1, np.int64)
    last_wait = np.full(int(steps.row.max(initial=-1)) + 1, -1, np.int64)
    last_wait[children[is_last]] = parents[is_last]
    is_first = steps.key == 1
    wait[is_first] = last_wait[steps.row[is_first]]
    extra = np.flatnonzero(~is_last)
    nops = {**_NOP, "wait": parents[extra]}
    columns = {
        name: np.concatenate(
            [column, np.broadcast_to(np.asarray(nops[name], np.int64), len(extra))]
        )
        for name, column in {**steps.columns, "wait": wait}.items()
    }
    row = np.concatenate([steps.row, children[extra]])
    key = np.concatenate([steps.key, np.zeros(len(extra), np.int64)])
    order = np.lexsort((key, row))
    return Steps({name: column[order] for name, column in columns.items()}, row[order], key[order])


def _program(
    blocks: Blocks, steps: Steps, knowledge: Knowledge, memory: Memory, scratch: Int64Array
) -> ThreadBlockProgram:
    """Number blocks and positions, and resolve waits to depid, deps and hasdep."""
    block = knowledge.block[steps.row]
    position = np.arange(len(block)) - np.searchsorted(block, block)
    last = np.append(np.flatnonzero(np.diff(steps.row)), len(steps.row) - 1)[: len(knowledge.block)]
    has_dependents = np.zeros(len(block), np.bool_)
    has_dependents[last[knowledge.parents]] = True
    target = last[steps.columns["wait"]] if len(last) else steps.columns["wait"]
    waits = steps.columns["wait"] >= 0
    block_indptr = np.searchsorted(blocks.rank, np.arange(len(scratch) + 1)).astype(np.int64)
    block_id = np.arange(len(blocks)) - block_indptr[blocks.rank]
    columns = {name: steps.columns[name] for name in (*REGION, "count", "type")}
    depid = np.where(waits, block_id[block[target]] if len(block) else -1, -1)
    has_dependents |= _must_not_fuse(columns, block, depid, has_dependents)
    return ThreadBlockProgram(
        input_chunks=memory.input_chunks,
        output_chunks=memory.output_chunks,
        scratch_chunks=scratch,
        block_indptr=block_indptr,
        block_rank=blocks.rank,
        block_id=block_id,
        send=blocks.send,
        recv=blocks.recv,
        channel=blocks.channel_of_block(),
        block_line=_block_lines(blocks, block),
        block=block,
        position=position,
        number=position,
        depid=depid,
        deps=np.where(waits, position[target] if len(block) else -1, -1),
        has_dependents=has_dependents,
        line=np.arange(len(block)) + 2 * block + blocks.rank[block] * 2 + 4,
        **columns,
    )


def _must_not_fuse(
    columns: dict[str, Int64Array], block: Int64Array, depid: Int64Array, has_dependents: BoolArray
) -> BoolArray:
    """Mask of `re` that need hasdep only so that the runtimes do not execute the next `re` as part of them.

    They would with the count of the last of them, and they protect only the first 16 of a thread block; both must be
    exact, so operands in memory that the result may lie in stay apart too.
    """
    found = np.zeros(len(block), np.bool_)
    reductions = np.flatnonzero(columns["type"] == StepType.REDUCE)
    ordinal = np.arange(len(reductions)) - np.searchsorted(block[reductions], block[reductions])
    first, second, number = reductions[:-1], reductions[1:], ordinal[1:]
    joins = (
        (second == first + 1)
        & (block[first] == block[second])
        & (depid[second] < 0)
        & ~has_dependents[first]
    )
    for name in ("dst_buffer", "dst_offset", "src_buffer"):
        joins &= columns[name][first] == columns[name][second]
    source, target = columns["src_buffer"][second], columns["dst_buffer"][second]
    is_apart = (source != target) & ((source == Buffer.SCRATCH) | (target == Buffer.SCRATCH))
    is_exact = (
        (columns["count"][first] == columns["count"][second])
        & (number < _PROTECTED_REDUCTIONS)
        & is_apart
    )
    found[first[joins & ~is_exact]] = True
    return found


def _block_lines(blocks: Blocks, block: Int64Array) -> Int64Array:
    """Line of every `<tb>` in the file that `emission_text` makes: one element a line, closing tags included."""
    before = np.searchsorted(block, np.arange(len(blocks)))
    return before + 2 * np.arange(len(blocks)) + 2 * blocks.rank + 3
