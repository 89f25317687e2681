"""A comparison as a picture: what `--picture` asks the plugin that draws for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collhub_execution import bus_bandwidth

from collhub_tuning.comparison_report import ComparisonOutcome
from hub_core.model import PluginError, UsageError
from hub_core.plugin_api import BandwidthSeries, ReportRequest, ReportWriter, Shown

if TYPE_CHECKING:
    from hub_core import Registry


def check_picture(out: str, registry: Registry) -> None:
    """Refuse a file that nobody draws before hours are spent on what it shows.

    Raises `PluginError` where no plugin draws comparisons, `UsageError` for another suffix.
    """
    offers = [found.offer for found in registry.all(ReportWriter)]
    suffixes = [
        end for one in offers if one.shows is Shown.COMPARISON for end in one.format.suffixes
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


def picture_request(outcome: ComparisonOutcome) -> ReportRequest:
    """Bus bandwidths of all algorithms that have one, and of the bound."""
    question = outcome.question
    times: dict[str, dict[int, int | None]] = {}
    for one in outcome.measurements:
        times.setdefault(one.algorithm, {})[one.size] = one.time_ns
    series = []
    for name, by_size in times.items():
        bandwidths = tuple(_bandwidth(outcome, size, by_size.get(size)) for size in question.sizes)
        if any(bandwidths):
            series.append(BandwidthSeries(name, bandwidths))
    bounds = tuple(_bandwidth(outcome, size, outcome.bounds_ns[size]) for size in question.sizes)
    return ReportRequest(
        f"{question.kind} on {outcome.topology.name}, {question.num_npus} ranks, timed by "
        f"{question.backend}",
        sizes=question.sizes,
        series=series,
        bound=BandwidthSeries("bound", bounds),
    )


def _bandwidth(outcome: ComparisonOutcome, size: int, time_ns: float | None) -> float | None:
    """Bus bandwidth as nccl-tests define it, in bytes per second; None without a time."""
    return bus_bandwidth(outcome.question.collective, size, time_ns / 1e9) if time_ns else None
