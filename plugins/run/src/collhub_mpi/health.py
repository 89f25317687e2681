"""Check for `collhub doctor`: is mpi4py there, and an mpiexec that starts ranks for it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from collhub_mpi.executor import INSTALL, found_launcher
from hub_core.model import PluginError
from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """One line for mpi4py, one for mpiexec; nothing is imported, because that would start MPI.

    All is well without mpi4py too: everything but this executor works.
    """
    try:
        installed = version("mpi4py")
    except PackageNotFoundError:
        need = f"the executor mpi needs it ({INSTALL})"
        details = f"not installed; {need}, the executor numpy does not"
        return CheckReport(ok=True, lines=(CheckLine("mpi4py", True, details),))
    # An mpi4py without launcher is an installation that somebody wanted and that does not work.
    library = CheckLine("mpi4py", True, f"mpi4py {installed} for the executor mpi")
    launcher = _launcher_line()
    return CheckReport(ok=launcher.is_ok, lines=(library, launcher))


def _launcher_line() -> CheckLine:
    """The command that starts ranks, or what is wrong with it."""
    try:
        return CheckLine("mpiexec", True, " ".join(found_launcher()))
    except PluginError as error:
        return CheckLine("mpiexec", False, error.diagnostics[0].message, INSTALL)
