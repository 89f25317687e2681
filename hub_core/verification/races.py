"""Find and report races: conflicting accesses that nothing orders."""

from __future__ import annotations

import numpy as np

from hub_core.columns import Int64Array
from hub_core.model.diagnostics import CAP, Findings
from hub_core.model.messages import action, describe
from hub_core.verification.reachability import unordered_in
from hub_core.verification.regions import Regions, adjacent_conflicts
from hub_core.verification.report import VerificationInput
from hub_core.verification.step_order import sequential_positions


def find_races(
    verification_input: VerificationInput, regions: Regions
) -> tuple[Int64Array, Int64Array]:
    """Return races between steps, as (earlier rows, later rows) of the step table.

    Two steps race if they access a common unit, at least one of them writes it, and neither
    must happen before the other by dependencies and messages. The earlier row comes first in
    the run of `sequential_positions`. For each unit, only these pairs in this run are compared:

    - a read with the last write before it and with the next write after it
    - two writes without a read or write in between

    So some races may be missing, but the arrays are empty only if there is no race. A pair may
    be repeated. Steps that never run are in no pair. Raise `InputError` (`too-large`) for too
    many overlapping accesses.
    """
    earlier, later = _find_unordered_conflicts(
        verification_input, regions, verification_input.relation.order.position
    )
    if len(earlier):
        in_turns = sequential_positions(verification_input.relation)
        earlier, later = _find_unordered_conflicts(verification_input, regions, in_turns)
    return earlier, later


def _find_unordered_conflicts(
    verification_input: VerificationInput, regions: Regions, position: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return (earlier rows, later rows) of conflicting steps between which there is no path.

    Steps conflict if they access a common unit and at least one writes it. A path consists
    of dependencies and messages. `position`: int64[rows], the position of each step in one
    possible execution, -1 for steps that never run, which are in no pair. Only accesses to
    a unit that are neighbours in this sequence are examined: the result is empty exactly if
    there is no race. The pairs keep the order of `adjacent_conflicts`.
    """
    earlier, later = adjacent_conflicts(regions, position)
    # Most conflicts are ordered; all are decided in one call.
    racing = unordered_in(verification_input.graph, earlier, later)
    return earlier[racing], later[racing]


def report_races(
    verification_input: VerificationInput,
    earlier: Int64Array,
    later: Int64Array,
    findings: Findings,
) -> None:
    """Add a finding (`race`) for each of the first 8 races, by later row, then by earlier row.

    A race is a pair of rows of the step table that touch the same units, although no dependency
    orders them. Race i has the rows `earlier[i]` and `later[i]`. Further races are only counted in
    `findings`. The location of a finding is the step `later[i]`; its text names this step first,
    then `earlier[i]`. Without races nothing is added.
    """
    steps = verification_input.algorithm.steps
    first = np.lexsort((earlier, later))[:CAP]
    for first_row, second_row in zip(earlier[first].tolist(), later[first].tolist(), strict=True):
        order = (
            f"nothing orders this {action(steps, second_row)} after {describe(steps, first_row)}"
        )
        message = f"{order}, which touches the same units"
        location, cure = (
            steps.location(second_row, findings.file),
            "add a dependency between the two",
        )
        findings.add("race", message, location, cure=cure)
    findings.count("race", len(earlier) - CAP)
