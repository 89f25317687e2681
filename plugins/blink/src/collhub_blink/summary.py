"""What the synthesizer tells about its result, for people and for `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.dividing import Divided
from collhub_blink.scheduling.timed import TimedSchedule
from hub_core.model import JsonValue

Statistics = dict[str, JsonValue]


def statistics_of(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    best: TimedSchedule,
) -> Statistics:
    """The chosen packing, and the front of those at the optimal rate."""
    packing = best.packing
    # Else only the lower bound is known.
    is_proved = packing.status == "optimal"
    front = [f"{len(p.trees)} x {p.depth}" for p in packings if not p.is_shallow]
    found: Statistics = {
        "method": packing.method,
        "trees": len(packing.trees),
        "fewest trees": packing.at_least if is_proved else f"at least {packing.at_least}",
        "depth": packing.depth,
        "chunks": best.scheduled.chunks,
        "rate GB/s": _gb_per_s(packing.rate),
        "best rate GB/s": _gb_per_s(packing.bound.rate),
        "trees x depth": ", ".join(front),
    }
    return _with_interrupt(found, best.is_interrupted or task.budget.is_interrupted)


def statistics_of_planes(best: Divided, bound: RateBound) -> Statistics:
    """As for one plane, a value per plane that carries anything.

    The rate of all is the sum of the planes', the best rate that of all links.
    """
    shares = best.shares
    packings = [share.packing for share in shares]
    methods = [f"plane {share.plane.number}: {share.packing.method}" for share in shares]
    found: Statistics = {
        "method": "; ".join(methods),
        "share %": ", ".join(f"{float(100 * share.part):.4g}" for share in shares),
        "trees": ", ".join(str(len(packing.trees)) for packing in packings),
        "depth": ", ".join(str(packing.depth) for packing in packings),
        "chunks": ", ".join(str(share.made.scheduled.chunks) for share in shares),
        "rate GB/s": ", ".join(f"{_gb_per_s(packing.rate):.6g}" for packing in packings),
        "best rate GB/s": _gb_per_s(bound.rate),
    }
    is_cut_short = any(share.plane.task.budget.is_interrupted for share in shares)
    return _with_interrupt(found, best.is_interrupted or is_cut_short)


def _gb_per_s(bytes_per_s: Fraction) -> float:
    return float(bytes_per_s) / 1e9


def _with_interrupt(found: Statistics, is_interrupted: bool) -> Statistics:
    """Stated only where it happened."""
    return {**found, "interrupted": True} if is_interrupted else found
