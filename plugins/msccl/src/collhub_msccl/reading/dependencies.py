"""Resolve depid and deps to the steps that a step really waits for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collhub_msccl.findings import FileFindings
from collhub_msccl.reading.fusion import Fusion
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram

Int64Array = npt.NDArray[np.int64]

_MOST_FORWARDED = 1 << 22


def resolve_dependencies(
    program: ThreadBlockProgram, fusion: Fusion, findings: FileFindings
) -> tuple[Int64Array, Int64Array]:
    """Pairs (parent step, waiting step), neither of them a nop.

    A wait is over after the first step of thread block `depid` that has hasdep and whose flag is at least
    `deps`. The wait of a nop passes to the next step that is not a nop and not fused to an earlier one; a
    wait for a nop means: for all that the nop waits for, and for the steps before it. Raises `InputError`
    for waits that never end.
    """
    waiting = np.flatnonzero(program.depid >= 0)
    parent = _first_flagged(program, fusion, waiting)
    is_own = (parent >= 0) & (program.block[parent] == program.block[waiting])
    never = (parent < 0) | (is_own & (parent >= waiting))
    _tell(program, fusion, waiting, parent, never, findings)
    findings.raise_errors()
    keep = ~is_own
    return _without_nops(program, fusion, parent[keep], waiting[keep], findings)


def _first_flagged(program: ThreadBlockProgram, fusion: Fusion, waiting: Int64Array) -> Int64Array:
    """The step that ends each wait, or -1."""
    target = program.block_indptr[program.rank[waiting]] + program.depid[waiting]
    flagged = np.flatnonzero(program.has_dependents)
    width = int(program.position.max(initial=0)) + 2
    keys = program.block[flagged] * width + fusion.flag[flagged]
    found = np.searchsorted(keys, target * width + np.minimum(program.deps[waiting], width - 1))
    step = np.append(flagged, -1)[found]
    return np.where((step >= 0) & (program.block[step] == target), step, -1)


def _tell(
    program: ThreadBlockProgram,
    fusion: Fusion,
    waiting: Int64Array,
    parent: Int64Array,
    never: npt.NDArray[np.bool_],
    findings: FileFindings,
) -> None:
    line, rank = program.line[waiting], program.rank[waiting]

    def message(row: int) -> str:
        step = int(waiting[row])
        return f"{program.name(step)} waits for thread block {program.depid[step]}, step {program.deps[step]}"

    findings.errors_at(
        "endless-wait",
        never,
        line,
        lambda row: (
            f"{message(row)}, which can never end: no step there has hasdep from that one on"
        ),
        rank=rank,
        cure='write hasdep="1" on the step that is waited for, and wait for none of the own thread block that comes later',
    )
    late = ~never & (fusion.flag[parent] > program.deps[waiting])
    findings.warn_at(
        "late-dependency",
        late,
        line,
        lambda row: (
            f"{message(row)}, which has no hasdep; the wait ends after step {program.position[parent[row]]}"
        ),
        rank=rank,
    )


def _without_nops(
    program: ThreadBlockProgram,
    fusion: Fusion,
    parent: Int64Array,
    waiting: Int64Array,
    findings: FileFindings,
) -> tuple[Int64Array, Int64Array]:
    is_nop = program.is_type(StepType.NOP)
    nop_targets = np.unique(parent[is_nop[parent]])
    owner = _owners(program, is_nop | fusion.joins)[waiting]
    _warn_of_unfinished_chains(program, owner, findings)
    pairs = [(parent[~is_nop[parent]], owner[~is_nop[parent]])]
    if len(nop_targets):
        behind = _steps_behind_nops(program, is_nop, parent, waiting, findings)
        for nop, child in zip(
            parent[is_nop[parent]].tolist(), owner[is_nop[parent]].tolist(), strict=True
        ):
            steps = np.asarray(sorted(behind[nop].values()), np.int64)
            pairs.append((steps, np.full(len(steps), child, np.int64)))
    parents, children = (np.concatenate(column) for column in zip(*pairs, strict=True))
    # A nop at the end of a thread block holds nothing back.
    kept = children >= 0
    return parents[kept], children[kept]


def _warn_of_unfinished_chains(
    program: ThreadBlockProgram, owner: Int64Array, findings: FileFindings
) -> None:
    without_own = np.zeros(len(program), np.bool_)
    without_own[owner[owner >= 0]] = True
    without_own &= program.depid < 0
    findings.warn_at(
        "unfinished-nop-chain",
        without_own,
        program.line,
        lambda row: (
            f"{program.name(row)} follows a nop without an own dependency, which the runtimes refuse"
        ),
        rank=program.rank,
    )


def _owners(program: ThreadBlockProgram, passes_on: npt.NDArray[np.bool_]) -> Int64Array:
    """For every step the step of its thread block, itself or later, that takes over its wait, or -1."""
    rows = np.arange(len(program), dtype=np.int64)
    owner = np.where(passes_on, len(program), rows)
    # A joining `re` has no wait of its own, so passing on concerns nops only.
    owner = np.minimum.accumulate(owner[::-1])[::-1]
    inside = (owner < len(program)) & (
        program.block[np.minimum(owner, len(program) - 1)] == program.block
    )
    return np.where(inside, owner, -1)


def _steps_behind_nops(
    program: ThreadBlockProgram,
    is_nop: npt.NDArray[np.bool_],
    parent: Int64Array,
    waiting: Int64Array,
    findings: FileFindings,
) -> dict[int, dict[int, int]]:
    """For every nop the steps that must be done before it is: {thread block: latest step}."""
    before = _predecessors(program, is_nop, parent, waiting)
    behind: dict[int, dict[int, int]] = {}
    forwarded = 0
    for nop in _in_order(program, before, findings):
        found: dict[int, int] = {}
        for step in before[nop]:
            for block, latest in (
                behind[step].items() if step in before else ((int(program.block[step]), step),)
            ):
                found[block] = max(latest, found.get(block, -1))
        behind[nop] = found
        forwarded += len(found)
        if forwarded > _MOST_FORWARDED:
            findings.error(
                "too-many-dependencies",
                "the dependencies on nops add up to millions",
                int(program.line[nop]),
            )
            findings.raise_errors()
    return behind


def _predecessors(
    program: ThreadBlockProgram,
    is_nop: npt.NDArray[np.bool_],
    parent: Int64Array,
    waiting: Int64Array,
) -> dict[int, list[int]]:
    before: dict[int, list[int]] = {}
    for nop in np.flatnonzero(is_nop).tolist():
        before[nop] = [nop - 1] if program.position[nop] else []
    for step, child in zip(parent.tolist(), waiting.tolist(), strict=True):
        if child in before:
            before[child].append(step)
    return before


def _in_order(
    program: ThreadBlockProgram, before: dict[int, list[int]], findings: FileFindings
) -> list[int]:
    """The nops, each after the nops that it waits for."""
    after: dict[int, list[int]] = {nop: [] for nop in before}
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
        stuck = min(set(before) - set(order))
        message = f"{program.name(stuck)}: the dependencies form a cycle, so this nop can never end"
        findings.error(
            "cyclic-dependencies", message, int(program.line[stuck]), rank=int(program.rank[stuck])
        )
        findings.raise_errors()
    return order
