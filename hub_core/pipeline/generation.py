"""Make a whole job with a generator of workloads."""

from __future__ import annotations

from hub_core.model import Workload
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api import WorkloadGenerator
from hub_core.registry.bind_options import OptionText
from hub_core.registry.plugins import Registry


def generate_job(name: str, options: OptionText, registry: Registry) -> Workload:
    """The job that the generator of a name makes of options. Raises `HubError`."""
    found = registry.find(WorkloadGenerator, name)
    return call(found, Workload, bound_options(found, options))
