"""Give pytest the option `--collhub-plugin NAME`, for `hub_core.testing.suite`."""

from __future__ import annotations

import pytest

OPTION = "--collhub-plugin"
SUITE = "hub_core.testing.suite"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option `--collhub-plugin NAME` of pytest: the plugin that the kit checks.

    pytest calls this function. Without the option its value is None.
    """
    group = parser.getgroup("collhub")
    help_text = f"the plugin that --pyargs {SUITE} checks"
    group.addoption(OPTION, metavar="NAME", help=help_text)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise `pytest.UsageError` if tests of the kit are collected without `--collhub-plugin NAME`.

    Tests of the kit are those that use the fixture `collhub_plugin`. pytest calls this function
    after the collection. With the option, or without such tests, nothing happens. `items` is not
    changed.
    """
    if config.getoption(OPTION) is not None:
        return
    for item in items:
        # Tests of the kit are recognized by their fixture, however they were collected.
        fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
        if "collhub_plugin" in fixtures:
            raise pytest.UsageError(f"name the plugin to check: {OPTION} NAME")
