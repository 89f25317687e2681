"""Check jobs of folders for ASTRA-sim: hazards of nodes, and those that only a simulation shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from collhub_astra_sim.options import JobOptions
from collhub_astra_sim.workloads.hazards import EXTENSION, find_hazards
from collhub_astra_sim.workloads.simulator import simulate
from collhub_astra_sim.workloads.system import System
from hub_core import HubError, UsageError
from hub_core.model import Diagnostic, Severity, Workload
from hub_core.plugin_api import CheckReport, CheckRequest, NoOptions, WorkloadRequest

MAX_FINDINGS = 8
"""Maximum number of listed findings of a simulation; a job that hangs has one per rank."""


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Check `astra-sim-hazards`: for a workload that was read from a folder for ASTRA-sim.

    A thorough check also simulates the job on the network of the folder: only then are collectives
    in an order that hangs, and messages that abort, detected. The report is not applicable to other
    workloads; it fails if a finding is an error.
    """
    if request.workload is None:
        raise UsageError("the check needs a workload")
    extension = request.workload.extensions.get(EXTENSION)
    system = extension.get("system") if isinstance(extension, dict) else None
    if not isinstance(extension, dict) or not isinstance(system, str):
        return CheckReport(True, is_applicable=False)
    findings = list(find_hazards(request.workload, System.of_json(system)))
    is_fatal = any(finding.severity is Severity.ERROR for finding in findings)
    if request.is_thorough and not is_fatal and isinstance(extension.get("network"), str):
        findings += _simulate_findings(request.workload)
        is_fatal = any(finding.severity is Severity.ERROR for finding in findings)
    file = request.workload.provenance.source_name or None
    located = [
        replace(finding, location=replace(finding.location, file=file)) for finding in findings
    ]
    return CheckReport(not is_fatal, diagnostics=tuple(located))


def _simulate_findings(workload: Workload) -> Iterator[Diagnostic]:
    """Yield the findings of a simulation, at most `MAX_FINDINGS`.

    Equal findings of several ranks are reported once.
    """
    try:
        times = simulate(WorkloadRequest(workload), JobOptions())
    except HubError as error:
        yield from error.diagnostics
        return
    first = {finding.message: finding for finding in reversed(times.diagnostics)}
    different = sorted(first.values(), key=lambda finding: finding.location.rank or 0)
    yield from different[:MAX_FINDINGS]
    if len(different) > MAX_FINDINGS:
        more = f"{len(different) - MAX_FINDINGS} more findings are listed by collhub simulate"
        yield Diagnostic(different[-1].code, more)
