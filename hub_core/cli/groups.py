"""A command that has commands of its own, and names the closest for a misspelt one."""

from __future__ import annotations

import click

from hub_core.model import UsageError
from hub_core.registry.closest_match import closest


class CommandGroup(click.Group):
    """A group whose unknown commands are one line with a cure."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            cure = closest(args[0], self.commands) or f"use one of {', '.join(self.commands)}"
            raise UsageError(
                f"there is no command '{self.name} {args[0]}'", cure=cure, code="unknown-command"
            )
        return super().resolve_command(ctx, args)
