"""Help with words: completion in shells, and the closest name for an unknown subcommand.

Shells use the protocol of click: `_COLLHUB_COMPLETE=bash_source collhub`.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import click
from click.shell_completion import BashComplete, CompletionItem

from hub_core.model.diagnostics import UsageError, closest

if TYPE_CHECKING:
    from hub_core.cli.command_context import Session

_BREAKS = frozenset("=:")
VARIABLE = "_COLLHUB_COMPLETE"


class BashWords(BashComplete):
    """Bash completion that treats words such as `-O key=value` and `ring:8` as one word.

    Bash splits words at the characters of COMP_WORDBREAKS and replaces only the last part, so that
    only this part is printed.
    """

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return (words before the one to complete, that word as typed), joined where bash split.

        The parts are those of `COMP_WORDS` without the program's name. The part with the number
        `COMP_CWORD` is the last ("" if it is missing); later ones are ignored. bash splits words
        before and after runs of `=` and `:`. Such a run is joined to the part before it, and the
        part after it too: `a`, `=`, `b` become `a=b`. A run without a part before it begins a
        word.

        bash replaces only the characters after the last run. `_typed` is set to the number of the
        characters before them: 2 for `a=b` and for `a=`, 0 for a word without a run. Raises
        `KeyError` if a variable is missing and `ValueError` if `COMP_CWORD` is no number.
        """
        parts, last = super().get_completion_args()
        words: list[str] = []
        is_open = False
        for part in (*parts, last):
            is_break = bool(part) and _BREAKS.issuperset(part)
            if words and (is_break or is_open):
                words[-1] += part
            else:
                words.append(part)
            is_open = is_break
        incomplete = words[-1]
        # The part before the last break is not replaced.
        self._typed = len(incomplete) - (0 if is_open else len(last))
        return words[:-1], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Return `type,value` for bash, where `value` is the text that bash inserts.

        For type `plain` the part of the word up to its last `=` or `:` is omitted, because bash
        keeps it: the completion `key=value` gives `plain,value`. Other types, such as files,
        give the full value. `get_completion_args` must be called first.
        """
        value = item.value[self._typed :] if item.type == "plain" else item.value
        return f"{item.type},{value}"


def answer_shell(program: click.Command, session: Session) -> int | None:
    """Print the completions that a shell requests; return the exit code of the process.

    The request is the value of the environment variable `_COLLHUB_COMPLETE`, such as
    `bash_source` (print the script that activates completion) or `bash_complete` (print
    completions). Returns None if it is unset or empty, 0 after printing, and 1 for an unknown
    shell or request. Exceptions, also those of broken plugins, are neither printed nor raised;
    the exit code is then 1. Registers `BashWords` with click for bash.
    """
    instruction = os.environ.get(VARIABLE)
    if not instruction:
        return None
    # Imported here: the program completes far less often than it runs.
    from click.shell_completion import add_completion_class, shell_complete

    add_completion_class(BashWords)

    # Shells request completions while the user types. Errors, including broken plugins, give no
    # completions; the command reports them when it runs.
    with contextlib.suppress(Exception):
        return shell_complete(program, {"obj": session}, "collhub", VARIABLE, instruction)
    return 1


def plugin_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of installed plugins, the core included.

    Returns those that begin with `incomplete` (case-sensitive), in the order of the registry.
    """
    session: Session = context.obj
    names = [plugin.name for plugin in session.registry().plugins]
    return [name for name in names if name.startswith(incomplete)]


class CommandGroup(click.Group):
    """A group that reports unknown subcommands in one line, and shows complete summaries."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section with one row per subcommand, in the order of registration.

        A row has the name and the short help; up to 1000 characters of it are wrapped, not
        truncated. Hidden commands are listed as well.
        """
        rows = [(name, self.commands[name].get_short_help_str(1000)) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return (name, command, remaining words) of the subcommand that the first word names.

        Raises `UsageError` (`unknown-command`) for an unknown name; the cure is the closest
        name or, if none is close, the list of all names. A word that begins with `-` is passed
        to click, which reports it as an unknown option. `args` must not be empty.
        """
        if args[0] not in self.commands and not args[0].startswith("-"):
            cure = closest(args[0], self.commands) or f"use one of {', '.join(self.commands)}"
            message = f"there is no command '{self.name} {args[0]}'"
            raise UsageError(message, cure=cure, code="unknown-command")
        return super().resolve_command(ctx, args)
