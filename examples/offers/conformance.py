"""The conformance kit of the hub."""

from __future__ import annotations

import pytest

import hub_core
from hub_core.testing import RULES, Rule, Verdict, check_rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_plugin_conforms(rule: Rule) -> None:
    result = check_rule(rule, "example", hub_core.discover())
    assert result.verdict is not Verdict.FAILED, "\n".join(result.details)
