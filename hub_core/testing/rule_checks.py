"""Rules of all installed plugins: their page on the site, and identifiers in source code.

`python -m hub_core.testing.rule_checks > docs/rules.md` writes the page.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hub_core.plugin_api import Rule

_IDENTIFIER = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
# Functions of the repository that create a finding; its identifier is among the first arguments.
_CREATING = {
    *("Diagnostic", "add", "add_rows", "note", "refuse", "refuse_once", "warn", "report", "at"),
    *("warn_at", "on_plan", "on_rank", "refuse_at", "refuse_rank", "_fail", "_make_finding"),
    *("_create_finding", "add_error", "add_errors_at", "_warn", "_add_error", "_warn_at_starts"),
}
# Functions that get the identifier after other arguments, and the classes of such errors.
_CREATING_LATER = {"fail", "refuse", "error_at", "warn_at", "error_report", "WireError"}
_HEAD = """# Rules

Every finding has a rule, whose identifier does not change. `collhub explain RULE` prints its page,
`collhub explain` lists all rules of the installed plugins. Different checks may use the same
identifier. This page is generated from the declarations:
`python -m hub_core.testing.rule_checks > docs/rules.md`.
"""


def format_rules_page(rules: Mapping[str, Sequence[Rule]]) -> str:
    """Return the page of all rules in Markdown, by identifier."""
    parts = [_HEAD]
    for name, declarations in rules.items():
        parts.append(f"\n## {name}\n")
        parts += [f"\n{_escape(declared.page)}" for declared in declarations]
    return "".join(parts)


def _escape(text: str) -> str:
    """Escape `<`, which begins HTML, and `*`, outside of code."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", r"\*")
        for number, part in enumerate(parts)
    )


def find_identifiers(module: Path) -> set[str]:
    """Return the identifiers of the findings that the source of a module creates.

    These are the first argument (of some functions any argument) and the argument `code` of calls
    that create findings, also in both branches of a conditional expression, the default of a
    parameter `code`, and the elements of tuples before a message: a text with a blank, or a
    formatted one. `InputError` without a code has `invalid-input`, which is not listed.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            called = getattr(function, "attr", getattr(function, "id", ""))
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            if called in _CREATING_LATER:
                given += node.args
            elif called in _CREATING:
                given += node.args[:1] if called != "_make_finding" else node.args[2:3]
            names.update(name for value in given for name in _list_texts(value))
        if isinstance(node, ast.FunctionDef):
            named = node.args.args[-len(node.args.defaults) :] if node.args.defaults else []
            pairs = zip(named, node.args.defaults, strict=True)
            given = [default for parameter, default in pairs if parameter.arg == "code"]
            names.update(name for value in given for name in _list_texts(value))
        if isinstance(node, ast.Tuple):
            at = next((k for k, part in enumerate(node.elts) if _is_message(part)), 0)
            names.update(name for value in node.elts[:at] for name in _list_texts(value))
    return {name for name in names if _IDENTIFIER.match(name)}


def _is_message(value: ast.expr) -> bool:
    if isinstance(value, ast.Name):
        return value.id == "message"
    is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return isinstance(value, ast.JoinedStr) or (is_text and " " in ast.unparse(value))


def _list_texts(value: ast.expr) -> Iterator[str]:
    if isinstance(value, ast.IfExp):
        yield from _list_texts(value.body)
        yield from _list_texts(value.orelse)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value


if __name__ == "__main__":
    # Imported here: the functions above need no plugins.
    from hub_core.pipeline.core_rules import collect_rules
    from hub_core.registry.discovery import discover

    sys.stdout.write(format_rules_page(collect_rules(discover())))
