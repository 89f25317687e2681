"""Simulate a job with the times that the library of a measured machine reaches."""

from __future__ import annotations

import numpy as np

from collhub_pytorch.analysis import is_computation, measure_rank_times, measured_timeline
from collhub_pytorch.formats import JobMachineOptions
from collhub_pytorch.job_changes import find_changes, find_instant
from collhub_pytorch.predicted_times import MachinePredictor, predict_job, require_sizes
from hub_core.model import UsageError
from hub_core.plugin_api import (
    JobChange,
    WorkloadRequest,
    WorkloadTimes,
)


def simulate(request: WorkloadRequest, options: JobMachineOptions) -> WorkloadTimes:
    """Simulate a job; its collectives take the times of the machine, without contention.

    Computations take their durations. Measured times of collectives are replaced. Raises
    `UsageError` without a machine or registry, `InputError` for computations without a duration
    and for calls that the profile does not predict.
    """
    if options.machine is None or request.hub is None:
        raise UsageError("no machine is given", cure="give --machine P")
    require_sizes(request.workload)
    predictor = MachinePredictor(options.machine, options.ranks_per_node, request.hub)
    workload = predict_job(request.workload, predictor)
    times = measured_timeline(workload)
    nodes = workload.nodes
    finish = np.zeros(workload.num_ranks, np.int64)
    np.maximum.at(finish, nodes.rank, times.end)
    computation = [rank.computation_ns for rank in measure_rank_times(workload, times)]
    exposed = finish - np.array(computation, np.int64)
    changes: tuple[JobChange, ...] = ()
    if options.changes:
        changes = (
            *find_changes(workload, predictor, is_predicted=True),
            find_instant(workload, predictor),
        )
    return WorkloadTimes(
        tuple(finish.tolist()),
        times.start,
        times.end,
        rank_exposed_ns=tuple(exposed.tolist()),
        slots="one computation of a rank, one collective of a group",
        details={
            "ranks_per_node": predictor.ranks_per_node,
            "computations": int(is_computation(workload).sum()),
        },
        machine=predictor.description,
        changes=changes,
    )
