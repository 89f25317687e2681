"""A schedule on the links of a network: what the kernels make, what is replayed, reversed and handed to the core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.windows import released_at_once, windows, windows_of_links
from hub_core.transfers import Transfers

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LinkSchedule:
    """Chunk `chunk[i]` is put on link `link[i]` of `network` at `start[i]` and arrives at `finish[i]`.

    int64 columns of equal length, times in picoseconds, chunk ids as in `hub_core.transfers.Chunks`. `reduces`: bool
    per transfer, the chunk is added to what the destination has.
    """

    network: LinkNetwork
    chunk: Int64Array
    link: Int64Array
    start: Int64Array
    finish: Int64Array
    reduces: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        return int(self.finish.max(initial=0))

    def touching(self, nodes: Sequence[int]) -> LinkSchedule:
        """The transfers from or to `nodes` alone."""
        source, destination = self.network.source[self.link], self.network.destination[self.link]
        rows = np.flatnonzero(np.isin(source, nodes) | np.isin(destination, nodes))
        times = self.start[rows], self.finish[rows]
        return LinkSchedule(
            self.network, self.chunk[rows], self.link[rows], *times, self.reduces[rows]
        )

    def after(self, other: LinkSchedule, end_ps: int | None = None) -> LinkSchedule:
        """`other`, then this one; `end_ps`: when the whole of which `other` is a part ends, default its own time."""
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
        """The columns that the core makes an algorithm of."""
        network = self.network
        row = network.row[self.link]
        return Transfers(
            self.chunk,
            network.source[self.link],
            network.destination[self.link],
            row,
            self.start,
            self.finish,
            self.reduces,
            windows(
                row,
                self.start,
                self.finish,
                windows_of_links(network, times)[self.link],
                released_at_once(network),
            ),
        )
