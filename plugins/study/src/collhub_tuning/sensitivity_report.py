"""How robust a choice is: winners by size and variation, and how far the choice falls behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collhub_tuning.comparison_report import ComparisonOutcome, measurement_fields
from hub_core.model import format_bytes

if TYPE_CHECKING:
    from hub_core.model import JsonValue


@dataclass(frozen=True)
class VariedOutcome:
    """What a comparison found on a network that differs from the given one."""

    name: str
    outcome: ComparisonOutcome


@dataclass(frozen=True, slots=True)
class Robustness:
    """The winner of a size on the network as given, held against all variations.

    `wins`: variations in which nothing is faster. `worst_ratio`: its time over the best, the most
    of all variations, in `worst_variation`. `missing`: variations in which it has no time.
    """

    size: int
    winner: str
    wins: int
    worst_ratio: float
    worst_variation: str
    missing: tuple[str, ...]


def robustness(
    base: ComparisonOutcome, varied: Sequence[VariedOutcome], size: int
) -> Robustness | None:
    """How the winner of a size fares in all variations; None where there is no winner."""
    ranking = base.ranking(size)
    if not ranking:
        return None
    winner = ranking[0].algorithm
    wins, worst, where = 0, 1.0, ""
    missing = []
    for one in varied:
        ratio = _ratio(one.outcome, size, winner)
        if ratio is None:
            missing.append(one.name)
            continue
        wins += ratio == 1.0
        if ratio > worst:
            worst, where = ratio, one.name
    return Robustness(size, winner, wins, worst, where, tuple(missing))


def sensitivity_header(varied: Sequence[VariedOutcome]) -> list[str]:
    """The names of the columns of `sensitivity_rows`."""
    # As many columns as variations.
    return ["size", "as given", *(one.name for one in varied)]


def sensitivity_rows(base: ComparisonOutcome, varied: Sequence[VariedOutcome]) -> list[list[str]]:
    """A line a size: the winner on the network as given, then that of every variation."""
    rows = []
    for size in base.question.sizes:
        ranking = base.ranking(size)
        chosen = ranking[0].algorithm if ranking else ""
        winners = [_winner(one.outcome, size, chosen) for one in varied]
        rows.append([format_bytes(size), chosen or "none", *winners])
    return rows


def sensitivity_lines(base: ComparisonOutcome, varied: Sequence[VariedOutcome]) -> list[str]:
    """A line a size: `1 MiB: ring wins in 4 of 5, at most 12.0 % behind (latency=10.00 us)`."""
    found = [robustness(base, varied, size) for size in base.question.sizes]
    return [_line(one, len(varied)) for one in found if one is not None]


def sensitivity_document(
    base: ComparisonOutcome, varied: Sequence[VariedOutcome]
) -> dict[str, JsonValue]:
    """What `report-compare-1` says of variations, beside what it says of the network as given."""
    networks: list[JsonValue] = []
    for one in varied:
        results: list[JsonValue] = [
            dict(measurement_fields(one.outcome, found)) for found in one.outcome.measurements
        ]
        rankings = [one.outcome.ranking(size) for size in base.question.sizes]
        winners: list[JsonValue] = [found[0].algorithm if found else None for found in rankings]
        bounds: list[JsonValue] = [one.outcome.bounds_ns[size] for size in base.question.sizes]
        networks.append(
            {"name": one.name, "bounds_ns": bounds, "winners": winners, "results": results}
        )
    found = [robustness(base, varied, size) for size in base.question.sizes]
    return {"variations": networks, "robustness": [_object(one) for one in found]}


def _object(one: Robustness | None) -> JsonValue:
    if one is None:
        return None
    return {
        "size": one.size,
        "winner": one.winner,
        "wins": one.wins,
        "worst_ratio": one.worst_ratio,
        "worst_variation": one.worst_variation or None,
        "missing": list(one.missing),
    }


def _line(one: Robustness, total: int) -> str:
    text = f"{format_bytes(one.size)}: {one.winner} wins in {one.wins} of {total}"
    if one.worst_variation:
        behind = 100 * (one.worst_ratio - 1)
        text += f", at most {behind:.1f} % behind ({one.worst_variation})"
    if one.missing:
        text += f", does not take part in {', '.join(one.missing)}"
    return text


def _ratio(outcome: ComparisonOutcome, size: int, name: str) -> float | None:
    """The time of an algorithm over the best of a size; None where it has no time."""
    ranking = outcome.ranking(size)
    times = [one.time_ns for one in ranking if one.algorithm == name]
    if not times or not ranking[0].time_ns or not times[0]:
        return None
    return times[0] / ranking[0].time_ns


def _winner(outcome: ComparisonOutcome, size: int, chosen: str) -> str:
    """The fastest; of equal ones, the one that is chosen as the network is given."""
    if _ratio(outcome, size, chosen) == 1.0:
        return chosen
    ranking = outcome.ranking(size)
    return ranking[0].algorithm if ranking else "none"
