"""What the options before the command decide, handed to every command as click's context object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.plugins.registry import Registry

__all__ = ["Session"]


@dataclass(slots=True)
class Session:
    """State of one run of the program: which plugins may load, and whether tracebacks are wanted."""

    use_plugins: bool = True
    disabled_plugins: tuple[str, ...] = ()
    is_debug: bool = False
    _registry: Registry | None = field(default=None, repr=False)

    def registry(self) -> Registry:
        """The plugins of this run, discovered when first asked for."""
        if self._registry is None:
            # Imported here: finding plugins takes a third of the time that --help may take.
            from hub_core.plugins.discovery import discover

            self._registry = discover(use_plugins=self.use_plugins, disabled=self.disabled_plugins)
        return self._registry
