"""Compile the kernels of the simulators of algorithms and jobs in advance, by small runs."""

from __future__ import annotations

import time

from collhub_astra_sim.options import AnalyticalOptions, JobOptions
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    SimulationRequest,
    WarmOptions,
    WorkloadRequest,
)

_BYTES = 64


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile and store the kernels that are not yet stored, if `options.warm` is set.

    The check always passes; with `warm` it reports the elapsed time.
    """
    if not options.warm:
        return CheckReport(True)
    start = time.perf_counter()
    _run_every_kernel()
    details = f"ready after {time.perf_counter() - start:.1f} s"
    return CheckReport(True, lines=(CheckLine("kernels", True, details),))


def _run_every_kernel() -> None:
    """Run every kernel once in the mode that compiles at once."""
    # Imported here, so that a check that is not requested needs no time.
    from collhub_kernels import compile_at_once

    from collhub_astra_sim.simulating.analytical import simulate
    from collhub_astra_sim.workloads.collective_plans import build_custom_tables
    from collhub_astra_sim.workloads.simulator import simulate as simulate_job
    from hub_core import chakra_nodes, parse_topology
    from hub_core.testing import ring_all_reduce, training_step

    network, algorithm = parse_topology("ring:2"), ring_all_reduce(2)
    with compile_at_once():
        simulate(SimulationRequest(algorithm, network, _BYTES), AnalyticalOptions())
        simulate_job(WorkloadRequest(training_step(num_ranks=2), network), JobOptions())
        build_custom_tables([chakra_nodes(algorithm, _BYTES)])
