"""Turn an algorithm into a levelled program; what cannot run is refused with the steps that are to blame."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hub_core.execution.ordering import assign_levels
from hub_core.execution.program import LevelledProgram
from hub_core.execution.records import Records, expand_steps
from hub_core.model.algorithm import Algorithm
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import Diagnostic, InputError, Location
from hub_core.model.findings import CAP, Findings
from hub_core.model.kinds import CollectiveKind
from hub_core.model.messages import match_messages
from hub_core.model.steps import StepTable
from hub_core.model.wording import action, describe
from hub_core.verification.conflicts import adjacent_conflicts
from hub_core.verification.happens_before import (
    HappensBefore,
    happens_before,
    report_deadlock,
    sequential_positions,
)
from hub_core.verification.reachability import unordered_pairs
from hub_core.verification.regions import Regions, check_regions, common_unit, find_regions

Int64Array = npt.NDArray[np.int64]

_MAX_BLOCKS = 1 << 40


def levelled_program(
    algorithm: Algorithm, in_place: bool, *, allow_races: bool = False
) -> LevelledProgram:
    """Level an algorithm for calls in place or out of place, in time close to linear in steps.

    Every algorithm whose messages match and that has no deadlock with unbounded buffers and no race has a levelled program:
    where a transport without buffers would deadlock, messages are staged in scratch (see `assign_levels`). Conflicting
    accesses of a rank keep their order. `allow_races`: order accesses that nothing orders as if ranks took turns, each in
    the order of its steps, as `verify` does to judge contents. Raises `InputError` naming the steps: for timing-only
    algorithms, messages without partner, regions outside their buffers, deadlocks (with the position of every rank), races.
    """
    findings = Findings(algorithm.provenance.source_name or None)
    if not algorithm.has_contents:
        message = "a timing-only algorithm: its steps do not say which units they touch, so nothing can be run"
        raise InputError(message, location=Location(findings.file), code="timing-only")
    steps = algorithm.steps
    messages = match_messages(steps, findings)
    is_valid = check_regions(algorithm, findings)
    _refuse(findings)
    relation = happens_before(steps, messages)
    if not relation.order.is_complete:
        raise InputError(_deadlock(steps, relation, findings))
    unit = 1 if algorithm.collective.kind is CollectiveKind.CUSTOM else common_unit(algorithm)
    collective = replace(algorithm.collective, unit_count=algorithm.collective.unit_count // unit)
    scratch = algorithm.scratch_units // unit
    _refuse_too_large(collective, scratch)
    regions = find_regions(algorithm, collective.memory_layout(in_place, scratch), is_valid, unit)
    conflicts = _conflicts(steps, relation, regions, allow_races, findings)
    levels = assign_levels(steps, messages, relation, conflicts)
    records = expand_steps(steps, messages, regions, levels, scratch, unit)
    return _program(records, collective, unit, in_place)


def _refuse(findings: Findings) -> None:
    if findings.has_errors():
        raise InputError(findings)


def _refuse_too_large(collective: Collective, scratch: Int64Array) -> None:
    """Refuse sizes whose addresses would not fit the arithmetic."""
    blocks = sum(
        float(part.astype(np.float64).sum())
        for part in (collective.input_units(), collective.output_units(), scratch)
    )
    if blocks >= _MAX_BLOCKS:
        raise InputError(
            f"too large to run: {blocks:.3g} blocks of memory (limit 2^40)", code="too-large"
        )


def _deadlock(steps: StepTable, relation: HappensBefore, findings: Findings) -> list[Diagnostic]:
    """The steps that wait for each other, then of every rank that never ends the first step that never runs."""
    report_deadlock(steps, relation, findings)
    stuck = np.flatnonzero(relation.order.position < 0)
    _, first = np.unique(steps.rank[stuck], return_index=True)
    cycle = next(item for item in findings if item.code == "deadlock")
    places = [(row, steps.location(row, findings.file)) for row in stuck[first].tolist()]
    waiting = [
        Diagnostic(
            "blocked", f"stands at this {action(steps, row)}, which never runs", location=place
        )
        for row, place in places
    ]
    return [cycle, *waiting]


def _conflicts(
    steps: StepTable,
    relation: HappensBefore,
    regions: Regions,
    allow_races: bool,
    findings: Findings,
) -> tuple[Int64Array, Int64Array]:
    """Pairs of rows (earlier, later) that touch one unit, enough of them to order all; races are refused or ordered."""
    earlier, later = adjacent_conflicts(regions, relation.order.position)
    racing = unordered_pairs(steps, relation, earlier, later)
    if len(racing) and allow_races:
        return adjacent_conflicts(regions, sequential_positions(relation))
    for index in racing[:CAP].tolist():
        one, other = int(earlier[index]), int(later[index])
        message = f"nothing orders this {action(steps, other)} after {describe(steps, one)}, which touches the same units"
        findings.add(
            "race",
            message,
            steps.location(other, findings.file),
            cure="add a dependency between the two",
        )
    if len(racing):
        findings.count("race", len(racing) - CAP)
        raise InputError(findings)
    return earlier, later


def _program(
    records: Records, collective: Collective, unit: int, in_place: bool
) -> LevelledProgram:
    columns, ranks = records.columns, np.arange(collective.num_ranks + 1)
    return LevelledProgram(
        kind=columns["kind"].astype(np.uint8),
        level=columns["level"].astype(np.int32),
        peer=columns["peer"].astype(np.int32),
        message=columns["message"],
        src_buffer=columns["src_buffer"].astype(np.uint8),
        src_offset=columns["src_offset"],
        dst_buffer=columns["dst_buffer"].astype(np.uint8),
        dst_offset=columns["dst_offset"],
        count=columns["count"],
        row=columns["row"],
        rank_indptr=np.searchsorted(records.rank, ranks).astype(np.int64),
        unit_count=collective.unit_count,
        block_units=unit,
        in_place=in_place,
        layout=collective.memory_layout(in_place, records.scratch),
    )
