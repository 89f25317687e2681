"""Verify an algorithm: matching, bounds, deadlock, then races and contents for each mode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from collhub_columns import Int64Array

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.findings import CAP, Findings
from hub_core.model.kinds import CollectiveKind
from hub_core.model.wording import action, describe
from hub_core.verification.conflicts import adjacent_conflicts
from hub_core.verification.contents import (
    MAX_CELLS,
    NOT_COMPARED,
    ContentsComparison,
    Stage,
    check_contents,
)
from hub_core.verification.fifo import report_fifo_deadlock
from hub_core.verification.reachability import unordered_in
from hub_core.verification.regions import Regions, common_unit, find_regions
from hub_core.verification.report import ModeReport, VerifyReport
from hub_core.verification.step_order import order_with, report_deadlock, sequential_positions
from hub_core.verification.step_program import compile_steps
from hub_core.verification.verification_input import VerificationInput

# Addresses and their sums stay within int64.
_MAX_ADDRESSES = 2.0**61
_Outcome = tuple[Findings, ContentsComparison]


def verify(
    algorithm: Algorithm,
    *,
    expected: Contributions | None = None,
    fifo_capacity: int | None = None,
    fifo_units: int | None = None,
) -> VerifyReport:
    """Check what an algorithm does against what its collective promises.

    Complete and deterministic. `expected` replaces the collective's postcondition
    (`parse_expectation` makes one from text). With `fifo_capacity`, every connection holds at most
    that many transfers of `fifo_units` units (None: one transfer a step). Nothing is raised for
    wrong algorithms, they get findings. Timing-only algorithms are checked for matching and
    deadlock only, custom ones without expectation for all but the final contents; a note says so.
    Cost: close to linear in steps.
    """
    return verify_input(VerificationInput(algorithm), expected, fifo_capacity, fifo_units)


def verify_input(
    given: VerificationInput,
    expected: Contributions | None = None,
    fifo_capacity: int | None = None,
    fifo_units: int | None = None,
    *,
    claimed_only: bool = False,
) -> VerifyReport:
    """As `verify`, on columns that are computed already and serve further work afterwards.

    With `claimed_only`, the report has the modes that the algorithm claims and no others: what
    decides whether it may be used, in half the time where it claims one.
    """
    steps = given.algorithm.steps
    findings = given.findings
    report_deadlock(steps, given.relation, findings)
    # A deadlock with unbounded buffers is one with bounded ones, too.
    if fifo_capacity is not None and given.relation.order.is_complete:
        with _too_large_is_a_finding(findings):
            report_fifo_deadlock(steps, given.messages, fifo_capacity, fifo_units, findings)
    task = _task(given, expected)
    _note_what_is_not_judged(task, findings)
    collective = given.algorithm.collective
    claims = {"in_place": collective.in_place, "out_of_place": collective.out_of_place}
    judged = [mode for mode in claims if claims[mode] or not claimed_only]
    outcomes: dict[str, _Outcome] = {}
    for mode in judged:
        found, comparison = _check_mode(task, mode == "in_place", findings.file)
        outcomes[mode] = found, comparison
        # Units that are one out of place are one in place, too: what is ordered there is so here.
        is_race_free = comparison is not NOT_COMPARED and not found.has("race")
        task = replace(task, is_race_free=is_race_free)
    return _report(claims, findings, outcomes)


@dataclass(frozen=True, slots=True)
class _Task:
    """What both modes share: the collective and what must lie where, in blocks of `unit` units."""

    given: VerificationInput
    collective: Collective
    expected: Contributions | None
    unit: int
    # Accesses that meet in this mode meet in the one before, where all are ordered.
    is_race_free: bool = False

    @property
    def scratch_units(self) -> Int64Array:
        """Blocks of SCRATCH of every rank."""
        return self.given.algorithm.scratch_units // self.unit

    @property
    def memory_units(self) -> float:
        """Blocks of all memories: a float, as sizes near 2^62 must not wrap around."""
        collective = self.collective
        sizes = (collective.input_units(), collective.output_units(), self.scratch_units)
        return sum(float(size.astype(np.float64).sum()) for size in sizes)


def _task(given: VerificationInput, expected: Contributions | None) -> _Task:
    """The collective in the largest blocks in which it can be judged."""
    algorithm, collective = given.algorithm, given.algorithm.collective
    if not given.has_contents:
        return _Task(given, collective, None, 1)
    if expected is None and collective.contract is not None:
        expected = collective.contract.expected
    # A table of units cannot be read in larger blocks.
    unit = 1 if expected is not None else common_unit(algorithm)
    task = _Task(given, _in_blocks(collective, unit), expected, unit)
    # Beyond, contents are refused anyway, and the table would fill the memory.
    if expected is None and task.memory_units <= MAX_CELLS:
        return replace(task, expected=task.collective.postcondition())
    return task


def _in_blocks(collective: Collective, unit: int) -> Collective:
    """The same collective in blocks of `unit` units."""
    contract = collective.contract
    if contract is not None and unit > 1:
        sizes = contract.input_units // unit, contract.output_units // unit
        contract = CustomContract(*sizes, contract.defined)
    return replace(collective, unit_count=max(1, collective.unit_count // unit), contract=contract)


def _note_what_is_not_judged(task: _Task, findings: Findings) -> None:
    """Say what this report does not vouch for."""
    if not task.given.has_contents:
        message = "the steps do not say which units they touch: races and contents are not judged"
        findings.note("timing-only", message)
    elif task.expected is None and task.collective.kind is CollectiveKind.CUSTOM:
        message = "the custom collective states no result: the final contents are not judged"
        findings.note("contents-not-judged", message)


@contextmanager
def _too_large_is_a_finding(findings: Findings) -> Iterator[None]:
    """Turn the refusal of a check into a finding, since nothing vouches for what is unchecked."""
    try:
        yield
    except InputError as error:
        reason = error.diagnostics[0]
        place, cure = Location(findings.file), "verify a smaller instance"
        findings.add(reason.code, reason.message, place, cure=cure)


def _check_mode(task: _Task, in_place: bool, file: str | None) -> _Outcome:
    """Races and contents in one mode."""
    findings, comparison = Findings(file), NOT_COMPARED
    if task.given.has_contents:
        with _too_large_is_a_finding(findings):
            comparison = _judge_mode(task, in_place, findings)
    return findings, comparison


def _judge_mode(task: _Task, in_place: bool, findings: Findings) -> ContentsComparison:
    """Raises `InputError` for what is too large to check."""
    given, units = task.given, task.memory_units
    algorithm = given.algorithm
    # Races need addresses alone, contents a value of each: the limits differ.
    if units >= _MAX_ADDRESSES:
        message = f"too large to check races and contents: {units:.3g} units of memory"
        raise InputError(message, code="too-large")
    layout = task.collective.memory_layout(in_place, task.scratch_units)
    regions = find_regions(algorithm, layout, given.is_valid, task.unit)
    order = given.relation.order
    if not task.is_race_free:
        earlier, later = _races(given, regions)
        _report_races(given, earlier, later, findings)
        # Contents are then those of the sequential run, so that a race is not also a wrong result.
        order = order_with(given.relation, earlier, later) if len(earlier) else order
    if units > MAX_CELLS:
        message = f"too large to check contents: {units:.0f} units of memory (limit {MAX_CELLS})"
        raise InputError(message, code="too-large")
    program = compile_steps(algorithm.steps, given.messages, order, regions)
    stage = Stage(algorithm, task.collective, layout, task.unit)
    return check_contents(stage, program, task.expected, findings)


def _races(given: VerificationInput, regions: Regions) -> tuple[Int64Array, Int64Array]:
    """Conflicts without order, (earlier, later); if any, neighbours in the sequential run."""
    earlier, later = _unordered_conflicts(given, regions, given.relation.order.position)
    if len(earlier):
        in_turns = sequential_positions(given.relation)
        earlier, later = _unordered_conflicts(given, regions, in_turns)
    return earlier, later


def _unordered_conflicts(
    given: VerificationInput, regions: Regions, position: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Rows (earlier, later), neighbours by `position`, without order."""
    earlier, later = adjacent_conflicts(regions, position)
    # Most conflicts are ordered: they are told apart all at once.
    racing = unordered_in(given.graph, earlier, later)
    return earlier[racing], later[racing]


def _report_races(
    given: VerificationInput, earlier: Int64Array, later: Int64Array, findings: Findings
) -> None:
    """Name the first races."""
    steps = given.algorithm.steps
    first = np.lexsort((earlier, later))[:CAP]
    for one, other in zip(earlier[first].tolist(), later[first].tolist(), strict=True):
        order = f"nothing orders this {action(steps, other)} after {describe(steps, one)}"
        message = f"{order}, which touches the same units"
        place, cure = steps.location(other, findings.file), "add a dependency between the two"
        findings.add("race", message, place, cure=cure)
    findings.count("race", len(earlier) - CAP)


def _report(
    claims: Mapping[str, bool], findings: Findings, outcomes: Mapping[str, _Outcome]
) -> VerifyReport:
    """Put common findings and those of the modes together."""
    modes = {}
    for name, (found, _) in outcomes.items():
        # A race is a verdict of its own: the contents may be right in one order.
        is_wrong = findings.has_errors() or found.has_errors(besides="race")
        said = ["wrong"] * is_wrong + ["race"] * found.has("race")
        modes[name] = ModeReport(claims[name], "+".join(said) or "ok", tuple(found))
    listed = list(findings)
    for name, mode in modes.items():
        if mode.is_claimed:
            # Where one mode alone is claimed there is no doubt which one is meant.
            prefix = f"{name.replace('_', ' ')}: " if all(claims.values()) else ""
            listed += [replace(item, message=prefix + item.message) for item in mode.diagnostics]
    comparisons = [comparison for _, comparison in outcomes.values()]
    methods = {comparison.method for comparison in comparisons}
    # The weakest of the two, since the report vouches for both.
    method = next(name for name in ("none", "fingerprint", "exact") if name in methods)
    error_probability = sum(comparison.error_probability for comparison in comparisons)
    return VerifyReport(modes, tuple(listed), method, error_probability)
