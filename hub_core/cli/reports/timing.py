"""Simulated runs and their reports: bandwidth, bound and ratio to it, CSV of the times of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from hub_core.cli.output import print_fields, print_line, print_table
from hub_core.cli.reports.timing_records import (
    FailureItem,
    NamedLinkLoad,
    SimulatedSize,
    SimulateReport,
)
from hub_core.model import (
    Algorithm,
    Diagnostic,
    NodeKind,
    StepKind,
    StepTable,
    UsageError,
    format_bytes,
    format_ranks,
    format_time,
    placement_of,
)
from hub_core.model.kinds import CollectiveKind
from hub_core.network import Topology
from hub_core.pipeline.bounds import CORE_METHOD, ProvenBound, beaten_bound, best_bounds
from hub_core.pipeline.failures import FailureTime
from hub_core.pipeline.simulation import TimingSource, exact_time
from hub_core.plugin_api import SimulationResult
from hub_core.registry.bind_options import OptionText
from hub_core.registry.plugins import Registry
from hub_core.reports import UNSET, list_findings

if TYPE_CHECKING:
    from hub_core.model import NodeColumns


TIMING_COLUMNS = ("size", "time", "bandwidth", "bound", "ratio")
LISTED_LINKS = 10
_HEADER = "rank,step,kind,peer,start_ns,end_ns\n"


@dataclass(frozen=True, slots=True)
class TimedRun:
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
) -> list[TimedRun]:
    """Compare simulation results with lower bounds of the collective; one `TimedRun` per size.

    `results`: results of `backend` by size in bytes, in the order of the output; empty gives
    []. `bounded`: network of the bounds, None for `topology`. A `TimedRun` has the result and:

    - its bound: None for a custom collective, or if ranks cannot reach each other. All bounds
      are None if `shares_links` is False in any result: such a run is faster than bounds
      permit.
    - its time in ps with a slack (`exact_time`): None if the run did not finish. The simulator
      may run again if there is no bound, or the time is at most 2 % above it.
    - `is_size_known`: False only for a custom collective without contents.

    Raises `InputError` for fewer NPUs than ranks. Errors of plugins that compute bounds and of
    the simulator are raised as `HubError`.
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
        timings.append(TimedRun(size, result, bound, time.time_ps, time.slack_ps, is_known))
    return timings


def write_step_times(steps: StepTable | NodeColumns, result: SimulationResult, out: str) -> None:
    """Write a CSV file with a header and one line per step, or per node of a job, in row order.

    The header is `rank,step,kind,peer,start_ns,end_ns`. `step` is the position in the rank,
    from 0. `kind` is the name in lower case, with hyphens. `peer`, and the times of a step that
    never started or ended, are -1 if there is none. Times are integers. An existing file `out` is
    replaced; `-` is standard output. Raises `UsageError` if the simulator does not report times of
    steps, and if `out` is a folder or cannot be written.
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


def create_simulate_report(
    source: str,
    algorithm: Algorithm,
    topology: Topology,
    source_of_times: TimingSource,
    timings: Sequence[TimedRun],
    failures: Sequence[FailureTime] | None = None,
) -> SimulateReport:
    """Return the JSON report of a simulation.

    - One entry in `timings`: its members are members of the report. `results` is absent.
    - Several entries: they are listed under `results`, in their order. Without entries `results`
      and the members are absent.
    - `npus`: the NPU of each rank if the algorithm has a placement, else 0 to ranks - 1.
    - `backend`, `timing` (a text) and `machine`: the source of the times. `machine` is None for
      nominal links.
    - Each run: all its link loads, and the first 10 again with names as `busiest_links`.
    - `failures`: in the given order, may be empty; absent if it is None.

    Raises `InputError` (`invalid-placement`) if a placement does not give every rank its own NPU.
    """
    runs = [_create_run(topology, timing) for timing in timings]
    return SimulateReport(
        source=source,
        topology=topology.name,
        npus=placement_of(algorithm) or tuple(range(algorithm.num_ranks)),
        backend=source_of_times.backend,
        timing=source_of_times.note,
        machine=source_of_times.machine_record(),
        results=runs if len(runs) > 1 else UNSET,
        failures=UNSET
        if failures is None
        else [
            FailureItem(
                link=each.link, time_ns=each.time_ns, reason=each.reason, is_used=each.is_used
            )
            for each in failures
        ],
        **(structs.asdict(runs[0]) if len(runs) == 1 else {}),
    )


def _create_run(topology: Topology, timing: TimedRun) -> SimulatedSize:
    result, bound = timing.result, timing.bound
    finish_ns = result.rank_finish_ns
    return SimulatedSize(
        collective_bytes=timing.collective_bytes,
        time_ns=result.time_ns,
        rank_finish_ns=finish_ns,
        rank_exposed_ns=result.rank_exposed_ns,
        unfinished_ranks=[rank for rank, time in enumerate(finish_ns) if time is None],
        time_ps=timing.time_ps,
        bound_ns=timing.bound_ns,
        bound_ps=None if bound is None else bound.time_ps,
        bound_method=None if bound is None else bound.method,
        ratio_to_bound=timing.ratio_to_bound,
        algorithm_bandwidth_bytes_per_s=timing.bandwidth_bytes_per_s,
        busiest_links=[
            NamedLinkLoad(
                source=load.source,
                destination=load.destination,
                source_name=topology.node_name(load.source),
                destination_name=topology.node_name(load.destination),
                bytes=load.bytes,
                busy_ns=load.busy_ns,
            )
            for load in result.link_loads[:LISTED_LINKS]
        ],
        link_loads=result.link_loads,
        details=result.details,
        diagnostics=list_findings(result.diagnostics),
    )


def print_timings(algorithm: Algorithm, topology: Topology, timings: Sequence[TimedRun]) -> None:
    """Print a table of several runs with one row per size, or the fields of a single run.

    Without runs, only the header of the table is printed. The fields are: collective and size of
    the algorithm, topology, NPUs of the ranks (only with a placement), message size, time (also in
    whole ns), details of the simulator, bandwidth, and bound. The bound has its method, unless it
    is `CORE_METHOD`, and the ratio of time to bound, if that is known.

    A line with the number of used links and a table of the first `LISTED_LINKS` (10) follow the
    fields, in the order of the result; both are omitted without used links. The time in which a
    link is busy is a percentage of the time of the run, or a time if that is None or 0. For a
    single run, raises `InputError` (`invalid-placement`) before any output if a placement does not
    give every rank its own NPU.
    """
    if len(timings) != 1:
        rows = [format_timing(timing) for timing in timings]
        print_table(TIMING_COLUMNS, rows, right=TIMING_COLUMNS)
        return
    timing = timings[0]
    npus = placement_of(algorithm)
    size, time, bandwidth, bound, ratio = format_timing(timing)
    exact = "" if timing.time_ns is None else f" ({timing.time_ns} ns)"
    if timing.bound is not None and timing.bound.method != CORE_METHOD:
        bound += f" by {timing.bound.method}"
    if ratio != "-":
        bound += f", time is {ratio} times that"
    ranks = f"{algorithm.num_ranks} ranks"
    print_fields(
        {
            "algorithm": f"{algorithm.collective.kind}, {ranks}, {len(algorithm.steps)} steps",
            "topology": f"{topology.name}: {topology.num_npus} NPUs, {topology.num_links} links",
            **({} if npus is None else {"ranks on NPUs": format_ranks(npus)}),
            "size": size,
            "time": f"{time}{exact}",
            **{key: str(value) for key, value in timing.result.details.items()},
            "bandwidth": bandwidth,
            "bound": bound,
        }
    )
    busiest = timing.result.link_loads[:LISTED_LINKS]
    if busiest:
        print_line(f"busiest of {len(timing.result.link_loads)} used links:")
        links = [
            (
                f"{topology.node_name(load.source)} -> {topology.node_name(load.destination)}",
                format_bytes(load.bytes),
                f"{100 * load.busy_ns / timing.time_ns:.0f} %"
                if timing.time_ns
                else format_time(load.busy_ns),
            )
            for load in busiest
        ]
        print_table(("link", "bytes", "busy"), links, right=("bytes", "busy"))


def print_failures(failures: Sequence[FailureTime]) -> None:
    """Print the time without each used link, the worst first, and a line on the unused links.

    The first line has the number of used links. A table of links and times follows: first the runs
    without a time, which show the reason instead, then the others by descending time, ties in the
    order of `failures`. The last line gives the number of links that no message uses; it is
    omitted if there are none. The header is printed even without a used link.
    """
    used = [failure for failure in failures if failure.is_used]
    worst_first = sorted(
        used, key=lambda failure: (failure.time_ns is not None, -(failure.time_ns or 0))
    )
    rows = [
        (failure.link, failure.reason if failure.time_ns is None else format_time(failure.time_ns))
        for failure in worst_first
    ]
    print_line(f"time without one of {len(used)} used links:")
    print_table(("link", "time"), rows)
    if len(used) < len(failures):
        print_line(f"no message uses the other {len(failures) - len(used)}: the time is the same")


def format_timing(timing: TimedRun) -> tuple[str, ...]:
    """Return the cells of a row of `TIMING_COLUMNS`: size, time, bandwidth, bound, ratio.

    Sizes and times have a suitable unit. The bandwidth is the algorithm bandwidth (size by time) in
    GB/s (10^9 bytes per second) with 2 decimals; the ratio of time to bound has 3 decimals. The
    time is `never ends` for a run that does not finish. Other unknown values are `-`.
    """
    bandwidth, ratio = timing.bandwidth_bytes_per_s, timing.ratio_to_bound
    return (
        format_bytes(timing.collective_bytes),
        "never ends" if timing.time_ns is None else format_time(timing.time_ns),
        "-" if bandwidth is None else f"{bandwidth / 1e9:.2f} GB/s",
        "-" if timing.bound_ns is None else format_time(timing.bound_ns),
        "-" if ratio is None else f"{ratio:.3f}",
    )
