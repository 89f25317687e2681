"""Decide at each size between the runtime's default and the algorithms of a comparison.

The time of the default is measured or, on a known machine, predicted. A predicted time p with the
error e stands for times from p / (1 + e) to p / (1 - e); a measured time is exact. A choice is
certain only if its band is below those of all others; else the default stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collhub_machine_profiles.nccl_baseline import NCCL_COST
from collhub_machine_profiles.nccl_communicators import count_nodes

from collhub_tuning.baseline import models_machines
from collhub_tuning.measured_curves import held_out_error
from hub_core.plugin_api import Library

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome

NCCL_COST_ERROR = 0.243
"""Median error of NCCL's cost model on 1 197 measured calls of one NVLink node."""
REPEAT_ERROR = 0.03
"""Largest median difference between repeated runs of one machine: that of a profile's own points,
which were measured on another machine of the kind."""


@dataclass(frozen=True, slots=True)
class TimeBand:
    """A time in us and the limits between which the real time lies; exact if they are equal."""

    time_us: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, time_us: float, error: float | None) -> TimeBand:
        """Return the band of a time with a relative error: 0 if measured, None if unknown."""
        if error is None:
            return cls(time_us, 0.0, math.inf)
        high_us = time_us / (1 - error) if error < 1 else math.inf
        return cls(time_us, time_us / (1 + error), high_us)

    @property
    def is_measured(self) -> bool:
        """Whether the time is exact."""
        return self.low_us == self.high_us


@dataclass(frozen=True, slots=True)
class DefaultTime:
    """Time of the runtime's default: of the fastest measured library, else of NCCL as predicted."""

    library: Library
    band: TimeBand

    def __str__(self) -> str:
        return str(self.library) if self.band.is_measured else f"{self.library} as predicted"


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """Decision at a size.

    `default`: None if its time is neither measured nor predicted. `candidates`: bands by algorithm,
    the shortest time first. `winner`: the algorithm that certainly wins; "" if the default
    certainly does, None if neither is certain.
    """

    size: int
    default: DefaultTime | None
    candidates: Mapping[str, TimeBand]
    winner: str | None

    @property
    def kind(self) -> str:
        """`undecided`, or the kind of the winner's time: `measured`, `simulated`, `predicted`."""
        if self.winner is None:
            return "undecided"
        if self.winner:
            return "measured" if self.candidates[self.winner].is_measured else "simulated"
        is_measured = self.default is not None and self.default.band.is_measured
        return "measured" if is_measured else "predicted"


def find_default_time(outcome: ComparisonOutcome, size: int) -> DefaultTime | None:
    """Return the time of the runtime's default at a size; None if it is not known.

    It is that of the fastest measured library. Without a measurement it is NCCL's predicted time
    (`ComparisonOutcome.baselines`), if the times of the comparison are those of a machine.
    """
    fastest = None if outcome.measured is None else outcome.measured.fastest(size)
    if fastest is not None:
        library, time_us = fastest
        return DefaultTime(library, TimeBand.of(time_us, 0.0))
    baseline = outcome.baselines.get(size) if models_machines(outcome) else None
    if baseline is None:
        return None
    error = baseline.median_error
    if baseline.method == NCCL_COST and count_nodes(outcome.topology) == 1:
        error = NCCL_COST_ERROR
    if error is not None:
        error = max(error, REPEAT_ERROR)
    band = TimeBand.of(baseline.time_us, error)
    return DefaultTime(Library("NCCL", baseline.version), band)


def find_candidate_bands(outcome: ComparisonOutcome, size: int) -> dict[str, TimeBand]:
    """Return the bands of the algorithms at a size, the shortest time first.

    A measured time of an algorithm replaces its simulated one. Empty if no algorithm fits.
    """
    error = held_out_error(outcome.timing)
    measured = {} if outcome.measured is None else outcome.measured.algorithms
    bands = {}
    for one in outcome.measurements:
        if one.size != size or one.time_ns is None:
            continue
        time_us = measured.get(one.algorithm, {}).get(size)
        bands[one.algorithm] = (
            TimeBand.of(one.time_ns / 1e3, error) if time_us is None else TimeBand.of(time_us, 0.0)
        )
    return dict(sorted(bands.items(), key=lambda item: item[1].time_us))


def decide_size(outcome: ComparisonOutcome, size: int) -> SizeDecision | None:
    """Decide at a size between the default and the algorithms; None if neither has a time.

    An algorithm wins if it is certainly faster than the default; among several, a simulated one
    overrides a measured one only beyond its error. The default wins if it is certainly not slower
    than any algorithm, and without algorithms.
    """
    default, candidates = find_default_time(outcome, size), find_candidate_bands(outcome, size)
    if default is None:
        return SizeDecision(size, None, candidates, None) if candidates else None
    winners = find_winners(default, candidates)
    winner: str | None = None
    if winners:
        winner = winners[0]
    elif all(default.band.high_us <= band.low_us for band in candidates.values()):
        winner = ""
    return SizeDecision(size, default, candidates, winner)


def find_winners(default: DefaultTime, candidates: Mapping[str, TimeBand]) -> list[str]:
    """Return the algorithms that certainly beat the default, the shortest time first.

    Simulated ones that do not certainly beat the fastest measured one among them are left out.
    """
    winners = {
        name: band for name, band in candidates.items() if band.high_us < default.band.low_us
    }
    measured = [band.time_us for band in winners.values() if band.is_measured]
    limit = min(measured, default=math.inf)
    return [name for name, band in winners.items() if band.is_measured or band.high_us < limit]
