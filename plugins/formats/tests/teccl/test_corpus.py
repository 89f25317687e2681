"""Schedules that TE-CCL ships: every fact of the index, and contents that are right."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_teccl.document import ScheduleDocument
from collhub_teccl.schedules import EXTENSION

import hub_core
from hub_core import CollectiveKind, InputError

CORPUS = Path(__file__).parents[5] / "shared" / "corpus" / "teccl"
KINDS = {"allgather": CollectiveKind.ALL_GATHER, "alltoall": CollectiveKind.ALL_TO_ALL}


def _rows(kind: str) -> list[Any]:
    index = CORPUS / "index.csv"
    if not index.exists():
        return []
    with index.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["kind"] == kind]
    return [pytest.param(row, id=row["file"]) for row in rows]


pytestmark = pytest.mark.skipif(not CORPUS.exists(), reason=f"no corpus at {CORPUS}")


@pytest.mark.parametrize("row", _rows("schedule"))
def test_a_schedule_is_as_the_index_says_and_right(row):
    path = CORPUS / row["file"]
    algorithm = hub_core.read(str(path))
    claims = algorithm.extensions[EXTENSION]
    assert algorithm.collective.kind is KINDS[row["collective"]]
    assert algorithm.collective.num_ranks == int(row["gpus"])
    first, last = (int(number) for number in row["gpu_ids"].split("-"))
    assert claims["gpus"] == list(range(first, last + 1))
    assert claims["switches"] == [int(number) for number in row["switch_ids"].split()]
    assert claims["epochs"] == int(row["epochs"])
    assert claims["epoch_duration_s"] == float(row["epoch_duration"])
    assert claims["finish_time_s"] == float(row["finish_time"])
    assert ("demand_met_s" in claims) is (row["demand_met"] == "1")
    assert hub_core.verify(algorithm).ok


@pytest.mark.parametrize("row", _rows("schedule"))
def test_the_columns_are_as_the_index_says(row):
    document = ScheduleDocument.parse((CORPUS / row["file"]).read_bytes(), row["file"])
    paths = document.paths
    assert document.num_flows == int(row["flow_lines"])
    assert len(paths.at) == int(row["demands"])
    # Trees of an all-gather are no multipaths.
    assert len(paths.volume) * paths.has_volumes == int(row["multipaths"])
    assert np.bincount(paths.path).max() == int(row["max_hops"])
    assert len(np.unique(paths.chunk)) == int(row["distinct_chunk_numbers"])
    assert paths.has_volumes is (row["fractional"] == "1")
    assert document.lost_flows == int(row["flow_hops_with_lost_volume"])


@pytest.mark.parametrize("row", _rows("solver input"))
def test_an_input_of_the_solver_is_named(row):
    with pytest.raises(InputError, match="an input of TE-CCL's solver, not a schedule"):
        hub_core.read(str(CORPUS / row["file"]))
