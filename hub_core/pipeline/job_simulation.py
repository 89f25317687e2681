"""Simulate jobs, with direct messages for uneven collectives without an algorithm."""

from __future__ import annotations

from dataclasses import replace

from hub_core.model import Algorithm, PluginError, UsageError
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api import Synthesizer, WorkloadRequest, WorkloadSimulator, WorkloadTimes
from hub_core.registry.bind_options import OptionText
from hub_core.registry.discovery import run_registry
from hub_core.registry.plugins import Registry


def simulate_job(request: WorkloadRequest, name: str, options: OptionText) -> WorkloadTimes:
    """Simulate a job with the simulator `name`; check that there are times for every rank.

    `options`: texts by name. The simulator gets the registry of the request or, without
    one, that of the current run. Before that, uneven collectives without an algorithm
    (except on the host) get the default one; this needs a network, from the request or the
    input. Raises:

    - `UsageError` (`no-topology`) if that network is missing
    - `HubError` for an unknown simulator, an unknown or invalid option, and if the default
      algorithm cannot be synthesized
    - `PluginError` if the simulator fails, or returns another number of finish times or
      exposed times than ranks
    """
    registry = request.hub or run_registry()
    simulator = registry.find(WorkloadSimulator, name)
    completed = with_uneven_algorithms(replace(request, hub=registry), registry)
    result = call(simulator, WorkloadTimes, completed, bound_options(simulator, options))
    ranks = request.workload.num_ranks
    if {len(result.rank_finish_ns), len(result.rank_exposed_ns)} != {ranks}:
        raise PluginError(f"{simulator.plugin}: {name} returned times for other than {ranks} ranks")
    return result


def with_uneven_algorithms(request: WorkloadRequest, registry: Registry) -> WorkloadRequest:
    """Return the request with algorithms for uneven collectives, i.e. those with counts per rank.

    Simulators have no native algorithm for them. Uneven collectives without an algorithm get one of
    the synthesizer `DEFAULT_UNEVEN`. Collectives on the host, of a single rank or of an unknown
    kind are not changed. The network for the synthesis is `request.topology`, or if that is None,
    the result of `request.read_input_topology`.

    Returns `request` itself if each uneven collective on a device has an algorithm; else a copy.
    Raises `UsageError` (`no-topology`) if algorithms are needed and there is no network, and
    `HubError` if the synthesis fails or the synthesizer is not installed.
    """
    workload, nodes = request.workload, request.workload.nodes
    is_open = (nodes.counts >= 0) & (nodes.algorithm < 0) & ~nodes.on_host
    if not is_open.any():
        return request
    # Imported here: most jobs need no synthesis.
    from hub_core.pipeline.job_algorithms import DEFAULT_RULE, DEFAULT_UNEVEN, with_algorithms

    topology = request.topology
    if topology is None and request.read_input_topology is not None:
        topology = request.read_input_topology()
    if topology is None:
        message = "the job has uneven collectives, whose algorithms need a network"
        raise UsageError(message, cure="name one with --topology", code="no-topology")

    def refuse(name: str) -> Algorithm:
        # Only called if no synthesizer has the name; `find` then raises the error.
        message = f"{registry.find(Synthesizer, name).name} is no file"
        raise UsageError(message, cure="install the plugin that offers it")

    assigned = with_algorithms(
        workload,
        [replace(DEFAULT_RULE, algorithm=DEFAULT_UNEVEN)],
        topology,
        registry,
        read=refuse,
        admit=lambda algorithm, name: None,
        selected=is_open,
    )
    return replace(request, workload=assigned)
