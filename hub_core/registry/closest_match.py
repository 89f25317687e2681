"""The closest of the known names, for a misspelt one."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for a misspelt name, or an empty text."""
    # Imported here: most names are spelt right.
    import difflib

    close = difflib.get_close_matches(name, sorted(set(known)), 1, 0.6)
    return f"did you mean {close[0]!r}?" if close else ""
