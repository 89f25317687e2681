"""The simulator of whole jobs: of a folder for ASTRA-sim, or of traces with a system by options."""

from __future__ import annotations

import json
from collections.abc import Mapping

from collhub_astra_sim.networks import network_yaml
from collhub_astra_sim.options import JobOptions
from collhub_astra_sim.workloads.hazards import EXTENSION, empty_work
from collhub_astra_sim.workloads.simulate import simulate_workload
from collhub_astra_sim.workloads.stated_system import refuse_given, stated_system
from collhub_astra_sim.workloads.system import RemoteMemory, System
from hub_core import NodeTable, UsageError
from hub_core.model import JsonValue, Workload
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source, WorkloadRequest, WorkloadTimes


def simulate(request: WorkloadRequest, options: JobOptions) -> WorkloadTimes:
    """Simulator `analytical` of jobs. Raises `InputError` and `UsageError` for what cannot run."""
    workload = request.workload
    stated = workload.extensions.get(EXTENSION)
    folder = stated if isinstance(stated, dict) else {}
    system, memory = _system(folder, options)
    found = simulate_workload(
        workload,
        request.topology or _topology(folder),
        system,
        algorithms=_algorithms(workload, folder, system),
        per_node=_per_node(folder),
        queues=options.queues,
        rendezvous=options.rendezvous,
        memory=memory,
        backend=options.network,
        slots=options.slots,
    )
    return WorkloadTimes(
        found.rank_finish_ns,
        found.start_ns,
        found.end_ns,
        found.link_loads,
        # The checks of a folder say so before.
        found.diagnostics if folder else (*found.diagnostics, *empty_work(workload, system)),
        rank_exposed_ns=found.rank_exposed_ns,
        slots=options.slots,
        details={"events": found.events, "network": options.network},
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
