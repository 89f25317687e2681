"""Find fused reductions, and resolve `depid` and `deps` to the step that ends each wait.

Every thread block has a flag. A step with `hasdep` raises it to the step's position; a step with
`depid` waits until the flag of that thread block is at least `deps` (`msccl_interpreter.h` of
microsoft/msccl). A step has one `depid`; further dependencies are on nops before it. Cost: a sort
of the flagged steps; waits for nops cost time proportional to the dependencies that they forward.

The runtimes execute chains of local reductions as one transfer. This rule is taken from their
parsers: `mscclGetAlgoFromXMLAndSetAlgo` in `src/graph/topo.cc` of microsoft/msccl, copied to
Azure/msccl-executor-nccl and ROCm/rccl. Cost: linear in steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from collhub_msccl.accesses import Edges
from collhub_msccl.findings import FileFindings
from collhub_msccl.runtimes.known_runtimes import MAX_OPERANDS
from collhub_msccl.thread_block_program import StepType, ThreadBlockProgram
from hub_core.columns import BoolArray, Int64Array, counted_positions, run_lengths, sorted_ordinals

# Forwarded dependencies; chains of nops can forward lists that grow quadratically in a hostile
# file.
_MAX_FORWARDED = 1 << 22


def resolve_dependencies(
    program: ThreadBlockProgram,
    fusion: Fusion,
    findings: FileFindings,
) -> Edges:
    """Return the waits of a program as pairs (steps that end a wait, waiting steps), without nops.

    Both are int64 arrays of step numbers; pairs may repeat. A step with `depid` of 0 or more waits
    for thread block `depid` of its rank, until the first step there that has `hasdep` and a flag
    value (`fusion.flag`) of at least `deps`. Exceptions:

    - This first step is an earlier one of the same thread block: the wait is dropped.
    - There is none, or it is the waiting step or a later one of the same block: `endless-wait`.
    - The flag value is greater than `deps`: a warning `late-dependency`.
    - A nop waits: the next step of its block that is neither a nop nor fused with an earlier `re`
      waits instead, if there is one. If it has no `depid`: a warning `unfinished-nop-chain`.
    - A nop ends a wait: instead, the step before it in its block and the steps for which it waits.

    Waits for nops come last; otherwise pairs are in the order of the waiting steps. Raises
    `InputError` with all errors in `findings`, then for cycles of nops (`cyclic-dependencies`) and
    for nops that depend on more than 2^22 steps in total (`too-many-dependencies`).
    """
    waiting = np.flatnonzero(program.depid >= 0)
    parent = find_first_flagged(program, fusion, waiting)
    # A wait within a thread block has no effect if it refers to an earlier step, and never finishes
    # if it refers to a later one.
    is_same_block = (parent >= 0) & (program.block[parent] == program.block[waiting])
    is_endless = (parent < 0) | (is_same_block & (parent >= waiting))
    is_late = ~is_endless & (fusion.flag[parent] > program.deps[waiting])
    line, rank = program.line[waiting], program.rank[waiting]

    def describe(row: int) -> str:
        step = int(waiting[row])
        target = f"thread block {program.depid[step]}, step {program.deps[step]}"
        return f"{program.name(step)} waits for {target}"

    def describe_endless(row: int) -> str:
        reason = "which can never end: neither that step nor a later one there has hasdep"
        return f"{describe(row)}, {reason}"

    def describe_late(row: int) -> str:
        position = program.position[parent[row]]
        return f"{describe(row)}, which has no hasdep; the wait ends after step {position}"

    cure = (
        'write hasdep="1" on the step that is waited for,'
        " and do not wait for later steps of the same thread block"
    )
    findings.add_errors_at("endless-wait", is_endless, line, describe_endless, rank=rank, cure=cure)
    findings.warn_at("late-dependency", is_late, line, describe_late, rank=rank)
    findings.raise_errors()
    waits = _ResolvedWaits(
        parent[~is_same_block], waiting[~is_same_block], program.is_type(StepType.NOP)
    )
    return _replace_nops(program, fusion, waits, findings)


def find_first_flagged(
    program: ThreadBlockProgram,
    fusion: Fusion,
    waiting: Int64Array,
) -> Int64Array:
    """Return the step that ends each wait: int64 per entry of `waiting`; -1 if no step does.

    `waiting`: steps with a `depid` of 0 or more. The wait ends with the first step of thread block
    `depid` of the same rank that has `hasdep` and a flag value (its position, see
    `fuse_reductions`) of at least `deps`. The method is one binary search over all flagged steps,
    which are sorted by (thread block, flag value).
    """
    target = program.block_indptr[program.rank[waiting]] + program.depid[waiting]
    # Only steps with hasdep raise the flag.
    flagged = np.flatnonzero(program.has_dependents)
    width = int(program.position.max(initial=0)) + 2
    keys = program.block[flagged] * width + fusion.flag[flagged]
    # A position larger than all existing ones must not reach the keys of the next thread block.
    target_keys = target * width + np.minimum(program.deps[waiting], width - 1)
    index = np.searchsorted(keys, target_keys)
    step = np.append(flagged, -1)[index]
    # The result may belong to the next thread block: then no step of the target is late enough.
    is_in_target = (step >= 0) & (program.block[step] == target)
    return np.where(is_in_target, step, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _ResolvedWaits:
    """Resolved waits as pairs (parent step, waiting step).

    `is_nop`: bool per step of the program.
    """

    parent: Int64Array
    waiting: Int64Array
    is_nop: BoolArray


def _replace_nops(
    program: ThreadBlockProgram,
    fusion: Fusion,
    waits: _ResolvedWaits,
    findings: FileFindings,
) -> Edges:
    """Return the waits between steps that move data: each nop in a wait is replaced by such steps.

    The result is two int64 arrays, (steps that end a wait, waiting steps). Pairs may repeat.

    - A waiting nop is replaced by the next step of its thread block that is neither a nop nor
      joined to an earlier `re` (`fusion.joins`). Without such a step the wait is dropped.
    - A nop that is waited for is replaced by the steps that must finish before it
      (`_find_steps_before_nops`): one pair per step, ascending. Without such steps there is no
      pair.

    First are the pairs of waits for other steps, then those of waits for nops, each in the order
    of `waits`. Waiting steps without `depid`, which wait only because of an earlier nop, give one
    warning `unfinished-nop-chain` at the first of them. If a wait is for a nop, `InputError` is
    raised for cycles of nops (`cyclic-dependencies`), and for nops that depend on more than 2^22
    steps in total (`too-many-dependencies`).
    """
    # The first step from each step on that does not pass a wait on: a cumulative minimum from the
    # end.
    size = len(program)
    candidates = np.where(waits.is_nop | fusion.joins, size, np.arange(size))
    following = np.minimum.accumulate(candidates[::-1])[::-1]
    last_following = np.minimum(following, size - 1)
    is_in_block = (following < size) & (program.block[last_following] == program.block)
    owner = np.where(is_in_block, following, -1)[waits.waiting]
    # The parsers of the runtimes refuse a step after a nop without a dependency of its own ("chain
    # of dependences"), but its meaning is clear.
    is_unfinished = np.zeros(len(program), np.bool_)
    is_unfinished[owner[owner >= 0]] = True
    is_unfinished &= program.depid < 0
    reason = "follows a nop and has no dependency itself, which the runtimes refuse"
    findings.warn_at(
        "unfinished-nop-chain",
        is_unfinished,
        program.line,
        lambda step: f"{program.name(step)} {reason}",
        rank=program.rank,
    )
    for_nop = waits.is_nop[waits.parent]
    parents = [waits.parent[~for_nop]]
    children = [owner[~for_nop]]
    if for_nop.any():
        steps_before_nop = _find_steps_before_nops(program, waits, findings)
        nops, followers = waits.parent[for_nop].tolist(), owner[for_nop].tolist()
        for nop, child in zip(nops, followers, strict=True):
            steps = np.asarray(sorted(steps_before_nop[nop].values()), np.int64)
            parents.append(steps)
            children.append(np.full(len(steps), child, np.int64))
    parent, child = np.concatenate(parents), np.concatenate(children)
    # A nop at the end of a thread block delays no step.
    is_delayed = child >= 0
    return parent[is_delayed], child[is_delayed]


def _find_steps_before_nops(
    program: ThreadBlockProgram,
    waits: _ResolvedWaits,
    findings: FileFindings,
) -> dict[int, dict[int, int]]:
    """Return for every nop the steps that must finish before it, as {nop: {thread block: step}}.

    These are the step before the nop in its thread block and the steps for which the nop waits.
    If one of them is a nop, the steps before that nop take its place. Of each thread block only
    the step with the highest number is listed, because it implies the earlier ones. The
    dictionary of a nop that is first in its thread block and does not wait is empty. Nops,
    steps and thread blocks are rows of `program`; nops that no step waits for are included.

    Raises `InputError` with all recorded errors if the waits of nops form a cycle
    (`cyclic-dependencies`), or if all dictionaries together have more than 2^22 entries
    (`too-many-dependencies`).
    """
    # For every nop its direct predecessors: the previous step of its thread block, its parents.
    before: dict[int, list[int]] = {}
    for nop in np.flatnonzero(waits.is_nop).tolist():
        is_first = program.position[nop] == 0
        before[nop] = [] if is_first else [nop - 1]
    for step, child in zip(waits.parent.tolist(), waits.waiting.tolist(), strict=True):
        if child in before:
            before[child].append(step)
    steps_before_nop: dict[int, dict[int, int]] = {}
    forwarded = 0
    for nop in _order_nops(program, before, findings):
        # A preceding nop stands for the steps before it.
        latest: dict[int, int] = {}
        for step in before[nop]:
            reached = steps_before_nop.get(step)
            if reached is None:
                reached = {int(program.block[step]): step}
            for block, candidate in reached.items():
                latest[block] = max(candidate, latest.get(block, -1))
        steps_before_nop[nop] = latest
        forwarded += len(latest)
        if forwarded > _MAX_FORWARDED:
            message = f"nops forward more than {_MAX_FORWARDED} dependencies"
            findings.add_error("too-many-dependencies", message, int(program.line[nop]))
            findings.raise_errors()
    return steps_before_nop


def _order_nops(
    program: ThreadBlockProgram,
    before: dict[int, list[int]],
    findings: FileFindings,
) -> list[int]:
    """Return the nops in topological order of their waits (Kahn's algorithm).

    `before`: direct predecessors of every nop; predecessors that are not nops are ignored. Nops
    without a predecessor come first, in the order of `before`; the others follow in the order in
    which their last predecessor was processed. If there is a cycle, records the error
    `cyclic-dependencies` for the lowest nop that is in a cycle or waits for one, and raises
    `InputError` with all recorded errors.
    """
    after: dict[int, list[int]] = {nop: [] for nop in before}
    # Number of unprocessed nops that each nop waits for.
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
        cyclic = min(set(before) - set(order))
        reason = "the dependencies form a cycle, so this nop can never end"
        message = f"{program.name(cyclic)}: {reason}"
        line, rank = int(program.line[cyclic]), int(program.rank[cyclic])
        findings.add_error("cyclic-dependencies", message, line, rank=rank)
        findings.raise_errors()
    return order


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
    """Find the `re` steps (local sums) that runtimes execute as one step with the previous `re`.

    An `re` joins the previous step of the program that is no nop if all of this holds:

    - That step is an `re` of the same thread block, without `hasdep`.
    - Both have the same dstbuf, dstoff and srcbuf, and the later one has no `depid`.
    - It is not the 17th `re` of its thread block, counting all `re`. Later ones may join again.

    Result, one entry per step: whether it joins; the count; the flag value. A series of joined `re`
    is a chain. All its members have the `cnt` of its last one. Their flag values are the position
    of the first one, plus 0, 1, 2 ... Other steps keep `cnt` and position. `program` is not
    changed. At most one warning each for chains of more than 16 `re` (`reduction-chain`) and for
    chains with a nop inside (`nop-in-reduction`), at the first step of the first such chain.
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

    def describe(text: str, chain: int) -> str:
        return f"{program.name(int(first[chain]))}: {text}"

    nops_inside = program.position[last] - program.position[first] + 1 - lengths
    too_long = f"starts a chain of more than {MAX_OPERANDS} re, too many for the runtimes"
    with_nop = "begins a chain of re with a nop inside, which waits too late for the chain"
    for code, is_odd, text in (
        # More than 17 members overflow an array of the kernel in microsoft/msccl and Azure's
        # executor.
        ("reduction-chain", lengths > MAX_OPERANDS, too_long),
        ("nop-in-reduction", nops_inside > 0, with_nop),
    ):
        findings.warn_at(
            code,
            is_odd,
            program.line[first],
            partial(describe, text),
            rank=program.rank[first],
            cure='write hasdep="1" on a step of the chain to break it there',
        )
    return Fusion(joins, count, flag)


def _find_joins(program: ThreadBlockProgram, reductions: Int64Array) -> BoolArray:
    """Return for every `re` (local reduction) whether it joins the `re` before it.

    The result is bool per entry of `reductions`, the numbers of all `re` steps, ascending.
    Joined steps add several sources to one destination. The step before is the last one that is
    no nop. An `re` joins it if all of this holds:

    - The `re` has no `depid`.
    - The step before is an `re` of the same thread block, without `hasdep`.
    - Both have the same destination buffer, destination offset and source buffer. Source
      offsets may differ.
    - The `re` is not the 17th one of its thread block, counted over all its chains. The 18th
      and later ones may join again.
    """
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
