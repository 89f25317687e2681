"""Convert an algorithm to a levelled program, or report the steps that prevent it from running."""

from __future__ import annotations

import numpy as np

from collhub_execution.levelling.ordering import Edges, assign_levels
from collhub_execution.levelling.program import (
    LevelledProgram,
    convert_to_blocks,
    find_units_per_block,
)
from collhub_execution.levelling.records import SortedRecords, expand_steps
from hub_core.columns import Int64Array, group_pointer
from hub_core.model import (
    CAP,
    Algorithm,
    Collective,
    Diagnostic,
    Findings,
    InputError,
    Location,
    StepTable,
    action,
    describe,
    match_messages,
)
from hub_core.verification import (
    HappensBefore,
    OrderGraph,
    Regions,
    adjacent_conflicts,
    check_regions,
    find_regions,
    happens_before,
    report_deadlock,
    sequential_positions,
    unordered_in,
)

# Limit with which addresses in bytes fit into 64 bits.
_MAX_BLOCKS = 1 << 40


def levelled_program(
    algorithm: Algorithm, in_place: bool, *, allow_races: bool = False
) -> LevelledProgram:
    """Level an algorithm for calls in place or out of place, in time nearly linear in steps.

    Every algorithm whose messages match and that has no deadlock with unbounded buffers and no race
    has a levelled program: if a transport without buffers would deadlock, messages are staged in
    scratch (see `assign_levels`). Conflicting accesses of a rank keep their order. `allow_races`:
    order otherwise unordered accesses as if ranks ran one after the other, each in the order of its
    steps, as `verify` does to check contents. Raises `InputError` naming the steps: for timing-only
    algorithms, unmatched messages, regions outside their buffers, deadlocks (with the position of
    every rank), races.
    """
    findings = Findings(algorithm.provenance.source_name or None)
    refuse_timing_only(algorithm)
    messages = match_messages(algorithm.steps, findings)
    is_valid = check_regions(algorithm, findings)
    if findings.has_errors():
        raise InputError(findings)
    # Cycles are searched before races: the order of a deadlock does not determine races.
    relation = happens_before(algorithm.steps, messages)
    if not relation.order.is_complete:
        raise InputError(_report_blocked_steps(algorithm.steps, relation, findings))
    block_units = find_units_per_block(algorithm)
    collective = convert_to_blocks(algorithm.collective, block_units)
    scratch = algorithm.scratch_units // block_units
    _refuse_too_large(collective, scratch)
    layout = collective.memory_layout(in_place, scratch)
    regions = find_regions(algorithm, layout, is_valid, block_units)
    conflicts = _find_conflicts(algorithm.steps, relation, regions, allow_races, findings)
    levels = assign_levels(algorithm.steps, messages, relation, conflicts)
    records = expand_steps(algorithm.steps, messages, regions, levels, scratch, block_units)
    return _build_program(records, collective, block_units, in_place)


def refuse_timing_only(algorithm: Algorithm) -> None:
    """Raise `InputError` for an algorithm whose steps do not specify the units that they access."""
    if not algorithm.has_contents:
        message = (
            "a timing-only algorithm: its steps do not specify the units that they access, "
            "so it cannot be run"
        )
        file = algorithm.provenance.source_name or None
        raise InputError(message, location=Location(file), code="timing-only")


def _refuse_too_large(collective: Collective, scratch: Int64Array) -> None:
    """Raise `InputError` if the memory of all ranks has 2^40 blocks or more.

    Addresses in bytes might otherwise exceed 64 bits.
    """
    parts = (collective.input_units(), collective.output_units(), scratch)
    # Summed as floats, because the sum may not fit into 64 bits.
    blocks = sum(float(part.astype(np.float64).sum()) for part in parts)
    if blocks >= _MAX_BLOCKS:
        raise InputError(
            f"too large to run: {blocks:.3g} blocks of memory (limit 2^40)", code="too-large"
        )


def _report_blocked_steps(
    steps: StepTable, relation: HappensBefore, findings: Findings
) -> list[Diagnostic]:
    """Return the steps that wait for each other, then every rank's first step that never runs."""
    report_deadlock(steps, relation, findings)
    cycle = next(item for item in findings if item.code == "deadlock")
    # Rows are grouped by rank, so the first index of a rank is its first step.
    stuck = np.flatnonzero(relation.order.position < 0)
    _, first = np.unique(steps.rank[stuck], return_index=True)
    waiting = []
    for row in stuck[first].tolist():
        message = f"is at this {action(steps, row)}, which never runs"
        location = steps.location(row, findings.file)
        waiting.append(Diagnostic("blocked", message, location=location))
    return [cycle, *waiting]


def _find_conflicts(
    steps: StepTable,
    relation: HappensBefore,
    regions: Regions,
    allow_races: bool,
    findings: Findings,
) -> Edges:
    """Return pairs of rows (earlier, later) whose accesses conflict, enough to order all accesses.

    Races are refused (`InputError`), or with `allow_races` ordered as if ranks ran one after the
    other.
    """
    # Neighbours in one linear extension suffice: the remaining pairs follow transitively.
    earlier, later = adjacent_conflicts(regions, relation.order.position)
    racing = unordered_in(OrderGraph(steps, relation), earlier, later)
    if not len(racing):
        return earlier, later
    if allow_races:
        return adjacent_conflicts(regions, sequential_positions(relation))
    for index in racing[:CAP].tolist():
        _add_race(findings, steps, int(earlier[index]), int(later[index]))
    findings.count("race", len(racing) - CAP)
    raise InputError(findings)


def _add_race(findings: Findings, steps: StepTable, earlier: int, later: int) -> None:
    """Add the finding that two steps of a rank access one unit without order, at the later step."""
    message = (
        f"nothing orders this {action(steps, later)} after {describe(steps, earlier)}, "
        "which accesses the same units"
    )
    location = steps.location(later, findings.file)
    findings.add("race", message, location, cure="add a dependency between the two")


def _build_program(
    records: SortedRecords, collective: Collective, block_units: int, in_place: bool
) -> LevelledProgram:
    """Convert the sorted columns to a `LevelledProgram` with its memory layout."""
    columns = records.columns
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
        rank_indptr=group_pointer(records.rank, collective.num_ranks),
        unit_count=collective.unit_count,
        block_units=block_units,
        in_place=in_place,
        layout=collective.memory_layout(in_place, records.scratch),
    )
