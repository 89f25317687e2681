"""Compare algorithms and networks for an entire job: its time with each, beside a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hub_core import CommandContext, HubError, UsageError, apply_rules, assign
from hub_core.model import STANDARD_KINDS, CollectiveKind, JobCollective, NodeKind, format_time
from hub_core.plugin_api import WorkloadRequest, WorkloadSimulator

if TYPE_CHECKING:
    from hub_core import OpenedInput
    from hub_core.model import JsonValue, Workload
    from hub_core.network import Topology

NATIVE = "native"
"""The algorithms that the job, or the simulator's system, has itself."""
HEADER = ("algorithms", "network", "time", "exposed", "speedup")
RIGHT = ("time", "exposed", "speedup")
_SEPARATOR = ";"
# Kinds for which simulators of jobs run algorithms; others are timers or refused.
_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


@dataclass(frozen=True, slots=True)
class JobMeasurement:
    """The job with some algorithms on a network.

    `algorithms`: as the user names them. `time_ns`: when the last rank finishes, None without a
    time; `failure` then gives the reason in one line. `exposed_ns`: of the rank with most time in
    which it does not compute; None where the simulator does not tell.
    """

    algorithms: str
    topology: str
    time_ns: int | None
    exposed_ns: int | None = None
    rank_finish_ns: tuple[int | None, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class JobComparison:
    """All measurements of a job; `baseline`: the one that the others are compared with."""

    source: str
    num_ranks: int
    backend: str
    measurements: tuple[JobMeasurement, ...]
    baseline: JobMeasurement

    def speedup(self, one: JobMeasurement) -> float | None:
        """Time of the baseline by the time; None where one of them is missing."""
        if self.baseline.time_ns is None or not one.time_ns:
            return None
        return self.baseline.time_ns / one.time_ns

    @property
    def fastest(self) -> JobMeasurement | None:
        """The first of the measurements with the shortest time."""
        timed = [one for one in self.measurements if one.time_ns is not None]
        return min(timed, key=lambda one: one.time_ns or 0, default=None)


def compare_job(
    context: CommandContext,
    source: str,
    topologies: Sequence[Topology],
    candidates: Sequence[str],
    baseline: str | None,
    asked: Mapping[str, Any],
) -> JobComparison:
    """Simulate the job of `source` with all candidates on all networks.

    `topologies`: empty for the network that the job states. `candidates`: `native`, a synthesizer
    or file for all collectives that have algorithms, or rules joined by `;`. `baseline`: one of
    the candidates, by default the first; on the first network. `asked`: of `comparison_options`.
    Raises `HubError` for a job that cannot be read and for a candidate that is no rule.
    """
    opened = context.open_input(source)
    backend = asked["backend"]
    sides = {
        "reader": opened.options,
        "simulator": context.options_of(WorkloadSimulator, backend),
    }
    given = assign(asked["assignments"], sides)
    workload = context.read_workload(opened, given["reader"])
    networks = list(topologies) or [_own_network(context, opened)]
    names = list(dict.fromkeys(candidates)) or [NATIVE]
    if baseline is not None and baseline not in names:
        names.insert(0, baseline)
    measurements = tuple(
        _measured(context, workload, name, network, backend, given["simulator"])
        for network in networks
        for name in names
    )
    chosen = names.index(baseline) if baseline is not None else 0
    return JobComparison(
        opened.name, workload.num_ranks, backend, measurements, measurements[chosen]
    )


def _own_network(context: CommandContext, opened: OpenedInput) -> Topology:
    network = context.own_topology(opened)
    if network is None:
        cure = "name one, for example --topology ring:8"
        raise UsageError(f"{opened.name} states no network", cure=cure, code="no-topology")
    return network


def _measured(
    context: CommandContext,
    workload: Workload,
    name: str,
    network: Topology,
    backend: str,
    options: Mapping[str, str],
) -> JobMeasurement:
    """The job with one candidate on one network."""
    try:
        rules = [*_rules(workload, name)]
        job = apply_rules(context, workload, rules, network) if rules else workload
        times = context.simulate_workload(WorkloadRequest(job, network), backend, options)
    except HubError as error:
        found = error.diagnostics[0]
        reason = f"{found.message}; {found.cure}" if found.cure else found.message
        return JobMeasurement(name, network.name, None, failure=" ".join(reason.split()))
    if times.time_ns is None:
        reason = times.diagnostics[0].message if times.diagnostics else "a rank never finishes"
        finish = times.rank_finish_ns
        return JobMeasurement(name, network.name, None, None, finish, reason)
    exposed = [one for one in times.rank_exposed_ns if one is not None]
    return JobMeasurement(
        name, network.name, times.time_ns, max(exposed, default=None), times.rank_finish_ns
    )


def _rules(workload: Workload, name: str) -> Iterator[str]:
    """The rules of a candidate; none for `native`."""
    if name == NATIVE:
        return
    parts = [part.strip() for part in name.split(_SEPARATOR)]
    if all(_is_rule(part) for part in parts):
        yield from parts
        return
    nodes = workload.nodes
    is_collective = nodes.is_kind(NodeKind.COLLECTIVE) & ~nodes.on_host
    present = {JobCollective(code).kind for code in set(nodes.collective[is_collective].tolist())
               if code >= 0}  # fmt: skip
    for kind in _KINDS:
        if kind in present:
            yield f"{kind}={name}"


def _is_rule(text: str) -> bool:
    """Whether a text begins with a kind of collective; options of a synthesizer have a `=`, too."""
    kind = text.partition("=")[0].partition("@")[0].partition("/")[0]
    return "=" in text and kind in {"*", *map(str, STANDARD_KINDS)}


def comparison_rows(comparison: JobComparison) -> list[tuple[str, ...]]:
    """A line for each measurement."""
    return [
        (
            one.algorithms,
            one.topology,
            "-" if one.time_ns is None else format_time(one.time_ns),
            "-" if one.exposed_ns is None else format_time(one.exposed_ns),
            _speedup_text(comparison, one),
        )
        for one in comparison.measurements
    ]


def _speedup_text(comparison: JobComparison, one: JobMeasurement) -> str:
    if one is comparison.baseline:
        return "baseline"
    speedup = comparison.speedup(one)
    return "-" if speedup is None else f"{speedup:.2f}"


def comparison_failures(comparison: JobComparison) -> list[str]:
    """One line for every measurement without a time."""
    return [
        f"{one.algorithms} on {one.topology}: {one.failure}"
        for one in comparison.measurements
        if one.failure
    ]


def comparison_document(comparison: JobComparison) -> dict[str, JsonValue]:
    """The report that `--json` prints."""
    fastest = comparison.fastest
    return {
        "schema": "collhub/report-compare-job-1",
        "source": comparison.source,
        "num_ranks": comparison.num_ranks,
        "backend": comparison.backend,
        "baseline": _place(comparison.baseline),
        "fastest": None if fastest is None else _place(fastest),
        "results": [
            {
                **_place(one),
                "time_ns": one.time_ns,
                "exposed_ns": one.exposed_ns,
                "rank_finish_ns": list(one.rank_finish_ns),
                "speedup": comparison.speedup(one),
                "failure": one.failure or None,
            }
            for one in comparison.measurements
        ],
    }


def _place(one: JobMeasurement) -> dict[str, JsonValue]:
    return {"algorithms": one.algorithms, "topology": one.topology}
