"""Lockstep schedule in compact arrays: the arrivals of every node in order, and the used links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule
from hub_core.columns import Int64Array

Identifiers = npt.NDArray[np.uint16 | np.uint32]
ChunkBits = npt.NDArray[np.uint64]
"""A bit per node and chunk: row v, bit `x & 63` of word `x >> 6`."""

# Number of nodes whose transfers are expanded at the same time.
_NODES_PER_BATCH = 1 << 12


def choose_identifier_type(num_chunks: int) -> type[np.uint16] | type[np.uint32]:
    """Return the smallest type for chunk ids."""
    return np.uint16 if num_chunks <= 1 << 16 else np.uint32


def set_chunk_bits(node: Int64Array, chunk: Int64Array, shape: tuple[int, int]) -> ChunkBits:
    """Return bits that are set for the given (node, chunk) pairs; `shape`: nodes and chunks."""
    num_nodes, num_chunks = shape
    bits = np.zeros((num_nodes, -(-num_chunks // 64)), np.uint64)
    bit = np.uint64(1) << (chunk & 63).astype(np.uint64)
    # `|=` would lose bits, because several chunks of a node share a word.
    np.bitwise_or.at(bits, (node, chunk >> 6), bit)
    return bits


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalLog:
    """All-gather in equal steps: a transfer of step t starts at `t * busy_ps`.

    It arrives `arrival_ps` later. `log[v]`: chunks of node v, first the `initial_count[v]` initial
    ones, then the others in order of steps and, within a step, of the links of `network`.
    `carried`: uint8[steps, ceil(links / 8)], a bit per link, lowest bit first: whether the link
    carries a chunk in this step. The log determines which chunk it is. This takes 2 to 4
    bytes per transfer plus the bits.
    """

    network: LinkNetwork
    busy_ps: int
    arrival_ps: int
    log: Identifiers
    initial_count: Int64Array
    carried: npt.NDArray[np.uint8]

    @property
    def num_steps(self) -> int:
        """Number of steps."""
        return len(self.carried)

    @property
    def num_transfers(self) -> int:
        """Number of transfers: all log entries except the initial chunks."""
        return self.log.size - int(self.initial_count.sum())

    @property
    def lag(self) -> int:
        """Number of steps from the start of a transfer until its chunk can be forwarded."""
        return -(-self.arrival_ps // self.busy_ps)

    @property
    def time_ps(self) -> int:
        """Arrival time of the last chunk in picoseconds."""
        if not self.num_steps:
            return 0
        last_start = (self.num_steps - 1) * self.busy_ps
        return last_start + self.arrival_ps

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """Return all transfers in order of start, or those from or to `nodes`; 41 bytes each."""
        links = self._select_links(nodes)
        step, link, chunk = self._expand_links(links)
        # Logs are expanded by receiver, which includes links that touch none of the nodes.
        if nodes is not None:
            is_selected = np.isin(link, links)
            step, link, chunk = step[is_selected], link[is_selected], chunk[is_selected]
        order = np.lexsort((link, step))
        start = step[order] * self.busy_ps
        finish = start + self.arrival_ps
        return LinkSchedule.without_reduction(
            self.network, chunk[order], link[order], start, finish
        )

    def _select_links(self, nodes: Sequence[int] | None) -> Int64Array:
        links = np.arange(self.network.num_links)
        if nodes is None:
            return links
        is_from = np.isin(self.network.source, nodes)
        is_to = np.isin(self.network.destination, nodes)
        return links[is_from | is_to]

    def _expand_links(self, links: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return step, link and chunk of all transfers to the destinations of some links."""
        receivers = np.unique(self.network.destination[links])
        if not len(receivers):
            return links, links, links
        # Batches limit the memory for intermediate arrays.
        parts = [
            self._expand_receivers(receivers[first : first + _NODES_PER_BATCH])
            for first in range(0, len(receivers), _NODES_PER_BATCH)
        ]
        step, link, chunk = zip(*parts, strict=True)
        return np.concatenate(step), np.concatenate(link), np.concatenate(chunk)

    def _expand_receivers(self, receivers: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return step, link and chunk of all transfers to some nodes, by node, then by arrival."""
        indptr = self.network.indptr
        step, link, chunk = [], [], []
        for node in receivers:
            steps, links = self._find_transfers_of_links(int(indptr[node]), int(indptr[node + 1]))
            step.append(steps)
            link.append(links)
            chunk.append(self.log[node, self.initial_count[node] :].astype(np.int64))
        return np.concatenate(step), np.concatenate(link), np.concatenate(chunk)

    def _find_transfers_of_links(self, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Return step and link of all transfers on links `first..end-1`, in order of steps."""
        link = np.arange(first, end)
        # Unpack only the columns of these links.
        bit = (link & 7).astype(np.uint8)
        used = self.carried[:, link >> 3] >> bit & 1
        step, index_of_link = np.nonzero(used)
        return step, link[index_of_link]
