"""Verify an algorithm: matching, bounds, deadlock, then races and contents for each mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, MemoryLayout
from hub_core.model.diagnostics import Findings, InputError, Location
from hub_core.model.kinds import CollectiveKind
from hub_core.verification.contents import (
    MAX_CELLS,
    MAX_WORK,
    NOT_COMPARED,
    CallingMode,
    ContentsComparison,
    check_contents,
)
from hub_core.verification.fifo import report_fifo_deadlock
from hub_core.verification.races import find_races, report_races
from hub_core.verification.regions import Regions, common_unit, find_regions
from hub_core.verification.report import ModeReport, VerificationInput, VerifyReport
from hub_core.verification.step_order import order_with, report_deadlock
from hub_core.verification.step_program import compile_steps
from hub_core.verification.uniform_ranges import check_ranges
from hub_core.verification.unit_blocks import (
    MAX_BLOCKS,
    UnitBlock,
    divide_units,
    find_block_starts,
    find_unit_at,
    is_divisible,
)

# Addresses and their sums stay within int64.
_MAX_ADDRESSES = 2.0**61
# Units of memory and messages of a block of units that is checked by itself: 256 MB of values.
_CELLS_OF_BLOCK = 1 << 24
# Units of memory and messages from which algorithms with independent units are checked by ranges
# first: in programs of thousands of ranks, the search for races by units may take minutes.
_MIN_CELLS_OF_RANGES = 1 << 22
_Outcome = tuple[Findings, ContentsComparison]


def verify(
    algorithm: Algorithm,
    *,
    expected: Contributions | None = None,
    fifo_capacity: int | None = None,
    fifo_units: int | None = None,
) -> VerifyReport:
    """Verify that an algorithm performs its collective: matching, deadlock, races, contents.

    Complete and deterministic. `expected` replaces the collective's postcondition
    (`parse_expectation` creates one from a text). With `fifo_capacity`, every connection buffers at
    most that many transfers of `fifo_units` units (None: one transfer per step). Errors of the
    algorithm are findings of the report and raise no exception. Timing-only algorithms are checked
    for matching and deadlock only, and the final contents of custom collectives without expectation
    are not compared; a note in the report states this. Cost: nearly linear in the number of steps.
    """
    return verify_input(VerificationInput(algorithm), expected, fifo_capacity, fifo_units)


def verify_input(
    verification_input: VerificationInput,
    expected: Contributions | None = None,
    fifo_capacity: int | None = None,
    fifo_units: int | None = None,
    *,
    claimed_only: bool = False,
) -> VerifyReport:
    """Return the report on an algorithm whose messages and regions the caller has already prepared.

    `expected`: the result to compare with, None for that of the collective. Deadlocks are searched
    with unlimited buffers. If there is none and `fifo_capacity` is given, they are also searched
    with this many transfers per connection, of at most `fifo_units` units each (None: one transfer
    per step). These findings and notes are added to `verification_input.findings`. Then races and
    contents are checked in place and out of place, also after a deadlock; with `claimed_only`, only
    in the modes that the algorithm claims. Defects, and checks that are too large, are findings of
    the report, not exceptions. Raises `UsageError` for a `fifo_capacity` or `fifo_units` below 1 if
    the second search runs.
    """
    steps = verification_input.algorithm.steps
    findings = verification_input.findings
    report_deadlock(steps, verification_input.relation, findings)
    # A deadlock with unbounded buffers is also one with bounded buffers.
    if fifo_capacity is not None and verification_input.relation.order.is_complete:
        with _convert_refusal_to_finding(findings):
            report_fifo_deadlock(
                steps, verification_input.messages, fifo_capacity, fifo_units, findings
            )
    task = _build_task(verification_input, expected)
    collective = verification_input.algorithm.collective
    if not verification_input.has_contents:
        message = "the steps do not say which units they touch: races and contents are not judged"
        findings.note("timing-only", message)
    elif task.expected is None and collective.kind is CollectiveKind.CUSTOM:
        message = "the custom collective states no result: the final contents are not judged"
        findings.note("contents-not-judged", message)
    claims = {"in_place": collective.in_place, "out_of_place": collective.out_of_place}
    judged = [mode for mode in claims if claims[mode] or not claimed_only]
    outcomes: dict[str, _Outcome] = {}
    for mode in judged:
        findings_of_mode, comparison = _check_mode(task, mode == "in_place", findings.file)
        outcomes[mode] = findings_of_mode, comparison
        # Regions that overlap out of place also overlap in place: if all conflicts in place are
        # ordered, the conflicts out of place are too. A check in blocks ends at the first defect:
        # then the other blocks may have races.
        is_race_free = comparison is not NOT_COMPARED and not findings_of_mode.has("race")
        if task.blocks > 1 and findings_of_mode.has_errors():
            is_race_free = False
        task = replace(task, is_race_free=is_race_free)
    return _build_report(claims, findings, outcomes)


@dataclass(frozen=True, slots=True)
class _VerificationTask:
    """Data that both modes share: collective and expected contents in blocks of `unit` units."""

    given: VerificationInput
    collective: Collective
    expected: Contributions | None
    unit: int
    # The expectation is that of the caller, not of the collective.
    is_expectation_given: bool = False
    # The mode verified before has no races; its conflicts include those of this mode.
    is_race_free: bool = False
    # The units that are checked, None for all.
    block: UnitBlock | None = None
    # Blocks of units that fit the limits of contents; 0: the units are checked at once, 1: also,
    # but by ranges first.
    blocks: float = 0.0

    @property
    def scratch_units(self) -> Int64Array:
        """Return the number of blocks of SCRATCH of every rank: int64[ranks].

        A block has `unit` units of the algorithm. If only a range of units is checked, SCRATCH
        counts only the units of this range. The number is rounded down.
        """
        units = self.given.algorithm.scratch_units
        if self.block is not None:
            # SCRATCH of a divisible algorithm has all units or none.
            units = np.minimum(units, self.block.stop - self.block.first)
        return units // self.unit

    @property
    def memory_units(self) -> float:
        """Return the number of blocks in INPUT, OUTPUT and SCRATCH of all ranks together.

        A block has `unit` units of the algorithm. If only a range of units is checked, only the
        blocks of this range count. INPUT and OUTPUT are both counted, also in place. The result
        is a float, because sums of sizes near 2^62 would overflow.
        """
        collective = self.collective
        sizes = (collective.input_units(), collective.output_units(), self.scratch_units)
        return sum(float(size.astype(np.float64).sum()) for size in sizes)


def _build_task(
    verification_input: VerificationInput, expected: Contributions | None
) -> _VerificationTask:
    """Return the task: the collective, counted in blocks of units, and its expected contents.

    1. Timing-only algorithm: blocks of one unit, nothing expected.
    2. `expected` is given, or else the contract of the collective has an expectation: it is
       expected, in blocks of one unit.
    3. Otherwise blocks have the largest possible size (`common_unit`). Expected are the contents of
       the collective; none for a custom one, nor if the memory of all ranks exceeds `MAX_CELLS`
       (2^25) blocks.
    """
    algorithm, collective = verification_input.algorithm, verification_input.algorithm.collective
    if not verification_input.has_contents:
        return _VerificationTask(verification_input, collective, None, 1)
    if expected is None and collective.contract is not None:
        expected = collective.contract.expected
    # The rows of an expectation are single units.
    unit = 1 if expected is not None else common_unit(algorithm)
    blocks = collective.in_blocks(unit)
    task = _VerificationTask(verification_input, blocks, expected, unit, expected is not None)
    # Above the limit contents are refused, and the table would fill the memory.
    if expected is None and task.memory_units <= MAX_CELLS:
        task = replace(task, expected=task.collective.postcondition())
    return replace(task, blocks=_count_blocks(task))


@contextmanager
def _convert_refusal_to_finding(findings: Findings) -> Iterator[None]:
    """Context manager that converts an `InputError` of the body to a finding of the report.

    The finding is an error with code and text of the first diagnostic; the cure is to verify a
    smaller instance. Used for checks that are too large. Other exceptions pass.
    """
    try:
        yield
    except InputError as error:
        reason = error.diagnostics[0]
        location, cure = Location(findings.file), "verify a smaller instance"
        findings.add(reason.code, reason.message, location, cure=cure)


def _check_mode(task: _VerificationTask, in_place: bool, file: str | None) -> _Outcome:
    """Check races and contents in one mode; return findings and comparison of contents.

    `file`: the file that the findings name. The comparison is `NOT_COMPARED` for a
    timing-only algorithm, which is not checked, for an algorithm without expected contents,
    and for one that is too large. A too large algorithm gives a finding of kind error
    instead of an exception; findings that were added before it remain.
    """
    findings, comparison = Findings(file), NOT_COMPARED
    if task.given.has_contents:
        with _convert_refusal_to_finding(findings):
            comparison = _judge_mode(task, in_place, findings)
    return findings, comparison


def _judge_mode(task: _VerificationTask, in_place: bool, findings: Findings) -> ContentsComparison:
    """Check races and contents in one mode, add findings; return the comparison of contents.

    `in_place`: the mode. Earlier findings remain. Without expected contents the result is
    `NOT_COMPARED`. A nonzero `task.blocks` (large algorithms with independent units) selects
    `_judge_ranges`; 0 selects `_judge_regions` for all units at once. Raises `InputError`
    (`too-large`) if all memory has 2^61 blocks of `task.unit` units or more; both raise it at lower
    limits for contents.
    """
    verification_input, units = task.given, task.memory_units
    # Races need addresses only, contents a value per address: the limits differ.
    if units >= _MAX_ADDRESSES:
        message = f"too large to check races and contents: {units:.3g} units of memory"
        raise InputError(message, code="too-large")
    if task.blocks:
        return _judge_ranges(task, in_place, findings)
    layout = task.collective.memory_layout(in_place, task.scratch_units)
    regions = find_regions(
        verification_input.algorithm, layout, verification_input.is_valid, task.unit
    )
    return _judge_regions(task, layout, regions, findings)


def _judge_ranges(
    task: _VerificationTask, in_place: bool, findings: Findings
) -> ContentsComparison:
    """Check races and contents of an algorithm whose units are independent; add the findings.

    1. `check_ranges` proves the algorithm: its comparison is returned, with the note
       `checked-by-ranges`.
    2. `task.blocks` is at most 1: all units are checked by `_judge_regions`, without a note.
    3. At most `MAX_BLOCKS` (128) blocks of units: the note `checked-in-blocks` is added, then the
       blocks are checked in order, up to the first with an error.
    4. More blocks: only the block at which the proof failed is checked, without a note. Without
       an error in it, `InputError` (`too-large`) is raised.

    In 3 and 4 findings count units within their block. The method is "fingerprint" if a checked
    block used it, else that of the first block; error probabilities are added.
    """
    verification_input, algorithm = task.given, task.given.algorithm
    layout = task.collective.memory_layout(in_place, task.scratch_units)
    regions = find_regions(algorithm, layout, verification_input.is_valid, task.unit)
    result = check_ranges(
        verification_input, task.collective, layout, regions, is_race_free=task.is_race_free
    )
    if result.comparison is not None:
        findings.note(
            "checked-by-ranges",
            "races and contents are checked for all units, by ranges of units that all steps "
            "treat alike",
        )
        return result.comparison
    if task.blocks <= 1:
        return _judge_regions(task, layout, regions, findings)
    del regions
    blocks = checked = find_block_starts(algorithm, task.unit, task.blocks)
    if len(blocks) > MAX_BLOCKS:
        unit = find_unit_at(algorithm, layout, result.address, task.unit)
        number = unit // task.unit // blocks.step
        checked = blocks[number : number + 1]
    else:
        findings.note(
            "checked-in-blocks",
            f"races and contents are checked for all units, in {len(blocks)} blocks of units",
        )
    comparisons = []
    for block in divide_units(algorithm, task.unit, checked):
        part = replace(task, collective=block.collective, block=block)
        expected = block.collective.postcondition()
        layout = block.collective.memory_layout(in_place, part.scratch_units)
        regions = find_regions(algorithm, layout, verification_input.is_valid, task.unit, block)
        comparisons.append(
            _judge_regions(replace(part, expected=expected), layout, regions, findings)
        )
        if findings.has_errors():
            break
    if len(checked) < len(blocks) and not findings.has_errors():
        message = f"too large to check contents: {len(blocks)} blocks of units (limit {MAX_BLOCKS})"
        raise InputError(message, code="too-large")
    methods = {comparison.method for comparison in comparisons}
    return ContentsComparison(
        "fingerprint" if "fingerprint" in methods else comparisons[0].method,
        sum(comparison.error_probability for comparison in comparisons),
    )


def _judge_regions(
    task: _VerificationTask, layout: MemoryLayout, regions: Regions, findings: Findings
) -> ContentsComparison:
    """Add findings on races and contents of `regions`; return the comparison of contents.

    Unless `task.is_race_free`, races are searched, and their findings are added first. The contents
    are those of one sequential run, in which the two steps of every race have a fixed order, so
    that a race is not reported as a wrong result too. Without `task.expected` they are not compared
    (`NOT_COMPARED`). Raises `InputError` (`too-large`) as `find_races`, then, after the findings on
    races, for more than `MAX_CELLS` (2^25) units of memory and as `check_contents`.
    """
    verification_input, units = task.given, task.memory_units
    algorithm = verification_input.algorithm
    order = verification_input.relation.order
    if not task.is_race_free:
        earlier, later = find_races(verification_input, regions)
        report_races(verification_input, earlier, later, findings)
        # Contents are compared in one sequential run, so that a race is not also a wrong result.
        order = order_with(verification_input.relation, earlier, later) if len(earlier) else order
    if units > MAX_CELLS:
        message = f"too large to check contents: {units:.0f} units of memory (limit {MAX_CELLS})"
        raise InputError(message, code="too-large")
    program = compile_steps(algorithm.steps, verification_input.messages, order, regions)
    stage = CallingMode(algorithm, task.collective, layout, task.unit)
    return check_contents(stage, program, task.expected, findings)


def _count_blocks(task: _VerificationTask) -> float:
    """Return `_VerificationTask.blocks`: the number of blocks of units to check separately.

    The memory of a check is `task.memory_units` plus the units of all sent messages; its
    operations are the units of all steps. The first rule that applies decides:

    1. 0 (all units at once), if the caller gave the expectation.
    2. 0, if the memory is at most `_MIN_CELLS_OF_RANGES` and the operations at most
       `MAX_WORK`.
    3. 0, if a step never runs, or if units depend on one another.
    4. 1 (by ranges first), if the memory is at most `MAX_CELLS` and the operations at most
       `MAX_WORK`.
    5. The larger of memory / `_CELLS_OF_BLOCK` and operations / `MAX_WORK`, not rounded.
    """
    given, steps = task.given, task.given.algorithm.steps
    moved = float(steps.count[steps.sends].sum(dtype=np.float64)) / task.unit
    work = float(steps.count.sum(dtype=np.float64)) / task.unit
    cells = task.memory_units + moved
    fits = cells <= MAX_CELLS and work <= MAX_WORK
    if task.is_expectation_given or (fits and cells <= _MIN_CELLS_OF_RANGES):
        return 0.0
    if not given.relation.order.is_complete or not is_divisible(given.algorithm, given.messages):
        return 0.0
    return 1.0 if fits else max(cells / _CELLS_OF_BLOCK, work / MAX_WORK)


def _build_report(
    claims: Mapping[str, bool], findings: Findings, outcomes: Mapping[str, _Outcome]
) -> VerifyReport:
    """Return the report from the common findings and the findings of each mode.

    `claims`: whether the algorithm claims each mode. `outcomes`: at least one mode, `in_place` or
    `out_of_place`.

    - The verdict of a mode is `ok`, `wrong`, `race` or `wrong+race`. It is wrong if there is any
      common error, or an error of the mode other than `race`. Warnings and notes have no effect.
    - The report lists the common findings, then those of the claimed modes in the order of
      `outcomes`. If both modes are claimed, these messages begin with `in place: ` or `out of
      place: `. Findings of other modes are only in the report of the mode.
    - The method is the weakest of all modes: none, then fingerprint, then exact. Error
      probabilities are added.
    """
    modes = {}
    for name, (mode_findings, _) in outcomes.items():
        # A race is a separate verdict: the contents may be correct in one order.
        is_wrong = findings.has_errors() or mode_findings.has_errors(besides="race")
        verdicts = ["wrong"] * is_wrong + ["race"] * mode_findings.has("race")
        modes[name] = ModeReport(claims[name], "+".join(verdicts) or "ok", tuple(mode_findings))
    listed = list(findings)
    for name, mode in modes.items():
        if mode.is_claimed:
            # The mode is named only if both are claimed.
            prefix = f"{name.replace('_', ' ')}: " if all(claims.values()) else ""
            listed += [replace(item, message=prefix + item.message) for item in mode.diagnostics]
    comparisons = [comparison for _, comparison in outcomes.values()]
    methods = {comparison.method for comparison in comparisons}
    # The weaker method of both modes, because the report covers both.
    method = next(name for name in ("none", "fingerprint", "exact") if name in methods)
    error_probability = sum(comparison.error_probability for comparison in comparisons)
    return VerifyReport(modes, tuple(listed), method, error_probability)
