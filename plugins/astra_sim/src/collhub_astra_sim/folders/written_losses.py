"""Losses of a written folder of a job, found by reading it back and simulating it as ASTRA-sim.

The folder may hold only what ASTRA-sim reads, so that its own reader sees it as ASTRA-sim does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from collhub_astra_sim.folders.job import read
from collhub_astra_sim.options import JobFolderOptions, JobOptions
from collhub_astra_sim.workloads.hazards import EXTENSION, hazards
from collhub_astra_sim.workloads.node_work import is_timed_by_duration
from collhub_astra_sim.workloads.simulator import simulate
from collhub_astra_sim.workloads.system import System
from hub_core import HubError, Loss
from hub_core.columns import Int64Array
from hub_core.model import Severity, Workload, format_ranks
from hub_core.plugin_api import Artifact, Source, SourcePart, WorkloadRequest


def written_losses(
    artifacts: Sequence[Artifact], workload: Workload, exact_ns: Int64Array | None, network: str
) -> tuple[Loss, ...]:
    """Compare the written job with the exact one, and report what keeps it from finishing.

    `workload`: the job whose nodes were written. `exact_ns`: int64 by node, durations before any
    rounding; None where the nodes became a custom algorithm. `network`: the backend that will run
    the folder.
    """
    try:
        again = read(_source_of(artifacts), JobFolderOptions())
    except HubError as error:
        return (Loss("simulation", "all ranks", f"the folder cannot be read back: {error}"),)
    # A custom algorithm has its own checks and its nodes are not those of the workload.
    losses = [] if exact_ns is None else [*_lost_values(again, workload, exact_ns)]
    findings = hazards(again, _system_of(again))
    losses += [
        Loss(f"hazard {found.code}", str(found.location.rank), found.message) for found in findings
    ]
    if not any(found.severity is Severity.ERROR for found in findings):
        losses += _unfinished_ranks(again, network)
    return tuple(losses)


def _source_of(artifacts: Sequence[Artifact]) -> Source:
    """The artifacts as the reader of a folder gets them."""
    parts = [SourcePart(one.name, one.content) for one in artifacts]
    return Source("folder", tuple(parts), lambda found: None)


def _system_of(workload: Workload) -> System:
    """The system configuration of a job that was read from a folder."""
    stated = workload.extensions[EXTENSION]
    assert isinstance(stated, dict)
    return System.of_json(str(stated["system"]))


def _lost_values(again: Workload, workload: Workload, exact_ns: Int64Array) -> Iterator[Loss]:
    """Durations and roots that ASTRA-sim reads differently; both jobs have the same rows."""
    is_timed = is_timed_by_duration(again, _system_of(again))
    # Without a duration, as with one of 0, a node takes 1 ns.
    exact = np.where(is_timed, exact_ns.clip(0), 0)
    cut = exact - np.where(is_timed, again.nodes.duration_ns.clip(0), 0)
    if cut.any():
        ranks = again.nodes.rank
        lost = np.abs(np.bincount(ranks, cut, again.num_ranks)).astype(np.int64)
        rank = int(lost.argmax())
        whole = int(exact[ranks == rank].sum())
        message = (
            f"ASTRA-sim reads whole microseconds: {int((cut != 0).sum())} nodes are rounded, "
            f"which changes rank {rank} by {int(lost[rank])} of {whole} ns"
        )
        yield Loss("duration_ns", "host nodes and broadcasts", message)
    roots = int((workload.nodes.root != again.nodes.root).sum())
    if roots:
        yield Loss("root", f"{roots} nodes", "ASTRA-sim knows no root: a broadcast is a timer")


def _unfinished_ranks(again: Workload, network: str) -> Iterator[Loss]:
    """What keeps ranks of the written job from finishing in a simulation."""
    try:
        times = simulate(WorkloadRequest(again), JobOptions(network=network))
    except HubError as error:
        reason = error.diagnostics[0] if error.diagnostics else error
        yield Loss("simulation", "all ranks", f"ASTRA-sim cannot run the job: {reason}")
        return
    if times.time_ns is None:
        ranks = [rank for rank, end in enumerate(times.rank_finish_ns) if end is None]
        found = times.diagnostics[0]
        yield Loss("simulation", f"ranks {format_ranks(ranks)}", f"never finish: {found}")
