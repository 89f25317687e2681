"""Schedule on the links of a network: what kernels make, and what is replayed and reversed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.windows import released_at_once, windows, windows_of_links
from hub_core.columns import BoolArray, ColumnTable, Int64Array
from hub_core.schedules import Transfers


@dataclass(frozen=True, slots=True, eq=False)
class LinkSchedule(ColumnTable):
    """Chunk `chunk[i]` is put on link `link[i]` at `start[i]` and arrives at `finish[i]`.

    int64 columns of equal length, times in picoseconds, links of `network`, chunk ids as in
    `hub_core.schedules.Chunks`. `reduces`: bool per transfer, the chunk is added to what the
    destination has.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: BoolArray

    @classmethod
    def spreading(
        cls,
        network: LinkNetwork,
        chunk: Int64Array,
        link: Int64Array,
        start: Int64Array,
        finish: Int64Array,
    ) -> LinkSchedule:
        """Schedule in which no transfer reduces."""
        return cls(network, chunk, link, start, finish, np.zeros(len(chunk), np.bool_))

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        return int(self.finish.max(initial=0))

    @property
    def source(self) -> Int64Array:
        """Node that every transfer leaves."""
        source: Int64Array = self.network.source[self.link]
        return source

    @property
    def destination(self) -> Int64Array:
        """Node that every transfer comes to."""
        return self.network.destination[self.link]

    def rows(self, chosen: Int64Array | BoolArray) -> LinkSchedule:
        """Some of the transfers, by their rows or by a bool per row."""
        return LinkSchedule(
            self.network,
            self.chunk[chosen],
            self.link[chosen],
            self.start[chosen],
            self.finish[chosen],
            self.reduces[chosen],
        )

    def touching(self, nodes: Sequence[int]) -> LinkSchedule:
        """Transfers from or to `nodes` alone."""
        is_from = np.isin(self.source, nodes)
        is_to = np.isin(self.destination, nodes)
        return self.rows(is_from | is_to)

    def after(self, other: LinkSchedule, end_ps: int | None = None) -> LinkSchedule:
        """`other`, then this one.

        `end_ps`: when the whole of which `other` is a part ends, default its own time.
        """
        # A part does not tell when the whole ends.
        end = other.time_ps if end_ps is None else end_ps
        return replace(
            self,
            chunk=np.concatenate([other.chunk, self.chunk]),
            link=np.concatenate([other.link, self.link]),
            start=np.concatenate([other.start, end + self.start]),
            finish=np.concatenate([other.finish, end + self.finish]),
            reduces=np.concatenate([other.reduces, self.reduces]),
        )

    def transfers(self, times: LinkTimes) -> Transfers:
        """Columns that the core makes an algorithm of."""
        network = self.network
        # The core orders messages by link of the topology.
        row = network.row[self.link]
        return Transfers(
            self.chunk,
            self.source,
            self.destination,
            row,
            self.start,
            self.finish,
            self.reduces,
            self._windows(times),
        )

    def _windows(self, times: LinkTimes) -> Int64Array:
        """How many turns of its link before its own a message waits for: 0 for none and no turn."""
        network = self.network
        if times.rule.sums_in_turn:
            return np.where(self.reduces, windows_of_links(network, times)[self.link], 0)
        if not times.rule.keeps_order:
            return np.zeros(len(self), np.int64)
        window = windows_of_links(network, times)[self.link]
        at_once = released_at_once(network, times.rule)
        return windows(network.row[self.link], self.start, self.finish, window, at_once)
