"""Check of jobs of folders for ASTRA-sim: hazards of nodes, and those that a simulation shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collhub_astra_sim.options import JobOptions
from collhub_astra_sim.workloads.hazards import EXTENSION, hazards
from collhub_astra_sim.workloads.simulator import simulate
from collhub_astra_sim.workloads.system import System
from hub_core import HubError, UsageError
from hub_core.model import Diagnostic, Severity, Workload
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, WorkloadRequest

MAX_FINDINGS = 8
"""Findings of a simulation that are listed; a job that hangs has one for every rank."""


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check `astra-sim-hazards` of a workload that was read from a folder for ASTRA-sim.

    A thorough check also simulates the job on the network of the folder: collectives in an order
    that hangs, and messages that abort, show only there.
    """
    if request.workload is None:
        raise UsageError("the check needs a workload")
    stated = request.workload.extensions.get(EXTENSION)
    system = stated.get("system") if isinstance(stated, dict) else None
    if not isinstance(stated, dict) or not isinstance(system, str):
        return CheckReport(True, is_applicable=False)
    found = list(hazards(request.workload, System.of_json(system)))
    is_fatal = any(one.severity is Severity.ERROR for one in found)
    if request.is_thorough and not is_fatal and isinstance(stated.get("network"), str):
        found += _simulated(request.workload)
        is_fatal = any(one.severity is Severity.ERROR for one in found)
    file = request.workload.provenance.source_name or None
    placed = [replace(one, location=replace(one.location, file=file)) for one in found]
    return CheckReport(not is_fatal, diagnostics=tuple(placed))


def _simulated(workload: Workload) -> Iterator[Diagnostic]:
    """Findings of a simulation, equal ones of several ranks once."""
    try:
        times = simulate(WorkloadRequest(workload), JobOptions())
    except HubError as error:
        yield from error.diagnostics
        return
    first = {found.message: found for found in reversed(times.diagnostics)}
    different = sorted(first.values(), key=lambda found: found.location.rank or 0)
    yield from different[:MAX_FINDINGS]
    if len(different) > MAX_FINDINGS:
        more = f"{len(different) - MAX_FINDINGS} more findings are listed by collhub simulate"
        yield Diagnostic(different[-1].code, more)
