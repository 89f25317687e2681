"""Time a whole job with a simulator of workloads."""

from __future__ import annotations

from hub_core.model import PluginError
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api import WorkloadRequest, WorkloadSimulator, WorkloadTimes
from hub_core.registry.bind_options import OptionText
from hub_core.registry.plugins import Registry


def simulate_job(
    request: WorkloadRequest, name: str, options: OptionText, registry: Registry
) -> WorkloadTimes:
    """The times of a workload by the simulator of a name. Raises `HubError`."""
    found = registry.find(WorkloadSimulator, name)
    result = call(found, WorkloadTimes, request, bound_options(found, options))
    ranks = request.workload.num_ranks
    if {len(result.rank_finish_ns), len(result.rank_exposed_ns)} != {ranks}:
        raise PluginError(f"{found.plugin}: {name} returned times for other than {ranks} ranks")
    return result
