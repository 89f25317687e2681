"""Convert arranged rows to the steps of a file: fused or plain types, nops, waits.

Each row that is not fused into an earlier one becomes a step (a "head"). Reducing receives become
several steps if the runtime has no fused steps; so do chains of reductions, which all follow the
waits of the first. Every wait of a step except the last gets a nop. Cost: linear in rows and waits,
except sorting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from collhub_msccl.writing.blocks import Blocks
from collhub_msccl.writing.draft import Arrangement, StepDraft, find_forwarded_sums
from collhub_msccl.writing.emission_program import build_program
from collhub_msccl.writing.reduction_runs import REGION, Steps, unfuse_reducing_receives
from collhub_msccl.writing.scratch import allocate_scratch, count_scratch_units
from collhub_msccl.writing.waits import Knowledge, find_waits
from hub_core.columns import BoolArray, Int64Array, run_mask, sorted_ordinals
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
# All attributes are required even for a nop; these are the values that MSCCLang prints.
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

    `input_chunks`, `output_chunks`: int64 per rank; `scratch_chunks`: int64 per rank, minimum to
    declare. `bases`: for every claimed mode, int64[ranks, 3], first address of each buffer.
    `is_compact`: SCRATCH is allocated again.
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
    """Convert the rows of a draft to the steps of a file, sorted by thread block and execution.

    `arrangement` gives the order within a thread block, and the earlier row into which a row is
    fused. A row that is not fused becomes a step with the type of its kind. Exceptions:

    - receive with a fused send: `rcs`
    - reducing receive with a fused send: `rrs` if only this send uses the sum; otherwise `rrcs`
    - reducing receive without a send, with `has_fused_steps` False: `r` and `re`, sometimes
      `cpy` and more scratch (`unfuse_reducing_receives`)
    - reductions that are fused into another one: `re` steps directly after it

    A step waits for at most one step of another thread block. A nop before it has each further
    wait. Waits that follow from other waits are omitted. If `memory.is_compact`, SCRATCH is
    allocated again. Otherwise SCRATCH of a rank has the larger of its declared size and the end
    of its last access. The arguments are not changed. Limits of the runtime are not checked.
    """
    # Heads: the first row of every step. Within a thread block, document order is the order of
    # execution.
    fused_into = arrangement.fused_into
    heads = np.flatnonzero(fused_into < 0)
    heads = heads[np.lexsort((arrangement.position[heads], blocks.of_row[heads]))]
    # A fused row has the step of the row into which it is fused.
    step_of_row = np.empty(len(fused_into), np.int64)
    step_of_row[heads] = np.arange(len(heads))
    fused = np.flatnonzero(fused_into >= 0)
    step_of_row[fused] = step_of_row[fused_into[fused]]
    block = blocks.of_row[heads]
    ordinal = np.arange(len(heads)) - np.searchsorted(block, block)
    time = arrangement.position[heads]
    edges = draft.parents, draft.children
    # Waits do not depend on the location of SCRATCH, but decide where SCRATCH can be reused.
    knowledge = find_waits(block, ordinal, time, step_of_row, edges, blocks.rank)
    is_slot = find_forwarded_sums(draft, arrangement)
    # The sum of an `rrs` is not stored: neither its receive nor its send accesses SCRATCH.
    no_source = (fused_into >= 0) & is_slot[fused_into]
    if memory.is_compact:
        draft, scratch = allocate_scratch(draft, no_source, is_slot, knowledge)
    else:
        minimum_chunks = count_scratch_units(draft, no_source, is_slot)
        scratch = np.maximum(memory.scratch_chunks, minimum_chunks)
    # One step per head row, fused with its send if it has one.
    send = np.full(len(draft), -1, np.int64)
    fused_sends = np.flatnonzero(draft.sends & (fused_into >= 0))
    send[fused_into[fused_sends]] = fused_sends
    send_of_head = send[heads]
    columns = {name: getattr(draft, name)[heads] for name in (*REGION, "count")}
    columns |= _build_documented_sides(draft, heads, send_of_head, is_slot)
    # A send is never the head of a fused step, so fused heads are receives.
    plain = _PLAIN[draft.kind[heads]]
    with_send = np.where(
        plain == StepType.RECV,
        StepType.RECV_COPY_SEND,
        StepType.RECV_REDUCE_COPY_SEND,
    )
    types = np.where(send_of_head >= 0, with_send, plain)
    columns["type"] = np.where(is_slot[heads], StepType.RECV_REDUCE_SEND, types)
    steps = Steps(columns, np.arange(len(heads)), np.full(len(heads), 1))
    if not has_fused_steps:
        steps, scratch = unfuse_reducing_receives(steps, block, blocks.rank, scratch, memory.bases)
    steps = _append_reductions(steps, draft, arrangement, step_of_row)
    steps = _append_waits(steps, knowledge)
    sizes = memory.input_chunks, memory.output_chunks, scratch
    return build_program(blocks, steps, knowledge, sizes)


def _build_documented_sides(
    draft: StepDraft,
    heads: Int64Array,
    send_of_head: Int64Array,
    is_slot: BoolArray,
) -> dict[str, Int64Array]:
    """Return source and destination of every step, as the file shows them.

    The result has the columns `src_buffer`, `src_offset`, `dst_buffer` and `dst_offset`, each with
    one entry per step in the order of `heads` (first row of each step). `send_of_head`: row of the
    fused send, -1 without one. `is_slot`: by row, whether it becomes an `rrs`.

    - Source of a `RECV`, with or without a fused send: the source of the matching send at the peer.
    - Destination of a send or an `rrs`: the destination of the receive that matches this send. If
      that receive is itself an `rrs`, its source (the operand) is shown instead.
    - All other sides are those of the first row; an `rcs` or `rrcs` thus has the destination of its
      receive.

    No runtime reads the sides in the first two cases.
    """
    # The receive at the peer; for fused steps, the receive of their send.
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


def _append_reductions(
    steps: Steps,
    draft: StepDraft,
    arrangement: Arrangement,
    step_of_row: Int64Array,
) -> Steps:
    """Append the later reductions of every chain as separate `re` steps, and return all steps.

    A chain is a run of reductions that are fused into its first one (`arrangement.fused_into`).
    Every reduction that is fused into another one gives a step with its own regions and count.
    The new steps follow all given steps, ordered by the row of their first reduction, then by
    their own row. Their row is that in `step_of_row`, the step of every row of the draft.

    In each chain their keys are 2, 3, ..., after the key 1 of the first reduction. Keys
    determine the order of the steps of one row in the file. Without chains the steps are equal
    to the given ones. The arguments are not changed.
    """
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


def _append_waits(steps: Steps, knowledge: Knowledge) -> Steps:
    """Return the steps with a new column `wait`, and with additional nops for further waits.

    `steps.row` is the number of an original step. An original step can consist of several steps of
    the file, with the keys 1, 2, and so on. `knowledge` lists the pairs (awaited, waiting) of
    original steps, sorted by the waiting step. A step of the file can wait for one step only:

    - The step with key 1 waits for the awaited step of the last pair.
    - For each earlier pair, a nop that waits is added before it. Nops have key 0 and are in the
      order of the pairs. Their other columns have the constants of `_NOP`.

    `wait` is the number of the awaited original step. It is -1 for steps that do not wait, and for
    keys above 1. The result is sorted by `row`, then by key. The arguments are not changed.
    """
    parents, children = knowledge.parents, knowledge.children
    # The last wait of a step precedes the first wait of the next step.
    is_last = np.roll(run_mask(children), -1)
    wait_of_head = np.full(int(steps.row.max(initial=-1)) + 1, -1, np.int64)
    wait_of_head[children[is_last]] = parents[is_last]
    # Of the steps of one head, the first one waits.
    wait = np.where(steps.key == 1, wait_of_head[steps.row], -1)
    extra = np.flatnonzero(~is_last)
    nops = {name: np.full(len(extra), value, np.int64) for name, value in _NOP.items()}
    nops["wait"] = parents[extra]
    step_columns = {**steps.columns, "wait": wait}
    row = np.concatenate([steps.row, children[extra]])
    key = np.concatenate([steps.key, np.zeros(len(extra), np.int64)])
    # Nops have key 0: before the first step of their head.
    order = np.lexsort((key, row))
    columns = {
        name: np.concatenate([column, nops[name]])[order] for name, column in step_columns.items()
    }
    return Steps(columns, row[order], key[order])
