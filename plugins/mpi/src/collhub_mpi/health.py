"""Check for `collhub doctor`: is mpi4py there, and an mpiexec that starts ranks for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from collhub_mpi.executor import INSTALL, found_launcher
from hub_core.model import PluginError
from hub_core.plugin_api import HealthLine


def check(environment: Mapping[str, str]) -> Sequence[HealthLine]:
    """One line for mpi4py, one for mpiexec; nothing is imported, because that would start MPI. Without it all else works."""
    try:
        lines = [HealthLine("mpi4py", True, f"mpi4py {version('mpi4py')} for the executor mpi")]
    except PackageNotFoundError:
        return [
            HealthLine(
                "mpi4py",
                True,
                f"not installed; the executor mpi needs it ({INSTALL}), the executor numpy does not",
            )
        ]
    try:
        return [*lines, HealthLine("mpiexec", True, " ".join(found_launcher()))]
    except PluginError as error:
        return [*lines, HealthLine("mpiexec", False, error.diagnostics[0].message, INSTALL)]
