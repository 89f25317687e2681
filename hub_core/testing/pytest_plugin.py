"""Give pytest the option `--collhub-plugin NAME`, for `hub_core.testing.suite`."""

from __future__ import annotations

import pytest

OPTION = "--collhub-plugin"
SUITE = "hub_core.testing.suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("collhub")
    group.addoption(OPTION, metavar="NAME", help=f"the plugin that --pyargs {SUITE} checks")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run the kit on nothing. Raises `pytest.UsageError`."""
    is_asked = any("collhub_plugin" in getattr(item, "fixturenames", ()) for item in items)
    if is_asked and config.getoption(OPTION) is None:
        raise pytest.UsageError(f"name the plugin to check: {OPTION} NAME")
