"""Simulate an algorithm with ASTRA-sim's rendezvous protocol, as a custom collective of a job.

With this protocol a message is sent only after a message of 8192 bytes from its receiver has
arrived. The kernel of jobs models it; it reports no times of single nodes of an algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collhub_astra_sim.options import AnalyticalOptions
from collhub_astra_sim.simulating.timing_model import TimingModel
from collhub_astra_sim.workloads.simulate import simulate_workload
from collhub_astra_sim.workloads.system import System
from hub_core import NodeTable
from hub_core.model import (
    Diagnostic,
    JobCollective,
    NodeColumns,
    NodeKind,
    ProcessGroup,
    UsageError,
    Workload,
    format_ranks,
)
from hub_core.network import Occupancy, Topology
from hub_core.plugin_api import SimulationResult

_PREFIX = "algorithm"
_CURE = "leave out -O rendezvous"


def simulate_rendezvous(
    nodes: NodeTable,
    topology: Topology,
    options: AnalyticalOptions,
    npus: Sequence[int] | None,
) -> SimulationResult:
    """Return the finish times of ranks with the rendezvous protocol.

    `nodes`: with the durations of all computations. `npus`: ascending NPUs of the ranks, None for
    the first ones. Raises `UsageError` for NPUs that do not ascend, for networks of several planes
    and for link models other than that of ASTRA-sim. Ranks that never finish are reported as a
    diagnostic.
    """
    members = tuple(range(nodes.num_ranks)) if npus is None else tuple(npus)
    if list(members) != sorted(members):
        raise UsageError("rendezvous needs ranks on ascending NPUs", cure=_CURE)
    if topology.num_planes > 1:
        raise UsageError("rendezvous is not modelled on networks of several planes", cure=_CURE)
    if TimingModel.of_options(options).occupancy is not Occupancy.SERIALIZATION:
        raise UsageError("rendezvous is not modelled with occupancy=alpha-beta", cure=_CURE)
    system = System(custom={JobCollective.ALL_REDUCE: _PREFIX})
    times = simulate_workload(
        _build_job(members, topology.num_npus),
        topology,
        system,
        algorithms={_PREFIX: nodes},
        rendezvous=True,
        backend=options.network,
    )
    finish = tuple(times.rank_finish_ns[npu] for npu in members)
    unfinished = [rank for rank, end in enumerate(finish) if end is None]
    message = (
        f"rank {format_ranks(unfinished)} waits for messages, or for receivers, that never come"
    )
    diagnostics = (Diagnostic("unfinished", message),) if unfinished else times.diagnostics
    return SimulationResult(finish, link_loads=times.link_loads, diagnostics=diagnostics)


def _build_job(members: Sequence[int], num_npus: int) -> Workload:
    """Return a job of one all-reduce on these NPUs, which runs the algorithm of any collective."""
    count = len(members)
    is_part = count < num_npus
    columns = {
        "rank": np.array(members),
        "kind": np.full(count, int(NodeKind.COLLECTIVE)),
        "collective": np.full(count, int(JobCollective.ALL_REDUCE)),
        "bytes": np.full(count, num_npus),
        "group": np.full(count, 0 if is_part else -1),
    }
    groups = (ProcessGroup("1", tuple(members)),) if is_part else ()
    return Workload(NodeColumns.from_columns(num_npus, columns), groups=groups)
