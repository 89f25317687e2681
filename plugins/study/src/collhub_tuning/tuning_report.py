"""The report of `collhub tune`: as JSON, as a page of text, and as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collhub_tuning.comparison_report import comparison_failures
from collhub_tuning.coverage import served_by, sizes_text
from collhub_tuning.tuning_question import TunedCollective, num_nodes
from hub_core import cut_fields, cut_objects, loss_object
from hub_core.model import CollectiveKind, format_bytes, format_time
from hub_core.plugin_api import SelectedWindow, ServedCalls, WriteResult

if TYPE_CHECKING:
    from hub_core.model import JsonValue

REPORT_FILE, PAGE_FILE = "report.json", "report.md"
SCHEMA = "collhub/report-tune-1"
HEADER = ("collective", "sizes", "algorithm", "time", "ratio to bound", "behind the fastest")
RIGHT = ("time", "ratio to bound", "behind the fastest")


@dataclass(frozen=True, slots=True)
class WrittenFormat:
    """What the writer of a format made, what it serves, and its files in a folder of its own."""

    name: str
    result: WriteResult
    files: tuple[str, ...]
    served: Sequence[ServedCalls]


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """The answer of `collhub tune`: all collectives, in the order in which they were asked for."""

    tuned: Sequence[TunedCollective]
    mode: str
    tolerance: float
    formats: Sequence[WrittenFormat] = ()

    @property
    def has_windows(self) -> bool:
        """Whether some algorithm fits some collective."""
        return any(one.windows for one in self.tuned)


def tuning_rows(outcome: TuningOutcome) -> list[list[str]]:
    """A line a window; a collective that nothing fits has one without an algorithm."""
    rows = []
    for tuned in outcome.tuned:
        # Windows ascend by size.
        rows += [_row(tuned, window) for window in tuned.windows]
        if not tuned.windows:
            rows.append([tuned.label, "all sizes", "none", "", "", ""])
    return rows


def tuning_notes(outcome: TuningOutcome) -> list[str]:
    """Who was left out of the comparisons, and what formats cannot carry, one line each."""
    lines = []
    for tuned in outcome.tuned:
        names = {one.algorithm for one in tuned.outcome.measurements if one.time_ns is None}
        left_out = [one.name for one in tuned.algorithms if one.name in names]
        if left_out:
            lines.append(f"{tuned.label}: {', '.join(left_out)} left out; --json says why")
        lines += [
            f"{tuned.label} is cut, {line}" for line in cut_fields(tuned.outcome.cuts).values()
        ]
    for written in outcome.formats:
        lines += [f"{written.name} loses: {loss}" for loss in written.result.losses]
        warnings = [note for note in written.result.notes if note.startswith("warning: ")]
        lines += [f"{written.name}: {warning}" for warning in warnings]
    return lines


def tuning_document(outcome: TuningOutcome) -> dict[str, JsonValue]:
    """The report as `report-tune-1` describes it."""
    first = outcome.tuned[0].outcome
    return {
        "schema": SCHEMA,
        "topology": first.topology.name,
        "num_ranks": first.topology.num_npus,
        "num_nodes": num_nodes(first.topology),
        "backend": first.question.backend,
        "mode": outcome.mode,
        "tolerance": outcome.tolerance,
        "sizes": list(first.question.sizes),
        "collectives": [_collective_object(tuned) for tuned in outcome.tuned],
        "formats": [_format_object(written) for written in outcome.formats],
        "is_partial": any(tuned.outcome.cuts for tuned in outcome.tuned),
        "cut": [each for tuned in outcome.tuned for each in cut_objects(tuned.outcome.cuts)],
    }


def tuning_page(outcome: TuningOutcome) -> str:
    """The report for people, as Markdown."""
    first = outcome.tuned[0].outcome
    sizes = first.question.sizes
    lines = [
        f"# Algorithms for {first.topology.name}",
        "",
        f"{first.topology.num_npus} ranks, {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
        f" of the full buffer, calls {outcome.mode}, timed by `{first.question.backend}`."
        f" A faster algorithm is passed over up to {100 * outcome.tolerance:g} %.",
        "",
        *_table(HEADER, tuning_rows(outcome)),
    ]
    left_out = [
        f"- {tuned.label}: {line}"
        for tuned in outcome.tuned
        for line in comparison_failures(tuned.outcome)
    ]
    if left_out:
        lines += ["", "## Left out", "", *left_out]
    for written in outcome.formats:
        lines += ["", *_format_section(written)]
    return "\n".join(lines) + "\n"


def served_of_object(document: object) -> ServedCalls:
    """Calls as `report-tune-1` has them. Raises `ValueError`, `TypeError` or `KeyError`."""
    if not isinstance(document, dict):
        raise TypeError("no object")
    return ServedCalls(
        CollectiveKind(document["collective"]),
        bool(document["in_place"]),
        bool(document["out_of_place"]),
        int(document["min_bytes"]),
        None if document["max_bytes"] is None else int(document["max_bytes"]),
        str(document["by"]),
        int(document["element_multiple"]),
        # Folders of earlier releases do not have it.
        int(document.get("byte_multiple", 1)),
    )


def served_object(one: ServedCalls) -> dict[str, JsonValue]:
    """Calls as the reports carry them."""
    return {
        "collective": str(one.kind),
        "in_place": one.in_place,
        "out_of_place": one.out_of_place,
        "min_bytes": one.min_bytes,
        "max_bytes": one.max_bytes,
        "by": one.by,
        "element_multiple": one.element_multiple,
        "byte_multiple": one.byte_multiple,
    }


def _row(tuned: TunedCollective, window: SelectedWindow) -> list[str]:
    """Time and ratio at the first and the last measured size of a window."""
    ends = dict.fromkeys((window.sizes[0], window.sizes[-1]))
    times = [tuned.times.time_ns(window.algorithm, size) or 0 for size in ends]
    found = [tuned.ratio(window.algorithm, size) for size in ends]
    ratios = [f"{ratio:.3f}" for ratio in found if ratio is not None]
    behind = 100 * (_worst(tuned, window) - 1)
    return [
        tuned.label,
        sizes_text(window.min_bytes, window.max_bytes),
        window.algorithm,
        " .. ".join(format_time(float(time_ns)) for time_ns in times),
        " .. ".join(ratios),
        f"{behind:.1f} %" if behind else "",
    ]


def _worst(tuned: TunedCollective, window: SelectedWindow) -> float:
    """The largest time over that of the fastest, at a measured size of a window."""
    return max(tuned.times.slowdowns([size])[window.algorithm] for size in window.sizes)


def _collective_object(tuned: TunedCollective) -> dict[str, JsonValue]:
    question = tuned.outcome.question
    return {
        "collective": question.kind,
        "root": question.root,
        "mode": question.mode,
        "windows": [_window_object(tuned, window) for window in tuned.windows],
        "left_out": list(comparison_failures(tuned.outcome)),
    }


def _window_object(tuned: TunedCollective, window: SelectedWindow) -> dict[str, JsonValue]:
    measured: list[JsonValue] = []
    for size in window.sizes:
        time_ns = tuned.times.time_ns(window.algorithm, size)
        ratio = tuned.ratio(window.algorithm, size)
        slowdown = tuned.times.slowdowns([size])[window.algorithm]
        measured.append(
            {"size": size, "time_ns": time_ns, "ratio_to_bound": ratio, "slowdown": slowdown}
        )
    return {
        "min_bytes": window.min_bytes,
        "max_bytes": window.max_bytes,
        "algorithm": window.algorithm,
        "measured": measured,
    }


def _format_object(written: WrittenFormat) -> dict[str, JsonValue]:
    return {
        "name": written.name,
        "files": list(written.files),
        "losses": [loss_object(loss) for loss in written.result.losses],
        "notes": list(written.result.notes),
        "served": [served_object(one) for one in written.served],
    }


def _format_section(written: WrittenFormat) -> list[str]:
    """Lines of Markdown on a format: who serves which calls, then notes and losses."""
    rows = [
        [
            str(one.kind),
            sizes_text(one.min_bytes, one.max_bytes),
            {(True, True): "both"}.get(
                (one.in_place, one.out_of_place), "in place" if one.in_place else "out of place"
            ),
            served_by(one),
        ]
        for one in written.served
    ]
    lines = [f"## `{written.name}/`", ""]
    lines += _table(("collective", "sizes", "calls", "served by"), rows)
    lines += [f"- {note}" for note in written.result.notes]
    return [*lines, *(f"- lost: {loss}" for loss in written.result.losses)]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruled = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(row)} |" for row in ruled), ""]
