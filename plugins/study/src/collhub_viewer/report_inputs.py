"""Read reports of commands and folders of tuned selections that a page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collhub_viewer.report_index import COMPARISON_SCHEMA, JOB_COMPARISON_SCHEMA
from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, Location, UsageError
from hub_core.plugin_api import (
    PageSubject,
    ReportDocument,
    TextFiles,
    WaitForGraph,
    WaitingRanks,
)

_MARK = b'"collhub/report-'
_DIAGNOSIS_SCHEMA = "collhub/report-diagnose-1"
_SEARCHED_BYTES = 4096
_MAX_FILE_BYTES = 1_000_000
_MAX_FILES = 200
_MAX_REPORT_BYTES = 100_000_000


def read_report(path: Path) -> PageSubject | None:
    """Read a JSON report of the hub; None for any other file.

    Raises `InputError` for a report that violates its schema, and `UsageError` for a report that a
    page cannot show.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_SEARCHED_BYTES)
            if _MARK not in start:
                return None
            content = start + file.read(_MAX_REPORT_BYTES)
    except OSError:
        return None
    document = parse_json_object(content, str(path))
    schema = document.get("schema")
    if schema not in (COMPARISON_SCHEMA, JOB_COMPARISON_SCHEMA, _DIAGNOSIS_SCHEMA):
        raise UsageError(
            f"{path}: a page cannot show the report {schema!r:.60}",
            cure="give a report of 'collhub compare --json' or 'collhub diagnose --json'",
            code="unknown-report",
        )
    file_name = f"{str(schema).removeprefix('collhub/')}.json"
    if violations := schema_violations(document, file_name):
        findings = [one.finding(Location(str(path)), "invalid-report") for one in violations]
        raise InputError(findings)
    if schema == _DIAGNOSIS_SCHEMA:
        return _read_waits(path.name, document)
    return ReportDocument(path.name, document)


def _read_waits(title: str, document: Any) -> WaitForGraph:
    waits = [
        WaitingRanks(
            tuple(wait["ranks"]), tuple(wait["for"]), f"{wait['operation']} ({wait['sequence']})"
        )
        for wait in document["waits"]
    ]
    return WaitForGraph(title, tuple(document["culprits"]), waits)


def read_tuned_folder(folder: Path) -> list[PageSubject]:
    """Read the text files of a folder, its report first; larger files are cut.

    At most 200 files of at most 1 MB each are shown.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    paths.sort(key=lambda path: path.name != "report.md")
    files = []
    for path in paths[:_MAX_FILES]:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content[:_MAX_FILE_BYTES].decode("utf-8", "replace")
        if len(content) > _MAX_FILE_BYTES:
            text += "\n(the rest of the file is omitted)\n"
        files.append((path.relative_to(folder).as_posix(), text))
    return [TextFiles(folder.name, tuple(files))]
