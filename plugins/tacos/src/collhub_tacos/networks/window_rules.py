"""Rules of how many messages of one link may be on their way at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How many messages of a link may be on their way before one of them has arrived.

    `most`: at most so many, 0 for as many as keep the link busy. `begins_slowly`: a link begins
    with one message, then has a few on their way, and so on, by `windows.released_at_once`.
    """

    most: int
    begins_slowly: bool


# The fewer are under way, the less there is for a simulator to put in another order.
SLOW_START = WindowRule(most=12, begins_slowly=True)
CAPPED = WindowRule(most=12, begins_slowly=False)
UNCAPPED = WindowRule(most=0, begins_slowly=False)
