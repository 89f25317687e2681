"""The baseline of comparisons: what NCCL does today on a known machine, and gains over it.

Gains compare times of the same kind: they are computed only if the simulator models machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from collhub_machine_profiles.nccl_baseline import Baseline, predict_baseline

from collhub_tuning.measured_curves import find_timed_profile, held_out_error
from hub_core.model import format_bytes, format_time

if TYPE_CHECKING:
    from collhub_tuning.comparison_report import ComparisonOutcome
    from collhub_tuning.tuned_collectives import TunedCollective
    from hub_core.model import JsonValue

HEADER = ("size", "NCCL today", "channels", "time", "by", "gain of the winner")
RIGHT = ("size", "channels", "time", "gain of the winner")
TUNED_HEADER = ("collective", "sizes", "algorithm", "NCCL today", "gain")
NO_GAIN_NOTE = (
    "no gains over NCCL: the times are those of nominal links, NCCL's are those of the machine"
)

Baselines = Mapping[int, Baseline]


def find_baselines(outcome: ComparisonOutcome) -> Baselines:
    """Predict NCCL's choice and time by size, for sizes at which they are known.

    `ComparisonOutcome.baselines` keeps the result. The machine is that of the times, else the one
    that the topology names. Empty for topologies of no known machine, and for collectives that NCCL
    lacks.
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


def is_within_error(outcome: ComparisonOutcome, baseline: Baseline, gain: float) -> bool:
    """Whether the held-out errors of both times exceed a gain: the faster one is undecided."""
    simulated_error = held_out_error(outcome.timing) or 0.0
    return abs(gain) <= simulated_error + (baseline.median_error or 0.0)


def compute_gain(baseline: Baseline, time_ns: int | None) -> float | None:
    """Return NCCL's time divided by a time, minus 1; None without a time."""
    return baseline.time_us * 1e3 / time_ns - 1 if time_ns else None


def baseline_rows(outcome: ComparisonOutcome) -> list[list[str]]:
    """Return one row per size with a baseline; without a gain for nominal links."""
    has_gains = models_machines(outcome)
    rows = []
    for size, baseline in outcome.baselines.items():
        ranking = outcome.ranking(size)
        gain = compute_gain(baseline, ranking[0].time_ns) if ranking and has_gains else None
        rows.append(
            [
                format_bytes(size),
                baseline.name,
                "" if baseline.choice is None else str(baseline.choice.channels),
                format_time(baseline.time_us * 1e3),
                format_origin(baseline),
                "" if gain is None else _format_judged_gain(outcome, baseline, gain),
            ]
        )
    return rows


def _format_judged_gain(outcome: ComparisonOutcome, baseline: Baseline, gain: float) -> str:
    note = ", within the errors" if is_within_error(outcome, baseline, gain) else ""
    return f"{format_gain(gain)}{note}"


def tuned_baseline_rows(tuned: Sequence[TunedCollective]) -> list[list[str]]:
    """Return one row per window of collectives with a baseline: NCCL's choices, range of gains."""
    from collhub_tuning.coverage import format_sizes  # Imported here: coverage imports reports.

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


def baselines_to_json(
    outcome: ComparisonOutcome, times_ns: Mapping[int, int | None]
) -> list[JsonValue]:
    """Return one object per size of the question, null without a baseline.

    `times_ns`: times that the gains refer to, by size. A gain is a fraction, null on nominal links.
    """
    has_gains = models_machines(outcome)
    objects: list[JsonValue] = []
    for size in outcome.question.sizes:
        baseline = outcome.baselines.get(size)
        if baseline is None:
            objects.append(None)
            continue
        choice = baseline.choice
        gain = compute_gain(baseline, times_ns.get(size)) if has_gains else None
        objects.append(
            {
                "size": size,
                "library": f"NCCL {baseline.version}",
                "machine": baseline.machine or None,
                "algorithm": None if choice is None else choice.algorithm,
                "protocol": None if choice is None else choice.protocol,
                "channels": None if choice is None else choice.channels,
                "time_ns": round(baseline.time_us * 1e3),
                "method": baseline.method,
                "median_error": baseline.median_error,
                "gain": None if gain is None else round(gain, 4),
                "within_errors": None if gain is None else is_within_error(outcome, baseline, gain),
            }
        )
    return objects


def format_origin(baseline: Baseline) -> str:
    """Return method, machine and error of a time: `interpolated, h100, error 3.1 %`."""
    parts = [baseline.method]
    if baseline.machine:
        parts.append(baseline.machine)
    if baseline.median_error:
        parts.append(f"error {100 * baseline.median_error:.1f} %")
    return ", ".join(parts)


def format_gain(gain: float) -> str:
    """Format a gain: `+12.3 %` if NCCL takes 12.3 % longer."""
    return f"{100 * gain:+.1f} %"
