"""Large algorithms are checked completely in blocks of units, with the same verdicts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hub_core import Algorithm, verify
from hub_core.model import COLUMN_DTYPES, StepTable
from hub_core.testing import binomial_broadcast, ring_all_gather, ring_all_reduce
from hub_core.verification import verifier


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every algorithm of more than 64 units of memory and messages is too large to check at once."""
    monkeypatch.setattr(verifier, "MAX_CELLS", 64)
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 32)


def with_column(algorithm: Algorithm, name: str, row: int, value: int) -> Algorithm:
    steps = algorithm.steps
    columns = {each: getattr(steps, each).copy() for each in COLUMN_DTYPES}
    columns[name][row] = value
    edges = [
        (indices, np.repeat(np.arange(len(steps)), np.diff(indptr)))
        for indptr, indices in (
            (steps.data_indptr, steps.data_indices),
            (steps.control_indptr, steps.control_indices),
        )
    ]
    return replace(algorithm, steps=StepTable.from_columns(steps.num_ranks, columns, *edges))


@pytest.mark.usefixtures("blocks")
def test_a_correct_algorithm_is_correct_in_blocks() -> None:
    report = verify(ring_all_reduce(8))
    assert report.ok
    notes = {note.code: note.message for note in report.diagnostics}
    assert "races and contents are checked for all units, in 8 blocks" in notes["checked-in-blocks"]


@pytest.mark.usefixtures("blocks")
def test_units_that_move_are_not_divided() -> None:
    """The shares of an all-gather have other offsets in INPUT and OUTPUT."""
    report = verify(ring_all_gather(8))
    assert {finding.code for finding in report.diagnostics} == {"too-large"}


def test_small_algorithms_are_checked_at_once() -> None:
    report = verify(binomial_broadcast(8))
    assert report.ok
    assert "checked-in-blocks" not in {note.code for note in report.diagnostics}


def mutants() -> list[Algorithm]:
    """Change one value of one step of a ring: most mutants are wrong, some have races."""
    algorithm = ring_all_reduce(6)
    generator = np.random.default_rng(7)
    rows = generator.choice(len(algorithm.steps), 12, replace=False)
    changed = []
    for row in rows.tolist():
        steps = algorithm.steps
        name = "src_offset" if steps.sends[row] else "dst_offset"
        other = (int(getattr(steps, name)[row]) + 1) % 6
        changed.append(with_column(algorithm, name, row, other))
        kind = 1 if int(steps.kind[row]) != 1 and steps.receives[row] else int(steps.kind[row])
        changed.append(with_column(algorithm, "kind", row, kind))
    return changed


@pytest.mark.parametrize("index", range(24))
def test_verdicts_are_those_of_a_check_at_once(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = mutants()[index]
    at_once = verify(algorithm)
    # The limit is that of `_divide_units` only; undivided algorithms are checked at once.
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 32)
    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    in_blocks = verify(algorithm)
    assert in_blocks.ok == at_once.ok
