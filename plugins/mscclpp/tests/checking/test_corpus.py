"""The check against the index of the corpus: 55 plans, each judged once before by others."""

from __future__ import annotations

import csv
from pathlib import Path

from collhub_mscclpp.checking.check_plan import check_plan
from collhub_mscclpp.plans.read_plan import parse_plan

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
