"""Find the chains of local reductions that the runtimes execute as one transfer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_msccl.findings import FileFindings
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram

_LAST_PROTECTED = 16


@dataclass(frozen=True, slots=True)
class Fusion:
    """What fusing changes.

    `joins`: bool per step, a `re` that is executed as part of the previous `re`. `count`: int64 per step, the
    units that it moves. `flag`: int64 per step, the value that its thread block's flag gets when it is done.
    """

    joins: npt.NDArray[np.bool_]
    count: npt.NDArray[np.int64]
    flag: npt.NDArray[np.int64]


def fuse_reductions(program: ThreadBlockProgram, findings: FileFindings) -> Fusion:
    """Apply the parsers' rule: a `re` joins the previous step, nops left out, if that is a `re` without hasdep on
    the same dstbuf, dstoff and srcbuf, it has no dependency itself, and it is not the 17th `re` of its block.

    All members of a chain move the last one's `cnt` chunks.
    """
    joins = np.zeros(len(program), np.bool_)
    count, flag = program.count.copy(), program.position.copy()
    reductions = np.flatnonzero(program.is_type(StepType.REDUCE))
    if not len(reductions):
        return Fusion(joins, count, flag)
    joins[reductions] = _joins(program, reductions)
    starts = ~joins[reductions]
    chain = np.cumsum(starts) - 1
    first = reductions[starts]
    last = reductions[np.append(np.flatnonzero(starts)[1:], len(reductions)) - 1]
    count[reductions] = program.count[last][chain]
    # A nop inside a chain is not counted until the chain is done.
    members = np.arange(len(reductions)) - np.flatnonzero(starts)[chain]
    flag[reductions] = program.position[first][chain] + members
    _warn(program, first, last, np.bincount(chain), findings)
    return Fusion(joins, count, flag)


def _joins(program: ThreadBlockProgram, reductions: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """For every `re`, whether it is executed as part of the one before."""
    moves = np.flatnonzero(~program.is_type(StepType.NOP))
    previous = np.concatenate([[-1], moves[:-1]])[np.searchsorted(moves, reductions)]
    same: npt.NDArray[np.bool_] = (previous >= 0) & (program.depid[reductions] < 0)
    same &= (program.type[previous] == StepType.REDUCE) & ~program.has_dependents[previous]
    for column in (program.block, program.dst_buffer, program.dst_offset, program.src_buffer):
        same &= column[reductions] == column[previous]
    block = program.block[reductions]
    ordinal = np.arange(len(reductions)) - np.searchsorted(block, block)
    same &= ordinal != _LAST_PROTECTED
    return same


def _warn(
    program: ThreadBlockProgram,
    first: npt.NDArray[np.int64],
    last: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
    findings: FileFindings,
) -> None:
    nops_inside = program.position[last] - program.position[first] + 1 - length
    for code, mask, message in (
        (
            "reduction-chain",
            length > _LAST_PROTECTED,
            f"starts a chain of more than {_LAST_PROTECTED} re, too many for the runtimes",
        ),
        (
            "nop-in-reduction",
            nops_inside > 0,
            "begins a chain of re with a nop inside, which waits too late for the chain",
        ),
    ):
        findings.warn_at(
            code,
            mask,
            program.line[first],
            lambda row, message=message: f"{program.name(int(first[row]))}: {message}",  # type: ignore[misc]
            rank=program.rank[first],
            cure='write hasdep="1" on a step of the chain to break it there',
        )
