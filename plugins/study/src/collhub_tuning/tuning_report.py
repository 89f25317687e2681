"""The report of `collhub tune`: JSON, a Markdown page, and a table for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from collhub_machine_profiles.nccl_baseline import count_nodes

from collhub_tuning.baseline import (
    TUNED_HEADER,
    TimeBand,
    list_baselines,
    tuned_baseline_rows,
)
from collhub_tuning.comparison_report import comparison_failures
from collhub_tuning.measured_curves import create_measured_item
from collhub_tuning.measurement_plan import PlannedRun, plan_lines
from collhub_tuning.served_calls import format_server, format_sizes, list_served_calls
from collhub_tuning.tuned_collectives import TunedCollective
from collhub_tuning.tuning_records import (
    DefaultDecision,
    DefaultWindowItem,
    TunedItem,
    TuneReport,
    WindowItem,
    WindowSize,
    WrittenFormatItem,
)
from hub_core import cut_fields
from hub_core.model import format_bytes, format_time
from hub_core.plugin_api import IDEAL, SelectedWindow, ServedCalls, WriteResult
from hub_core.reports import UNSET, get_schema_name, list_cuts, list_losses

REPORT_FILE, PAGE_FILE = "report.json", "report.md"
SCHEMA = get_schema_name(TuneReport)
RUNTIME_DEFAULT = "the runtime's default"
HEADER = ("collective", "sizes", "algorithm", "time", "ratio to bound", "behind the fastest")
RIGHT = ("time", "ratio to bound", "behind the fastest")


@dataclass(frozen=True, slots=True)
class WrittenFormat:
    """The result of a format's writer, the calls that it serves, and its files in their folder."""

    name: str
    result: WriteResult
    files: tuple[str, ...]
    served: Sequence[ServedCalls]


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """The result of `collhub tune`: all collectives, in the order of the request.

    `plan`: measurements that decide the undecided sizes.
    """

    tuned: Sequence[TunedCollective]
    mode: str
    tolerance: float
    formats: Sequence[WrittenFormat] = ()
    plan: Sequence[PlannedRun] = ()

    @property
    def has_windows(self) -> bool:
        """True if at least one collective has a range of sizes with a selected algorithm."""
        return any(collective.windows for collective in self.tuned)

    @property
    def has_answer(self) -> bool:
        """True if at least one size has an algorithm or certainly keeps the runtime's default."""
        return self.has_windows or any(collective.default_windows for collective in self.tuned)


def create_tuning_rows(outcome: TuningOutcome) -> list[list[str]]:
    """Return one row of texts per window of sizes, with the columns of `HEADER`.

    A window is a range of sizes with one algorithm, or with the runtime's default. The
    order is that of the collectives, then of the sizes. A collective without windows has
    one row with "all sizes" and "none". A row of the default has the times of the default at
    the first and last size of the window, joined by " .. " (one for a single size, unknown
    ones are left out), and two empty cells.
    """
    rows = []
    for tuned in outcome.tuned:
        by_size = [(window.min_bytes, _format_row(tuned, window)) for window in tuned.windows]
        for window in tuned.default_windows:
            sizes = dict.fromkeys((window.sizes[0], window.sizes[-1]))
            defaults = [tuned.decisions[size].default for size in sizes if size in tuned.decisions]
            times = " .. ".join(
                format_time(default.band.time_us * 1e3)
                for default in defaults
                if default is not None
            )
            sizes_text = format_sizes(window.min_bytes, window.max_bytes)
            row = [tuned.label, sizes_text, RUNTIME_DEFAULT, times, "", ""]
            by_size.append((window.min_bytes, row))
        rows += [row for _, row in sorted(by_size)]
        if not by_size:
            rows.append([tuned.label, "all sizes", "none", "", "", ""])
    return rows


def create_tuning_notes(outcome: TuningOutcome) -> list[str]:
    """Return lines about omitted algorithms, cut searches, default sizes, losses and warnings.

    For each collective, in order:

    1. The runtimes for which algorithms are built, if there are any.
    2. If algorithms have no time at some size: one line that names them all, then one line per
       reason why a runtime does not serve a size (`comparison_failures`).
    3. If limits cut the search: one line with all parts that were cut.
    4. The lines of `_default_notes`: sizes that keep the runtime's default.

    Then, for each written format: one line per loss, then its notes that begin with "warning:
    ". Other notes are left out. The result is [] if nothing applies.
    """
    lines = []
    for tuned in outcome.tuned:
        if runtimes := tuned.outcome.question.runtime_names:
            lines.append(f"{tuned.label}: algorithms for {runtimes}")
        names = {row.algorithm for row in tuned.outcome.measurements if row.time_ns is None}
        left_out = [algorithm.name for algorithm in tuned.algorithms if algorithm.name in names]
        if left_out:
            lines.append(f"{tuned.label}: {', '.join(left_out)} left out; --json says why")
            unserved = comparison_failures(tuned.outcome, only_unserved=True)
            lines += [f"{tuned.label}: {one}" for one in unserved]
        lines += [
            f"{tuned.label} is cut, {line}" for line in cut_fields(tuned.outcome.cuts).values()
        ]
        lines += _default_notes(tuned)
    for written in outcome.formats:
        lines += [f"{written.name} loses: {loss}" for loss in written.result.losses]
        warnings = [note for note in written.result.notes if note.startswith("warning: ")]
        lines += [f"{written.name}: {warning}" for warning in warnings]
    return lines


def create_tuning_report(outcome: TuningOutcome) -> TuneReport:
    """Return the JSON report, which `collhub tune` also writes to the file `REPORT_FILE`.

    Topology, timing, machine, backend and sizes are those of the first collective; all other
    properties are listed in the given order. `is_partial` is True if a limit cut the search of any
    collective. `cut` has these parts of all collectives. The report is not written here. Raises
    `IndexError` without a collective.
    """
    first = outcome.tuned[0].outcome
    return TuneReport(
        topology=first.topology.name,
        num_ranks=first.topology.num_npus,
        num_nodes=count_nodes(first.topology),
        backend=first.question.backend,
        timing=first.timing.note,
        machine=first.timing.machine_record(),
        mode=outcome.mode,
        tolerance=outcome.tolerance,
        sizes=first.question.sizes,
        collectives=[_create_collective_item(tuned) for tuned in outcome.tuned],
        plan=[run.create_item() for run in outcome.plan],
        formats=[
            WrittenFormatItem(
                name=written.name,
                files=written.files,
                runtimes=written.result.runtimes,
                losses=list_losses(written.result.losses),
                notes=written.result.notes,
                served=list_served_calls(written.served),
            )
            for written in outcome.formats
        ],
        is_partial=any(tuned.outcome.cuts for tuned in outcome.tuned),
        cut=[cut for tuned in outcome.tuned for cut in list_cuts(tuned.outcome.cuts)],
    )


def tuning_page(outcome: TuningOutcome) -> str:
    """Return the report as Markdown that ends with one line feed.

    The head has network, ranks, first and last size, and timing of the first collective, and the
    mode and tolerance of `outcome`. The table of `create_tuning_rows` follows. Then come these
    sections, each only if it has lines:

    1. the choices of NCCL today
    2. sizes that keep the runtime's default
    3. measurements that decide undecided sizes, as a code block
    4. algorithms that were left out
    5. one section per written format

    Lines within sections 1, 2 and 4 are in the order of the collectives. Raises `IndexError`
    without a collective.
    """
    first = outcome.tuned[0].outcome
    sizes = first.question.sizes
    lines = [
        f"# Algorithms for {first.topology.name}",
        "",
        f"{first.topology.num_npus} ranks, {format_bytes(sizes[0])} to {format_bytes(sizes[-1])}"
        f" of the full buffer, calls {outcome.mode}, timed by `{first.question.backend}`"
        f" ({first.timing.note})."
        f" A faster algorithm is passed over up to {100 * outcome.tolerance:g} %.",
        "",
        *_write_table(HEADER, create_tuning_rows(outcome)),
    ]
    baseline = tuned_baseline_rows(outcome.tuned)
    if baseline:
        lines += ["", "## What NCCL does today", "", *_write_table(TUNED_HEADER, baseline)]
    notes = [f"- {line}" for tuned in outcome.tuned for line in _default_notes(tuned)]
    if notes:
        lines += ["", "## Sizes that keep the runtime's default", "", *notes]
    if outcome.plan:
        lines += ["", "## Measurements that decide the undecided sizes", ""]
        lines += ["```", *plan_lines(outcome.plan), "```"]
    left_out = [
        f"- {tuned.label}: {line}"
        for tuned in outcome.tuned
        for line in comparison_failures(tuned.outcome)
    ]
    if left_out:
        lines += ["", "## Left out", "", *left_out]
    for written in outcome.formats:
        lines += ["", *_write_format_section(written)]
    return "\n".join(lines) + "\n"


def _format_row(tuned: TunedCollective, window: SelectedWindow) -> list[str]:
    """Return the six cells of a window: collective, sizes, algorithm, times, ratios, slowdown.

    Times and ratios (time by lower bound, 3 decimals) are those of the window's algorithm at the
    first and last measured size, joined by " .. ". A window of one measured size has one value. An
    unknown ratio is omitted, so that this cell may be "".

    The slowdown is the largest one over all measured sizes of the window: how much longer the
    algorithm takes than the fastest one, such as `2.5 %`; "" if it is always the fastest. Raises
    `KeyError` if the algorithm has no time at a measured size.
    """
    sizes = dict.fromkeys((window.sizes[0], window.sizes[-1]))
    times = [tuned.times.time_ns(window.algorithm, size) or 0 for size in sizes]
    bound_ratios = [tuned.ratio(window.algorithm, size) for size in sizes]
    ratios = [f"{ratio:.3f}" for ratio in bound_ratios if ratio is not None]
    slowdowns = [tuned.times.slowdowns([size])[window.algorithm] for size in window.sizes]
    slowdown_percent = 100 * (max(slowdowns) - 1)
    return [
        tuned.label,
        format_sizes(window.min_bytes, window.max_bytes),
        window.algorithm,
        " .. ".join(format_time(float(time_ns)) for time_ns in times),
        " .. ".join(ratios),
        f"{slowdown_percent:.1f} %" if slowdown_percent else "",
    ]


def _default_notes(tuned: TunedCollective) -> list[str]:
    """Return one line per reason why measured sizes keep the runtime's default.

    Considers the sizes of `tuned.default_windows` (ranges of sizes that keep the default) that have
    a decision and a known time of the default. The first reason that applies to a size is used:

    1. No winner is certain: `decision.kind`, such as `undecided`.
    2. Algorithms have times at the size: `DEFAULT is faster`.
    3. Otherwise `no algorithm fits, DEFAULT`, followed by `was measured` if its time was measured.

    `DEFAULT` is the library with its version, followed by `as predicted` if its time was not
    measured. A line has the label of the collective, all sizes with this reason, the reason, and
    the end `; the runtime's default stays`. Sizes are in the order of the windows, and lines in the
    order of their first size. Returns [] if no size is considered.
    """
    sizes: dict[str, list[str]] = {}
    for window in tuned.default_windows:
        for size in window.sizes:
            decision = tuned.decisions.get(size)
            if decision is None or decision.default is None:
                continue
            if decision.winner is None:
                reason = decision.kind
            elif decision.candidates:
                reason = f"{decision.default} is faster"
            else:
                known = "was measured" if decision.default.band.is_measured else ""
                reason = f"no algorithm fits, {decision.default} {known}".rstrip()
            sizes.setdefault(reason, []).append(format_bytes(size))
    return [
        f"{tuned.label}, {', '.join(names)}: {reason}; {RUNTIME_DEFAULT} stays"
        for reason, names in sizes.items()
    ]


def _list_decisions(tuned: TunedCollective) -> list[DefaultDecision]:
    """Return one record per size with a time of the default or an algorithm, ascending.

    Undecided sizes are included. `decision` is the kind of the decision (`undecided`,
    `measured`, `simulated` or `predicted`). `winner` is the name of the algorithm, "default"
    for the library's default, and None if the size is undecided.

    `default` describes the library's default, `fastest` is the algorithm with the shortest
    time, even if it does not win. Their times are triples (time, lower limit, upper limit) in
    ns, rounded; both limits are None if the upper limit is infinite. A side without a time has
    None in both fields.
    """
    decisions = []
    for decision in tuned.decisions.values():
        default = decision.default
        decisions.append(
            DefaultDecision(
                size=decision.size,
                decision=decision.kind,
                winner=decision.winner or (None if decision.winner is None else "default"),
                default=None if default is None else str(default),
                default_ns=None if default is None else _to_nanoseconds(default.band),
                fastest=next(iter(decision.candidates), None),
                fastest_ns=next(map(_to_nanoseconds, decision.candidates.values()), None),
            )
        )
    return decisions


def _to_nanoseconds(band: TimeBand) -> tuple[int, int | None, int | None]:
    """Return (time, lower limit, upper limit) of a range of time in ns, rounded.

    Both limits are None if the upper limit is infinite, as with an unknown error.
    """
    time_ns = round(band.time_us * 1e3)
    if not math.isfinite(band.high_us):
        return time_ns, None, None
    return time_ns, round(band.low_us * 1e3), round(band.high_us * 1e3)


def _create_collective_item(tuned: TunedCollective) -> TunedItem:
    question = tuned.outcome.question
    window_times_ns = {
        size: tuned.times.time_ns(window.algorithm, size)
        for window in tuned.windows
        for size in window.sizes
    }
    windows = []
    for window in tuned.windows:
        measured = [
            WindowSize(
                size=size,
                # An algorithm is only chosen for sizes at which it has a time.
                time_ns=window_times_ns[size] or 0,
                ratio_to_bound=tuned.ratio(window.algorithm, size),
                slowdown=tuned.times.slowdowns([size])[window.algorithm],
            )
            for size in window.sizes
        ]
        windows.append(
            WindowItem(
                min_bytes=window.min_bytes,
                max_bytes=window.max_bytes,
                algorithm=window.algorithm,
                measured=measured,
            )
        )
    return TunedItem(
        collective=question.kind,
        root=question.root,
        mode=question.mode,
        windows=windows,
        baselines=list_baselines(tuned.outcome, window_times_ns),
        measured=create_measured_item(tuned.outcome),
        decisions=_list_decisions(tuned),
        default_windows=[
            DefaultWindowItem(
                min_bytes=window.min_bytes, max_bytes=window.max_bytes, sizes=window.sizes
            )
            for window in tuned.default_windows
        ],
        left_out=comparison_failures(tuned.outcome),
        runtime=UNSET if question.runtime == IDEAL else question.runtime,
    )


def _write_format_section(written: WrittenFormat) -> list[str]:
    """Return the Markdown lines of the section of a written format.

    In this order: the heading with the name of the format; the runtimes that read the files,
    if any are known; a table with one row per entry of `written.served`; one item per note;
    one item `lost: ...` per loss. The table is there even without rows.

    The columns of a row are collective, sizes, calls (`both`, `in place` or `out of place`),
    and the server. The server has the condition on its sizes, such as `ring (multiples of 8
    elements)`.
    """
    rows = [
        [
            str(calls.kind),
            format_sizes(calls.min_bytes, calls.max_bytes),
            {(True, True): "both"}.get(
                (calls.in_place, calls.out_of_place),
                "in place" if calls.in_place else "out of place",
            ),
            format_server(calls),
        ]
        for calls in written.served
    ]
    lines = [f"## `{written.name}/`", ""]
    if written.result.runtimes:
        lines += [f"Read by {'; '.join(written.result.runtimes)}.", ""]
    lines += _write_table(("collective", "sizes", "calls", "served by"), rows)
    lines += [f"- {note}" for note in written.result.notes]
    return [*lines, *(f"- lost: {loss}" for loss in written.result.losses)]


def _write_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    ruled = [header, ["---"] * len(header), *rows]
    return [*(f"| {' | '.join(row)} |" for row in ruled), ""]
