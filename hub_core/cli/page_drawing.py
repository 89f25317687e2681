"""Pages of algorithms and jobs that a command created: they are simulated, then drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hub_core.model.quantities import format_bytes
from hub_core.plugin_api.outputs import InteractivePage, JobTimeline, RunTimeline
from hub_core.plugin_api.runs import WorkloadRequest

if TYPE_CHECKING:
    from hub_core.cli.command_context import CommandContext
    from hub_core.model import Algorithm, Workload
    from hub_core.network import Topology

_SIMULATOR = "analytical"


def draw_job_page(
    context: CommandContext, workload: Workload, name: str, topology: Topology | None, out: str
) -> None:
    """Simulate a job on nominal links and write its page to `out`.

    Without a topology, all NPUs are at one switch, which the page states. Raises `HubError` if the
    job cannot be simulated or no plugin writes pages.
    """
    if topology is None:
        topology = context.read_topology(f"switch:{workload.num_ranks}")
    request = WorkloadRequest(workload, topology, wants_transfers=True)
    times = context.simulate_workload(request, _SIMULATOR, {})
    timeline = JobTimeline(
        name,
        workload,
        times.step_start_ns,
        times.step_end_ns,
        topology,
        times,
        timing=f"simulated on {topology.name}, nominal links",
    )
    context.say_written(context.draw_report(InteractivePage(name, (timeline,)), out))


def draw_algorithm_page(
    context: CommandContext,
    algorithm: Algorithm,
    name: str,
    topology: Topology,
    collective_bytes: int,
    out: str,
) -> None:
    """Simulate an algorithm on nominal links and write its page to `out`. Raises `HubError`."""
    # Imported here: the help of a command needs no numpy.
    from hub_core.pipeline.simulation import simulate

    with context.progress(f"simulating {format_bytes(collective_bytes)}"):
        result = simulate(
            algorithm,
            topology,
            collective_bytes,
            registry=context.registry(),
            wants_transfers=True,
        )
    timeline = RunTimeline(
        name,
        algorithm,
        collective_bytes,
        result.step_start_ns,
        result.step_end_ns,
        topology,
        result,
        timing=f"simulated on {topology.name}, nominal links",
    )
    context.say_written(context.draw_report(InteractivePage(name, (timeline,)), out))
