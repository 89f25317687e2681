"""The program of one rank that mpiexec starts for the executor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from mpi4py import MPI

from collhub_mpi.engine import MpiEngine
from hub_core.execution.job_folder import FAILED, Job, serve_rank
from hub_core.execution.rank_engine import RankLog, run_task
from hub_core.execution.rank_tasks import Array, RankTask
from hub_core.model import PluginError


def main() -> int:
    """Serve the rank that MPI gives to this process."""
    job, world = Job(Path(sys.argv[1])), MPI.COMM_WORLD
    try:
        serve_rank(job, world.rank, lambda task, log: _run(task, log, world))
    except BaseException:
        # Without this, MPI would wait for the other ranks at the end of the process. The failure is in the folder.
        os._exit(FAILED)
    return 0


def _run(task: RankTask, log: RankLog, world: MPI.Intracomm) -> Array:
    if world.size != task.plan.num_ranks:
        message = f"mpiexec started {task.plan.num_ranks} processes, but mpi4py sees {world.size}: it belongs to another MPI"
        raise PluginError(
            message,
            cure="name the launcher of the same MPI: -O launcher=mpiexec.mpich",
            code="other-mpi",
        )
    return run_task(task, MpiEngine(task, world), log)


if __name__ == "__main__":
    sys.exit(main())
