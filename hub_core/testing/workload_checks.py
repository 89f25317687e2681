"""Rules for writers and simulators of workloads; their readers are tried as those of algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hub_core.model.diagnostics import HubError
from hub_core.model.workload import Workload
from hub_core.network.topology import Topology
from hub_core.pipeline.topology_input import parse_topology
from hub_core.plugin_api.artifacts import WriteResult
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
    source_of,
    title,
)
from hub_core.testing.format_checks import is_declared
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
                written = _written(writer, workload)
            except HubError:
                continue
            if written.artifacts != _written(writer, workload).artifacts:
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


def _written(writer: WorkloadWriter, workload: Workload) -> Rendering:
    result = call(writer, workload)
    message = f"{writer.write} returned {type(result).__name__}, expected WriteResult"
    assert isinstance(result, WriteResult), message
    artifacts = {artifact.name: bytes(artifact.content()) for artifact in result.artifacts}
    return Rendering(artifacts, tuple(result.losses), tuple(result.restated))


def _lost(
    writer: WorkloadWriter,
    reader: WorkloadReader,
    name: str,
    workload: Workload,
    written: Rendering,
) -> Iterator[str]:
    found = call(reader, source_of(written, writer.format))
    if not isinstance(found, Workload):
        yield f"{title(writer)}, {name}: read back as {type(found).__name__}"
        return
    alike = replace(found, provenance=workload.provenance)
    features = [*(loss.feature for loss in written.losses), *written.restated]
    differences = workload.differences(alike)
    if undeclared := [part for part in differences if not is_declared(part, features)]:
        names = ", ".join(undeclared)
        yield f"{title(writer)}, {name}: read back with another {names}, and no loss names that"


def _times(
    simulator: WorkloadSimulator, workload: Workload, network: Topology
) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
    result = call(simulator, WorkloadRequest(workload, network))
    message = f"{simulator.simulate} returned {type(result).__name__}, expected WorkloadTimes"
    assert isinstance(result, WorkloadTimes), message
    return result.rank_finish_ns, result.rank_exposed_ns
