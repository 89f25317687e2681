"""Rules of how many messages of one link may be on their way at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WindowRule:
    """How many messages of a link may be on their way before one of them has arrived.

    `most`: at most so many, 0 for as many as keep the link busy. `begins_slowly`: a link begins
    with one message, then has a few on their way, and so on, by `windows.released_at_once`.
    `keeps_order`: else a message goes as soon as its data are there, whichever was planned first;
    with `sums_in_turn` those that are added up have turns all the same.
    """

    most: int
    begins_slowly: bool
    keeps_order: bool = True
    sums_in_turn: bool = False


# The fewer are under way, the less there is for a simulator to put in another order.
SLOW_START = WindowRule(most=12, begins_slowly=True)
CAPPED = WindowRule(most=12, begins_slowly=False)
UNCAPPED = WindowRule(most=0, begins_slowly=False)
# Where messages of many senders meet inside the network, none has to wait for a stated turn.
FREE = WindowRule(most=0, begins_slowly=False, keeps_order=False)
# Where switches reduce and multicast: what is added up leaves room for the sums that are complete.
SUMS_IN_TURN = WindowRule(most=0, begins_slowly=False, keeps_order=False, sums_in_turn=True)
