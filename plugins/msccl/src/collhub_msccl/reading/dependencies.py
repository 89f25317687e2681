"""Resolve depid and deps to the steps that a step really waits for.

Every thread block has a flag. A step with hasdep raises it to the step's position; a step with
depid waits until the flag of that thread block is at least deps (`msccl_interpreter.h` of
microsoft/msccl). A step has one depid, so a further dependency stands on a nop before it. Cost: a
sort of the flagged steps; nops that are waited for themselves cost what they pass on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from collhub_columns import BoolArray, Int64Array

from collhub_msccl.conflicts.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.fusion import Fusion
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram

# Nops that wait for nops pass on lists that can grow quadratically in a hostile file.
_MOST_FORWARDED = 1 << 22


def resolve_dependencies(
    program: ThreadBlockProgram,
    fusion: Fusion,
    findings: FileFindings,
) -> Edges:
    """Pairs (parent step, waiting step), neither of them a nop.

    A wait is over after the first step of thread block `depid` that has hasdep and whose flag is at
    least `deps`. The wait of a nop passes to the next step that is not a nop and not fused to an
    earlier one; a wait for a nop means: for all that the nop waits for, and for the steps before
    it. Raises `InputError` for waits that never end.
    """
    waiting = np.flatnonzero(program.depid >= 0)
    parent = first_flagged(program, fusion, waiting)
    # A wait for the own thread block is void if it looks back, endless if it looks ahead.
    is_own = (parent >= 0) & (program.block[parent] == program.block[waiting])
    is_endless = (parent < 0) | (is_own & (parent >= waiting))
    _tell_endless(program, waiting, is_endless, findings)
    is_late = ~is_endless & (fusion.flag[parent] > program.deps[waiting])
    _tell_late(program, waiting, parent, is_late, findings)
    findings.raise_errors()
    waits = _Waits(parent[~is_own], waiting[~is_own], program.is_type(StepType.NOP))
    return _without_nops(program, fusion, waits, findings)


def first_flagged(
    program: ThreadBlockProgram,
    fusion: Fusion,
    waiting: Int64Array,
) -> Int64Array:
    """The step that ends each wait, or -1.

    One binary search in the flagged steps, which are sorted by (thread block, flag) already.
    """
    target = program.block_indptr[program.rank[waiting]] + program.depid[waiting]
    # Only steps with hasdep raise the flag.
    flagged = np.flatnonzero(program.has_dependents)
    width = int(program.position.max(initial=0)) + 2
    keys = program.block[flagged] * width + fusion.flag[flagged]
    # A position beyond all others must not reach into the keys of the next thread block.
    wanted = target * width + np.minimum(program.deps[waiting], width - 1)
    found = np.searchsorted(keys, wanted)
    step = np.append(flagged, -1)[found]
    # The key found may be of the next thread block: then none here is late enough.
    is_there = (step >= 0) & (program.block[step] == target)
    return np.where(is_there, step, -1)


def _wait_name(program: ThreadBlockProgram, step: int) -> str:
    """Name of a step in messages, with the target of its wait."""
    target = f"thread block {program.depid[step]}, step {program.deps[step]}"
    return f"{program.name(step)} waits for {target}"


def _tell_endless(
    program: ThreadBlockProgram,
    waiting: Int64Array,
    is_endless: BoolArray,
    findings: FileFindings,
) -> None:
    """Record waits that no step ends."""

    def message(row: int) -> str:
        """The message for row `row` of `waiting`."""
        reason = "which can never end: no step there has hasdep from that one on"
        return f"{_wait_name(program, int(waiting[row]))}, {reason}"

    findings.errors_at(
        "endless-wait",
        is_endless,
        program.line[waiting],
        message,
        rank=program.rank[waiting],
        cure='write hasdep="1" on the step that is waited for,'
        " and wait for none of the own thread block that comes later",
    )


def _tell_late(
    program: ThreadBlockProgram,
    waiting: Int64Array,
    parent: Int64Array,
    is_late: BoolArray,
    findings: FileFindings,
) -> None:
    """Warn of waits that a later step than the stated one ends."""

    def message(row: int) -> str:
        position = program.position[parent[row]]
        reason = f"which has no hasdep; the wait ends after step {position}"
        return f"{_wait_name(program, int(waiting[row]))}, {reason}"

    findings.warn_at(
        "late-dependency",
        is_late,
        program.line[waiting],
        message,
        rank=program.rank[waiting],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    """Resolved waits as pairs (parent step, waiting step); `is_nop`: bool, one entry a step."""

    parent: Int64Array
    waiting: Int64Array
    is_nop: BoolArray


def _without_nops(
    program: ThreadBlockProgram,
    fusion: Fusion,
    waits: _Waits,
    findings: FileFindings,
) -> Edges:
    """Replace nops on both sides of the pairs by the steps that they stand for."""
    # Each wait belongs to the step that is really held back.
    owner = _owners(program, waits.is_nop | fusion.joins)[waits.waiting]
    _warn_of_unfinished_chains(program, owner, findings)
    for_nop = waits.is_nop[waits.parent]
    parents = [waits.parent[~for_nop]]
    children = [owner[~for_nop]]
    if for_nop.any():
        behind = _steps_behind_nops(program, waits, findings)
        nops, followers = waits.parent[for_nop].tolist(), owner[for_nop].tolist()
        for nop, child in zip(nops, followers, strict=True):
            steps = np.asarray(sorted(behind[nop].values()), np.int64)
            parents.append(steps)
            children.append(np.full(len(steps), child, np.int64))
    parent, child = np.concatenate(parents), np.concatenate(children)
    # A nop at the end of a thread block holds nothing back.
    is_held = child >= 0
    return parent[is_held], child[is_held]


def _warn_of_unfinished_chains(
    program: ThreadBlockProgram,
    owner: Int64Array,
    findings: FileFindings,
) -> None:
    """Warn of steps that take over a nop's wait and have none themselves.

    The parsers refuse them ("chain of dependences").
    """
    is_unfinished = np.zeros(len(program), np.bool_)
    is_unfinished[owner[owner >= 0]] = True
    # With an own dependency the chain ends as the parsers demand.
    is_unfinished &= program.depid < 0

    def message(step: int) -> str:
        reason = "follows a nop without an own dependency, which the runtimes refuse"
        return f"{program.name(step)} {reason}"

    findings.warn_at(
        "unfinished-nop-chain",
        is_unfinished,
        program.line,
        message,
        rank=program.rank,
    )


def _owners(program: ThreadBlockProgram, passes_on: BoolArray) -> Int64Array:
    """For every step the step of its thread block that takes over its wait, itself or later; or -1.

    `passes_on`: nops and `re` that join an earlier one. A joining `re` has no wait of its own, so
    passing on concerns nops only.
    """
    size = len(program)
    rows = np.arange(size, dtype=np.int64)
    # The next row that does not pass on: a minimum from behind.
    candidates = np.where(passes_on, size, rows)
    owner = np.minimum.accumulate(candidates[::-1])[::-1]
    last_owner = np.minimum(owner, size - 1)
    is_inside = (owner < size) & (program.block[last_owner] == program.block)
    return np.where(is_inside, owner, -1)


def _steps_behind_nops(
    program: ThreadBlockProgram,
    waits: _Waits,
    findings: FileFindings,
) -> dict[int, dict[int, int]]:
    """For every nop the steps that must be done before it is: {thread block: latest step}.

    The latest step of a thread block stands for all before it.
    """
    before = _predecessors(program, waits)
    behind: dict[int, dict[int, int]] = {}
    forwarded = 0
    for nop in _in_order(program, before, findings):
        behind[nop] = _latest_steps(program, before[nop], behind)
        forwarded += len(behind[nop])
        if forwarded > _MOST_FORWARDED:
            message = "the dependencies on nops add up to millions"
            findings.error("too-many-dependencies", message, int(program.line[nop]))
            findings.raise_errors()
    return behind


def _latest_steps(
    program: ThreadBlockProgram,
    steps: list[int],
    behind: dict[int, dict[int, int]],
) -> dict[int, int]:
    """Of each thread block the latest among `steps`, nops replaced by what is `behind` them."""
    latest: dict[int, int] = {}
    for step in steps:
        reached = behind.get(step)
        if reached is None:
            reached = {int(program.block[step]): step}
        for block, candidate in reached.items():
            latest[block] = max(candidate, latest.get(block, -1))
    return latest


def _predecessors(program: ThreadBlockProgram, waits: _Waits) -> dict[int, list[int]]:
    """For every nop the steps that it follows directly: the one before it, and its parents."""
    before: dict[int, list[int]] = {}
    for nop in np.flatnonzero(waits.is_nop).tolist():
        is_first = program.position[nop] == 0
        # Program order: a nop is done after all steps before it.
        before[nop] = [] if is_first else [nop - 1]
    for step, child in zip(waits.parent.tolist(), waits.waiting.tolist(), strict=True):
        if child in before:
            before[child].append(step)
    return before


def _in_order(
    program: ThreadBlockProgram,
    before: dict[int, list[int]],
    findings: FileFindings,
) -> list[int]:
    """The nops, each after the nops that it waits for (Kahn's topological order).

    Raises `InputError` where the waits of nops form a cycle.
    """
    after: dict[int, list[int]] = {nop: [] for nop in before}
    # Nops that each one still waits for.
    missing = dict.fromkeys(before, 0)
    for nop, steps in before.items():
        for step in steps:
            if step in before:
                after[step].append(nop)
                missing[nop] += 1
    order = [nop for nop, number in missing.items() if not number]
    for nop in order:
        for later in after[nop]:
            missing[later] -= 1
            if not missing[later]:
                order.append(later)
    if len(order) < len(before):
        _refuse_cycle(program, min(set(before) - set(order)), findings)
    return order


def _refuse_cycle(
    program: ThreadBlockProgram,
    nop: int,
    findings: FileFindings,
) -> None:
    """Raise `InputError` for a nop that waits for itself."""
    reason = "the dependencies form a cycle, so this nop can never end"
    message = f"{program.name(nop)}: {reason}"
    # The first of the circle, so that the message is always the same.
    line, rank = int(program.line[nop]), int(program.rank[nop])
    findings.error("cyclic-dependencies", message, line, rank=rank)
    findings.raise_errors()
