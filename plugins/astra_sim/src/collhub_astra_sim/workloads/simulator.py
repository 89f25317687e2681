"""The simulator of whole jobs: of a folder for ASTRA-sim, or of traces with a system by options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from collhub_job_traces import bridge_markers

from collhub_astra_sim.networks import network_yaml
from collhub_astra_sim.options import CONGESTION_AWARE, CONGESTION_UNAWARE, JobOptions
from collhub_astra_sim.workloads.aborts import network_abort
from collhub_astra_sim.workloads.hazards import ABORTS, EXTENSION, empty_work, hazards
from collhub_astra_sim.workloads.simulate import (
    ASTRA_SIM_SLOTS,
    never_begun,
    simulate_workload,
    with_markers,
)
from collhub_astra_sim.workloads.simulate import WorkloadTimes as SimulatedTimes
from collhub_astra_sim.workloads.stated_system import refuse_given, stated_system
from collhub_astra_sim.workloads.system import RemoteMemory, System
from hub_core import NodeTable, UsageError
from hub_core.model import Diagnostic, JsonValue, Severity, Workload
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source, WorkloadRequest, WorkloadTimes


def simulate(request: WorkloadRequest, options: JobOptions) -> WorkloadTimes:
    """Simulator `analytical` of jobs. Raises `InputError` and `UsageError` for what cannot run.

    A job of a folder for ASTRA-sim is simulated exactly as ASTRA-sim runs it: where ASTRA-sim
    aborts, no rank has a time, and a finding says why. Of any other job markers take no time, as
    in the folder that is written of it.
    """
    stated = request.workload.extensions.get(EXTENSION)
    if isinstance(stated, dict):
        return _of_folder(request, stated, options)
    system, _ = _system({}, options)
    backend = options.network or CONGESTION_AWARE
    workload, kept = bridge_markers(request.workload)
    if request.topology is None:
        raise UsageError("the job states no network", cure="name one with --topology")
    times = _simulated(workload, request.topology, system, {}, None, options, backend)
    start, end = with_markers(request.workload, kept, times.start_ns, times.end_ns)
    found = (*times.diagnostics, *empty_work(workload, system))
    times = replace(times, start_ns=start, end_ns=end, diagnostics=found)
    return _reported(times, options, backend)


def _of_folder(
    request: WorkloadRequest, folder: Mapping[str, JsonValue], options: JobOptions
) -> WorkloadTimes:
    """The times of a folder for ASTRA-sim, or the reasons why it aborts."""
    workload = request.workload
    system, memory = _system(folder, options)
    topology = request.topology or _topology(folder)
    aborts = [found for found in hazards(workload, system) if found.code in ABORTS]
    backend = options.network or folder.get("backend")
    on_network = None
    # Several dimensions with congestion are a network of the hub where the user names one.
    if request.topology is None or len(topology.dimensions) == 1:
        on_network = network_abort(topology, str(backend or CONGESTION_AWARE))
    notes: tuple[Diagnostic, ...] = ()
    if on_network is not None and backend is None:
        backend = CONGESTION_UNAWARE
        message = f"{on_network.message}; these are the times of the congestion-unaware one"
        cure = "-O network=congestion-unaware chooses it"
        notes = (replace(on_network, message=message, severity=Severity.WARNING, cure=cure),)
    elif on_network is not None:
        aborts.append(on_network)
    backend = str(backend or CONGESTION_AWARE)
    if aborts and options.slots == ASTRA_SIM_SLOTS:
        never = (None,) * workload.num_ranks
        times = SimulatedTimes(never, never, *never_begun(workload), (), tuple(aborts), 0)
        return _reported(times, options, backend)
    times = _simulated(workload, topology, system, folder, memory, options, backend)
    return _reported(replace(times, diagnostics=times.diagnostics + notes), options, backend)


def _simulated(
    workload: Workload,
    topology: Topology,
    system: System,
    folder: Mapping[str, JsonValue],
    memory: RemoteMemory | None,
    options: JobOptions,
    backend: str,
) -> SimulatedTimes:
    return simulate_workload(
        workload,
        topology,
        system,
        algorithms=_algorithms(workload, folder, system),
        per_node=_per_node(folder),
        queues=options.queues,
        rendezvous=options.rendezvous,
        memory=memory,
        backend=backend,
        slots=options.slots,
        stops_at_abort=bool(folder) and options.slots == ASTRA_SIM_SLOTS,
    )


def _reported(times: SimulatedTimes, options: JobOptions, backend: str) -> WorkloadTimes:
    """The result in the form of the hub."""
    return WorkloadTimes(
        times.rank_finish_ns,
        times.start_ns,
        times.end_ns,
        times.link_loads,
        times.diagnostics,
        rank_exposed_ns=times.rank_exposed_ns,
        slots=options.slots,
        details={"events": times.events, "network": backend},
    )


def _topology(folder: Mapping[str, JsonValue]) -> Topology:
    text = folder.get("network")
    if not isinstance(text, str):
        raise UsageError("the job states no network", cure="name one with --topology")
    return network_yaml.read(Source.of_bytes("network.yml", text.encode()), NoOptions())


def _system(
    folder: Mapping[str, JsonValue], options: JobOptions
) -> tuple[System, RemoteMemory | None]:
    """The system and the memory of the folder, or the system that options state."""
    text, memory = folder.get("system"), folder.get("memory")
    if not isinstance(text, str):
        return System.of_json(json.dumps(stated_system(options)), "the options"), None
    refuse_given(options)
    found = RemoteMemory.of_json(memory) if isinstance(memory, str) else None
    return System.of_json(text), found


def _algorithms(
    workload: Workload, folder: Mapping[str, JsonValue], system: System
) -> dict[str, NodeTable]:
    """The nodes of custom algorithms, by the prefixes that the configurations name."""
    prefixes, by_kind = folder.get("custom"), folder.get("by_kind")
    if not isinstance(prefixes, list) or not prefixes or not isinstance(by_kind, dict):
        return {}
    # Imported here, since most jobs have none.
    from hub_core import chakra_nodes

    tables = {
        str(prefix): chakra_nodes(algorithm, algorithm.collective_bytes or 0)
        for prefix, algorithm in zip(prefixes, workload.algorithms, strict=True)
    }
    # A configuration names traces by a path from where the simulator runs.
    for kind, stated in system.custom.items():
        used = by_kind.get(str(kind.kind))
        tables[stated] = tables[str(used)]
    return tables


def _per_node(folder: Mapping[str, JsonValue]) -> dict[int, str]:
    stated = folder.get("per_node")
    pairs = stated if isinstance(stated, dict) else {}
    return {int(node): str(prefix) for node, prefix in pairs.items()}
