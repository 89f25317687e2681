"""The program of one rank that mpiexec starts for the executor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from collhub_execution import FAILED, JobFolder, RankPart, run_task, serve_rank
from mpi4py import MPI

from collhub_mpi.engine import Array, mpi_engine
from collhub_mpi.executor import drop_names
from hub_core.model import PluginError


def main() -> int:
    """Serve the rank that MPI assigns to this process; the argument is the job folder."""
    # MPI determines the rank; the folder has a task for each.
    job, world = JobFolder(Path(sys.argv[1])), MPI.COMM_WORLD
    try:
        drop_names(world)
        serve_rank(job, world.rank, lambda part: _run(part, world))
    except BaseException:
        # Without this, MPI would wait for the other ranks when the process exits. The failure is in
        # the folder.
        os._exit(FAILED)
    return 0


def _run(part: RankPart, world: MPI.Intracomm) -> Array:
    """Run the task. Raises `PluginError` if the launcher belongs to another MPI."""
    task = part.task
    if world.size != task.plan.num_ranks:
        # With another MPI's launcher each rank is in a world of size 1.
        message = (
            f"mpiexec started {task.plan.num_ranks} processes, but mpi4py sees {world.size}: "
            "it belongs to another MPI"
        )
        cure = "name the launcher of the same MPI: -O launcher=mpiexec.mpich"
        raise PluginError(message, cure=cure, code="other-mpi")
    return run_task(task, mpi_engine(task, world, part.memory), part.log)


if __name__ == "__main__":
    sys.exit(main())
