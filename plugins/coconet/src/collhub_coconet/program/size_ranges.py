"""Sizes of symbols as people write them: `B=8,S=1024`, and ranges of them, `N=1024..1048576`."""

from __future__ import annotations

from collections.abc import Mapping

from hub_core.model import UsageError

Ranges = Mapping[str, tuple[int, int]]
"""Smallest and largest size of every symbol."""


def parsed_ranges(text: str) -> Ranges:
    """Sizes by symbol. Raises `UsageError` for what is no list of them.

    A symbol that is stated twice has its last size.
    """
    found = {}
    for part in filter(None, text.split(",")):
        symbol, _, numbers = (piece.strip() for piece in part.partition("="))
        low, dots, high = numbers.partition("..")
        limits = [low, high if dots else low]
        is_range = bool(symbol) and all(one.strip().isdecimal() for one in limits)
        if not is_range or int(limits[1]) < int(limits[0]):
            message = f"size {part!r} is not understood"
            raise UsageError(message, cure="write sizes as B=8,S=1024 or N=1024..1048576")
        found[symbol] = int(limits[0]), int(limits[1])
    return found


def smallest(ranges: Ranges) -> dict[str, int]:
    """The least size of every symbol."""
    return {symbol: low for symbol, (low, _) in ranges.items()}
