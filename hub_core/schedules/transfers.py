"""Transfers: a schedule on the links of a network, which chunk goes where and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hub_core.columns import (
    BoolArray,
    ColumnTable,
    Int64Array,
    ordinals,
    run_mask,
    stable_order_by,
)


@dataclass(frozen=True, slots=True, eq=False)
class Transfers(ColumnTable):
    """A schedule as columns of equal length, one row a transfer.

    Chunk `chunk[i]` goes from NPU `source[i]` to NPU `destination[i]`. `start`, `finish`: int64
    times in any one unit; only their order counts. Transfers with one value of `link` take turns in
    the order of `start` (the first link of the route; ids of the caller's choice). `reduces`: the
    chunk is added to what the destination has, else it replaces it. `window`: how many messages of
    the link may be on their way at once, int64 per transfer; 0 for any number, in any order.
    `channel`: int64 per transfer, or None for `link_channels`; transfers between two NPUs on one
    channel arrive in the order in which they were sent.
    """

    chunk: Int64Array
    source: Int64Array
    destination: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray
    window: Int64Array
    channel: Int64Array | None = None

    def touching(self, npus: Sequence[int]) -> Transfers:
        """Those that start or end at one of `npus`."""
        ends_here = np.isin(self.destination, npus)
        rows = np.flatnonzero(ends_here | np.isin(self.source, npus))
        stated = [field.name for field in fields(self)]
        if self.channel is None:
            stated.remove("channel")
        chosen = {name: getattr(self, name)[rows] for name in stated}
        return Transfers(**chosen)


def link_channels(transfers: Transfers) -> Int64Array:
    """Per transfer, the number of its link among the links between its ends, int64.

    So messages may overtake one another on different links, and on no other ones.
    """
    if not len(transfers):
        return transfers.link
    nodes = int(transfers.destination.max()) + 1
    pair = transfers.source * nodes + transfers.destination
    largest = int(transfers.link.max())
    if largest < 4 * len(transfers):
        # Mostly a link leads to one NPU: then the links are numbered, which are few.
        pair_of_link = np.full(largest + 1, -1, np.int64)
        pair_of_link[transfers.link] = pair
        if np.array_equal(pair_of_link[transfers.link], pair):
            return ordinals(pair_of_link)[transfers.link]
    return _numbers_within_pairs(pair, transfers.link)


def _numbers_within_pairs(pair: Int64Array, link: Int64Array) -> Int64Array:
    """Per transfer, how many links of its pair of NPUs have a smaller id, int64.

    `pair`: one number a pair.
    """
    # A link may be of several pairs, where it is the first one of their routes.
    order = stable_order_by(pair, link)
    pair, link = pair[order], link[order]
    is_new = run_mask(pair, link)
    number = ordinals(pair[is_new])
    distinct = np.cumsum(is_new) - 1
    channel = np.empty(len(pair), np.int64)
    channel[order] = number[distinct]
    return channel
