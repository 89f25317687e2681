"""The simulator of whole jobs: of a folder for ASTRA-sim, or of traces with a system by options."""

from __future__ import annotations

import json
from collections.abc import Mapping

from collhub_astra_sim.folders.job import EXTENSION
from collhub_astra_sim.networks import network_yaml
from collhub_astra_sim.options import JobOptions
from collhub_astra_sim.workloads.simulate import simulate_workload
from collhub_astra_sim.workloads.system import RemoteMemory, System
from hub_core import NodeTable, UsageError, chakra_nodes
from hub_core.model import JsonValue, Workload
from hub_core.network import Topology
from hub_core.plugin_api import NoOptions, Source, WorkloadRequest, WorkloadTimes

_SYSTEM_OPTIONS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "endpoint_delay", "splits"),
    *("active_chunks", "optimization", "memory_bandwidth", "peak_tflops"),
)
_GB = 1e9


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
        found.diagnostics,
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
    given = [name for name in _SYSTEM_OPTIONS if getattr(options, name) is not None]
    text, memory = folder.get("system"), folder.get("memory")
    if not isinstance(text, str):
        return System.of_json(json.dumps(_stated(options)), "the options"), None
    if given:
        message = f"the folder states its system: option {given[0]} has no meaning"
        raise UsageError(message, cure="change system.json of the folder")
    found = RemoteMemory.of_json(memory) if isinstance(memory, str) else None
    return System.of_json(text), found


def _stated(options: JobOptions) -> dict[str, object]:
    """The content of a system.json that says what options say."""
    chosen: dict[str, object] = {
        f"{kind.replace('_', '-')}-implementation": (getattr(options, kind) or "ring").split(",")
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    }
    chosen |= {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 10 if options.endpoint_delay is None else options.endpoint_delay,
        "preferred-dataset-splits": options.splits or 1,
        "active-chunks-per-dimension": options.active_chunks or 1,
        "collective-optimization": options.optimization or "localBWAware",
    }
    if options.memory_bandwidth is not None:
        chosen["local-mem-bw"] = options.memory_bandwidth / _GB
    if options.peak_tflops is not None:
        chosen |= {"roofline-enabled": 1, "peak-perf": options.peak_tflops}
    return chosen


def _algorithms(
    workload: Workload, folder: Mapping[str, JsonValue], system: System
) -> dict[str, NodeTable]:
    """The nodes of custom algorithms, by the prefixes that the configurations name."""
    prefixes, by_kind = folder.get("custom"), folder.get("by_kind")
    if not isinstance(prefixes, list) or not isinstance(by_kind, dict):
        return {}
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
