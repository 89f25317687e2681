"""How many messages of one link are on their way at once in a schedule."""

from __future__ import annotations

import numpy as np
from collhub_columns import (
    BoolArray,
    Int64Array,
    run_lengths,
    run_starts,
    sorted_ordinals,
    stable_order_by,
)

# A runtime that holds more open at once needs as many buffers. Where messages meet at switches, a
# third of them made links wait that had work.
_MOST_ON_THE_WAY = 32


def windows_of(
    link: Int64Array,
    start: Int64Array,
    finish: Int64Array,
    is_ready: BoolArray,
    limit: int = _MOST_ON_THE_WAY,
) -> Int64Array:
    """Per message, how many messages of its first link are on their way at once, up to `limit`.

    Itself included; int64, as the arguments but `is_ready`, which tells what waits for no other
    message. The first messages of a link, where they are ready from the beginning, all wait for
    the very first one: what a trace lets begin at one instant, simulators and runtimes begin in
    any order.
    """
    if not len(link):
        return link
    # Link by link, in the order in which messages start.
    order = stable_order_by(link, start)
    link = link[order]
    turn = sorted_ordinals(link)
    at_once = np.minimum(_most_at_once(link, start[order], finish[order]), limit)
    is_held = is_ready[order] & (turn > 0)
    window = np.empty(len(link), np.int64)
    window[order] = np.where(is_held, np.minimum(at_once, turn), at_once)
    return window


def _most_at_once(link: Int64Array, start: Int64Array, finish: Int64Array) -> Int64Array:
    """Per message, sorted by link and start, the most of its link that are on their way at once."""
    # Link and time in one number, so that one sorted search serves all links.
    span = int(finish.max()) + 1
    ended = np.maximum.accumulate(link * span + finish)
    # Messages of the link that have ended by then.
    before = np.searchsorted(ended, link * span + start, side="right")
    on_the_way = np.arange(len(link)) - before + 1
    first = run_starts(link)
    most: Int64Array = np.repeat(
        np.maximum.reduceat(on_the_way, first), run_lengths(first, len(link))
    )
    return most
