"""The check against the index of the corpus: 55 plans, each judged once before by others."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.reading.read_plan import parse_plan

from hub_core.model import Severity

_ROWS = 55


def test_every_row_of_the_index_is_judged_as_it_says(corpus: Path) -> None:
    folder = corpus / "mscclpp"
    with (folder / "index.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    wanted = {
        row["file"]: (row["loadable"] == "1", row["verdict"], row["verdict_relaunch"])
        for row in rows
    }
    found = {}
    for name in wanted:
        report = check_plan(parse_plan((folder / name).read_bytes(), name))
        found[name] = (report.is_loadable, report.verdict, report.verdict_relaunch)
    assert len(found) == _ROWS
    assert found == wanted


# Codes of errors, and of warnings, by file; see the README of the folder.
_STRANGERS = {
    "1_49.json": ({"scratch-halves"}, set()),
    "1_70.json": ({"missing-nop"}, set()),
    "multi_node_send_recv_1_2_0x0_1.json": (set(), {"unflushed-put"}),
    "single_node_allgather_nvls_zero_copy_pkt_2_1.json": (set(), set()),
}


@pytest.mark.parametrize("name", _STRANGERS)
def test_plans_of_strangers_are_judged_as_the_executor_runs_them(corpus: Path, name: str) -> None:
    file = corpus / "strangers" / "plans" / name
    if not file.exists():
        pytest.skip("the plans of strangers are not in this corpus")
    report = check_plan(parse_plan(file.read_bytes(), name))
    warnings = {found.code for found in report.diagnostics if found.severity is Severity.WARNING}
    assert ({found.code for found in report.errors}, warnings) == _STRANGERS[name]
    assert report.ok == (not _STRANGERS[name][0])
