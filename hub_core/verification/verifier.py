"""Verify an algorithm: matching, bounds, deadlock, then races and contents for each mode of calling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective, CollectiveKind, Contributions, CustomContract
from hub_core.model.diagnostics import InputError, Location
from hub_core.model.findings import CAP, Findings
from hub_core.model.messages import Messages, match_messages
from hub_core.model.wording import action, describe
from hub_core.verification.conflicts import adjacent_conflicts
from hub_core.verification.contents import MAX_CELLS, Judgement, check_contents
from hub_core.verification.fifo import report_fifo_deadlock
from hub_core.verification.happens_before import (
    HappensBefore,
    happens_before,
    order_with,
    report_deadlock,
    sequential_positions,
)
from hub_core.verification.program import compile_program
from hub_core.verification.reachability import unordered_pairs
from hub_core.verification.regions import Regions, check_regions, common_unit, find_regions
from hub_core.verification.report import ModeReport, VerifyReport, verdict

Int64Array = npt.NDArray[np.int64]

_MAX_ADDRESSES = 2.0**61
_MODES = {"in_place": True, "out_of_place": False}


def verify(
    algorithm: Algorithm,
    *,
    expected: Contributions | None = None,
    fifo_capacity: int | None = None,
    fifo_units: int | None = None,
) -> VerifyReport:
    """Check what an algorithm does against what its collective promises; complete and deterministic.

    `expected` replaces the collective's postcondition (`parse_expectation` makes one from text). With
    `fifo_capacity`, every connection holds at most that many transfers of `fifo_units` units (None: one transfer
    a step). Nothing is raised for wrong algorithms, they get findings. Timing-only algorithms are checked for
    matching and deadlock only, custom ones without expectation for all but the final contents; a note says so.
    Cost: close to linear in steps.
    """
    findings = Findings(algorithm.provenance.source_name or None)
    subject = _prepare(algorithm, expected, findings)
    report_deadlock(algorithm.steps, subject.relation, findings)
    if fifo_capacity is not None and subject.relation.order.is_complete:
        with _too_large_is_a_finding(findings):
            report_fifo_deadlock(
                algorithm.steps, subject.messages, fifo_capacity, fifo_units, findings
            )
    if not algorithm.has_contents:
        findings.note(
            "timing-only",
            "the steps do not say which units they touch: races and contents are not judged",
        )
    elif subject.expected is None and algorithm.collective.kind is CollectiveKind.CUSTOM:
        findings.note(
            "contents-not-judged",
            "the custom collective states no result: the final contents are not judged",
        )
    outcomes = {name: _check_mode(subject, in_place, findings) for name, in_place in _MODES.items()}
    return _report(algorithm, findings, outcomes)


@dataclass(frozen=True, slots=True)
class _Subject:
    """What all modes share: the algorithm, its order, and its collective in blocks of `unit` units."""

    algorithm: Algorithm
    messages: Messages
    relation: HappensBefore
    is_valid: npt.NDArray[np.bool_]
    unit: int
    collective: Collective
    expected: Contributions | None


@dataclass(frozen=True, slots=True)
class _Outcome:
    findings: Findings
    is_racy: bool
    judgement: Judgement


def _prepare(algorithm: Algorithm, expected: Contributions | None, findings: Findings) -> _Subject:
    steps, collective = algorithm.steps, algorithm.collective
    messages = match_messages(steps, findings)
    relation = happens_before(steps, messages)
    if not algorithm.has_contents:
        return _Subject(
            algorithm, messages, relation, np.ones(len(steps), np.bool_), 1, collective, None
        )
    is_valid = check_regions(algorithm, findings)
    stated = (
        expected
        if expected is not None or collective.contract is None
        else collective.contract.expected
    )
    # A table of units cannot be read in larger blocks.
    unit = 1 if stated is not None else common_unit(algorithm)
    coarse = _in_blocks(collective, unit)
    if stated is None and _memory_units(algorithm, coarse, unit) <= MAX_CELLS:
        stated = coarse.postcondition()
    return _Subject(algorithm, messages, relation, is_valid, unit, coarse, stated)


def _memory_units(algorithm: Algorithm, coarse: Collective, unit: int) -> float:
    """Size of all memories in blocks of `unit`; a float, as sizes near 2^62 must not wrap around."""
    sizes = (coarse.input_units(), coarse.output_units(), algorithm.scratch_units // unit)
    return sum(float(size.astype(np.float64).sum()) for size in sizes)


def _in_blocks(collective: Collective, unit: int) -> Collective:
    """The same collective in blocks of `unit` units."""
    contract = collective.contract
    if contract is not None and unit > 1:
        contract = CustomContract(
            contract.input_units // unit, contract.output_units // unit, contract.defined
        )
    return replace(collective, unit_count=max(1, collective.unit_count // unit), contract=contract)


@contextmanager
def _too_large_is_a_finding(findings: Findings) -> Iterator[None]:
    """Turn the refusal of a check into a finding, since nothing vouches for what was not checked."""
    try:
        yield
    except InputError as error:
        reason = error.diagnostics[0]
        findings.add(
            reason.code, reason.message, Location(findings.file), cure="verify a smaller instance"
        )


def _check_mode(subject: _Subject, in_place: bool, common: Findings) -> _Outcome:
    """Races and contents in one mode."""
    findings = Findings(common.file)
    judgement = Judgement("none", 0.0)
    if subject.algorithm.has_contents:
        with _too_large_is_a_finding(findings):
            judgement = _judge_mode(subject, in_place, findings)
    return _Outcome(findings, findings.has("race"), judgement)


def _judge_mode(subject: _Subject, in_place: bool, findings: Findings) -> Judgement:
    algorithm, relation, unit = subject.algorithm, subject.relation, subject.unit
    units = _memory_units(algorithm, subject.collective, unit)
    if units >= _MAX_ADDRESSES:
        raise InputError(
            f"too large to check races and contents: {units:.3g} units of memory", code="too-large"
        )
    layout = subject.collective.memory_layout(in_place, algorithm.scratch_units // unit)
    regions = find_regions(algorithm, layout, subject.is_valid, unit)
    earlier, later = _races(subject, regions)
    _report_races(subject, earlier, later, findings)
    if units > MAX_CELLS:
        raise InputError(
            f"too large to check contents: {units:.0f} units of memory (limit {MAX_CELLS})",
            code="too-large",
        )
    order = order_with(relation, earlier, later) if len(earlier) else relation.order
    program = compile_program(algorithm.steps, subject.messages, order, regions)
    return check_contents(
        algorithm, program, layout, subject.collective, subject.expected, unit, findings
    )


def _races(subject: _Subject, regions: Regions) -> tuple[Int64Array, Int64Array]:
    """Rows (earlier, later) that conflict without order; where there are any, those next to each other in the sequential run."""
    relation = subject.relation
    earlier, later = _unordered_conflicts(subject, regions, relation.order.position)
    if len(earlier):
        earlier, later = _unordered_conflicts(subject, regions, sequential_positions(relation))
    return earlier, later


def _unordered_conflicts(
    subject: _Subject, regions: Regions, position: Int64Array
) -> tuple[Int64Array, Int64Array]:
    earlier, later = adjacent_conflicts(regions, position)
    racing = unordered_pairs(subject.algorithm.steps, subject.relation, earlier, later)
    return earlier[racing], later[racing]


def _report_races(
    subject: _Subject, earlier: Int64Array, later: Int64Array, findings: Findings
) -> None:
    steps = subject.algorithm.steps
    order = np.lexsort((earlier, later))[:CAP]
    for one, other in zip(earlier[order].tolist(), later[order].tolist(), strict=True):
        message = f"nothing orders this {action(steps, other)} after {describe(steps, one)}, which touches the same units"
        findings.add(
            "race",
            message,
            steps.location(other, findings.file),
            cure="add a dependency between the two",
        )
    findings.count("race", len(earlier) - CAP)


def _report(
    algorithm: Algorithm, findings: Findings, outcomes: dict[str, _Outcome]
) -> VerifyReport:
    collective = algorithm.collective
    claims = {"in_place": collective.in_place, "out_of_place": collective.out_of_place}
    modes = {
        name: ModeReport(
            claims[name],
            verdict(
                findings.has_errors() or outcome.findings.has_errors(besides="race"),
                outcome.is_racy,
            ),
            tuple(outcome.findings),
        )
        for name, outcome in outcomes.items()
    }
    listed = list(findings)
    for name, mode in modes.items():
        if mode.is_claimed:
            prefix = f"{name.replace('_', ' ')}: " if all(claims.values()) else ""
            listed += [replace(item, message=prefix + item.message) for item in mode.diagnostics]
    return VerifyReport(
        modes, tuple(listed), *_method([outcome.judgement for outcome in outcomes.values()])
    )


def _method(judgements: list[Judgement]) -> tuple[str, float]:
    """The weakest comparison of the modes, and the sum of their error probabilities."""
    methods = {judgement.method for judgement in judgements}
    weakest = next(name for name in ("none", "fingerprint", "exact") if name in methods)
    return weakest, sum(judgement.error_probability for judgement in judgements)
