"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_mpi.options import MpiOptions
from hub_core.plugin_api import Check, Executor, Subject, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

MPI = Executor(
    "mpi",
    "MPI by mpi4py, a process per rank on this machine",
    "collhub_mpi.executor:execute",
    MpiOptions,
)
INSTALLATION = Check(
    "mpi",
    Subject.INSTALLATION,
    "whether mpi4py is installed, and an mpiexec for it",
    "collhub_mpi.health:check",
)


@hookimpl
def collhub_consumers() -> Sequence[Executor]:
    """Describe the executor."""
    return [MPI]


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check of the library."""
    return [INSTALLATION]
