"""The offer `ReportWriter`: a network, a run or a comparison becomes a picture or a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference

if TYPE_CHECKING:
    from hub_core.columns import Int64Array
    from hub_core.model.algorithm import Algorithm
    from hub_core.model.workload import Workload
    from hub_core.network.topology import Topology
    from hub_core.plugin_api.simulator import LinkLoad


class Shown(StrEnum):
    """What a report shows, and which fields of its request are set.

    TOPOLOGY: `topology`, and after a simulation its `link_loads` and `time_ns`, by `topology draw`.
    RUN: `algorithm`, `collective_bytes` and the times of its steps, by `--timeline` of `simulate`
    and `run`. JOB: `workload` and the times of its nodes, by `--timeline` of `simulate`.
    COMPARISON: `sizes`, `series` and `bound`, by `--picture` of `compare`.
    """

    TOPOLOGY = "topology"
    RUN = "run"
    JOB = "job"
    COMPARISON = "comparison"


@dataclass(frozen=True, slots=True)
class BandwidthSeries:
    """Bus bandwidths of one algorithm in bytes per second, one a size; None where there is none."""

    name: str
    bandwidths: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """What is to be shown; `title` names it.

    `step_start_ns`, `step_end_ns`: int64 per row of the steps or nodes, -1 for what never started
    (ended). `time_ns`: of the whole run, None where it never ends. `sizes`: of the full buffer, in
    bytes, ascending. `bound`: what no algorithm can exceed, as a series. `collapse`: whether groups
    of a topology are drawn as single nodes: `auto` (if it is large), `always` or `never`.
    """

    title: str
    topology: Topology | None = None
    algorithm: Algorithm | None = None
    workload: Workload | None = None
    collective_bytes: int = 0
    step_start_ns: Int64Array | None = None
    step_end_ns: Int64Array | None = None
    link_loads: Sequence[LinkLoad] = ()
    time_ns: int | None = None
    sizes: tuple[int, ...] = ()
    series: Sequence[BandwidthSeries] = ()
    bound: BandwidthSeries | None = None
    collapse: str = "auto"


@dataclass(frozen=True, slots=True)
class ReportWriter(FormatOffer):
    """Consumer: `write(request: ReportRequest, options) -> WriteResult`."""

    shows: Shown
    write: Reference
    options: type = NoOptions
