"""Simulated runs: bandwidth, lower bound and ratio to it; a CSV file of the times of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_core.model import (
    Algorithm,
    Diagnostic,
    NodeKind,
    StepKind,
    StepTable,
    UsageError,
    placement_of,
)
from hub_core.model.kinds import CollectiveKind
from hub_core.network import Topology
from hub_core.pipeline.bounds import ProvenBound, beaten_bound, best_bounds
from hub_core.pipeline.simulation import exact_time
from hub_core.plugin_api import SimulationResult
from hub_core.registry.bind_options import OptionText
from hub_core.registry.plugins import Registry

if TYPE_CHECKING:
    from hub_core.model import NodeColumns


_HEADER = "rank,step,kind,peer,start_ns,end_ns\n"


@dataclass(frozen=True, slots=True)
class Timing:
    """Simulated run of a collective of `collective_bytes`.

    `bound`: proven lower bound, None if unknown. `time_ps`: the time that is compared with the
    bound. `slack_ps`: maximum error of it by the simulator's rounding; see
    `pipeline.simulation.exact_time`. `is_size_known`: False for a timing-only trace of messages in
    bytes, whose collective has an unknown size.
    """

    collective_bytes: int
    result: SimulationResult
    bound: ProvenBound | None
    time_ps: int | None
    slack_ps: int = 0
    is_size_known: bool = True

    @property
    def time_ns(self) -> int | None:
        """Time at which the last rank finished; None if a rank never finishes."""
        return self.result.time_ns

    @property
    def bound_ns(self) -> int | None:
        """The bound in nanoseconds, rounded down."""
        return None if self.bound is None else self.bound.time_ns

    @property
    def bandwidth_bytes_per_s(self) -> float | None:
        """Algorithm bandwidth: size divided by time.

        None if a rank never finishes or the size is unknown.
        """
        return (
            self.collective_bytes / self.time_ns * 1e9
            if self.time_ns and self.is_size_known
            else None
        )

    @property
    def ratio_to_bound(self) -> float | None:
        """Time divided by bound, at least 1; None if one of them is missing or zero.

        Also None for a time below the bound, which `defect` reports.
        """
        return None if self.bound is None else self.bound.ratio(self.time_ps, self.slack_ps)

    @property
    def defect(self) -> Diagnostic | None:
        """Finding for a time below the bound; None if there is no such defect."""
        return beaten_bound(self.bound, self.time_ps, slack_ps=self.slack_ps)


def judge(
    algorithm: Algorithm,
    topology: Topology,
    results: Mapping[int, SimulationResult],
    *,
    backend: str,
    options: OptionText | None = None,
    registry: Registry,
    bounded: Topology | None = None,
) -> list[Timing]:
    """Compare the results of `backend`, by size in bytes, with the bounds of the collective.

    `bounded`: the network whose bounds hold for the times, None for `topology`. Returns one
    `Timing` per size, in the order of `results`, with the result, its bound, the exact time and its
    uncertainty in ps (both from `exact_time`), and whether the contents of the algorithm are known.
    The bound is None for all sizes if messages of any result do not share links, for custom
    collectives, and where no method proves one.
    """
    collective = algorithm.collective
    sizes = list(results)
    is_known = collective.kind is not CollectiveKind.CUSTOM or algorithm.has_contents
    bounds: tuple[ProvenBound | None, ...] = (None,) * len(sizes)
    if all(result.shares_links for result in results.values()):
        times = [result.time_ns for result in results.values()]
        bounds = best_bounds(
            collective,
            bounded or topology,
            sizes,
            registry=registry,
            npus=placement_of(algorithm),
            best_times_ps=[None if time is None else 1000 * time for time in times],
        )
    timings = []
    for size, bound in zip(sizes, bounds, strict=True):
        result = results[size]
        time = exact_time(
            algorithm,
            topology,
            size,
            result.time_ns,
            near_ps=None if bound is None else bound.time_ps,
            backend=backend,
            options=options,
            registry=registry,
        )
        timings.append(Timing(size, result, bound, time.time_ps, time.slack_ps, is_known))
    return timings


def write_step_times(steps: StepTable | NodeColumns, result: SimulationResult, out: str) -> None:
    """Write a CSV file with a header and one line per step, or per node of a job, in row order.

    Columns: rank, position in the rank, kind in lower case, peer, start and end in ns; -1 for a
    step that never started or ended. An existing file `out` is replaced; `-` is standard output.
    Raises `UsageError` if the simulator does not report times of steps.
    """
    from hub_core.pipeline.artifacts import Content, destination
    from hub_core.plugin_api import Format

    if result.step_start_ns is None or result.step_end_ns is None:
        raise UsageError(
            "this simulator does not report the times of steps",
            cure="leave out --steps, or use another --backend",
        )
    kinds = StepKind if isinstance(steps, StepTable) else NodeKind
    target = destination(out, Format("csv", "times of steps", (".csv",)), force=True)
    names = [kind.name.lower().replace("_", "-") for kind in kinds]
    columns = (steps.rank, steps.kind, steps.peer, result.step_start_ns, result.step_end_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    first_rows = steps.rank_indptr.tolist()
    lines = (
        f"{rank},{row - first_rows[rank]},{names[kind]},{peer},{start},{end}\n"
        for row, (rank, kind, peer, start, end) in enumerate(rows)
    )
    target.put([Content("", (_HEADER + "".join(lines)).encode("ascii"))])
