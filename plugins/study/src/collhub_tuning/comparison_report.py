"""The report of a comparison: JSON, CSV, and a table with the winner of every size."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from collhub_tuning.questions import ComparisonQuestion, Measurement
from hub_core import Diagnostic, ProvenBound, beaten_bound, best_bounds, cut_objects
from hub_core.model import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from hub_core import Registry
    from hub_core.model import JsonValue
    from hub_core.network import Topology
    from hub_core.plugin_api import SearchCut

HEADER = ("size", "winner", "time", "algorithm", "bus", "ratio to bound", "ahead of the next")
RIGHT = ("size", "time", "algorithm", "bus", "ratio to bound", "ahead of the next")
_CSV_COLUMNS = (
    *("algorithm", "size", "time_ns", "algorithm_bandwidth_bytes_per_s"),
    *("bus_bandwidth_bytes_per_s", "ratio_to_bound", "made_for", "failure"),
)


@dataclass(frozen=True)
class ComparisonOutcome:
    """All measurements of a question on its network, and what limits have cut of the searches."""

    question: ComparisonQuestion
    topology: Topology
    measurements: Sequence[Measurement]
    registry: Registry | None = None
    cuts: tuple[SearchCut, ...] = ()

    @cached_property
    def bounds(self) -> Mapping[int, ProvenBound | None]:
        """The best lower bound that is offered, by size; None where nothing is known."""
        sizes = self.question.sizes
        rankings = [self.ranking(size) for size in sizes]
        found = best_bounds(
            self.question.collective,
            self.topology,
            sizes,
            registry=self.registry,
            best_times_ps=[ranking[0].time_ps if ranking else None for ranking in rankings],
            is_thorough=True,
        )
        return dict(zip(sizes, found, strict=True))

    @cached_property
    def bounds_ns(self) -> Mapping[int, int | None]:
        """The bounds in whole nanoseconds, by size."""
        return {size: (bound and bound.time_ns) or None for size, bound in self.bounds.items()}

    def ratio(self, one: Measurement) -> float | None:
        """Time by bound, computed in picoseconds; None where one of them is missing."""
        bound = self.bounds[one.size]
        return None if bound is None else bound.ratio(one.time_ps, one.slack_ps)

    @cached_property
    def defects_by_algorithm(self) -> Mapping[str, Sequence[Diagnostic]]:
        """Findings for measurements that beat the bound of their size, by algorithm."""
        found: dict[str, list[Diagnostic]] = {}
        for one in self.measurements:
            bound = self.bounds[one.size]
            defect = beaten_bound(bound, one.time_ps, slack_ps=one.slack_ps, name=one.algorithm)
            if defect is not None:
                found.setdefault(one.algorithm, []).append(defect)
        return found

    def defects(self) -> list[Diagnostic]:
        """A finding for every measurement that beats the bound of its size."""
        return [defect for defects in self.defects_by_algorithm.values() for defect in defects]

    def ranking(self, size: int) -> list[Measurement]:
        """Measurements with a time at a size, the fastest first, of equal ones in their order."""
        timed = [one for one in self.measurements if one.size == size and one.time_ns is not None]
        return sorted(timed, key=lambda one: one.time_ns or 0)


def comparison_rows(outcome: ComparisonOutcome) -> list[list[str]]:
    """A line a size: the fastest algorithm and how far it is ahead."""
    # In the order that was asked for.
    return [_row(outcome, size) for size in outcome.question.sizes]


def comparison_failures(outcome: ComparisonOutcome) -> list[str]:
    """One line for every reason why algorithms have no time, with the sizes it is for."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for one in outcome.measurements:
        if one.time_ns is None:
            sizes.setdefault((one.algorithm, one.failure), []).append(one.size)
    # Most often the same with the algorithm's own name before it: `ring defines no all-to-all`.
    alike: dict[tuple[bool, str, tuple[int, ...]], list[str]] = {}
    for (algorithm, failure), failed in sizes.items():
        is_named = failure.startswith(f"{algorithm} ")
        reason = failure.removeprefix(f"{algorithm} ")
        alike.setdefault((is_named, reason, tuple(failed)), []).append(algorithm)
    total = len(outcome.question.sizes)
    lines = []
    for (is_named, reason, at), names in alike.items():
        part = "" if len(at) == total else f" at {', '.join(map(format_bytes, at))}"
        who, verb = (names[0], "does") if len(names) == 1 else ("each", "do")
        why = f"{who} {reason}" if is_named else reason
        lines.append(f"{', '.join(names)} {verb} not take part{part}: {why}")
    return lines


def comparison_document(outcome: ComparisonOutcome) -> dict[str, JsonValue]:
    """The report as `report-compare-1` describes it."""
    question = outcome.question
    results: list[JsonValue] = [
        dict(measurement_fields(outcome, one)) for one in outcome.measurements
    ]
    winners: list[JsonValue] = []
    for size in question.sizes:
        ranking = outcome.ranking(size)
        winners.append(ranking[0].algorithm if ranking else None)
    return {
        "schema": "collhub/report-compare-1",
        "collective": question.kind,
        "root": question.root,
        "num_ranks": question.num_npus,
        "topology": outcome.topology.name,
        "backend": question.backend,
        "sizes": list(question.sizes),
        "bounds_ns": [outcome.bounds_ns[size] for size in question.sizes],
        "bound_methods": [
            None if bound is None else bound.method for bound in outcome.bounds.values()
        ],
        "winners": winners,
        "results": results,
        "is_partial": bool(outcome.cuts),
        "cut": cut_objects(outcome.cuts),
    }


def comparison_csv(outcome: ComparisonOutcome) -> bytes:
    """A header, then a line for every algorithm and size."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in outcome.measurements:
        fields = measurement_fields(outcome, one)
        writer.writerow({name: "" if value is None else value for name, value in fields.items()})
    return text.getvalue().encode("utf-8")


def _row(outcome: ComparisonOutcome, size: int) -> list[str]:
    ranking = outcome.ranking(size)
    if not ranking:
        return [format_bytes(size), "none", "", "", "", "", ""]
    best = ranking[0]
    fields = measurement_fields(outcome, best)
    ratio = fields["ratio_to_bound"]
    return [
        format_bytes(size),
        best.algorithm,
        format_time(float(best.time_ns or 0)),
        _bandwidth(fields["algorithm_bandwidth_bytes_per_s"]),
        _bandwidth(fields["bus_bandwidth_bytes_per_s"]),
        f"{ratio:.3f}" if isinstance(ratio, float) else "",
        _lead(ranking),
    ]


def _lead(ranking: Sequence[Measurement]) -> str:
    """`12.3 % (ring)`: how much longer the second takes."""
    if len(ranking) < 2:
        return ""
    first, second = ranking[0].time_ns or 1, ranking[1].time_ns or 1
    return f"{100 * (second / first - 1):.1f} % ({ranking[1].algorithm})"


def _bandwidth(value: object) -> str:
    """Text of a bandwidth in bytes/s, empty for None."""
    return format_bandwidth(value) if isinstance(value, float) else ""


def measurement_fields(
    outcome: ComparisonOutcome, one: Measurement
) -> dict[str, str | int | float | None]:
    """What reports say of a measurement; bandwidths as nccl-tests define them."""
    # Imported here: the help of the command needs no numpy.
    from collhub_execution import algorithm_bandwidth, bus_bandwidth

    collective = outcome.question.collective
    time_s = one.time_ns / 1e9 if one.time_ns else None
    return {
        "algorithm": one.algorithm,
        "size": one.size,
        "time_ns": one.time_ns,
        "algorithm_bandwidth_bytes_per_s": (
            algorithm_bandwidth(one.size, time_s) if time_s else None
        ),
        "bus_bandwidth_bytes_per_s": (
            bus_bandwidth(collective, one.size, time_s) if time_s else None
        ),
        "ratio_to_bound": outcome.ratio(one),
        "made_for": one.made_for,
        "failure": one.failure or None,
    }
