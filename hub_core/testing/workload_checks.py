"""Conformance rules for generators, passes, writers and simulators of workloads."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from hub_core.model.diagnostics import HubError
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.pipeline.topology_input import parse_topology
from hub_core.plugin_api.formats import WorkloadGenerator, WorkloadReader, WorkloadWriter
from hub_core.plugin_api.runs import (
    WorkloadRequest,
    WorkloadSimulator,
    WorkloadTimes,
)
from hub_core.plugin_api.subjects import (
    AlgorithmPass,
    Check,
    CheckReport,
    CheckRequest,
    PassReport,
    Subject,
)
from hub_core.testing.checked_plugin import (
    CheckedPlugin,
    Skip,
    call,
    render,
    title,
    to_source,
)
from hub_core.testing.declared import find_loss_problem
from hub_core.testing.workload_samples import sample_workloads

_NETWORK = "ring:4"


def workloads_come_back(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A workload is written equally twice and read back unchanged except for declared losses."""
    for writer in subject.offers(WorkloadWriter):
        readers = [
            entry.offer
            for entry in subject.registry.all(WorkloadReader)
            if entry.name == writer.name
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
                read_workload = call(reader, to_source(written, writer.format))
                problem = find_loss_problem(workload, read_workload, written)
                if problem:
                    yield f"{title(writer)}, {name}: {problem}"


def workload_simulators_simulate(subject: CheckedPlugin) -> Iterator[str]:
    """Finish times and exposed times are not negative, one per rank, and equal in every run."""
    network = parse_topology(_NETWORK, registry=subject.registry)
    for simulator in subject.offers(WorkloadSimulator):
        for name, workload in sample_workloads().items():
            result, repetition = (_simulate(simulator, workload, network) for _ in range(2))
            if result != repetition:
                yield f"{title(simulator)}, {name}: two runs differ"
            for times in result:
                if len(times) != workload.num_ranks:
                    yield f"{title(simulator)}, {name}: {len(times)} times, expected one per rank"
                if any(time is not None and time < 0 for time in times):
                    yield f"{title(simulator)}, {name}: a time is negative"


def workload_generators_generate(subject: CheckedPlugin) -> Iterator[str]:
    """Default options give a workload without errors of installed checks, equal in every run."""
    for generator in subject.offers(WorkloadGenerator):
        workload, repetition = call(generator), call(generator)
        if not isinstance(workload, Workload) or not isinstance(repetition, Workload):
            yield f"{title(generator)} returned {type(workload).__name__}, expected Workload"
            continue
        if differences := workload.differences(repetition):
            yield f"{title(generator)}: two runs differ in {', '.join(differences)}"
        for problem in _find_check_errors(subject, workload):
            yield f"{title(generator)}: {problem}"


def workload_passes_keep_jobs_correct(subject: CheckedPlugin) -> Iterator[str | Skip]:
    """A pass turns a correct workload into a correct one and does not change its input."""
    for workload_pass in subject.offers(AlgorithmPass):
        if workload_pass.subject is not Subject.WORKLOAD:
            continue
        num_accepted = 0
        for name, workload in sample_workloads().items():
            before = copy.deepcopy(workload)
            try:
                result = call(workload_pass, workload)
            # A pass may require an option or another kind of workload.
            except HubError:
                continue
            num_accepted += 1
            for problem in _find_pass_problems(subject, result):
                yield f"{title(workload_pass)}, {name}: {problem}"
            if before.differences(workload):
                yield f"{title(workload_pass)}, {name}: the input workload was changed"
        if not num_accepted:
            yield Skip(f"{title(workload_pass)} refuses every workload of the kit")


def _find_pass_problems(subject: CheckedPlugin, result: object) -> Iterator[str]:
    """Yield the problems of the result of a pass: its type, and errors of installed checks."""
    pair = result if isinstance(result, tuple) else ()
    if [type(member) for member in pair] != [Workload, PassReport]:
        yield f"returned {type(result).__name__}, not (Workload, PassReport)"
        return
    yield from _find_check_errors(subject, pair[0])


def _find_check_errors(subject: CheckedPlugin, workload: Workload) -> Iterator[str]:
    """Yield the first finding of every installed workload check that does not pass."""
    for entry in subject.registry.all(Check):
        if entry.offer.subject is Subject.WORKLOAD:
            report = call(entry.offer, CheckRequest("job", workload=workload))
            if isinstance(report, CheckReport) and not report.ok:
                yield str(report.diagnostics[0])


def _simulate(
    simulator: WorkloadSimulator, workload: Workload, network: Topology
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    """Simulate a workload; return the finish times and exposed times of all ranks in ns.

    Raises `AssertionError` for a wrong result type.
    """
    result = call(simulator, WorkloadRequest(workload, network))
    message = f"{simulator.simulate} returned {type(result).__name__}, expected WorkloadTimes"
    assert isinstance(result, WorkloadTimes), message
    return result.rank_finish_ns, result.rank_exposed_ns
