"""The offer `Command`: a plugin adds a command to the program."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class Command:
    """`collhub NAME`: `function` is a click command, imported when it is called or shows its help.

    It gets a `CommandContext` by `click.pass_obj`, prints through it alone, and returns its exit
    code or None. Whatever it raises as `HubError` becomes lines and an exit code.
    """

    name: str
    description: str
    function: Reference
