"""Give pytest the option `--collhub-plugin NAME`, which names the plugin for `hub_core.testing.suite`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["pytest_addoption"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("collhub")
    group.addoption("--collhub-plugin", metavar="NAME", help="the plugin that --pyargs hub_core.testing.suite checks")
