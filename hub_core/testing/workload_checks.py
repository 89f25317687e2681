"""Rules for what makes, changes, writes and simulates workloads.

Their readers are tried as those of algorithms.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from hub_core.model.diagnostics import HubError
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.pipeline.topology_input import parse_topology
from hub_core.plugin_api.algorithm_pass import AlgorithmPass, PassReport
from hub_core.plugin_api.check import Check, CheckReport, CheckRequest, Subject
from hub_core.plugin_api.workload_generator import WorkloadGenerator
from hub_core.plugin_api.workload_reader import WorkloadReader
from hub_core.plugin_api.workload_simulator import (
    WorkloadRequest,
    WorkloadSimulator,
    WorkloadTimes,
)
from hub_core.plugin_api.workload_writer import WorkloadWriter
from hub_core.testing.checked_plugin import (
    CheckedPlugin,
    Rendering,
    Skip,
    call,
    render,
    source_of,
    title,
)
from hub_core.testing.declared import loss_problem
from hub_core.testing.workload_samples import sample_workloads

_NETWORK = "ring:4"


def workloads_come_back(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A workload written twice gives the same bytes, and comes back but for declared losses."""
    for writer in subject.offers(WorkloadWriter):
        readers = [
            provided.offer
            for provided in subject.registry.all(WorkloadReader)
            if provided.name == writer.name
        ]
        if not readers:
            yield Skip(f"{title(writer)}: no reader of the same format is installed")
        for name, workload in sample_workloads().items():
            try:
                written = render(writer, workload)
            except HubError:
                continue
            if written.artifacts != render(writer, workload).artifacts:
                yield f"{title(writer)}, {name}: two writings differ"
            for reader in readers:
                yield from _lost(writer, reader, name, workload, written)


def workload_simulators_simulate(subject: CheckedPlugin) -> Iterator[str]:
    """Finish and exposed times are not negative, one a rank, the same in every run."""
    network = parse_topology(_NETWORK, registry=subject.registry)
    for simulator in subject.offers(WorkloadSimulator):
        for name, workload in sample_workloads().items():
            found, again = (_times(simulator, workload, network) for _ in range(2))
            if found != again:
                yield f"{title(simulator)}, {name}: two runs differ"
            for times in found:
                if len(times) != workload.num_ranks:
                    yield f"{title(simulator)}, {name}: {len(times)} times, expected one a rank"
                if any(time is not None and time < 0 for time in times):
                    yield f"{title(simulator)}, {name}: a time is negative"


def workload_generators_generate(subject: CheckedPlugin) -> Iterator[str]:
    """Default options give a job, the same in every run, in which no installed check errs."""
    for generator in subject.offers(WorkloadGenerator):
        made, again = call(generator), call(generator)
        if not isinstance(made, Workload) or not isinstance(again, Workload):
            yield f"{title(generator)} returned {type(made).__name__}, expected Workload"
            continue
        if differences := made.differences(again):
            yield f"{title(generator)}: two runs differ in {', '.join(differences)}"
        for problem in _problems(subject, made):
            yield f"{title(generator)}: {problem}"


def workload_passes_keep_jobs_correct(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """What a pass makes of a correct job is one, and it leaves its input as it is."""
    for offered in subject.offers(AlgorithmPass):
        if offered.subject is not Subject.WORKLOAD:
            continue
        taken = 0
        for name, workload in sample_workloads().items():
            before = copy.deepcopy(workload)
            try:
                result = call(offered, workload)
            # A pass may want an option, or another kind of job.
            except HubError:
                continue
            taken += 1
            for problem in _pass_problems(subject, result):
                yield f"{title(offered)}, {name}: {problem}"
            if before.differences(workload):
                yield f"{title(offered)}, {name}: the job was changed"
        if not taken:
            yield Skip(f"{title(offered)} refuses every job of the kit")


def _pass_problems(subject: CheckedPlugin, result: object) -> Iterator[str]:
    """What is wrong with what a pass returned."""
    pair = result if isinstance(result, tuple) else ()
    if [type(part) for part in pair] != [Workload, PassReport]:
        yield f"returned {type(result).__name__}, not (Workload, PassReport)"
        return
    yield from _problems(subject, pair[0])


def _problems(subject: CheckedPlugin, workload: Workload) -> Iterator[str]:
    """Findings of the installed checks of workloads."""
    for provided in subject.registry.all(Check):
        if provided.offer.subject is Subject.WORKLOAD:
            report = call(provided.offer, CheckRequest("job", workload=workload))
            if isinstance(report, CheckReport) and not report.ok:
                yield str(report.diagnostics[0])


def _lost(
    writer: WorkloadWriter,
    reader: WorkloadReader,
    name: str,
    workload: Workload,
    written: Rendering,
) -> Iterator[str]:
    found = call(reader, source_of(written, writer.format))
    problem = loss_problem(workload, found, written)
    if problem:
        yield f"{title(writer)}, {name}: {problem}"


def _times(
    simulator: WorkloadSimulator, workload: Workload, network: Topology
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    result = call(simulator, WorkloadRequest(workload, network))
    message = f"{simulator.simulate} returned {type(result).__name__}, expected WorkloadTimes"
    assert isinstance(result, WorkloadTimes), message
    return result.rank_finish_ns, result.rank_exposed_ns
