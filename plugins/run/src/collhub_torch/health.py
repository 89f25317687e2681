"""Check for `collhub doctor`: is torch there, with torch.distributed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from collhub_torch.executor import INSTALL
from hub_core.plugin_api import CheckLine, CheckReport, CheckRequest, NoOptions


def check(request: CheckRequest, options: NoOptions) -> CheckReport:
    """One line, from the installed distribution: importing torch would take seconds.

    All is well without torch too: everything but this executor works.
    """
    return CheckReport(ok=True, lines=(CheckLine("torch", True, _details()),))


def _details() -> str:
    """The version, or how to install it."""
    try:
        return f"torch {version('torch')} for the executor torch"
    except PackageNotFoundError:
        need = f"the executor torch needs it ({INSTALL})"
        return f"not installed; {need}, the executor numpy does not"
