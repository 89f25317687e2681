"""Types of arguments and options: what shells complete, and what spellings are taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hub_core.model.diagnostics import closest
from hub_core.model.kinds import STANDARD_KINDS, standard_kind

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hub_core.plugin_api.offers import Offer


class _FileName(click.types.StringParamType):
    """Text as it is, such as a path or `-`: what opens it says what is wrong with it."""

    name = "file"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Let the shell complete the names of files."""
        # Imported here: the program completes far less often than it runs.
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


class _CollectiveName(click.Choice[str]):
    """The value of a `CollectiveKind`, from any usual spelling."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as the model spells it; the error of a choice for an unknown name."""
        kind = standard_kind(value) if isinstance(value, str) else None
        if kind is None and isinstance(value, str):
            known = [str(one) for one in STANDARD_KINDS]
            meant = closest(value.lower(), known) or f"use one of {', '.join(known)}"
            self.fail(f"{value!r} is no collective; {meant}")
        return super().convert(value if kind is None else str(kind), param, ctx)


FILE = _FileName()
"""Type of an argument or option that names a file, among other things: shells complete it."""
COLLECTIVE = _CollectiveName([kind.value for kind in STANDARD_KINDS])
"""Type of an option that names a collective in any usual spelling, as `allreduce`.

The value is that of a `CollectiveKind`.
"""


def complete_offers(
    *kinds: type[Offer],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Complete the names of offers in a shell: `shell_complete` of an argument or an option."""

    def names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        found = {offer.name for kind in kinds for offer in context.obj.registry().all(kind)}
        return sorted(name for name in found if name.startswith(incomplete))

    return names
