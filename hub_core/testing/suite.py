"""The conformance kit as pytest tests.

`pytest --collhub-plugin NAME --pyargs hub_core.testing.suite`.
"""

from __future__ import annotations

import pytest

from hub_core.registry.plugins import Registry
from hub_core.testing.conformance import RULES, Rule, Verdict, check_rule, registry_for


@pytest.fixture(scope="session")
def collhub_plugin(pytestconfig: pytest.Config) -> str:
    """The value of `--collhub-plugin`."""
    name: str = pytestconfig.getoption("--collhub-plugin")
    return name


@pytest.fixture(scope="session")
def registry(collhub_plugin: str) -> Registry:
    """All installed plugins; the one under check only where another process survives it."""
    return registry_for(collhub_plugin)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_plugin(rule: Rule, collhub_plugin: str, registry: Registry) -> None:
    """One rule of the kit."""
    result = check_rule(rule, collhub_plugin, registry)
    text = "\n".join((rule.text, *result.details))
    if result.verdict is Verdict.SKIPPED:
        pytest.skip(text)
    assert result.verdict is Verdict.PASSED, text
