"""What users and authors of plugins were promised by name, and what they see of it at a prompt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hub_core
from hub_core import InputError, SimulationResult, StepKind, StepTableBuilder
from hub_core.model import COLUMN_DTYPES
from hub_core.plugin_api import ExecutionResult, SynthesisResult
from hub_core.testing import ring_all_reduce

DOCS = Path(__file__).resolve().parents[1] / "docs"
RING = ring_all_reduce(4)
SHORT = 120


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("hub_core", "Severity"),
        ("hub_core", "synthesize"),
        ("hub_core", "execute"),
        ("hub_core", "verify"),
        ("hub_core", "is_finite_number"),
        ("hub_core.model", "parse_whole"),
        ("hub_core.verification", "parse_expectation"),
    ],
)
def test_name_is_public_and_its_package_is_in_the_reference(package: str, name: str) -> None:
    module = __import__(package, fromlist=[name])
    assert name in module.__all__
    page = DOCS / "reference" / f"{package.rpartition('.')[2]}.md"
    assert f"::: {package}\n" in page.read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (RING, "<Algorithm all-reduce: 4 ranks, 4 units, 48 steps, by collhub-samples>"),
        (RING.steps, "<StepTable: 48 rows, 4 ranks>"),
        (hub_core.parse_topology("ring:4"), "<Topology ring:4: 4 NPUs, 0 switches, 8 links>"),
        (hub_core.parse_topology("switch:3"), "<Topology switch:3: 3 NPUs, 1 switches, 6 links>"),
        (SimulationResult((5, 7)), "<SimulationResult: 2 ranks, 7 ns>"),
        (SimulationResult((5, None)), "<SimulationResult: 2 ranks, not all finish>"),
        (
            SynthesisResult(RING, 9, {"cut": 8}),
            f"<SynthesisResult: 9 ns, bound 8 ns, {RING!r}>",
        ),
        (
            ExecutionResult((np.zeros(10**6),) * 2, (2e-6, 1e-6)),
            "<ExecutionResult: 2 ranks, 1e-06 s>",
        ),
        (
            hub_core.verify(RING),
            "<VerifyReport: in_place ok, 0 findings>",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_representation_is_one_short_line(value: object, text: str) -> None:
    assert repr(value) == text
    assert len(text) <= SHORT


@pytest.mark.parametrize(
    ("rank", "peer", "wrong"),
    [(4, 0, "rank 4 is not in 0..3"), (-1, 0, "rank -1"), (0, 4, "peer 4 is not in -1..3")],
)
def test_builder_refuses_a_rank_that_is_not_there_at_once(rank: int, peer: int, wrong: str) -> None:
    builder = StepTableBuilder(4)
    builder.add(0, StepKind.SEND, peer=1, count=1)
    with pytest.raises(InputError, match=f"step 1: {wrong}"):
        builder.add(rank, StepKind.SEND, peer=peer, count=1)
    # Nothing of the step stays.
    assert len(builder.build()) == 1
    assert set(builder._columns) == set(COLUMN_DTYPES)
