"""A lockstep schedule in compact arrays: what every node got, in order, and which links were used in which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule

Int64Array = npt.NDArray[np.int64]
Identifiers = npt.NDArray[np.uint16 | np.uint32]

_LINKS_AT_ONCE = 1 << 12


def identifier_type(num_chunks: int) -> type[np.uint16] | type[np.uint32]:
    """The smallest type of chunk ids."""
    return np.uint16 if num_chunks <= 1 << 16 else np.uint32


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalLog:
    """An all-gather in equal steps; in step t a transfer starts at `t * busy_ps` and arrives `arrival_ps` later.

    `log[v]`: the chunks of node v, the `own[v]` that it starts with first, then in order of the steps and, within one,
    of the links of `network`. `carried`: uint8[steps, ceil(links / 8)], a bit per link, lowest first: the link carries
    something in this step. What it carries follows from the log: 2 to 4 bytes a transfer, and the bits.
    """

    network: LinkNetwork
    busy_ps: int
    arrival_ps: int
    log: Identifiers
    own: Int64Array
    carried: npt.NDArray[np.uint8]

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.carried)

    @property
    def num_transfers(self) -> int:
        """Number of transfers."""
        return self.log.size - int(self.own.sum())

    @property
    def lag(self) -> int:
        """Steps from the start of a transfer to the first one in which its destination can send it on."""
        return -(-self.arrival_ps // self.busy_ps)

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        return (self.num_steps - 1) * self.busy_ps + self.arrival_ps if self.num_steps else 0

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """All transfers in order of start, or only those from or to `nodes`: 41 bytes each."""
        network, destination = self.network, self.network.destination
        links = np.arange(network.num_links)
        if nodes is not None:
            links = links[np.isin(network.source, nodes) | np.isin(destination, nodes)]
        receivers = np.unique(destination[links])
        parts = [
            self._received(receivers[first : first + _LINKS_AT_ONCE])
            for first in range(0, len(receivers), _LINKS_AT_ONCE)
        ]
        step, link, chunk = (
            (np.concatenate(columns) for columns in zip(*parts, strict=True))
            if parts
            else (links, links, links)
        )
        if nodes is not None:
            kept = np.isin(link, links)
            step, link, chunk = step[kept], link[kept], chunk[kept]
        order = np.lexsort((link, step))
        start = step[order] * self.busy_ps
        return LinkSchedule(
            network,
            chunk[order],
            link[order],
            start,
            start + self.arrival_ps,
            np.zeros(len(order), np.bool_),
        )

    def _received(self, receivers: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Step, link and chunk of all transfers to some nodes, by node, then in order of arrival."""
        indptr = self.network.indptr
        found = [self._in_links(int(indptr[node]), int(indptr[node + 1])) for node in receivers]
        chunk = [self.log[node, self.own[node] :].astype(np.int64) for node in receivers]
        return (
            np.concatenate([step for step, _ in found]),
            np.concatenate([link for _, link in found]),
            np.concatenate(chunk),
        )

    def _in_links(self, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Step and link of all transfers on links `first..end-1`, in order of the steps."""
        link = np.arange(first, end)
        used = self.carried[:, link >> 3] >> (link & 7).astype(np.uint8) & 1
        step, which = np.nonzero(used)
        return step, link[which]
