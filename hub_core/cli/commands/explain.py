"""`collhub explain [RULE]`: print the page of a rule, or list the rules of all findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hub_core.cli.arguments import json_flag
from hub_core.cli.command_context import Session
from hub_core.cli.output import print_fields, print_json, print_line, print_table
from hub_core.model import UsageError
from hub_core.model.diagnostics import closest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hub_core.plugin_api import Rule


def _complete_rules(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the identifiers of rules that begin with `incomplete`, for shell completion.

    The rules are those of all loaded plugins, in alphabetical order; case matters.
    """
    from hub_core.pipeline.core_rules import collect_rules

    return [name for name in collect_rules(context.obj.registry()) if name.startswith(incomplete)]


@click.command()
@click.argument("rule", required=False, shell_complete=_complete_rules)
@json_flag
@click.pass_obj
def explain(session: Session, /, rule: str | None, as_json: bool) -> None:
    """Print meaning, cause, cure and an example of RULE, or list all rules.

    RULE is the identifier of a finding: in brackets at the end of its line, `code` in --json,
    `ruleId` in SARIF. Different checks may use one identifier; each has its own page. The list is
    in alphabetical order. An unknown RULE is an error, which names the closest identifier.
    """
    # Imported here: the help of the command needs no plugins.
    from hub_core.pipeline.core_rules import collect_rules

    rules = collect_rules(session.registry())
    if rule is not None:
        if rule not in rules:
            cure = closest(rule, rules) or "'collhub explain' lists all"
            raise UsageError(f"there is no rule {rule!r}", cure=cure, code="unknown-rule")
        rules = {rule: rules[rule]}
    if as_json:
        from hub_core.cli.reports.installation_records import ExplainReport, RulePage
        from hub_core.reports import to_json

        items = [
            RulePage(
                rule=declared.name,
                subject=declared.subject,
                meaning=declared.meaning,
                cause=declared.cause,
                cure=declared.cure,
                example=declared.example,
            )
            for declarations in rules.values()
            for declared in declarations
        ]
        print_json(to_json(ExplainReport(rules=items)))
    elif rule is None:
        rows = [
            (declared.name, declared.subject, declared.meaning)
            for declarations in rules.values()
            for declared in declarations
        ]
        print_table(("rule", "checked", "meaning"), rows)
    else:
        _print_pages(rules[rule])


def _print_pages(declarations: Sequence[Rule]) -> None:
    for number, declared in enumerate(declarations):
        if number:
            print_line()
        print_fields(
            {
                "rule": declared.name,
                "checked": declared.subject,
                "meaning": declared.meaning,
                "cause": declared.cause,
                "cure": declared.cure,
                "example": declared.example,
            }
        )
