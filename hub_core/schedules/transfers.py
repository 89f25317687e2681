"""Transfers of a schedule as columns, and the times of its local steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from hub_core.columns import BoolArray, ColumnTable, Int64Array, ordinals, run_mask, stable_order_by
from hub_core.model import StepKind, StepTable
from hub_core.network import link_times_ns


@dataclass(frozen=True, slots=True, eq=False)
class Transfers(ColumnTable):
    """A schedule as columns of equal length, one row per transfer.

    Chunk `chunk[i]` is sent from NPU `source[i]` to NPU `destination[i]`. `start`, `finish`: int64
    times in any common unit; only their order matters. `link`: id of the first link of the route,
    chosen by the caller; transfers of one link are sent in the order of `start`. `reduces`: the
    chunk is added to the destination's data; otherwise it replaces them. `window`: maximum number
    of messages that are in flight on the link, int64 per transfer; 0 for any number, in any order.
    `channel`: int64 per transfer, None for `link_channels`; transfers between two NPUs on one
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
        """Select the transfers whose source or destination is one of `npus`, in order."""
        rows = np.flatnonzero(np.isin(self.destination, npus) | np.isin(self.source, npus))
        names = [field.name for field in fields(self)]
        if self.channel is None:
            names.remove("channel")
        return Transfers(**{name: getattr(self, name)[rows] for name in names})


def link_channels(transfers: Transfers) -> Int64Array:
    """Channel of every transfer: the index of its link among the used links of its NPU pair, int64.

    Links of a pair are numbered in ascending order of their ids. So messages can overtake one
    another only if they use different links.
    """
    if not len(transfers):
        return transfers.link
    nodes = int(transfers.destination.max()) + 1
    pair = transfers.source * nodes + transfers.destination
    largest = int(transfers.link.max())
    if largest < 4 * len(transfers):
        # Fast path for links that serve one pair each: number the links, not the transfers.
        pair_of_link = np.full(largest + 1, -1, np.int64)
        pair_of_link[transfers.link] = pair
        if np.array_equal(pair_of_link[transfers.link], pair):
            return ordinals(pair_of_link)[transfers.link]
    # A link may be the first link of the routes of several pairs.
    link = transfers.link
    order = stable_order_by(pair, link)
    pair, link = pair[order], link[order]
    is_new = run_mask(pair, link)
    number = ordinals(pair[is_new])
    distinct = np.cumsum(is_new) - 1
    channel = np.empty(len(pair), np.int64)
    channel[order] = number[distinct]
    return channel


def work_times_ns(
    steps: StepTable, sizes: Int64Array, reduce_rate: float | None, copy_rate: float | None
) -> Int64Array:
    """Duration of the local work of each step in ns, int64[rows].

    The step's `duration_ns` if it has one. Otherwise reductions and copies take `sizes` (bytes per
    step) divided by their rate (bytes/s), if that is not None, rounded as for a link without
    latency and at least 1. All other steps take 1.
    """
    # At least 1 ns, the resolution of some simulators, so that no step takes no time.
    times = np.ones(len(steps), np.int64)
    reduces = steps.is_kind(StepKind.REDUCE, StepKind.RECV_REDUCE)
    for rate, rows in ((reduce_rate, reduces), (copy_rate, steps.is_kind(StepKind.COPY))):
        if rate is not None:
            busy, _ = link_times_ns(np.asarray([rate]), np.zeros(1), sizes)
            times = np.where(rows, np.maximum(busy, 1), times)
    return np.where(steps.duration_ns >= 0, steps.duration_ns, times)
