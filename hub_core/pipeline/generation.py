"""Make a whole job with a generator of workloads."""

from __future__ import annotations

from hub_core.model import InputError, UsageError, Workload
from hub_core.pipeline.calls import bound_options, call
from hub_core.plugin_api import BudgetReached, SearchBudget, WorkloadGenerator
from hub_core.registry.bind_options import OptionText
from hub_core.registry.plugins import Registry


def generate_job(
    name: str, options: OptionText, registry: Registry, budget: SearchBudget | None = None
) -> Workload:
    """The job that the generator of a name makes of options. Raises `HubError`.

    `budget`: limits of a search; it lists what they have cut.
    """
    found = registry.find(WorkloadGenerator, name)
    limits = budget or SearchBudget()
    if not found.offer.searches and limits.timeout_s is not None:
        message = f"--timeout has no meaning for {name}, which searches for nothing"
        raise UsageError(message, cure="leave it out")
    beside = (limits,) if found.offer.searches else ()
    try:
        return call(found, Workload, bound_options(found, options), *beside)
    except BudgetReached:
        raise InputError(
            f"{name} finished no job after {limits.done} steps of work: {limits.reason}",
            cure="allow more time",
            code="limit-reached",
        ) from None
