"""Compute how many messages of a link are in flight at once in a schedule."""

from __future__ import annotations

import numpy as np

from hub_core.columns import (
    BoolArray,
    Int64Array,
    run_lengths,
    run_starts,
    sorted_ordinals,
    stable_order_by,
)

# A runtime needs as many buffers as messages in flight. With contention at switches, a third of
# this limit left links idle that had messages to send.
_MAX_IN_FLIGHT = 32


def windows_of(
    link: Int64Array,
    start: Int64Array,
    finish: Int64Array,
    is_ready: BoolArray,
    limit: int = _MAX_IN_FLIGHT,
) -> Int64Array:
    """Compute per message how many messages of its link may be in flight at once, up to `limit`.

    The link is the first of its route. The message itself counts; all arrays are int64 per message,
    except `is_ready` (bool: the message waits for no other message). The first messages of a link
    that are ready from the beginning all wait for the very first one: simulators and runtimes start
    messages that a trace allows to start at one instant in any order.
    """
    if not len(link):
        return link
    order = stable_order_by(link, start)
    link = link[order]
    ordinal = sorted_ordinals(link)
    in_flight = np.minimum(_count_max_in_flight(link, start[order], finish[order]), limit)
    waits_for_first = is_ready[order] & (ordinal > 0)
    window = np.empty(len(link), np.int64)
    window[order] = np.where(waits_for_first, np.minimum(in_flight, ordinal), in_flight)
    return window


def _count_max_in_flight(link: Int64Array, start: Int64Array, finish: Int64Array) -> Int64Array:
    """Compute the maximum number of messages in flight on the link of every message.

    Sorted by link and start; int64, equal for all messages of a link.
    """
    # Link and time are combined in one number, so that one sorted search serves all links.
    span = int(finish.max()) + 1
    finished = np.maximum.accumulate(link * span + finish)
    # Number of messages that have finished by then.
    finished_count = np.searchsorted(finished, link * span + start, side="right")
    in_flight = np.arange(len(link)) - finished_count + 1
    first = run_starts(link)
    maximum: Int64Array = np.repeat(
        np.maximum.reduceat(in_flight, first), run_lengths(first, len(link))
    )
    return maximum
