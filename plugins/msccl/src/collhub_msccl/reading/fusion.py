"""Find the chains of local reductions that the runtimes execute as one transfer.

The rule is taken from their parsers: `mscclGetAlgoFromXMLAndSetAlgo` in `src/graph/topo.cc` of
microsoft/msccl, copied to Azure/msccl-executor-nccl and ROCm/rccl. Cost: linear in steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_msccl.findings import FileFindings
from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from hub_core.columns import BoolArray, Int64Array, counted_positions, run_lengths, sorted_ordinals


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """Chains of `re` as fused by the runtimes; one entry per step.

    `joins`: bool, a `re` that is executed as part of the previous `re`. `count`: int64, units that
    the step moves. `flag`: int64, value of its thread block's flag after the step.
    """

    joins: BoolArray
    count: Int64Array
    flag: Int64Array


def fuse_reductions(program: ThreadBlockProgram, findings: FileFindings) -> Fusion:
    """Fuse each `re` to the previous `re` under the conditions of the runtimes.

    Warn of invalid chains.

    A `re` joins the previous step (nops ignored) if that is a `re` without `hasdep` with the same
    dstbuf, dstoff and srcbuf, if it has no dependency itself, and if it is not the 17th `re` of its
    thread block. All members of a chain move the `cnt` chunks of the last member. `program` is not
    changed.
    """
    joins = np.zeros(len(program), np.bool_)
    count, flag = program.count.copy(), program.position.copy()
    reductions = np.flatnonzero(program.is_type(StepType.REDUCE))
    if not len(reductions):
        return Fusion(joins, count, flag)
    # Only `re` steps can be in chains: restrict the work to them.
    joins[reductions] = _find_joins(program, reductions)
    starts = np.flatnonzero(~joins[reductions])
    lengths = run_lengths(starts, len(reductions))
    first, last = reductions[starts], reductions[starts + lengths - 1]
    count[reductions] = np.repeat(program.count[last], lengths)
    # Nops inside a chain do not count until the chain is finished.
    position_of_first = np.repeat(program.position[first], lengths)
    flag[reductions] = position_of_first + counted_positions(lengths)
    _warn_of_chains(program, first, last, lengths, findings)
    return Fusion(joins, count, flag)


def _find_joins(program: ThreadBlockProgram, reductions: Int64Array) -> BoolArray:
    """For every `re`, whether it is executed as part of the previous one."""
    moves = np.flatnonzero(~program.is_type(StepType.NOP))
    # A nop between two `re` does not separate them: its wait is transferred to the next step that
    # is not fused.
    before = np.concatenate([[-1], moves[:-1]])
    previous = before[np.searchsorted(moves, reductions)]
    same: BoolArray = (previous >= 0) & (program.depid[reductions] < 0)
    same &= program.type[previous] == StepType.REDUCE
    same &= ~program.has_dependents[previous]
    # The source offset may differ: a chain sums several sources into one destination.
    for column in (program.block, program.dst_buffer, program.dst_offset, program.src_buffer):
        same &= column[reductions] == column[previous]
    # The parsers compare the number of all `re` of a thread block so far and never reset it: the
    # 17th does not join, those after it may again.
    same &= sorted_ordinals(program.block[reductions]) != MAX_OPERANDS
    return same


def _warn_of_chains(
    program: ThreadBlockProgram,
    first: Int64Array,
    last: Int64Array,
    length: Int64Array,
    findings: FileFindings,
) -> None:
    """Warn of chains that the runtimes cannot store, or whose waits come too late.

    `first`, `last`: first and last step of each chain; `length`: number of `re` steps.
    """
    # More than 17 members overflow an array of the kernel in microsoft/msccl and Azure's executor.
    _warn_at_starts(
        "reduction-chain",
        length > MAX_OPERANDS,
        f"starts a chain of more than {MAX_OPERANDS} re, too many for the runtimes",
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
    """Warn of the first chain marked in `is_odd`, at the step that begins it."""
    findings.warn_at(
        code,
        is_odd,
        program.line[first],
        lambda chain: f"{program.name(int(first[chain]))}: {text}",
        rank=program.rank[first],
        cure='write hasdep="1" on a step of the chain to break it there',
    )
