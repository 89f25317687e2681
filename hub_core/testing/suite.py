"""The conformance kit as pytest tests, one test per rule.

`pytest --collhub-plugin NAME --pyargs hub_core.testing.suite`.
"""

from __future__ import annotations

import pytest

from hub_core.registry.plugins import Registry
from hub_core.testing.conformance import RULES, Rule, Verdict, check_rule, discover_for_check


@pytest.fixture(scope="session")
def collhub_plugin(pytestconfig: pytest.Config) -> str:
    """Return the name of the plugin to check: the value of the option `--collhub-plugin`.

    Without the option, pytest stops with a usage error before this fixture is called.
    """
    name: str = pytestconfig.getoption("--collhub-plugin")
    return name


@pytest.fixture(scope="session")
def registry(collhub_plugin: str) -> Registry:
    """Registry of all installed plugins, as by `discover_for_check`."""
    return discover_for_check(collhub_plugin)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_plugin(rule: Rule, collhub_plugin: str, registry: Registry) -> None:
    """Check one rule on the plugin `collhub_plugin` with `check_rule`.

    Skip the test if the verdict is SKIPPED, and fail it if the verdict is FAILED, which
    includes an unknown plugin. The message is the rule's text, then one line per detail of
    the result.
    """
    result = check_rule(rule, collhub_plugin, registry)
    text = "\n".join((rule.text, *result.details))
    if result.verdict is Verdict.SKIPPED:
        pytest.skip(text)
    assert result.verdict is Verdict.PASSED, text
