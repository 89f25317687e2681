"""Whole jobs against runs of ASTRA-sim 518bd51: every rank's finish and exposed time."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_cases import golden, simulated


def test_every_rank_of_every_golden_case_is_equal(corpus: Path) -> None:
    different = []
    for case in golden(corpus):
        times = simulated(case)
        found = list(times.rank_finish_ns), list(times.rank_exposed_ns)
        if found != (case["cycles"], case["exposed"]):
            different.append(case["name"])
    assert different == []


@pytest.mark.parametrize(
    "name", ["bad_collective_order", "bad_rank_lacks_collective", "group_of_one_hangs"]
)
def test_ranks_that_never_finish_are_named(corpus: Path, name: str) -> None:
    case = next(case for case in golden(corpus) if case["name"] == name)
    named = {finding.location.rank for finding in simulated(case).diagnostics}
    assert named == {rank for rank, time in enumerate(case["cycles"]) if time is None}
