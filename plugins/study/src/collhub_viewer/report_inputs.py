"""Reports and folders of tuned selections on a page: read them, and build their index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hub_core import parse_json_object, schema_violations
from hub_core.model import InputError, Location, UsageError, format_bytes, format_time
from hub_core.plugin_api import (
    BandwidthComparison,
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
COMPARISON_SCHEMA = "collhub/report-compare-1"
JOB_COMPARISON_SCHEMA = "collhub/report-compare-job-1"
_MAX_WAITS = 20_000
_BOUND = "bound"


def read_report(path: Path) -> PageSubject | None:
    """Read a JSON report of the hub for a page; return None for any other file.

    A file is a report if its first 4096 bytes contain `"collhub/report-`. None also for a file
    that cannot be read. A diagnosis becomes a graph of waiting ranks: each wait has the text
    `OPERATION (SEQUENCE)`. A comparison of `collhub compare`, for a collective or a job, becomes a
    `ReportDocument` with its content unchanged. Titles are the name of the file without its
    folder.

    Raises `InputError` for invalid JSON, then `UsageError` (`unknown-report`) for a report of
    another schema, then `InputError` (`invalid-report`) with all violations of the schema. After
    the first 4096 bytes at most 10^8 bytes are read: a longer report is invalid JSON.
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
        waits = [
            WaitingRanks(
                tuple(wait["ranks"]),
                tuple(wait["for"]),
                f"{wait['operation']} ({wait['sequence']})",
            )
            for wait in document["waits"]
        ]
        return WaitForGraph(path.name, tuple(document["culprits"]), waits)
    return ReportDocument(path.name, document)


def read_tuned_folder(folder: Path) -> list[PageSubject]:
    """Return the comparisons of a tuned folder, then one subject with its files as text.

    The comparisons are those of `folder/report.json` in its order, one per collective
    (`_compare_selected`), with the title `COLLECTIVE on TOPOLOGY` and `, MODE` if there are
    several; none if it has another schema. The text subject has the name of the folder and pairs
    (path in the folder, text) of all files, also of subfolders: first those named `report.md`, then
    the others, each sorted by path. At most `_MAX_FILES` (200) files are shown, each cut after
    `_MAX_FILE_BYTES` (10^6) with a note. Bytes that are not UTF-8 are replaced. Symbolic links are
    omitted.

    Raises `OSError` for a missing report or an unreadable file, and `InputError` for a report that
    is no JSON object in its first 10^8 bytes, or violates its schema (`invalid-report`).
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
    report_file = folder / "report.json"
    with report_file.open("rb") as file:
        document: Any = parse_json_object(file.read(_MAX_REPORT_BYTES), str(report_file))
    texts = TextFiles(folder.name, tuple(files))
    if document.get("schema") != _TUNED_SCHEMA:
        return [texts]
    if violations := schema_violations(document, f"{_TUNED_SCHEMA.removeprefix('collhub/')}.json"):
        location = Location(str(report_file))
        raise InputError([one.finding(location, "invalid-report") for one in violations])
    subjects: list[PageSubject] = []
    for collective in document["collectives"]:
        title = f"{collective['collective']} on {document['topology']}"
        if len(document["collectives"]) > 1:
            title += f", {collective['mode']}"
        subjects.append(ReportDocument(title, _compare_selected(document, collective)))
    return [*subjects, texts]


def _compare_selected(document: Any, collective: Any) -> dict[str, Any]:
    """Convert the tuning report of one collective to a report of `collhub compare`.

    `document`: the full report, `collective`: one of its collectives. Each window of sizes has an
    algorithm, and a row for each measured size. `results` has one entry per such size, ascending,
    with the algorithm and the time in ns; of two rows of a size the last one counts. `bounds_ns`
    and `winners` have one entry per size of the report. The bound is the time divided by its ratio
    to the bound, None without a row or ratio. The winner is the algorithm, or the text `the
    runtime's default` for a size without a row. Sizes, topology, ranks, timing, measured curves
    and baselines are copied.
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


def index_waits(graph: WaitForGraph) -> dict[str, object]:
    """Return the data of a wait-for graph for the page: the ranks of a hung job and their waits.

    - `edges`: objects with `from` (waiting rank), `to` (awaited rank) and `text` (operation).
      The order is that of `graph.waits`, then of the waiting, then of the awaited ranks. Only
      the first 20,000 are listed.
    - `nodes`: objects with `rank` and `state`, ascending by rank. They are all culprits,
      waiting and awaited ranks, also without an edge.

    The state is the first that applies: `culprit`; `waiting` if the rank has a listed edge as
    `from`; `unknown`. Ranks whose edges exceed the limit may be `waiting` or `unknown`.
    """
    edges: list[dict[str, object]] = []
    ranks = set(graph.culprits)
    for wait in graph.waits:
        ranks.update(wait.ranks, wait.awaited)
        for rank in wait.ranks[: max(0, _MAX_WAITS - len(edges))]:
            edges.extend(
                {"from": rank, "to": awaited, "text": wait.operation}
                for awaited in wait.awaited[:_MAX_WAITS]
            )
    waiting = {edge["from"] for edge in edges}
    states = {
        rank: "culprit" if rank in graph.culprits else "waiting" if rank in waiting else "unknown"
        for rank in sorted(ranks)
    }
    nodes = [{"rank": rank, "state": state} for rank, state in states.items()]
    return {"nodes": nodes, "edges": edges[:_MAX_WAITS]}


def index_bandwidths(comparison: BandwidthComparison) -> dict[str, object]:
    """Return the page's data of a comparison of bus bandwidths over size in bytes.

    `algorithms` has an entry with the name and no facts for each series in order, then
    for the bound if there is one. `curves` has one entry for each of these: `algorithm`
    (its number from 0), `kind` (`simulated` or `bound`), `rates` (the bandwidths
    unchanged, one per size) and `time_ns` (None for each size).

    `sizes` and `title` are those of the comparison, `axis` is `size_bytes`. `facts` has
    one entry, which explains the bandwidth. `collective` is "" and `winners` is empty.
    """
    bound = () if comparison.bound is None else (comparison.bound,)
    series = [*comparison.series, *bound]
    kinds = ["simulated"] * len(comparison.series) + [_BOUND] * len(bound)
    unknown = [None] * len(comparison.sizes)
    curves = [
        {**_create_curve(number, kind, unknown), "rates": list(one.bandwidths)}
        for number, (kind, one) in enumerate(zip(kinds, series, strict=True))
    ]
    return {
        "title": comparison.title,
        "collective": "",
        "axis": "size_bytes",
        "facts": [["bandwidth", "bus bandwidth, as nccl-tests define it"]],
        "algorithms": [{"name": one.name, "facts": []} for one in series],
        "sizes": list(comparison.sizes),
        "curves": curves,
        "winners": [],
    }


def index_report(report: ReportDocument) -> tuple[str, dict[str, object]]:
    """Return the list of the page's index to which a report belongs, and the entry for it.

    `report`: output of `collhub compare --json`. A comparison for a collective gives
    `comparisons` and the curves of `_index_comparison`. One for a job gives `job_comparisons`
    and the rows of `_index_job_comparison`. The `schema` of the report decides. Raises
    `UsageError` (`unknown-report`) for a missing or other schema.
    """
    schema = report.document.get("schema")
    if schema == COMPARISON_SCHEMA:
        return "comparisons", _index_comparison(report)
    if schema == JOB_COMPARISON_SCHEMA:
        return "job_comparisons", _index_job_comparison(report)
    raise UsageError(
        f"{report.title}: a page cannot show the report {schema!r:.60}",
        cure="give the output of 'collhub compare --json'",
        code="unknown-report",
    )


def _index_job_comparison(report: ReportDocument) -> dict[str, object]:
    """Return the page's data of a job's comparison: `title`, `facts` and `rows`.

    The title is that of the report. The facts are `["job", SOURCE]` and `["ranks", NUMBER]`, as
    texts. There is one row per result, in the order of the report, with unchanged values:
    `algorithms`, `network` (its topology), `time_ns`, `exposed_ns` (the longest time of a rank
    without computation), `speedup` and `failure`. `is_baseline` is True for every result whose
    algorithms and topology are equal to those of the baseline. All members must exist
    (`KeyError`).
    """
    document: Mapping[str, Any] = report.document
    baseline = document["baseline"]
    rows = [
        {
            "algorithms": row["algorithms"],
            "network": row["topology"],
            "time_ns": row["time_ns"],
            "exposed_ns": row["exposed_ns"],
            "speedup": row["speedup"],
            "failure": row["failure"],
            "is_baseline": all(row[key] == baseline[key] for key in ("algorithms", "topology")),
        }
        for row in document["results"]
    ]
    facts = [["job", document["source"]], ["ranks", str(document["num_ranks"])]]
    return {"title": report.title, "facts": facts, "rows": rows}


def _index_comparison(report: ReportDocument) -> dict[str, object]:
    """Return the page's data of a comparison: curves of time in ns over size, and winners.

    `sizes` are those of the report, in bytes (the `axis`). `algorithms` lists names and facts.
    Every curve has one time per size, None without a time, and the position of its entry in
    `algorithms`. The order of both lists is:

    1. `simulated`: one curve per algorithm, in the order of its first result; of two results for
       one size the last counts
    2. `bound`: the lower bound, if it is known for some size
    3. `measured`: the measured curves of the report, such as `NCCL 2.29.2 (measured)`
    4. `runtime`: the choice of the library, if it is known for some size, named by the library of
       the first such size

    `winners` are the ranges of `_list_winners`. Title, collective, and network, ranks and timing as
    facts complete the data.
    """
    document: Mapping[str, Any] = report.document
    sizes: list[int] = document["sizes"]
    times: dict[str, dict[int, int | None]] = {}
    for row in document["results"]:
        times.setdefault(row["algorithm"], {})[row["size"]] = row["time_ns"]
    algorithms: list[dict[str, object]] = [
        {"name": name, "facts": _list_facts(document["results"], name)} for name in times
    ]
    curves: list[dict[str, object]] = [
        _create_curve(number, "simulated", [by_size.get(size) for size in sizes])
        for number, by_size in enumerate(times.values())
    ]
    if any(bound is not None for bound in document["bounds_ns"]):
        algorithms.append({"name": _BOUND, "facts": [["meaning", "no algorithm is faster"]]})
        curves.append(_create_curve(len(algorithms) - 1, "bound", document["bounds_ns"]))
    measured = document["measured"]
    for curve in measured["curves"] if measured is not None else ():
        parts = (curve["library"], curve["version"], curve["variant"])
        name = " ".join(part for part in parts if part)
        algorithms.append({"name": f"{name} (measured)", "facts": []})
        curves.append(_create_curve(len(algorithms) - 1, "measured", curve["times_ns"]))
    if any(baseline is not None for baseline in document["baselines"]):
        known = [one["time_ns"] if one else None for one in document["baselines"]]
        library = next(one["library"] for one in document["baselines"] if one)
        algorithms.append({"name": library, "facts": [["meaning", "choice of the library"]]})
        curves.append(_create_curve(len(algorithms) - 1, "runtime", known))
    return {
        "title": report.title,
        "collective": document["collective"],
        "axis": "size_bytes",
        "facts": [
            ["network", document["topology"]],
            ["ranks", str(document["num_ranks"])],
            ["times", document["timing"]],
        ],
        "algorithms": algorithms,
        "sizes": sizes,
        "curves": curves,
        "winners": _list_winners(sizes, document["winners"], list(times), times),
    }


def _create_curve(number: int, kind: str, times: Sequence[float | None]) -> dict[str, object]:
    return {
        "algorithm": number,
        "kind": kind,
        "time_ns": list(times),
        "low_ns": None,
        "high_ns": None,
    }


def _list_facts(results: Sequence[Mapping[str, Any]], name: str) -> list[list[str]]:
    """Return facts about an algorithm as [label, text]; a fact without values is omitted.

    The labels are `protocols`, `copies` (numbers of copies above 1) and `no time` (reasons
    of missing times). A text has the values of all `results` of the algorithm `name`, each
    once, in their order, separated by commas.
    """
    rows = [row for row in results if row["algorithm"] == name]
    failures = dict.fromkeys(row["failure"] for row in rows if row["failure"])
    protocols = dict.fromkeys(row["protocol"] for row in rows if row["protocol"])
    instances = dict.fromkeys(str(row["instances"]) for row in rows if row["instances"] > 1)
    texts = {"protocols": protocols, "copies": instances, "no time": failures}
    return [[label, ", ".join(values)] for label, values in texts.items() if values]


def _list_winners(
    sizes: Sequence[int],
    winners: Sequence[str | None],
    names: Sequence[str],
    times: Mapping[str, Mapping[int, int | None]],
) -> list[dict[str, object]]:
    """Return ranges of consecutive sizes with the same winner, as dicts, in the order of `sizes`.

    `winners`: one per size, None without a winner. The keys of a dict are:

    - `from_bytes`, `to_bytes`: first and last size of the range
    - `algorithm`: first index of the winner in `names`; None without a winner, or if `names`
      lacks it
    - `text`: the winner of the first size, or `no algorithm has a time` without a winner. If
      `times` (ns by name and size) has its time, the time and the size follow.

    Neighbouring sizes with an equal `algorithm` form one range. So sizes without an index are
    united, also if their winners differ. The result is [] without sizes.

    Raises `ValueError` if `sizes` and `winners` have different lengths.
    """
    bands: list[dict[str, object]] = []
    for size, winner in zip(sizes, winners, strict=True):
        number = names.index(winner) if winner in names else None
        if bands and bands[-1]["algorithm"] == number:
            bands[-1]["to_bytes"] = size
            continue
        time = None if winner is None else times.get(winner, {}).get(size)
        text = winner or "no algorithm has a time"
        if time is not None:
            text += f": {format_time(time)} at {format_bytes(size)}"
        bands.append({"from_bytes": size, "to_bytes": size, "algorithm": number, "text": text})
    return bands
