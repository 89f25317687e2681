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
_TUNED_SCHEMA = "collhub/report-tune-1"
_DEFAULT = "the runtime's default"
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
    """Return the comparisons of the folder's `report.json`, then its files as UTF-8 text (invalid
    bytes are replaced): `report.md` first, then by path. At most `_MAX_FILES` files are shown, each
    cut after `_MAX_FILE_BYTES` with a note. Symbolic links are left out. Raises `InputError` for an
    invalid report, `OSError` for an unreadable file.
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
    return [*_read_tuned_report(folder / "report.json"), TextFiles(folder.name, tuple(files))]


def _read_tuned_report(path: Path) -> list[PageSubject]:
    """Return the report of a tuned folder as one comparison per collective, of its selected
    algorithms. The title has the mode if there are several collectives. Empty for a report without
    the schema of `collhub tune`. Raises `InputError` for a report that violates this schema, and
    `OSError` for an unreadable file.
    """
    with path.open("rb") as file:
        document: Any = parse_json_object(file.read(_MAX_REPORT_BYTES), str(path))
    if document.get("schema") != _TUNED_SCHEMA:
        return []
    if violations := schema_violations(document, f"{_TUNED_SCHEMA.removeprefix('collhub/')}.json"):
        raise InputError([one.finding(Location(str(path)), "invalid-report") for one in violations])
    subjects: list[PageSubject] = []
    for collective in document["collectives"]:
        title = f"{collective['collective']} on {document['topology']}"
        if len(document["collectives"]) > 1:
            title += f", {collective['mode']}"
        subjects.append(ReportDocument(title, _compare_selected(document, collective)))
    return subjects


def _compare_selected(document: Any, collective: Any) -> dict[str, Any]:
    """Return a collective of a tuning report as a report of `collhub compare`: one result per size
    with a selected algorithm, by size. The bound is the time divided by its ratio, None if unknown;
    sizes without an algorithm have the winner `_DEFAULT`.
    """
    sizes = document["sizes"]
    selected = {
        row["size"]: (window["algorithm"], row)
        for window in collective["windows"]
        for row in window["measured"]
    }
    bounds = [
        row["time_ns"] / row["ratio_to_bound"] if row and row["ratio_to_bound"] else None
        for _, row in (selected.get(size, ("", None)) for size in sizes)
    ]
    results = [
        {
            "algorithm": name,
            "size": size,
            "time_ns": row["time_ns"],
            "failure": None,
            "protocol": None,
            "instances": 1,
        }
        for size, (name, row) in sorted(selected.items())
    ]
    return {
        "schema": COMPARISON_SCHEMA,
        "collective": collective["collective"],
        "topology": document["topology"],
        "num_ranks": document["num_ranks"],
        "timing": document["timing"],
        "sizes": sizes,
        "results": results,
        "bounds_ns": bounds,
        "measured": collective["measured"],
        "baselines": collective["baselines"],
        "winners": [selected.get(size, (_DEFAULT,))[0] for size in sizes],
    }
