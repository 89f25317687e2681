"""The report of a comparison: JSON, CSV, a picture, and a table with the winner of every size."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from collhub_execution import algorithm_bandwidth, bus_bandwidth

from collhub_tuning.baseline import Baselines, find_baselines, list_baselines
from collhub_tuning.comparison_records import (
    ComparedResult,
    CompareReport,
    RobustnessItem,
    VariationItem,
)
from collhub_tuning.measured_curves import (
    MeasuredCurves,
    create_measured_item,
    measured_cells,
    measured_header,
)
from collhub_tuning.questions import AlgorithmAtSize, ComparisonQuestion
from hub_core import (
    Diagnostic,
    ProvenBound,
    TimingSource,
    beaten_bound,
    best_bounds,
)
from hub_core.model import PluginError, UsageError, format_bandwidth, format_bytes, format_time
from hub_core.plugin_api import (
    IDEAL,
    BandwidthComparison,
    BandwidthSeries,
    ReportWriter,
    Shown,
    choose_best,
)
from hub_core.reports import UNSET, list_cuts, to_json

if TYPE_CHECKING:
    from hub_core import Registry
    from hub_core.network import Topology
    from hub_core.plugin_api import SearchCut


HEADER = ("size", "winner", "time", "algorithm", "bus", "ratio to bound", "ahead of the next")
RIGHT = ("size", "time", "algorithm", "bus", "ratio to bound", "ahead of the next")
# A size that a runtime does not serve (`describe_multiple`): the condition, and the nearest sizes.
_UNSERVED_REASON = re.compile(r".+ do(?:es)? not serve .+?: (.+), (?:the nearest are|at least) .+")
_CSV_COLUMNS = (
    *("algorithm", "size", "time_ns", "algorithm_bandwidth_bytes_per_s"),
    *("bus_bandwidth_bytes_per_s", "ratio_to_bound", "made_for", "failure"),
    *("instances", "protocol", "pieces", "messages"),
)


@dataclass(frozen=True)
class ComparisonOutcome:
    """All measurements of a question on its network, and the cuts of the searches by limits.

    `timing`: what the times describe. `measured`: curves of `--measured`, None without files.
    """

    question: ComparisonQuestion
    topology: Topology
    measurements: Sequence[AlgorithmAtSize]
    registry: Registry | None = None
    cuts: tuple[SearchCut, ...] = ()
    timing: TimingSource = field(default_factory=TimingSource)
    measured: MeasuredCurves | None = None

    @cached_property
    def bounds(self) -> Mapping[int, ProvenBound | None]:
        """Return the best proven lower bound in ps by size, None for sizes without one. Cached.

        All plugins that offer bounds compute them with thorough methods. The bounds hold for the
        network of the timing: the nominal network, or the one with measured switches if the times
        belong to a measured machine. At each size the search stops when the winner's time is at
        most 2 % above the bound. Without a time at this size there is no such limit. An offer that
        raises `InputError` is skipped; any other error of an offer is raised as `HubError`.
        """
        sizes = self.question.sizes
        rankings = [self.ranking(size) for size in sizes]
        bounds = best_bounds(
            self.question.collective,
            self.timing.bounded_network(self.topology),
            sizes,
            registry=self.registry,
            best_times_ps=[ranking[0].time_ps if ranking else None for ranking in rankings],
            is_thorough=True,
        )
        return dict(zip(sizes, bounds, strict=True))

    @cached_property
    def bounds_ns(self) -> Mapping[int, int | None]:
        """The bounds in integer nanoseconds, by size in bytes; None without a bound or for a bound
        of 0.
        """
        return {size: (bound and bound.time_ns) or None for size, bound in self.bounds.items()}

    @cached_property
    def baselines(self) -> Baselines:
        """NCCL's choice and expected time by size, for sizes at which they are known."""
        return find_baselines(self)

    def ratio(self, measurement: AlgorithmAtSize) -> float | None:
        """Return the time of a measurement divided by the bound of its size, in ps, at least 1.

        None if the time or the bound is missing or 0, and if the time is below the bound by more
        than its rounding error `slack_ps` (a defect, see `defects`). Raises `KeyError` for a size
        that the question does not have. The first call computes the bounds, which may take long.
        """
        bound = self.bounds[measurement.size]
        return None if bound is None else bound.ratio(measurement.time_ps, measurement.slack_ps)

    @cached_property
    def defects_by_algorithm(self) -> Mapping[str, Sequence[Diagnostic]]:
        """Return the findings about measurements below the bound of their size, by algorithm.

        A measurement has a finding (the warning `bound-beaten`) if its time + slack is below the
        bound, all in ps. Measurements without a time, and sizes without a bound, have none.
        Algorithms are in the order of their first such measurement, their findings in the order of
        the measurements. Algorithms without a finding are not in the result. The result and the
        bounds are computed once and cached.
        """
        defects: dict[str, list[Diagnostic]] = {}
        for measurement in self.measurements:
            bound = self.bounds[measurement.size]
            defect = beaten_bound(
                bound,
                measurement.time_ps,
                slack_ps=measurement.slack_ps,
                name=measurement.algorithm,
            )
            if defect is not None:
                defects.setdefault(measurement.algorithm, []).append(defect)
        return defects

    def defects(self) -> list[Diagnostic]:
        """List a finding for every measurement that beats the bound of its size."""
        return [defect for defects in self.defects_by_algorithm.values() for defect in defects]

    def ranking(self, size: int) -> list[AlgorithmAtSize]:
        """Return the successful measurements at a size: first the winner, then by ascending time.

        The winner is the measurement with the fewest messages within 1 % of the best time
        (`choose_best`), so faster ones can follow it. Measurements with equal times keep their
        order. The list is empty if none has a time.
        """
        timed = [
            measurement
            for measurement in self.measurements
            if measurement.size == size and measurement.time_ns is not None
        ]
        timed.sort(key=lambda measurement: measurement.time_ns or 0)
        if timed:
            timed.insert(0, timed.pop(choose_best([one.merit for one in timed])))
        return timed


def comparison_rows(outcome: ComparisonOutcome) -> list[list[str]]:
    """Return one row of texts per requested size, in order: the fastest algorithm, its lead, and
    measured times if the comparison has any.
    """
    return [
        [*_format_row(outcome, size), *measured_cells(outcome, size)]
        for size in outcome.question.sizes
    ]


def comparison_header(outcome: ComparisonOutcome) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the headings of `comparison_rows`, and those of the columns that are aligned to
    the right.

    These are all columns except `winner` and `decision`. The columns after `HEADER` exist
    only if the comparison has measured times (`measured_header`).
    """
    measured = measured_header(outcome)
    return (*HEADER, *measured), (*RIGHT, *measured[:-1])


def find_unserved_reason(outcome: ComparisonOutcome) -> str | None:
    """Return the reason of the first measurement that failed because a runtime does not
    serve its size.

    The reason has the nearest sizes that are served, such as `executor does not serve 4
    KiB: CONDITION, the nearest are ...`. None if no measurement failed for such a reason.
    """
    failures = (measurement.failure for measurement in outcome.measurements)
    return next((reason for reason in failures if _UNSERVED_REASON.fullmatch(reason)), None)


def comparison_failures(outcome: ComparisonOutcome, *, only_unserved: bool = False) -> list[str]:
    """Return one line per reason why algorithms have no time, in the order of the measurements.

    Only measurements without a time count; with `only_unserved`, only those in which a runtime does
    not serve a size. Without any, the result is []. A line is such as `ring does not take part at 1
    MiB, 2 MiB: REASON`, with `failure` as REASON.

    1. Sizes of an algorithm with the same reason form one list. The list is omitted from the line
       if it has all sizes of the question. Two reasons that a runtime does not serve a size are the
       same if their conditions are equal; the text of the first size is used.
    2. Algorithms with equal reasons and sizes share a line. The algorithm's name at the start of a
       reason is not compared. If several algorithms share such a reason, `each` replaces the name:
       `each defines no all-to-all`.
    """
    sizes: dict[tuple[str, str], list[int]] = {}
    first_reasons: dict[tuple[str, str], str] = {}
    for measurement in outcome.measurements:
        if measurement.time_ns is None:
            unserved = _UNSERVED_REASON.fullmatch(measurement.failure)
            if only_unserved and unserved is None:
                continue
            condition = measurement.failure if unserved is None else unserved[1]
            reason = first_reasons.setdefault(
                (measurement.algorithm, condition), measurement.failure
            )
            sizes.setdefault((measurement.algorithm, reason), []).append(measurement.size)
    # Group equal reasons that differ only in the leading name, as `ring defines no all-to-all`.
    groups: dict[tuple[bool, str, tuple[int, ...]], list[str]] = {}
    for (algorithm, failure), failed in sizes.items():
        is_named = failure.startswith(f"{algorithm} ")
        reason = failure.removeprefix(f"{algorithm} ")
        groups.setdefault((is_named, reason, tuple(failed)), []).append(algorithm)
    total = len(outcome.question.sizes)
    lines = []
    for (is_named, reason, at), names in groups.items():
        part = "" if len(at) == total else f" at {', '.join(map(format_bytes, at))}"
        who, verb = (names[0], "does") if len(names) == 1 else ("each", "do")
        why = f"{who} {reason}" if is_named else reason
        lines.append(f"{', '.join(names)} {verb} not take part{part}: {why}")
    return lines


def create_comparison_report(
    outcome: ComparisonOutcome,
    variations: Sequence[VariationItem] = (),
    robustness: Sequence[RobustnessItem | None] = (),
) -> CompareReport:
    """Return the JSON report of a comparison, with the winner of every size.

    It has the question (collective, root, topology, backend, timing), then lists with one entry per
    requested size, in that order: `sizes` (bytes), `bounds_ns`, `bound_methods`, `winners`,
    `baselines`. `bounds_ns` is None without a bound or for a bound of 0, `bound_methods` only
    without a bound. A winner is the name of the algorithm with the fewest messages within 1 % of
    the best time; None if no algorithm has a time. A baseline is NCCL's own time
    (`list_baselines`).

    `results` has one record per measurement (an algorithm at a size), in the order of `outcome`,
    also for failed ones. `cut` lists the parts of the searches that limits have stopped;
    `is_partial` is True if there are any. `runtime` is absent for the ideal runtime. `variations`
    and `robustness` are the arguments unchanged; both are absent if `variations` is empty.

    The bounds are computed here if `outcome` has not cached them, which may take long.
    """
    question = outcome.question
    rankings = [outcome.ranking(size) for size in question.sizes]
    winner_times_ns = {
        size: ranking[0].time_ns if ranking else None
        for size, ranking in zip(question.sizes, rankings, strict=True)
    }
    return CompareReport(
        collective=question.kind,
        root=question.root,
        num_ranks=question.num_npus,
        topology=outcome.topology.name,
        backend=question.backend,
        timing=outcome.timing.note,
        machine=outcome.timing.machine_record(),
        sizes=question.sizes,
        bounds_ns=[outcome.bounds_ns[size] for size in question.sizes],
        bound_methods=[
            None if bound is None else bound.method for bound in outcome.bounds.values()
        ],
        winners=[ranking[0].algorithm if ranking else None for ranking in rankings],
        baselines=list_baselines(outcome, winner_times_ns),
        measured=create_measured_item(outcome),
        results=list_results(outcome),
        runtime=UNSET if question.runtime == IDEAL else question.runtime,
        is_partial=bool(outcome.cuts),
        cut=list_cuts(outcome.cuts),
        variations=variations or UNSET,
        robustness=robustness if variations else UNSET,
    )


def list_results(outcome: ComparisonOutcome) -> list[ComparedResult]:
    """Return the record of every measurement of an outcome, in order."""
    return [create_result(outcome, measurement) for measurement in outcome.measurements]


def comparison_csv(outcome: ComparisonOutcome) -> bytes:
    """Return the measurements as CSV in UTF-8, with a header (`_CSV_COLUMNS`) and LF line ends.

    There is one line per algorithm and size, in the order of measuring, also for failures.
    The values are those of `create_result`, unrounded; unknown ones are empty.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in list_results(outcome):
        fields = to_json(result)
        writer.writerow({name: "" if value is None else value for name, value in fields.items()})
    return text.getvalue().encode("utf-8")


def _format_row(outcome: ComparisonOutcome, size: int) -> list[str]:
    ranking = outcome.ranking(size)
    if not ranking:
        return [format_bytes(size), "none", "", "", "", "", ""]
    best = ranking[0]
    result = create_result(outcome, best)
    ratio = result.ratio_to_bound
    # Algorithms that are faster than the winner have more messages.
    best_ns = best.time_ns or 1
    slower = [one for one in ranking[1:] if (one.time_ns or 1) >= best_ns]
    lead = ""
    if slower:
        lead_percent = 100 * ((slower[0].time_ns or 1) / best_ns - 1)
        lead = f"{lead_percent:.1f} % ({slower[0].algorithm})"
    return [
        format_bytes(size),
        best.algorithm,
        format_time(float(best.time_ns or 0)),
        _format_bandwidth(result.algorithm_bandwidth_bytes_per_s),
        _format_bandwidth(result.bus_bandwidth_bytes_per_s),
        "" if ratio is None else f"{ratio:.3f}",
        lead,
    ]


def list_message_notes(outcome: ComparisonOutcome) -> list[str]:
    """Return a line for every size whose winner takes longer than the fastest algorithm.

    The winner of a size is the algorithm with the fewest messages within 1 % of the best time
    (`ComparisonOutcome.ranking`). A line gives the size, the number of messages of both
    algorithms, and by how many percent the winner takes longer. Lines are in the order of the
    sizes. Sizes without any time, or whose winner has the best time, give no line.
    """
    lines = []
    for size in outcome.question.sizes:
        ranking = outcome.ranking(size)
        winner = ranking[0] if ranking else None
        fastest = min(ranking, key=lambda one: one.time_ns or 0, default=None)
        if winner is None or fastest is None or winner.time_ns == fastest.time_ns:
            continue
        slowdown = (winner.time_ns or 1) / (fastest.time_ns or 1) - 1
        lines.append(
            f"{format_bytes(size)}: {winner.algorithm} has {winner.messages} messages instead of "
            f"{fastest.messages} of {fastest.algorithm}, and takes {100 * slowdown:.2f} % longer"
        )
    return lines


def _format_bandwidth(value: float | None) -> str:
    """Format a bandwidth in bytes/s; empty for None."""
    return "" if value is None else format_bandwidth(value)


def create_result(outcome: ComparisonOutcome, measurement: AlgorithmAtSize) -> ComparedResult:
    """Return the record of a measurement (an algorithm at a size) for reports.

    The time is in ns, the size in bytes of the full buffer, bandwidths in bytes/s:

    - algorithm bandwidth: size divided by time
    - bus bandwidth: the algorithm bandwidth times 2 (n - 1) / n for an all-reduce of n ranks, 1
      for broadcast and reduce, (n - 1) / n for other collectives, as nccl-tests define it; None
      for custom collectives

    Both are None without a time or for time 0. `ratio_to_bound` is the time divided by the
    bound of the size, None if one of them is missing. An empty protocol or failure becomes
    None. The other fields are copied from the measurement.
    """
    collective, size = outcome.question.collective, measurement.size
    time_s = measurement.time_ns / 1e9 if measurement.time_ns else None
    return ComparedResult(
        algorithm=measurement.algorithm,
        size=size,
        time_ns=measurement.time_ns,
        algorithm_bandwidth_bytes_per_s=algorithm_bandwidth(size, time_s) if time_s else None,
        bus_bandwidth_bytes_per_s=bus_bandwidth(collective, size, time_s) if time_s else None,
        ratio_to_bound=outcome.ratio(measurement),
        made_for=measurement.made_for,
        instances=measurement.instances,
        protocol=measurement.protocol or None,
        pieces=measurement.pieces,
        messages=measurement.messages,
        failure=measurement.failure or None,
    )


def check_picture(out: str, registry: Registry) -> None:
    """Raise an error if no plugin can draw a comparison to the file `out`.

    This is checked before the comparison, which may take hours. Only the suffix of the file
    name is checked, not whether the file can be written. Raises `PluginError` (`not-available`)
    if no installed plugin draws comparisons. Otherwise raises `UsageError` (`picture-format`)
    if `out` ends with none of the suffixes of all these plugins (case matters); it lists them.
    """
    offers = [provided.offer for provided in registry.all(ReportWriter)]
    suffixes = [
        suffix
        for offer in offers
        if offer.shows is Shown.COMPARISON
        for suffix in offer.format.suffixes
    ]
    if not suffixes:
        cure = "install one, such as the distribution that draws networks"
        raise PluginError("no installed plugin draws comparisons", cure=cure, code="not-available")
    if not out.endswith(tuple(suffixes)):
        known = ", ".join(sorted(suffixes))
        raise UsageError(
            f"--picture {out}: its suffix is none of {known}",
            cure=f"name a file that ends so, as --picture comparison{min(suffixes)}",
            code="picture-format",
        )


def create_picture_request(outcome: ComparisonOutcome) -> BandwidthComparison:
    """Return the request for a picture: the bus bandwidths of all algorithms, and of the bound.

    The title names the collective, the network, the number of ranks and the backend. `series` has
    one entry per algorithm, in the order of their first measurements. Each has one value in bytes/s
    per size of the comparison, in the same order. It is None without a time or for time 0.
    Algorithms without a value above 0 are omitted.

    `bound` is a series named "bound" with the bandwidths that follow from the bounds, None at sizes
    without a bound or with a bound of 0. It is never omitted. For a custom collective, `series` is
    empty and all values of `bound` are None. The bounds are computed here if `outcome` has not
    cached them, which may take long.
    """
    question = outcome.question
    times: dict[str, dict[int, int | None]] = {}
    for measurement in outcome.measurements:
        times.setdefault(measurement.algorithm, {})[measurement.size] = measurement.time_ns
    series = []
    for name, by_size in times.items():
        bandwidths = tuple(
            _compute_bus_bandwidth(outcome, size, by_size.get(size)) for size in question.sizes
        )
        if any(bandwidths):
            series.append(BandwidthSeries(name, bandwidths))
    bounds = tuple(
        _compute_bus_bandwidth(outcome, size, outcome.bounds_ns[size]) for size in question.sizes
    )
    return BandwidthComparison(
        f"{question.kind} on {outcome.topology.name}, {question.num_npus} ranks, timed by "
        f"{question.backend}",
        sizes=question.sizes,
        series=series,
        bound=BandwidthSeries("bound", bounds),
    )


def _compute_bus_bandwidth(
    outcome: ComparisonOutcome, size: int, time_ns: float | None
) -> float | None:
    """Compute the bus bandwidth as nccl-tests define it, in bytes/s; None without a time."""
    return bus_bandwidth(outcome.question.collective, size, time_ns / 1e9) if time_ns else None
