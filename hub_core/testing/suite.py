"""The conformance kit as pytest tests: `pytest --collhub-plugin NAME --pyargs hub_core.testing.suite`."""

from __future__ import annotations

import pytest

from hub_core.plugins.discovery import discover
from hub_core.plugins.registry import Registry
from hub_core.testing.conformance import CHECKS, Check, Verdict, run_check


@pytest.fixture(scope="session")
def plugin_name(pytestconfig: pytest.Config) -> str:
    """The value of `--collhub-plugin`."""
    name: str | None = pytestconfig.getoption("--collhub-plugin")
    if name is None:
        raise pytest.UsageError("name the plugin to check: --collhub-plugin NAME")
    return name


@pytest.fixture(scope="session")
def registry() -> Registry:
    """All installed plugins."""
    return discover()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_plugin(check: Check, plugin_name: str, registry: Registry) -> None:
    """One check of the kit."""
    result = run_check(check, plugin_name, registry)
    text = "\n".join((check.rule, *result.details))
    if result.verdict is Verdict.SKIPPED:
        pytest.skip(text)
    assert result.verdict is Verdict.PASSED, text
