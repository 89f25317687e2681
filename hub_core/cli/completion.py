"""Completion in shells, by click's own protocol: `_COLLHUB_COMPLETE=bash_source collhub`."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hub_core.cli.session import Session

VARIABLE = "_COLLHUB_COMPLETE"


def answer_shell(program: click.Command, session: Session) -> int | None:
    """Print what a shell asks for and return the exit code; None where no shell asks."""
    instruction = os.environ.get(VARIABLE)
    if not instruction:
        return None
    # Imported here: the program completes far less often than it runs.
    from click.shell_completion import add_completion_class, shell_complete

    from hub_core.cli.bash_words import BashWords

    add_completion_class(BashWords)

    # A shell asks while the user types: what fails, a broken plugin included, completes nothing,
    # and says so where the command is run.
    with contextlib.suppress(Exception):
        return shell_complete(program, {"obj": session}, "collhub", VARIABLE, instruction)
    return 1


def plugin_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of installed plugins."""
    session: Session = context.obj
    names = [plugin.name for plugin in session.registry().plugins]
    return [name for name in names if name.startswith(incomplete)]
