"""Compile the kernel of the simulator of machines in advance, by a small run."""

from __future__ import annotations

import time

from collhub_machine_timing.plugin import MachineOptions
from hub_core.plugin_api import (
    CheckLine,
    CheckReport,
    CheckRequest,
    SimulationRequest,
    WarmOptions,
)

_NETWORK, _BYTES = "switch:2?bandwidth=450GB/s", 64


def check(request: CheckRequest, options: WarmOptions) -> CheckReport:
    """Compile and store the kernel if it is not yet stored and `options.warm` is set.

    The check always passes; with `warm` it reports the elapsed time.
    """
    if not options.warm:
        return CheckReport(True)
    # Imported here, so that a check that is not requested needs no time.
    from collhub_kernels import compile_at_once

    from collhub_machine_timing.simulate import simulate
    from hub_core import parse_topology
    from hub_core.testing import ring_all_reduce

    start = time.perf_counter()
    simulation = SimulationRequest(ring_all_reduce(2), parse_topology(_NETWORK), _BYTES)
    with compile_at_once():
        simulate(simulation, MachineOptions(machine="h100"))
    details = f"ready after {time.perf_counter() - start:.1f} s"
    return CheckReport(True, lines=(CheckLine("machine kernel", True, details),))
