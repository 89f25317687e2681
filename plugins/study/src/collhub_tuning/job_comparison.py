"""Compare algorithms and networks for an entire job: its time with each, and the speedup."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collhub_tuning.comparison_records import ComparedPlace, CompareJobReport, JobResult
from hub_core import CommandContext, HubError, UsageError, apply_rules, assign
from hub_core.model import STANDARD_KINDS, UNEVEN_KINDS, CollectiveKind, NodeKind, format_time
from hub_core.plugin_api import (
    JobTimeline,
    PageSubject,
    ReportDocument,
    WorkloadRequest,
    WorkloadSimulator,
)
from hub_core.reports import to_json

if TYPE_CHECKING:
    from hub_core.model import Workload
    from hub_core.network import Topology

NATIVE = "native"
"""The name of the algorithms that the job, or the simulator's system, specifies."""
HEADER = ("algorithms", "network", "time", "exposed", "speedup")
RIGHT = ("time", "exposed", "speedup")
_SEPARATOR = ";"
# Kinds for which simulators of jobs run algorithms; the others are timers or refused.
_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_TO_ALL,
)


@dataclass(frozen=True, slots=True)
class JobMeasurement:
    """The job with some algorithms on a network.

    `algorithms`: as the user names them. `time_ns`: finish time of the last rank, None without a
    time; `failure` then gives the reason in one line. `exposed_ns`: maximum over the ranks of the
    time without computation; None if the simulator does not report it.
    """

    algorithms: str
    topology: str
    time_ns: int | None
    exposed_ns: int | None = None
    rank_finish_ns: tuple[int | None, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class JobComparison:
    """All measurements of a job; `baseline`: the reference of the speedups.

    `workload`, `networks`, `options`: the job, its networks in the order of the measurements, and
    the options of the simulator.
    """

    source: str
    workload: Workload
    networks: tuple[Topology, ...]
    backend: str
    options: Mapping[str, str]
    measurements: tuple[JobMeasurement, ...]
    baseline: JobMeasurement

    def speedup(self, measurement: JobMeasurement) -> float | None:
        """Return the baseline's time divided by the measurement's time: above 1 if it is faster.

        None if either time is missing, or if the time of the measurement is 0.
        """
        if self.baseline.time_ns is None or not measurement.time_ns:
            return None
        return self.baseline.time_ns / measurement.time_ns

    @property
    def fastest(self) -> JobMeasurement | None:
        """Return the measurement with the shortest time on any network, of equal ones the first.

        Measurements without a time do not count; None if no measurement has a time.
        """
        timed = [
            measurement for measurement in self.measurements if measurement.time_ns is not None
        ]
        return min(timed, key=lambda measurement: measurement.time_ns or 0, default=None)


def compare_job(
    context: CommandContext,
    source: str,
    topologies: Sequence[Topology],
    candidates: Sequence[str],
    baseline: str | None,
    arguments: Mapping[str, Any],
) -> JobComparison:
    """Simulate the job of `source` with all candidates on all networks.

    `topologies`: if empty, the network that the job declares. `candidates`: `native`, a synthesizer
    or file for all collectives that have algorithms, or rules joined by `;`; repeated ones count
    once, and none means `native`. `arguments`: values of `comparison_options`; `backend` is the
    simulator.

    `baseline`: a candidate, inserted before all others if it is not among them; None means the
    first one. Its measurement on the first network is the baseline. Measurements are ordered by
    network, then candidate.

    A candidate that fails gives a measurement with the reason, also the baseline. Raises `HubError`
    for an unreadable job or network, an unknown simulator and an invalid option. Raises
    `UsageError` (`no-topology`) if `topologies` is empty and the job declares no network.
    """
    opened = context.open_input(source)
    backend = arguments["backend"]
    sides = {
        "reader": opened.options,
        "simulator": context.options_of(WorkloadSimulator, backend),
    }
    options = assign(arguments["assignments"], sides)
    workload = context.read_workload(opened, options["reader"])
    networks = list(topologies)
    if not networks:
        declared = context.own_topology(opened)
        if declared is None:
            cure = "name one, for example --topology ring:8"
            raise UsageError(f"{opened.name} contains no network", cure=cure, code="no-topology")
        networks = [declared]
    names = list(dict.fromkeys(candidates)) or [NATIVE]
    if baseline is not None and baseline not in names:
        names.insert(0, baseline)
    measurements = tuple(
        _measure(context, workload, name, network, backend, options["simulator"])
        for network in networks
        for name in names
    )
    chosen = names.index(baseline) if baseline is not None else 0
    return JobComparison(
        opened.name,
        workload,
        tuple(networks),
        backend,
        options["simulator"],
        measurements,
        measurements[chosen],
    )


def _measure(
    context: CommandContext,
    workload: Workload,
    name: str,
    network: Topology,
    backend: str,
    options: Mapping[str, str],
) -> JobMeasurement:
    """Simulate the job with one candidate on one network; a failure becomes the result.

    `name`: the candidate, whose rules are applied to the job first. Times are in ns. The exposed
    time is the maximum over the ranks that have one, None if no rank has one. The cases are:

    - `HubError`, also by the rules: no times. The failure is the message of its first finding, then
      `; ` and its cure, if it has one, in one line. Other exceptions pass.
    - A job that never finishes: no time, but the finish times of the ranks (None for those that do
      not finish). The failure is the message of the first diagnostic, or `a rank never finishes`.
    - Otherwise all times, and no failure.
    """
    try:
        job = _apply_candidate(context, workload, name, network)
        times = context.simulate_workload(WorkloadRequest(job, network), backend, options)
    except HubError as error:
        cause = error.diagnostics[0]
        reason = f"{cause.message}; {cause.cure}" if cause.cure else cause.message
        return JobMeasurement(name, network.name, None, failure=" ".join(reason.split()))
    if times.time_ns is None:
        reason = times.diagnostics[0].message if times.diagnostics else "a rank never finishes"
        finish = times.rank_finish_ns
        return JobMeasurement(name, network.name, None, None, finish, reason)
    exposed = [time_ns for time_ns in times.rank_exposed_ns if time_ns is not None]
    return JobMeasurement(
        name, network.name, times.time_ns, max(exposed, default=None), times.rank_finish_ns
    )


def _apply_candidate(
    context: CommandContext, workload: Workload, name: str, network: Topology
) -> Workload:
    """Return the job with the algorithms of the candidate `name` on a network.

    The name is split at `;` (`_SEPARATOR`), without blanks around the parts. If all parts are rules
    (with an `=`, and before the first `=`, `@` or `/` a kind or `*`), they are applied in order.
    Otherwise the entire name is an algorithm, with one rule `KIND=name` per kind of collective that
    the job calls on devices. Their order is all-reduce, all-gather, reduce-scatter, all-to-all
    (`_KINDS`), then the uneven kinds. Other kinds and collectives on the host get no rule.

    The job itself is returned for `native`, and if there are no rules. Raises the `HubError` of
    `apply_rules`, for example for an unknown algorithm.
    """
    if name == NATIVE:
        return workload
    parts = [part.strip() for part in name.split(_SEPARATOR)]
    kinds_of_rules = {"*", *map(str, STANDARD_KINDS), *map(str, UNEVEN_KINDS)}
    # The kind of the rule `all-reduce@1MiB/0=ring` is `all-reduce`. An `=` does not suffice for a
    # rule, because options of a synthesizer contain it too.
    if all("=" in part and re.split("[=@/]", part)[0] in kinds_of_rules for part in parts):
        return apply_rules(context, workload, parts, network)
    # Imported here: the help of the command needs no numpy.
    import numpy as np

    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE) & ~nodes.on_host)
    keys = np.stack([nodes.collective[rows], nodes.counts[rows] >= 0])
    _, first = np.unique(keys, axis=1, return_index=True)
    present = {workload.kind_of(row) for row in rows[first].tolist()}
    rules = [f"{kind}={name}" for kind in (*_KINDS, *UNEVEN_KINDS) if kind in present]
    return apply_rules(context, workload, rules, network) if rules else workload


def create_page_subjects(
    context: CommandContext, comparison: JobComparison
) -> tuple[PageSubject, ...]:
    """Return the subjects of a page: the comparison, the baseline's run, and the fastest run.

    The comparison is its JSON report, with the file name of the job as title. A run is a timeline
    of the job, titled `CANDIDATE on NETWORK`. A run without a time is omitted. If the baseline is
    the fastest, there is a single run; of equally fast candidates, the first measurement is the
    fastest. The job is simulated again for each run, and a `HubError` of the simulation passes.
    """
    # The folder of a file would fill the page.
    title = Path(comparison.source).name or comparison.source
    subjects: list[PageSubject] = [ReportDocument(title, to_json(create_job_report(comparison)))]
    shown = dict.fromkeys((comparison.baseline, comparison.fastest))
    number_of_names = len(comparison.measurements) // len(comparison.networks)
    for measurement in shown:
        if measurement is None or measurement.time_ns is None:
            continue
        position = comparison.measurements.index(measurement)
        network = comparison.networks[position // number_of_names]
        job = _apply_candidate(context, comparison.workload, measurement.algorithms, network)
        request = WorkloadRequest(job, network, wants_transfers=True)
        times = context.simulate_workload(request, comparison.backend, comparison.options)
        subjects.append(
            JobTimeline(
                f"{measurement.algorithms} on {network.name}",
                job,
                times.step_start_ns,
                times.step_end_ns,
                network,
                times,
            )
        )
    return tuple(subjects)


def comparison_rows(comparison: JobComparison) -> list[tuple[str, ...]]:
    """Return one table row per measurement, in order: algorithms, topology, time, exposed time,
    speedup. Times are formatted with units; an unknown time is `-`. The speedup is `baseline` for
    the baseline, and `-` if it is unknown.
    """
    rows: list[tuple[str, ...]] = []
    for measurement in comparison.measurements:
        speedup = comparison.speedup(measurement)
        speedup_text = "-" if speedup is None else f"{speedup:.2f}"
        rows.append(
            (
                measurement.algorithms,
                measurement.topology,
                "-" if measurement.time_ns is None else format_time(measurement.time_ns),
                "-" if measurement.exposed_ns is None else format_time(measurement.exposed_ns),
                "baseline" if measurement is comparison.baseline else speedup_text,
            )
        )
    return rows


def comparison_failures(comparison: JobComparison) -> list[str]:
    """Return `ALGORITHMS on TOPOLOGY: REASON` for every measurement that failed, in order."""
    return [
        f"{measurement.algorithms} on {measurement.topology}: {measurement.failure}"
        for measurement in comparison.measurements
        if measurement.failure
    ]


def create_job_report(comparison: JobComparison) -> CompareJobReport:
    """Return the JSON report of the comparison of a job.

    It has the source, number of ranks and simulator; candidate and network of the baseline and
    of the fastest measurement; and all measurements in order. A measurement has its
    algorithms, network, time, exposed time and finish time by rank (all in ns), speedup and
    failure.

    The fastest is None if no measurement has a time, and the first of equally fast ones. A
    speedup is the time of the baseline divided by that of the measurement. It is None if one
    of the times is missing or the second is 0. A failure is None for a measurement without a
    failure.
    """
    fastest = comparison.fastest
    return CompareJobReport(
        source=comparison.source,
        num_ranks=comparison.workload.num_ranks,
        backend=comparison.backend,
        baseline=_create_place(comparison.baseline),
        fastest=None if fastest is None else _create_place(fastest),
        results=[
            JobResult(
                algorithms=measurement.algorithms,
                topology=measurement.topology,
                time_ns=measurement.time_ns,
                exposed_ns=measurement.exposed_ns,
                rank_finish_ns=measurement.rank_finish_ns,
                speedup=comparison.speedup(measurement),
                failure=measurement.failure or None,
            )
            for measurement in comparison.measurements
        ],
    )


def _create_place(measurement: JobMeasurement) -> ComparedPlace:
    return ComparedPlace(algorithms=measurement.algorithms, topology=measurement.topology)
