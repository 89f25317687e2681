"""The parts of a page's index on reports: comparisons of algorithms, and ranks that wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hub_core.model import UsageError, format_bytes, format_time
from hub_core.plugin_api import BandwidthComparison, ReportDocument, WaitForGraph

COMPARISON_SCHEMA = "collhub/report-compare-1"
JOB_COMPARISON_SCHEMA = "collhub/report-compare-job-1"
_MAX_WAITS = 20_000
_BOUND = "bound"


def index_waits(graph: WaitForGraph) -> dict[str, object]:
    """Return the ranks of a hung job and an edge from every rank to each rank that it waits for.

    At most `_MAX_WAITS` edges are listed. States: `culprit`, `waiting` (has a listed edge), else
    `unknown`; ranks are in ascending order.
    """
    edges: list[dict[str, object]] = []
    ranks = set(graph.culprits)
    for wait in graph.waits:
        ranks.update(wait.ranks, wait.awaited)
        for rank in wait.ranks[: _MAX_WAITS - len(edges)]:
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
    """Return the page's comparison of bus bandwidths over size in bytes: one curve per series, then
    one for the bound if there is one. Times of all curves are None and `winners` is empty.
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
    """Return the list of the page's index to which a report belongs, and its entry.

    `report`: a valid report of `collhub compare --json`, for a collective or for a job. Raises
    `UsageError` for another report.
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
    """Return title, facts and rows of a job's comparison.

    One row per result, in the report's order: algorithms, network, times in ns, speedup, failure,
    and whether it is the baseline (equal algorithms and network).
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
    """Return the page's comparison: curves of time in ns over size, and the fastest algorithm by
    range of sizes. Curves: algorithms in the order of the results (None for a size without time),
    then the lower bound, measured curves and the library's choice, each only if the report has
    values of it.
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
    _add_measured_curves(document, algorithms, curves)
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
    """Return [label, text] facts about an algorithm: protocols, numbers of copies above 1, and
    reasons of missing times, each without repetitions in order of occurrence. Facts without values
    are left out.
    """
    rows = [row for row in results if row["algorithm"] == name]
    failures = dict.fromkeys(row["failure"] for row in rows if row["failure"])
    protocols = dict.fromkeys(row["protocol"] for row in rows if row["protocol"])
    instances = dict.fromkeys(str(row["instances"]) for row in rows if row["instances"] > 1)
    texts = {"protocols": protocols, "copies": instances, "no time": failures}
    return [[label, ", ".join(values)] for label, values in texts.items() if values]


def _add_measured_curves(
    document: Mapping[str, Any],
    algorithms: list[dict[str, object]],
    curves: list[dict[str, object]],
) -> None:
    """Append the measured curves of the report (times in ns) to `curves`, and their names (library,
    version, variant) to `algorithms`. A report without measurements changes neither.
    """
    measured = document["measured"]
    for curve in measured["curves"] if measured is not None else ():
        parts = (curve["library"], curve["version"], curve["variant"])
        name = " ".join(part for part in parts if part)
        algorithms.append({"name": f"{name} (measured)", "facts": []})
        curves.append(_create_curve(len(algorithms) - 1, "measured", curve["times_ns"]))


def _list_winners(
    sizes: Sequence[int],
    winners: Sequence[str | None],
    names: Sequence[str],
    times: Mapping[str, Mapping[int, int | None]],
) -> list[dict[str, object]]:
    """Return ranges of consecutive sizes with the same fastest algorithm, as bytes from and to,
    number in `names` (None for no winner or an unknown name) and a text. The text gives the time of
    the first size of the range.
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
