"""Statistics of a result, for the terminal and for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.dividing import Division
from collhub_blink.scheduling.schedules import TimedSchedule
from hub_core.model import JsonValue

Statistics = dict[str, JsonValue]


def summarize_packing(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    best: TimedSchedule,
) -> Statistics:
    """Collect the statistics of the chosen schedule, and trees and depth of all full-rate packings.

    `packings`: all candidates; shallow ones are not listed.
    """
    packing = best.packing
    is_proved = packing.status == "optimal"
    trees_and_depths = [f"{len(p.trees)} x {p.depth}" for p in packings if not p.is_shallow]
    statistics: Statistics = {
        "method": packing.method,
        "trees": len(packing.trees),
        "fewest trees": packing.at_least if is_proved else f"at least {packing.at_least}",
        "depth": packing.depth,
        "chunks": best.schedule.chunks,
        "rate GB/s": _to_gb_per_s(packing.rate),
        "best rate GB/s": _to_gb_per_s(packing.bound.rate),
        "trees x depth": ", ".join(trees_and_depths),
    }
    return _add_interrupt(statistics, best.is_interrupted or task.budget.is_interrupted)


def summarize_planes(best: Division, bound: RateBound) -> Statistics:
    """Collect the statistics of a division, one value per plane that has a share.

    The rate is the sum of the planes' rates, the best rate that of all links.
    """
    shares = best.shares
    packings = [share.packing for share in shares]
    methods = [f"plane {share.plane.number}: {share.packing.method}" for share in shares]
    statistics: Statistics = {
        "method": "; ".join(methods),
        "share %": ", ".join(f"{float(100 * share.part):.4g}" for share in shares),
        "trees": ", ".join(str(len(packing.trees)) for packing in packings),
        "depth": ", ".join(str(packing.depth) for packing in packings),
        "chunks": ", ".join(str(share.timed_schedule.schedule.chunks) for share in shares),
        "rate GB/s": ", ".join(f"{_to_gb_per_s(packing.rate):.6g}" for packing in packings),
        "best rate GB/s": _to_gb_per_s(bound.rate),
    }
    is_proof_interrupted = any(share.plane.task.budget.is_interrupted for share in shares)
    return _add_interrupt(statistics, best.is_interrupted or is_proof_interrupted)


def _to_gb_per_s(bytes_per_s: Fraction) -> float:
    """Convert bytes per second to GB/s."""
    return float(bytes_per_s) / 1e9


def _add_interrupt(statistics: Statistics, is_interrupted: bool) -> Statistics:
    """Add the field `interrupted` if the search was interrupted."""
    return {**statistics, "interrupted": True} if is_interrupted else statistics
