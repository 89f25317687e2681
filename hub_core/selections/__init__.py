"""What writers of tuned selections share, for runtimes that choose among their own algorithms."""

from hub_core.selections.own_windows import first_of_kinds, own_windows

__all__ = ["first_of_kinds", "own_windows"]
