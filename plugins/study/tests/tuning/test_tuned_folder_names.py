"""Names of files in the report of a tuned folder: they may come from anyone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collhub_tuning.tuned_folder import read_declared_formats
from collhub_tuning.tuning_report import REPORT_FILE, SCHEMA

from hub_core.model import InputError


@pytest.mark.parametrize(
    "name", ["../x.json", "/etc/passwd", "a/../../x", "a//x", ".", "", "a\0b", None, 3, ["a"]]
)
def test_a_name_that_leaves_the_folder_is_refused(name: object, tmp_path: Path) -> None:
    """`tune --force` removes files of these names."""
    formats = [{"name": "mscclpp-plans", "files": [name], "served": []}]
    report = {"schema": SCHEMA, "sizes": [1024], "num_ranks": 4, "formats": formats}
    (tmp_path / REPORT_FILE).write_text(json.dumps(report))
    with pytest.raises(InputError, match="is no report of"):
        read_declared_formats(tmp_path)
    formats[0]["files"] = ["folder/x.json"]
    (tmp_path / REPORT_FILE).write_text(json.dumps(report))
    assert read_declared_formats(tmp_path)[0].files == ("folder/x.json",)
