"""What the options before the command decide, handed to every command as click's context object."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Session"]


@dataclass(slots=True)
class Session:
    """State of one run of the program: which plugins may load, and whether tracebacks are wanted."""

    use_plugins: bool = True
    disabled_plugins: tuple[str, ...] = ()
    is_debug: bool = False
