"""A command that has commands of its own, and names the closest for a misspelt one."""

from __future__ import annotations

import click

from hub_core.model.diagnostics import UsageError, closest


class CommandGroup(click.Group):
    """A group whose unknown commands are one line with a cure, and whose summaries are whole."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a row a command; a long summary is wrapped, not cut."""
        rows = [(name, self.commands[name].get_short_help_str(1000)) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is asked for. Raises `UsageError` naming the closest one."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            cure = closest(args[0], self.commands) or f"use one of {', '.join(self.commands)}"
            message = f"there is no command '{self.name} {args[0]}'"
            raise UsageError(message, cure=cure, code="unknown-command")
        return super().resolve_command(ctx, args)
