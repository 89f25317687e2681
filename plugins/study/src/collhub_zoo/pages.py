"""Pages of a zoo in Markdown: an overview, one page per collective and one per entry."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from collhub_zoo.cards import Card
from collhub_zoo.zoo_records import CollectiveSummary, ResultItem, ZooBuildReport
from hub_core.model import format_bytes, format_time

_REASONS = (
    "In brackets: the time by that of the fastest entry, and the part of the time that accounts for"
    " the most of the difference. *latency*: longer chains of messages (time with messages of one"
    " byte). *link*: the busiest link is occupied for longer. *waits*: links wait for data for"
    " longer."
)


def create_pages(report: ZooBuildReport) -> dict[str, str]:
    """Return the Markdown pages of a build by path, with relative links between them.

    These are `index.md`, `collectives/KIND.md` for every collective that `report.groups`
    contains, in the order of the groups, and `entries/NAME.md` for all entries.
    """
    pages = {"index.md": _create_overview(report)}
    for kind in dict.fromkeys(group.collective for group in report.groups):
        pages[f"collectives/{kind}.md"] = _create_collective_page(report, kind)
    for entry in report.entries:
        pages[f"entries/{entry.card.name}.md"] = _create_entry_page(report, entry.card)
    return pages


def _create_overview(report: ZooBuildReport) -> str:
    """Return the overview page in Markdown, which ends with one line break.

    After title and introduction it has these sections, each with a table in the order of the
    report:

    - one per collective that occurs in `report.groups`, in order of first occurrence; the title
      links to its page. One row per group of it (machine), one column per size of the report
    - Entries: name with link, title, collectives
    - Machines: topology, title, ranks, source of the calibrated times or `none`
    - failures and worse curves (`_list_problems`), each only if there are any

    A cell of the first tables is the best entry in `group.best` for this size, such as
    `[ring](entries/ring.md), 1.50 us, 1.20 x bound`. The ratio is omitted if it is unknown. The
    cell is `none` without a best entry. Nothing is computed; entry and machine tables without
    rows keep their header.
    """
    lines = [
        "# Zoo of algorithms",
        "",
        "Fastest correct entry on nominal links by the simulator, and its time by the proven lower "
        "bound. Pages of collectives list the slower entries and the reasons.",
        "",
    ]
    for kind in dict.fromkeys(group.collective for group in report.groups):
        lines += [f"## [{kind}](collectives/{kind}.md)", ""]
        sizes = [format_bytes(size) for size in report.sizes]
        lines += _format_table(
            ("machine", *sizes),
            [
                (group.machine, *_describe_best(group, report.sizes))
                for group in report.groups
                if group.collective == kind
            ],
        )
    lines += ["## Entries", ""]
    lines += _format_table(
        ("entry", "title", "collectives"),
        [
            (
                _link_entry(entry.card.name, ""),
                _escape(entry.card.title),
                ", ".join(entry.card.collectives),
            )
            for entry in report.entries
        ],
    )
    lines += ["## Machines", ""]
    lines += _format_table(
        ("machine", "title", "ranks", "calibrated times"),
        [
            (one.topology, _escape(one.title), str(one.ranks), _escape(one.timing) or "none")
            for one in report.machines
        ],
    )
    lines += _list_problems(report)
    return "\n".join(lines).rstrip() + "\n"


def _describe_best(group: CollectiveSummary, sizes: Sequence[int]) -> Iterator[str]:
    best = {one.size: one for one in group.best}
    for size in sizes:
        one = best.get(size)
        if one is None:
            yield "none"
            continue
        ratio = "" if one.ratio_to_bound is None else f", {one.ratio_to_bound:.2f} x bound"
        yield f"{_link_entry(one.entry, '')}, {format_time(one.time_ns)}{ratio}"


def _create_collective_page(report: ZooBuildReport, kind: str) -> str:
    """Return the page of the collective `kind` in Markdown, which ends with one line break.

    After the head it has, for each group of this collective in the order of the report:

    - the machine as title, and a table with one row per result on it and one column per size of
      the report. Rows ascend by nominal time at the largest (last) size; rows without a time
      there are last, ties by name. The last row is the lower bound with its method, such as
      `1.20 us (cut)`, or `unknown` without one
    - a table of measured times (library, size, time) in the order of the report, only if there
      are any

    A cell is `never finishes` without a time. For an entry that `group.best` lists as slower at
    this size it is time, ratio to the best and reason: `1.50 us (x 1.20, link)`. Otherwise it
    is the time with `(fastest)`, or with `(not correct)` if the result is not correct.

    An unknown `kind` gives the head only. A result without points raises `IndexError`.
    """
    lines = [f"# {kind}", "", "[All collectives](../index.md)", "", _REASONS, ""]
    sizes = [format_bytes(size) for size in report.sizes]
    for group in (one for one in report.groups if one.collective == kind):
        lines += [f"## {group.machine}", ""]
        rows = []
        # The fastest at the largest size is first, results without a time there are last.
        results = [
            result
            for result in report.results
            if (result.machine, result.collective) == (group.machine, group.collective)
        ]
        for result in sorted(
            results, key=lambda one: (one.points[-1].time_ns or 1 << 62, one.entry)
        ):
            rows.append((_link_entry(result.entry, "../"), *_describe_points(result, group)))
        bound_cells = [
            "unknown" if bound.time_ns is None else f"{format_time(bound.time_ns)} ({bound.method})"
            for bound in group.bounds
        ]
        rows.append(("lower bound", *bound_cells))
        lines += _format_table(("entry", *sizes), rows)
        if group.measured:
            lines += ["Measured on this machine:", ""]
            lines += _format_table(
                ("library", "size", "time"),
                [
                    (_escape(one.library), format_bytes(one.size), format_time(one.time_ns))
                    for one in group.measured
                ],
            )
    return "\n".join(lines).rstrip() + "\n"


def _describe_points(result: ResultItem, group: CollectiveSummary) -> Iterator[str]:
    slower = {
        one.size: item for one in group.best for item in one.slower if item.entry == result.entry
    }
    for point in result.points:
        item = slower.get(point.size)
        if point.time_ns is None:
            yield "never finishes"
        elif item is None:
            yield f"{format_time(point.time_ns)} ({'fastest' if result.ok else 'not correct'})"
        else:
            yield f"{format_time(point.time_ns)} (x {item.ratio:.2f}, {item.reason})"


def _create_entry_page(report: ZooBuildReport, card: Card) -> str:
    """Return the page of a catalogue entry (`card`) in Markdown; it ends with one line break.

    The items are in this order. All but the first are omitted if their data are missing.

    1. title; a line with name, collectives, ranks (`any` if the card has none), licence and
       origin (a link if it has a URL)
    2. notes of the card
    3. the command that creates it
    4. download link with SHA-256
    5. link to the interactive page of a run, if the report has one for this entry
    6. Verdicts: a table with one row per result of the entry, in the order of the report.
       The last columns are thread blocks (`unknown` if missing), and links to the files of
       the runtimes that accept them (`none` if there are none).
    7. Times: a table with one row per result and one column per size of the report. A cell
       is the nominal time or `never finishes`, with the calibrated time in brackets if
       there is one.
    8. Published figures of the card

    The function does not check whether linked files exist.
    """
    origin = card.origin
    name = _escape(origin.paper or origin.project or "source")
    lines = [
        f"# {_escape(card.title)}",
        "",
        f"`{card.name}`, {', '.join(card.collectives)}, ranks: "
        f"{', '.join(map(str, card.ranks)) or 'any'}. Licence: {_escape(origin.licence)}. "
        f"Origin: {f'[{name}]({origin.url})' if origin.url else name}.",
        "",
        _escape(" ".join(card.notes.split())),
        "",
    ]
    if card.command:
        command = _escape(" ".join(card.command))
        lines += [f"Created by `collhub {command}`; `collhub zoo get {card.name}` writes it.", ""]
    if card.fetch is not None:
        lines += [f"Download [the file]({card.fetch.url}), SHA-256 `{card.fetch.sha256}`.", ""]
    view = next((one.view for one in report.entries if one.card.name == card.name), None)
    if view is not None:
        run = f"{view.collective} of {format_bytes(view.size)} on {_escape(view.machine)}"
        lines += [f"[Interactive page of a run](../{view.file}): {run}, nominal links.", ""]
    results = [result for result in report.results if result.entry == card.name]
    if results:
        lines += ["## Verdicts", ""]
        header = ("machine", "collective", "verdict", "FIFO of 8", "certificate", "steps")
        lines += _format_table(
            (*header, "channels", "thread blocks", "runtimes"),
            [_describe_verdict(result) for result in results],
        )
        lines += ["## Times", "", "Nominal links; in brackets: calibrated machine.", ""]
        lines += _format_table(
            ("machine", "collective", *(format_bytes(size) for size in report.sizes)),
            [(one.machine, one.collective, *map(_describe_point, one.points)) for one in results],
        )
    if card.figures:
        lines += ["## Published figures", ""]
        lines += _format_table(
            ("topology", "collective", "quantity", "value", "source"),
            [
                (
                    _escape(one.topology),
                    one.collective,
                    _escape(one.quantity),
                    f"{one.value:g} {_escape(one.unit)}",
                    _escape(one.source),
                )
                for one in card.figures
            ],
        )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _describe_verdict(result: ResultItem) -> tuple[str, ...]:
    verdicts = ", ".join(f"{name.replace('_', ' ')} {one}" for name, one in result.verdicts.items())
    used = [
        f"[{one.runtime}](../{one.file}) ({_escape(one.versions)})"
        for one in result.runtimes
        if one.ok
    ]
    blocks = "unknown" if result.thread_blocks is None else str(result.thread_blocks)
    return (
        result.machine,
        result.collective,
        verdicts,
        result.fifo,
        result.certificate,
        str(result.steps),
        str(result.channels),
        blocks,
        ", ".join(used) or "none",
    )


def _describe_point(point: object) -> str:
    time_ns = getattr(point, "time_ns", None)
    calibrated_ns = getattr(point, "calibrated_ns", None)
    text = "never finishes" if time_ns is None else format_time(time_ns)
    return text if calibrated_ns is None else f"{text} ({format_time(calibrated_ns)})"


def _list_problems(report: ZooBuildReport) -> Iterator[str]:
    """Yield the Markdown lines of the sections about failures and about worse curves.

    First `report.failures`: entry (`none` if empty), machine, collective, reason. Then
    `report.worse`: entry, machine, collective, curve, reason. Each section is a title, an empty
    line, a table with its rows in the order of the report, and an empty line. Only reasons are
    escaped, so that Markdown and HTML in them have no effect. A section without rows is omitted;
    without both, nothing is yielded.
    """
    if report.failures:
        yield from ("## Failures", "")
        yield from _format_table(
            ("entry", "machine", "collective", "reason"),
            [
                (one.entry or "none", one.machine, one.collective, _escape(one.reason))
                for one in report.failures
            ],
        )
    if report.worse:
        yield from ("## Curves that became worse", "")
        yield from _format_table(
            ("entry", "machine", "collective", "curve", "reason"),
            [
                (one.entry, one.machine, one.collective, one.curve, _escape(one.reason))
                for one in report.worse
            ],
        )


def _format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table: header, rule, one line per row, and an empty line.

    Cells are neither escaped nor padded; rows may have any length. Without rows, the header
    remains.
    """
    rule = ["---"] * len(header)
    return [*(f"| {' | '.join(row)} |" for row in (header, rule, *rows)), ""]


def _link_entry(name: str, prefix: str) -> str:
    return f"[{name}]({prefix}entries/{name}.md)"


def _escape(text: str) -> str:
    """Return a text of a card in which Markdown and HTML have no effect."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(" ".join(text.split()), quote=False))
