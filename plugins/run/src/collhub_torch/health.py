"""Check for `collhub doctor`: whether torch is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from collhub_torch.executor import INSTALL
from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """Return one line, from the installed distribution: importing torch would take seconds.

    Passes without torch: only this executor needs it.
    """
    return CheckReport(ok=True, lines=(CheckLine("torch", True, _details()),))


def _details() -> str:
    """Return the version, or how to install it."""
    try:
        return f"torch {version('torch')} for the executor torch"
    except PackageNotFoundError:
        need = f"the executor torch needs it ({INSTALL})"
        return f"not installed; {need}, the executor numpy does not"
