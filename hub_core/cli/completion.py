"""Completion in shells, by the protocol of click: `_COLLHUB_COMPLETE=bash_source collhub`."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hub_core.cli.session import Session

VARIABLE = "_COLLHUB_COMPLETE"


def answer_shell(program: click.Command, session: Session) -> int | None:
    """Print the completions that a shell requests and return the exit code.

    Returns None if no shell requests completions.
    """
    instruction = os.environ.get(VARIABLE)
    if not instruction:
        return None
    # Imported here: the program completes far less often than it runs.
    from click.shell_completion import add_completion_class, shell_complete

    from hub_core.cli.bash_words import BashWords

    add_completion_class(BashWords)

    # Shells request completions while the user types. Errors, including broken plugins, give no
    # completions; the command reports them when it runs.
    with contextlib.suppress(Exception):
        return shell_complete(program, {"obj": session}, "collhub", VARIABLE, instruction)
    return 1


def plugin_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of installed plugins."""
    session: Session = context.obj
    names = [plugin.name for plugin in session.registry().plugins]
    return [name for name in names if name.startswith(incomplete)]
