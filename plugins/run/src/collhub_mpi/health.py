"""Check for `collhub doctor`: whether mpi4py is installed, and an mpiexec that starts its ranks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from collhub_mpi.executor import INSTALL, found_launcher
from hub_core.model import PluginError
from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Return one line for mpi4py, one for mpiexec;

    MPI is not imported, because that would start it.

    Passes without mpi4py: only this executor needs it.
    """
    try:
        installed = version("mpi4py")
    except PackageNotFoundError:
        need = f"the executor mpi needs it ({INSTALL})"
        details = f"not installed; {need}, the executor numpy does not"
        return CheckReport(ok=True, lines=(CheckLine("mpi4py", True, details),))
    # An mpi4py without launcher is an incomplete installation.
    library = CheckLine("mpi4py", True, f"mpi4py {installed} for the executor mpi")
    launcher = _launcher_line()
    return CheckReport(ok=launcher.is_ok, lines=(library, launcher))


def _launcher_line() -> CheckLine:
    """Return a line with the command that starts ranks, or its error."""
    try:
        return CheckLine("mpiexec", True, " ".join(found_launcher()))
    except PluginError as error:
        return CheckLine("mpiexec", False, error.diagnostics[0].message, INSTALL)
