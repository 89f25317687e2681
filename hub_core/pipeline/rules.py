"""Collect the rules that the core and the plugins declare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hub_core.pipeline.calls import blame, misfit
from hub_core.plugin_api.options import resolve
from hub_core.plugin_api.rules import Rule, RuleSet
from hub_core.registry.plugins import Registry


def collect_rules(registry: Registry) -> Mapping[str, Sequence[Rule]]:
    """Return the declarations of all loaded plugins by name of the rule, in alphabetical order.

    Declarations of one name are in the order of their rule sets. Raises `PluginError` for a rule
    set that fails or returns anything else than rules.
    """
    by_name: dict[str, list[Rule]] = {}
    for provided in registry.all(RuleSet):
        with blame(provided):
            rules = resolve(provided.offer.rules)()
        if not isinstance(rules, list | tuple) or not all(isinstance(rule, Rule) for rule in rules):
            raise misfit(provided, f"returned {type(rules).__name__}, expected a list of Rule")
        for rule in rules:
            by_name.setdefault(rule.name, []).append(rule)
    return dict(sorted(by_name.items()))
