"""What the options before the command decide, handed to every command as click's context object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.registry.plugins import Registry


@dataclass(slots=True)
class Session:
    """State of one run of the program: which plugins may load, whether tracebacks are wanted, and what follows `IN`.

    `has_separator`: whether `--` stands on the command line; `source_arguments`: what follows IN behind it, for readers
    whose input is a program.
    """

    use_plugins: bool = True
    disabled_plugins: tuple[str, ...] = ()
    is_debug: bool = False
    has_separator: bool = False
    source_arguments: tuple[str, ...] = ()
    _registry: Registry | None = field(default=None, repr=False)

    def registry(self) -> Registry:
        """The plugins of this run, discovered when first asked for."""
        if self._registry is None:
            # Imported here: finding plugins takes a third of the time that --help may take.
            from hub_core.registry.discovery import discover

            self._registry = discover(use_plugins=self.use_plugins, disabled=self.disabled_plugins)
        return self._registry
