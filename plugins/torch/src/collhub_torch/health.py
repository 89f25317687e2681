"""Check for `collhub doctor`: is torch there, with torch.distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from collhub_torch.executor import INSTALL
from hub_core.plugin_api import HealthLine


def check(environment: Mapping[str, str]) -> Sequence[HealthLine]:
    """One line, from the installed distribution: importing torch would take seconds. Without torch all else works."""
    try:
        return [HealthLine("torch", True, f"torch {version('torch')} for the executor torch")]
    except PackageNotFoundError:
        return [
            HealthLine(
                "torch",
                True,
                f"not installed; the executor torch needs it ({INSTALL}), the executor numpy does not",
            )
        ]
