"""Measured and predicted bus bandwidths of a machine as a picture."""

from __future__ import annotations

from collections.abc import Callable

from collhub_machine_profiles.calls import CollectiveCall

from collhub_machines.profile_check import CheckedPoint, ProfileCheck
from hub_core.plugin_api import BandwidthComparison, BandwidthSeries

_SHARED = frozenset({"all-gather", "reduce-scatter", "all-to-all"})


def picture_request(check: ProfileCheck, machine: str) -> BandwidthComparison:
    """Describe a picture: measurements, table, model and the band of the model's p90 error.

    Each configuration has its own series; the band is drawn as its lower and upper edge.
    """
    sizes = tuple(sorted({checked_point.point.size_bytes for checked_point in check.points}))
    groups: dict[str, list[CheckedPoint]] = {}
    for checked_point in check.points:
        point = checked_point.point
        groups.setdefault(f"{point.collective} of {point.ranks}, {point.library}", []).append(
            checked_point
        )
    p90 = check.compute_errors("model").p90_error
    values: list[tuple[str, Callable[[CheckedPoint], float | None]]] = [
        ("measured", lambda checked_point: checked_point.point.time_us),
        ("table", lambda checked_point: checked_point.table_us),
        ("model", lambda checked_point: checked_point.model_us),
    ]
    if p90:
        edge = 1 + p90
        values += [
            (
                "model, lower edge (p90)",
                lambda checked_point: checked_point.model_us and checked_point.model_us * edge,
            ),
            (
                "model, upper edge (p90)",
                lambda checked_point: checked_point.model_us and checked_point.model_us / edge,
            ),
        ]
    series = []
    for name, points in sorted(groups.items()):
        for label, time_of in values:
            by_size = {
                checked_point.point.size_bytes: bus_bandwidth(
                    checked_point.point, time_of(checked_point)
                )
                for checked_point in points
            }
            if any(by_size.values()):
                bandwidths = tuple(by_size.get(size) for size in sizes)
                series.append(BandwidthSeries(f"{name}: {label}", bandwidths))
    return BandwidthComparison(f"{machine}: measured and predicted", sizes=sizes, series=series)


def bus_bandwidth(call: CollectiveCall, time_us: float | None) -> float | None:
    """Return the bus bandwidth in bytes per second as nccl-tests define it; None without a time."""
    if not time_us:
        return None
    share = (call.ranks - 1) / call.ranks
    factor = 2 * share if call.collective == "all-reduce" else 1.0
    if call.collective in _SHARED:
        factor = share
    return call.size_bytes / (time_us * 1e-6) * factor
