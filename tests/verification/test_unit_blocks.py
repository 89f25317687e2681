"""Large algorithms are checked completely in blocks of units, with the same verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hub_core import Algorithm, verify
from hub_core.columns import Int64Array
from hub_core.model import (
    COLUMN_DTYPES,
    Buffer,
    Collective,
    CollectiveKind,
    Provenance,
    StepKind,
    StepTable,
)
from hub_core.testing import (
    binomial_broadcast,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)
from hub_core.testing.sample_builders import SampleDraft
from hub_core.verification import verifier


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every algorithm of more than 64 units of memory and messages is too large to check at once."""
    monkeypatch.setattr(verifier, "MAX_CELLS", 64)
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 32)


def reduce_scatter_in_place_of_units(num_ranks: int) -> Algorithm:
    """`ring_reduce_scatter` with partial sums of unit u at unit u of SCRATCH."""
    algorithm = ring_reduce_scatter(num_ranks)
    steps = algorithm.steps
    # Unit u passes from rank u + 1 to rank u.
    unit = (steps.rank - 1 - steps.dst_offset - 1) % num_ranks
    sent = (steps.rank - 1 - steps.src_offset - 1) % num_ranks
    columns = {each: getattr(steps, each).copy() for each in COLUMN_DTYPES}
    for side, offset in (("dst", unit), ("src", sent)):
        in_scratch = columns[f"{side}_buffer"] == Buffer.SCRATCH
        columns[f"{side}_offset"] = np.where(in_scratch, offset, columns[f"{side}_offset"])
    edges = list_edges(steps)
    return replace(
        algorithm,
        steps=StepTable.from_columns(num_ranks, columns, *edges),
        scratch_units=np.full(num_ranks, num_ranks),
    )


def list_edges(steps: StepTable) -> list[tuple[Int64Array, Int64Array]]:
    return [
        (indices, np.repeat(np.arange(len(steps)), np.diff(indptr)))
        for indptr, indices in (
            (steps.data_indptr, steps.data_indices),
            (steps.control_indptr, steps.control_indices),
        )
    ]


def with_column(algorithm: Algorithm, name: str, row: int, value: int) -> Algorithm:
    steps = algorithm.steps
    columns = {each: getattr(steps, each).copy() for each in COLUMN_DTYPES}
    columns[name][row] = value
    return replace(
        algorithm, steps=StepTable.from_columns(steps.num_ranks, columns, *list_edges(steps))
    )


def reduce_with_unequal_sums(units: int) -> Algorithm:
    """Rank 1 adds the first unit of rank 0, rank 2 all units of rank 1, and all but the first unit
    of rank 0: the units of the message of rank 1 have different contents.
    """
    draft = SampleDraft(3)
    first, rest, sums = (Buffer.INPUT, 0), (Buffer.INPUT, 1), (Buffer.SCRATCH, 0)
    draft.message(0, first, 1, first, count=1, add=first)
    draft.message(1, first, 2, sums, count=units, add=first)
    draft.message(0, rest, 2, (Buffer.SCRATCH, 1), count=units - 1, add=(Buffer.SCRATCH, 1))
    draft.copy(2, sums, (Buffer.OUTPUT, 0), count=units)
    collective = Collective(CollectiveKind.REDUCE, 3, units, 2, in_place=True)
    return draft.algorithm(collective, Provenance("test"), units)


@pytest.mark.usefixtures("blocks")
def test_messages_of_different_contents_are_checked_in_blocks() -> None:
    report = verify(reduce_with_unequal_sums(40))
    assert report.ok
    notes = {note.code: note.message for note in report.diagnostics}
    assert "races and contents are checked for all units, in " in notes["checked-in-blocks"]


@pytest.mark.usefixtures("blocks")
def test_units_that_move_are_not_divided() -> None:
    """The first message of an all-gather has another unit for its receiver."""
    algorithm = ring_all_gather(8)
    row = int(np.flatnonzero(algorithm.steps.receives)[0])
    offset = (int(algorithm.steps.dst_offset[row]) + 1) % 8
    report = verify(with_column(algorithm, "dst_offset", row, offset))
    assert "too-large" in {finding.code for finding in report.diagnostics}


def test_small_algorithms_are_checked_at_once() -> None:
    report = verify(binomial_broadcast(8))
    assert report.ok
    assert "checked-in-blocks" not in {note.code for note in report.diagnostics}


def mutants(algorithm: Algorithm) -> list[Algorithm]:
    """Change one value of one step of a ring: most mutants are wrong, some have races."""
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


@pytest.mark.parametrize(
    "build", [ring_all_reduce, ring_all_gather, reduce_scatter_in_place_of_units]
)
@pytest.mark.parametrize("index", range(24))
def test_verdicts_are_those_of_a_check_at_once(
    index: int, build: Callable[[int], Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = mutants(build(6))[index]
    at_once = verify(algorithm)
    # The limit is that of blocks only; undivided algorithms are checked at once.
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 32)
    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    in_blocks = verify(algorithm)
    assert in_blocks.ok == at_once.ok


def test_a_defect_is_found_among_too_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the block is checked in which the check by ranges fails."""
    algorithm = ring_all_reduce(6)
    rows = np.flatnonzero(algorithm.steps.receives)
    wrong = with_column(algorithm, "kind", int(rows[3]), StepKind.RECV)
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 32)
    monkeypatch.setattr(verifier, "MAX_WORK", 1)
    monkeypatch.setattr(verifier, "MAX_BLOCKS", 1)
    report = verify(wrong)
    assert "wrong-output" in {finding.code for finding in report.diagnostics}


def test_too_many_blocks_without_a_proof_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "_CELLS_OF_BLOCK", 32)
    monkeypatch.setattr(verifier, "MAX_CELLS", 64)
    monkeypatch.setattr(verifier, "MAX_BLOCKS", 1)
    report = verify(reduce_with_unequal_sums(40))
    assert {finding.code for finding in report.diagnostics} == {"too-large"}
