"""A command with subcommands that suggests the closest name for an unknown subcommand."""

from __future__ import annotations

import click

from hub_core.model.diagnostics import UsageError, closest


class CommandGroup(click.Group):
    """A group that reports unknown subcommands in one line, and shows complete summaries."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one row per subcommand; a long summary is wrapped, not truncated."""
        rows = [(name, self.commands[name].get_short_help_str(1000)) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand. Raises `UsageError` with the closest name for an unknown one."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            cure = closest(args[0], self.commands) or f"use one of {', '.join(self.commands)}"
            message = f"there is no command '{self.name} {args[0]}'"
            raise UsageError(message, cure=cure, code="unknown-command")
        return super().resolve_command(ctx, args)
