"""The runtime's default in comparisons: NCCL's predicted time, gains over it, and certain winners.

Gains compare times of the same kind: they are computed only if the simulator models machines. The
time of the default is measured or, on a known machine, predicted. A predicted time p with the error
e stands for times from p / (1 + e) to p / (1 - e); a measured time is exact. A choice is certain
only if its band is below those of all others; else the default stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collhub_machine_profiles.nccl_baseline import (
    NCCL_COST,
    NcclBaseline,
    count_nodes,
    predict_baseline,
)

from collhub_tuning.comparison_records import BaselineItem
from collhub_tuning.measured_curves import find_timed_profile, held_out_error
from collhub_tuning.served_calls import format_sizes
from hub_core.model import format_bytes, format_time
from hub_core.plugin_api import Library

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.tuned_collectives import TunedCollective

HEADER = ("size", "NCCL today", "channels", "time", "by", "gain of the winner")
RIGHT = ("size", "channels", "time", "gain of the winner")
TUNED_HEADER = ("collective", "sizes", "algorithm", "NCCL today", "gain")
NO_GAIN_NOTE = (
    "no gains over NCCL: the times are those of nominal links, NCCL's are those of the machine"
)

Baselines = Mapping[int, NcclBaseline]


def find_baselines(outcome: ComparisonOutcome) -> Baselines:
    """Predict, for each size, NCCL's time and if possible its algorithm and protocol.

    The machine is the profile that the simulator's option `machine` names, otherwise the
    one that the topology names. A prediction is that of `predict_baseline`: its time is
    that of the profile, otherwise the cost in NCCL's model. Its `choice` is None if the
    algorithm and protocol are unknown, as on GPUs whose channels are unknown. Sizes without
    a predicted time are missing, so the result is empty if neither the profile nor NCCL's
    cost model covers the collective and these ranks. Raises `InputError` for a defect of
    the profile, and `ValueError` if NCCL's model allows no algorithm. Not cached here;
    `ComparisonOutcome.baselines` caches it.
    """
    question = outcome.question
    profile = find_timed_profile(outcome.timing.options)
    baselines = {}
    for size in question.sizes:
        baseline = predict_baseline(outcome.topology, question.kind, size, profile=profile)
        if baseline is not None:
            baselines[size] = baseline
    return baselines


def models_machines(outcome: ComparisonOutcome) -> bool:
    """Whether the times of an outcome are those of a machine, not of nominal links."""
    return outcome.timing.machine is not None


def is_within_error(outcome: ComparisonOutcome, baseline: NcclBaseline, gain: float) -> bool:
    """Return whether a gain is too small to decide which of its two times is faster.

    That is, its absolute value is at most the sum of the held-out error of the simulation and the
    median error of the baseline. All three are fractions; an unknown error counts as 0.
    """
    simulated_error = held_out_error(outcome.timing) or 0.0
    return abs(gain) <= simulated_error + (baseline.median_error or 0.0)


def compute_gain(baseline: NcclBaseline, time_ns: int | None) -> float | None:
    """Return NCCL's time divided by `time_ns`, minus 1: positive if the algorithm is faster.

    None without a time or for time 0.
    """
    return baseline.time_us * 1e3 / time_ns - 1 if time_ns else None


def baseline_rows(outcome: ComparisonOutcome) -> list[list[str]]:
    """Return one row of six texts per size at which NCCL's time (the baseline) is known.

    Rows are in the order of the sizes of the comparison. The columns (`HEADER`):

    1. Size, such as `16 KiB`.
    2. Algorithm and protocol, such as `ring ll`, or `NCCL` if they are unknown.
    3. Number of channels, "" if unknown.
    4. NCCL's time.
    5. Method, machine and error of this time (`format_origin`).
    6. Gain of the winner (`ranking`): NCCL's time divided by its time, minus 1, such as `+12.3
       %`. The text `, within the errors` follows if `is_within_error` holds. "" if no algorithm
       has a time, the winner's time is 0, or the times are not those of a machine.
    """
    has_gains = models_machines(outcome)
    rows = []
    for size, baseline in outcome.baselines.items():
        ranking = outcome.ranking(size)
        gain = compute_gain(baseline, ranking[0].time_ns) if ranking and has_gains else None
        gain_text = ""
        if gain is not None:
            note = ", within the errors" if is_within_error(outcome, baseline, gain) else ""
            gain_text = f"{format_gain(gain)}{note}"
        rows.append(
            [
                format_bytes(size),
                baseline.name,
                "" if baseline.choice is None else str(baseline.choice.channels),
                format_time(baseline.time_us * 1e3),
                format_origin(baseline),
                gain_text,
            ]
        )
    return rows


def tuned_baseline_rows(tuned: Sequence[TunedCollective]) -> list[list[str]]:
    """Return one row of five texts per window of sizes that has at least one size with a baseline.

    A window is a range of sizes with one algorithm. A baseline is NCCL's known time at a size
    of the comparison. Rows are in the order of the collectives, then of their windows. The
    columns (`TUNED_HEADER`):

    1. Label of the collective.
    2. Range of sizes (`format_sizes`).
    3. Algorithm of the window.
    4. Names of the baselines such as `ring ll`, each once, in the order of the sizes, separated
       by commas.
    5. Smallest and largest gain, such as `+1.0 % .. +12.3 %`, or one text if the two are equal.
       A gain is NCCL's time divided by the algorithm's time at the size, minus 1. Sizes at
       which the algorithm has no time, or time 0, do not count. "" if none counts or the times
       are not those of a machine.
    """
    rows = []
    for collective in tuned:
        baselines = collective.outcome.baselines
        has_gains = models_machines(collective.outcome)
        for window in collective.windows:
            times_ns = {
                size: collective.times.time_ns(window.algorithm, size)
                for size in window.sizes
                if size in baselines
            }
            if not times_ns:
                continue
            gains = [compute_gain(baselines[size], time_ns) for size, time_ns in times_ns.items()]
            known = [gain for gain in gains if gain is not None]
            extremes = dict.fromkeys((min(known), max(known))) if known and has_gains else {}
            rows.append(
                [
                    collective.label,
                    format_sizes(window.min_bytes, window.max_bytes),
                    window.algorithm,
                    ", ".join(dict.fromkeys(baselines[size].name for size in times_ns)),
                    " .. ".join(format_gain(gain) for gain in extremes),
                ]
            )
    return rows


def list_baselines(
    outcome: ComparisonOutcome, times_ns: Mapping[int, int | None]
) -> list[BaselineItem | None]:
    """Return NCCL's own choice and time (the baseline) for each size, in the order of sizes.

    A size without a baseline has None. Otherwise the item has the time rounded to ns, NCCL's
    version, the method and its median error (a fraction or None). Algorithm, protocol and
    channels are None for an unknown choice; the machine is None without a profile.

    `gain` is NCCL's time divided by that of `times_ns` (by size, in ns), minus 1, rounded to
    4 decimals. `within_errors` is whether the gain before rounding is, in magnitude, at most
    the sum of both errors; an unknown error is 0. Both are None if the time is missing or 0,
    or if the comparison has no machine.
    """
    has_gains = models_machines(outcome)
    items: list[BaselineItem | None] = []
    for size in outcome.question.sizes:
        baseline = outcome.baselines.get(size)
        if baseline is None:
            items.append(None)
            continue
        choice = baseline.choice
        gain = compute_gain(baseline, times_ns.get(size)) if has_gains else None
        items.append(
            BaselineItem(
                size=size,
                library=f"NCCL {baseline.version}",
                machine=baseline.machine or None,
                algorithm=None if choice is None else choice.algorithm,
                protocol=None if choice is None else choice.protocol,
                channels=None if choice is None else choice.channels,
                time_ns=round(baseline.time_us * 1e3),
                method=baseline.method,
                median_error=baseline.median_error,
                gain=None if gain is None else round(gain, 4),
                within_errors=None if gain is None else is_within_error(outcome, baseline, gain),
            )
        )
    return items


def format_origin(baseline: NcclBaseline) -> str:
    """Return the method, machine and error of a time, such as `interpolated, h100, error 3.1 %`.

    An empty machine, and a median error that is unknown or 0, are omitted.
    """
    parts = [baseline.method]
    if baseline.machine:
        parts.append(baseline.machine)
    if baseline.median_error:
        parts.append(f"error {100 * baseline.median_error:.1f} %")
    return ", ".join(parts)


def format_gain(gain: float) -> str:
    """Return a gain in percent with sign: `+12.3 %` if NCCL takes 12.3 % longer."""
    return f"{100 * gain:+.1f} %"


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
        """Return the range that contains a time in us: time / (1 + error) to time / (1 - error).

        `error`: relative; for 1 or more, there is no upper limit. Error 0 means that the time was
        measured. None means an unknown error: the range is 0 to infinity.
        """
        if error is None:
            return cls(time_us, 0.0, math.inf)
        high_us = time_us / (1 - error) if error < 1 else math.inf
        return cls(time_us, time_us / (1 + error), high_us)

    @property
    def is_measured(self) -> bool:
        """Whether the lower and the upper limit are equal, that is, the time has no error."""
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
        """Return by which kind of time the winner of this size is known.

        - No certain winner (None): `undecided`.
        - An algorithm: `measured` if its time is measured, otherwise `simulated`.
        - The library's default (the winner ""): `measured` if its time is measured, otherwise
          `predicted`, also without a time.
        """
        if self.winner is None:
            return "undecided"
        if self.winner:
            return "measured" if self.candidates[self.winner].is_measured else "simulated"
        is_measured = self.default is not None and self.default.band.is_measured
        return "measured" if is_measured else "predicted"


def find_default_time(outcome: ComparisonOutcome, size: int) -> DefaultTime | None:
    """Return the time in us of the runtime's default at a size in bytes; None if it is unknown.

    The first rule that applies:

    1. A library was measured at exactly this size: the library with the shortest time (of equal
       ones the first), with error 0.
    2. `outcome` has no times of a machine, or no baseline of NCCL at this size: None.
    3. The baseline of NCCL and its version, with a relative error e: the range is time / (1 + e) to
       time / (1 - e). It has no upper limit if e is 1 or more.

    e is 24.3 % (`NCCL_COST_ERROR`) for NCCL's cost model on one node, otherwise the baseline's
    median error, but at least 3 % (`REPEAT_ERROR`). If e is unknown, the range is 0 to infinity.
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
    """Return the range of time in us of each algorithm at a size in bytes, by ascending time.

    Only algorithms with a simulated time at this size count. The time and its range are:

    - The algorithm was also measured at the size: the measured time, without error.
    - Otherwise: the simulated time t, with the held-out error e of the timing (relative). The range
      is t / (1 + e) to t / (1 - e), without an upper limit for e of 1 or more. If e is unknown, it
      is 0 to infinity.

    Equal times keep the order of the measurements. The result is {} if no algorithm has a time.
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
    """Decide at a size between the library's default and the algorithms, by their ranges of time.

    The winner of the result is determined by the first rule that applies:

    1. The default has no known time: None (undecided).
    2. An algorithm is certainly faster than the default (`find_winners`): the first of
       them.
    3. The upper limit of the default's range is at most the lower limit of every algorithm,
       or there is no algorithm: "" (the default).
    4. Otherwise: None (undecided).

    Returns None instead of a decision if neither the default nor an algorithm has a time.
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
    """Return the algorithms that are certainly faster than the library's default.

    An algorithm is a candidate for the result if the upper limit of its range of time is
    below the lower limit of the default's range. If some of these candidates were measured,
    a simulated one also needs an upper limit below the shortest of their measured times.
    The order is that of the argument `candidates`. The list is empty if no algorithm is
    certainly faster.
    """
    winners = {
        name: band for name, band in candidates.items() if band.high_us < default.band.low_us
    }
    measured = [band.time_us for band in winners.values() if band.is_measured]
    limit = min(measured, default=math.inf)
    return [name for name, band in winners.items() if band.is_measured or band.high_us < limit]
