"""What this distribution offers to the hub."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Executor, HealthCheck, Option, OptionType, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

MPI = Executor(
    "mpi",
    "MPI by mpi4py, a process per rank on this machine",
    "collhub_mpi.executor:execute",
    (
        Option(
            "launcher",
            OptionType.TEXT,
            None,
            "program that starts the ranks, with its arguments (default: the mpiexec beside this Python, else on the path)",
        ),
    ),
)


@hookimpl
def collhub_consumers() -> Sequence[Executor]:
    """Describe the executor."""
    return [MPI]


@hookimpl
def collhub_health_checks() -> Sequence[HealthCheck]:
    """Describe the check of the library."""
    return [HealthCheck("mpi", "collhub_mpi.health:check")]
