"""Find the chains of local reductions that the runtimes execute as one transfer.

The rule is that of their parsers: `mscclGetAlgoFromXMLAndSetAlgo` in `src/graph/topo.cc` of
microsoft/msccl, taken over by Azure/msccl-executor-nccl and ROCm/rccl. Linear in steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array, counted_positions, run_lengths, sorted_ordinals

from collhub_msccl.findings import FileFindings
from collhub_msccl.runtimes.known_runtimes import MOST_OPERANDS
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """Chains of `re` as the runtimes fuse them.

    `joins`: bool per step, a `re` that is executed as part of the previous `re`. `count`: int64 per
    step, the units that it moves. `flag`: int64 per step, the value that its thread block's flag
    gets when it is done.
    """

    joins: BoolArray
    count: Int64Array
    flag: Int64Array


def fuse_reductions(program: ThreadBlockProgram, findings: FileFindings) -> Fusion:
    """Join each `re` to the `re` before it where the runtimes do.

    A `re` joins the previous step, nops left out, if that is a `re` without hasdep on the same
    dstbuf, dstoff and srcbuf, it has no dependency itself, and it is not the 17th `re` of its
    block. All members of a chain move the last one's `cnt` chunks.
    """
    joins = np.zeros(len(program), np.bool_)
    count, flag = program.count.copy(), program.position.copy()
    reductions = np.flatnonzero(program.is_type(StepType.REDUCE))
    if not len(reductions):
        return Fusion(joins, count, flag)
    # Only `re` can be in a chain, so all that follows is done on these alone.
    joins[reductions] = _joins(program, reductions)
    starts = np.flatnonzero(~joins[reductions])
    lengths = run_lengths(starts, len(reductions))
    first, last = reductions[starts], reductions[starts + lengths - 1]
    count[reductions] = np.repeat(program.count[last], lengths)
    # A nop inside a chain is not counted until the chain is done.
    position_of_first = np.repeat(program.position[first], lengths)
    flag[reductions] = position_of_first + counted_positions(lengths)
    _warn_of_chains(program, first, last, lengths, findings)
    return Fusion(joins, count, flag)


def _joins(program: ThreadBlockProgram, reductions: Int64Array) -> BoolArray:
    """For every `re`, whether it is executed as part of the one before."""
    moves = np.flatnonzero(~program.is_type(StepType.NOP))
    # A nop between two `re` does not part them: its wait goes to the next step that is not fused.
    before = np.concatenate([[-1], moves[:-1]])
    previous = before[np.searchsorted(moves, reductions)]
    same: BoolArray = (previous >= 0) & (program.depid[reductions] < 0)
    same &= program.type[previous] == StepType.REDUCE
    # A flag must be raised between the two, so they are two transfers.
    same &= ~program.has_dependents[previous]
    # The source offset may differ: a chain sums several sources into one destination.
    for column in (program.block, program.dst_buffer, program.dst_offset, program.src_buffer):
        same &= column[reductions] == column[previous]
    # The parsers compare the number of all `re` of a thread block so far and never reset it: the
    # 17th does not join, those after it may again.
    same &= sorted_ordinals(program.block[reductions]) != MOST_OPERANDS
    return same


def _warn_of_chains(
    program: ThreadBlockProgram,
    first: Int64Array,
    last: Int64Array,
    length: Int64Array,
    findings: FileFindings,
) -> None:
    """Warn of chains that the runtimes cannot hold, or whose waits come too late.

    `first`, `last`: steps, one entry a chain; `length`: `re` of the chain.
    """
    # More than 17 members overrun an array of the kernel in microsoft/msccl and Azure's executor.
    _warn_at_starts(
        "reduction-chain",
        length > MOST_OPERANDS,
        f"starts a chain of more than {MOST_OPERANDS} re, too many for the runtimes",
        first,
        program,
        findings,
    )
    nops_inside = program.position[last] - program.position[first] + 1 - length
    _warn_at_starts(
        "nop-in-reduction",
        nops_inside > 0,
        "begins a chain of re with a nop inside, which waits too late for the chain",
        first,
        program,
        findings,
    )


def _warn_at_starts(
    code: str,
    is_odd: BoolArray,
    text: str,
    first: Int64Array,
    program: ThreadBlockProgram,
    findings: FileFindings,
) -> None:
    """Report the first odd chain by the step that begins it."""
    findings.warn_at(
        code,
        is_odd,
        program.line[first],
        lambda chain: f"{program.name(int(first[chain]))}: {text}",
        rank=program.rank[first],
        cure='write hasdep="1" on a step of the chain to break it there',
    )
