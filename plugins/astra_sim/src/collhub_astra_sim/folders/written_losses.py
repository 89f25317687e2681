"""Losses of a written folder of a job, determined by reading it back and simulating it.

The folder contains only data that ASTRA-sim reads, so the reader sees it as ASTRA-sim does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collhub_astra_sim.folders.job import read
from collhub_astra_sim.options import JobFolderOptions, JobOptions
from collhub_astra_sim.workloads.hazards import EXTENSION, find_hazards
from collhub_astra_sim.workloads.node_work import is_timed_by_duration
from collhub_astra_sim.workloads.simulator import simulate
from collhub_astra_sim.workloads.system import System
from hub_core import HubError, Loss
from hub_core.columns import Int64Array
from hub_core.model import Severity, Workload, format_ranks
from hub_core.plugin_api import Artifact, Source, SourcePart, WorkloadRequest


def compute_written_losses(
    artifacts: Sequence[Artifact], workload: Workload, exact_ns: Int64Array | None, network: str
) -> tuple[Loss, ...]:
    """Compare the written job with the exact one, and report why it would not finish.

    `workload`: the job whose nodes were written. `exact_ns`: int64 by node, durations before
    rounding; None if the nodes became a custom algorithm. `network`: the backend that will run the
    folder.
    """
    parts = [SourcePart(artifact.name, artifact.content) for artifact in artifacts]
    folder = Source("folder", tuple(parts), lambda finding: None)
    try:
        written = read(folder, JobFolderOptions())
    except HubError as error:
        return (Loss("simulation", "all ranks", f"the folder cannot be read back: {error}"),)
    # A custom algorithm is checked separately, and its nodes are not those of the workload.
    losses = [] if exact_ns is None else [*_report_lost_values(written, workload, exact_ns)]
    findings = find_hazards(written, _read_system(written))
    losses += [
        Loss(f"hazard {finding.code}", str(finding.location.rank), finding.message)
        for finding in findings
    ]
    if not any(finding.severity is Severity.ERROR for finding in findings):
        losses += _report_unfinished_ranks(written, network)
    return tuple(losses)


def _read_system(workload: Workload) -> System:
    """Return the system configuration of a job that was read from a folder."""
    folder = workload.extensions[EXTENSION]
    assert isinstance(folder, dict)
    return System.of_json(str(folder["system"]))


def _report_lost_values(
    written: Workload, workload: Workload, exact_ns: Int64Array
) -> Iterator[Loss]:
    """Yield durations and roots that ASTRA-sim reads differently; both jobs have the same rows."""
    is_timed = is_timed_by_duration(written, _read_system(written))
    # Without a duration, or with 0, a node takes 1 ns.
    exact = np.where(is_timed, exact_ns.clip(0), 0)
    difference_ns = exact - np.where(is_timed, written.nodes.duration_ns.clip(0), 0)
    if difference_ns.any():
        ranks = written.nodes.rank
        changes_ns = np.abs(np.bincount(ranks, difference_ns, written.num_ranks)).astype(np.int64)
        rank = int(changes_ns.argmax())
        total_ns = int(exact[ranks == rank].sum())
        message = (
            f"ASTRA-sim reads whole microseconds: {int((difference_ns != 0).sum())} nodes are "
            f"rounded, which changes rank {rank} by {int(changes_ns[rank])} of {total_ns} ns"
        )
        yield Loss("duration_ns", "host nodes and broadcasts", message)
    roots = int((workload.nodes.root != written.nodes.root).sum())
    if roots:
        yield Loss("root", f"{roots} nodes", "ASTRA-sim knows no root: a broadcast is a timer")


def _report_unfinished_ranks(written: Workload, network: str) -> Iterator[Loss]:
    """Yield the reason why ranks of the written job do not finish in a simulation, if any."""
    try:
        times = simulate(WorkloadRequest(written), JobOptions(network=network))
    except HubError as error:
        reason = error.diagnostics[0] if error.diagnostics else error
        yield Loss("simulation", "all ranks", f"ASTRA-sim cannot run the job: {reason}")
        return
    if times.time_ns is None:
        ranks = [rank for rank, end in enumerate(times.rank_finish_ns) if end is None]
        finding = times.diagnostics[0]
        yield Loss("simulation", f"ranks {format_ranks(ranks)}", f"never finish: {finding}")
