"""Rules: the identifiers of findings, with the page that `collhub explain` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hub_core.plugin_api.options import Reference


@dataclass(frozen=True, slots=True)
class Rule:
    """Declaration of the findings with one identifier, which is `code` of their diagnostics.

    `name`: kebab-case; several plugins may declare the same name, each for its own `subject`.
    `subject`: the checked files or the check, in a few words, such as `plans of MSCCL++`.
    `meaning`: one sentence. `cause`: how such an input comes about. `cure`: action that removes the
    finding. `example`: part of an input that causes it.
    """

    name: str
    subject: str
    meaning: str
    cause: str
    cure: str
    example: str

    @property
    def page(self) -> str:
        """The page of the rule in Markdown, without its heading."""
        return (
            f"{self.meaning}\n\n"
            f"- Checked: {self.subject}\n"
            f"- Cause: {self.cause}\n"
            f"- Cure: {self.cure}\n"
            f"- Example: {self.example}\n"
        )


@dataclass(frozen=True, slots=True)
class RuleSet:
    """`rules() -> Sequence[Rule]`: declarations of the findings of a plugin's checks and readers.

    They are listed when `collhub explain` or a report needs them, not when the plugin is loaded.
    """

    name: str
    description: str
    rules: Reference


def declare_rules(subject: str, rows: Iterable[tuple[str, str, str, str, str]]) -> list[Rule]:
    """Return one rule per row of name, meaning, cause, cure and example, all of one subject."""
    return [
        Rule(name, subject, meaning, cause, cure, example)
        for name, meaning, cause, cure, example in rows
    ]
