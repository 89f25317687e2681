"""Write an interactive page: one HTML file with its program, its styles and its data.

The page holds no other program than the viewer's: its policy names the hash of the one script and
of the one style sheet, and forbids every request. Texts of files are only in the JSON document of
the index, in which `<`, `>` and `&` are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path

from collhub_viewer.columns import ColumnLines
from collhub_viewer.network_index import index_topology
from collhub_viewer.report_inputs import index_bandwidths, index_report, index_waits
from collhub_viewer.run_index import index_run
from hub_core import __version__
from hub_core.model import PluginError, UsageError
from hub_core.plugin_api import (
    Artifact,
    BandwidthComparison,
    InteractivePage,
    JobTimeline,
    NoOptions,
    ReportDocument,
    RunTimeline,
    TextFiles,
    TopologyDrawing,
    WaitForGraph,
    WriteResult,
)

FORMAT = "collhub-view-1"
MAX_BYTES = 25_000_000
"""Size of a page beyond which columns are omitted that it can do without."""

RESERVED_BYTES = 700_000
"""Part of this size for the program and the index; the rest is for columns."""
_NO_SCRIPT = "This page needs JavaScript. It loads nothing from elsewhere."
_ESCAPES = str.maketrans(
    {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def write(page: InteractivePage, options: NoOptions) -> WriteResult:
    """Return one HTML file with the page of all subjects; nothing is written to disk.

    The name of the file is "", so that the output path is used as it is. The notes of the page, for
    example about data that the size limit omits, are also notes of the result, after `says: `.
    `options` has no effect. Raises `UsageError` if no subject can be shown, and the errors of
    `build_index`.
    """
    lines = ColumnLines(MAX_BYTES - RESERVED_BYTES)
    index = build_index(page, lines)
    notes = index["notes"]
    assert isinstance(notes, list)
    content = b"".join(_write_html(str(index["title"]), index, lines))
    return WriteResult([Artifact("", content)], notes=[f"says: {note}" for note in notes])


def build_index(page: InteractivePage, lines: ColumnLines) -> dict[str, object]:
    """Build the index of a page, and add its columns to `lines`.

    Each subject of the page is added, in order, to one of these members:

    - `runs`: timelines of algorithms and jobs, and networks
    - `comparisons`: reports of comparisons of a collective, and comparisons of bandwidths
    - `job_comparisons`: reports of comparisons of a job
    - `waits`: the wait graph; the last one replaces others. The member is absent without one.
    - `files`: names and texts of a set of files; the last set replaces others. None without one.

    Other subjects are ignored. The members `format`, `title` (without its folder if it is that of
    a run), `created_by` and `notes` are added. Notes are those of the runs, then one with the names
    of columns that were omitted because of the size limit. Raises `UsageError` if no subject
    is shown, and the errors of the subjects: a run without times (`UsageError`, `InputError`), an
    unknown report and a network that is too large (`UsageError`).
    """
    titles = [one.title for one in page.subjects if isinstance(one, RunTimeline | JobTimeline)]
    title = page.title
    if title in titles:
        # The title of a run may be a path.
        title = Path(title).name or title
    runs: list[object] = []
    notes: list[str] = []
    index: dict[str, object] = {
        "format": FORMAT,
        "title": title,
        "created_by": f"collhub {__version__}",
        "notes": notes,
        "runs": runs,
        "comparisons": [],
        "job_comparisons": [],
        "files": None,
    }
    for subject in page.subjects:
        if isinstance(subject, RunTimeline | JobTimeline):
            indexed = index_run(subject, lines)
            runs.append(indexed.index)
            notes.extend(indexed.notes)
        elif isinstance(subject, TopologyDrawing):
            runs.append(_index_network(subject))
        elif isinstance(subject, ReportDocument):
            part, comparison = index_report(subject)
            parts = index[part]
            assert isinstance(parts, list)
            parts.append(comparison)
        elif isinstance(subject, BandwidthComparison):
            comparisons = index["comparisons"]
            assert isinstance(comparisons, list)
            comparisons.append(index_bandwidths(subject))
        elif isinstance(subject, WaitForGraph):
            index["waits"] = index_waits(subject)
        elif isinstance(subject, TextFiles):
            index["files"] = [{"name": name, "text": text} for name, text in subject.files]
    parts = ("runs", "comparisons", "job_comparisons", "files", "waits")
    if not any(index.get(part) for part in parts):
        raise UsageError("the page would be empty", cure="name a file to show")
    if lines.omitted:
        omitted = ", ".join(dict.fromkeys(lines.omitted))
        limit = f"{MAX_BYTES // 1_000_000} MB"
        notes.append(f"omits {omitted}: the page would exceed {limit}; select data with --ranks")
    return index


def _index_network(drawing: TopologyDrawing) -> dict[str, object]:
    topology = drawing.topology
    network = index_topology(topology)
    if network is None:
        raise UsageError(
            f"topology {topology.name}: {topology.num_nodes} nodes are too many for a page",
            cure="show a part of it, as in ?npus=0-63",
            code="too-large-to-draw",
        )
    facts = [
        ["NPUs", str(topology.num_npus)],
        ["switches", str(topology.num_nodes - topology.num_npus)],
        ["links", str(topology.num_links)],
    ]
    return {
        "name": drawing.title,
        "facts": facts,
        "tick_ps": 1000,
        "end": 0,
        "ranks": topology.num_npus,
        "rank_names": None,
        "lanes": None,
        "kinds": [],
        "steps": None,
        "links": None,
        "topology": network,
    }


def _write_html(title: str, index: dict[str, object], lines: ColumnLines) -> Iterator[bytes]:
    script, style = _read_part("viewer.js"), _read_part("viewer.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>"
    ).encode("utf-8", "replace")
    yield style
    yield f"</style>\n</head>\n<body>\n<noscript>{_NO_SCRIPT}</noscript>\n".encode()
    yield b'<div id="collhub-app"></div>\n'
    document = json.dumps(index, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    yield b'<script type="application/json" id="collhub-view">'
    yield document.translate(_ESCAPES).encode("ascii")
    yield b'</script>\n<script type="text/plain" id="collhub-columns">\n'
    for line in lines.lines:
        yield line
        yield b"\n"
    yield b"</script>\n<script>"
    yield script
    yield b"</script>\n</body>\n</html>\n"


def _read_part(name: str) -> bytes:
    """Return the bytes of a file of the page's program, which the distribution contains.

    Raises `PluginError` if it is missing.
    """
    try:
        return resources.files("collhub_viewer").joinpath("page", name).read_bytes()
    except OSError:
        message = f"the viewer is incomplete: its file {name} is missing"
        raise PluginError(message, cure="install the distribution again") from None


def _hash(content: bytes) -> str:
    """Return the hash by which the policy admits an inline script or style sheet."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}"
