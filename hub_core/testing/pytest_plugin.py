"""Give pytest the option `--collhub-plugin NAME`, for `hub_core.testing.suite`."""

from __future__ import annotations

import pytest

OPTION = "--collhub-plugin"
SUITE = "hub_core.testing.suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    group = parser.getgroup("collhub")
    help_text = f"the plugin that --pyargs {SUITE} checks"
    group.addoption(OPTION, metavar="NAME", help=help_text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to run the kit on nothing. Raises `pytest.UsageError`."""
    # Without the option its value would be None, and every test would fail at its fixture.
    if config.getoption(OPTION) is not None:
        return
    for item in items:
        if _is_of_the_kit(item):
            raise pytest.UsageError(f"name the plugin to check: {OPTION} NAME")


def _is_of_the_kit(item: pytest.Item) -> bool:
    # The fixture, since the tests may be collected by file or by package.
    fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
    return "collhub_plugin" in fixtures
