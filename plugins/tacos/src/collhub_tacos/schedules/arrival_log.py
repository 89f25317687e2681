"""Lockstep schedule in compact arrays: what every node got, in order, and which links it used."""

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

# Nodes whose transfers are expanded at once.
_NODES_AT_ONCE = 1 << 12


def identifier_type(num_chunks: int) -> type[np.uint16] | type[np.uint32]:
    """Smallest type of chunk ids."""
    return np.uint16 if num_chunks <= 1 << 16 else np.uint32


def chunk_bits(node: Int64Array, chunk: Int64Array, shape: tuple[int, int]) -> ChunkBits:
    """Bits of these pairs alone are set, of `shape[0]` nodes and `shape[1]` chunks."""
    num_nodes, num_chunks = shape
    bits = np.zeros((num_nodes, -(-num_chunks // 64)), np.uint64)
    bit = np.uint64(1) << (chunk & 63).astype(np.uint64)
    # Not `|=`: several chunks of a node share a word.
    np.bitwise_or.at(bits, (node, chunk >> 6), bit)
    return bits


@dataclass(frozen=True, slots=True, eq=False)
class ArrivalLog:
    """All-gather in equal steps: a transfer of step t starts at `t * busy_ps`.

    It arrives `arrival_ps` later. `log[v]`: the chunks of node v, the `own[v]` that it starts with
    first, then in order of the steps and, within one, of the links of `network`. `carried`:
    uint8[steps, ceil(links / 8)], a bit per link, lowest first: the link carries something in this
    step. What it carries follows from the log: 2 to 4 bytes a transfer, and the bits.
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
        # Every entry is a transfer, but for those that a node starts with.
        return self.log.size - int(self.own.sum())

    @property
    def lag(self) -> int:
        """Steps from the start of a transfer to the first one in which its chunk can go on."""
        return -(-self.arrival_ps // self.busy_ps)

    @property
    def time_ps(self) -> int:
        """When the last chunk arrives."""
        if not self.num_steps:
            return 0
        last_start = (self.num_steps - 1) * self.busy_ps
        return last_start + self.arrival_ps

    def schedule(self, nodes: Sequence[int] | None = None) -> LinkSchedule:
        """All transfers in order of start, or only those from or to `nodes`: 41 bytes each."""
        links = self._links_of(nodes)
        step, link, chunk = self._received_over(links)
        # Logs are expanded by receiver: some links of theirs touch none of the nodes.
        if nodes is not None:
            is_wanted = np.isin(link, links)
            step, link, chunk = step[is_wanted], link[is_wanted], chunk[is_wanted]
        order = np.lexsort((link, step))
        start = step[order] * self.busy_ps
        finish = start + self.arrival_ps
        return LinkSchedule.spreading(self.network, chunk[order], link[order], start, finish)

    def _links_of(self, nodes: Sequence[int] | None) -> Int64Array:
        links = np.arange(self.network.num_links)
        if nodes is None:
            return links
        is_from = np.isin(self.network.source, nodes)
        is_to = np.isin(self.network.destination, nodes)
        return links[is_from | is_to]

    def _received_over(self, links: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Step, link and chunk of all transfers to the destinations of some links."""
        receivers = np.unique(self.network.destination[links])
        if not len(receivers):
            return links, links, links
        # Some nodes at a time, so that what lies between is no second copy of the whole.
        parts = [
            self._received(receivers[first : first + _NODES_AT_ONCE])
            for first in range(0, len(receivers), _NODES_AT_ONCE)
        ]
        step, link, chunk = zip(*parts, strict=True)
        return np.concatenate(step), np.concatenate(link), np.concatenate(chunk)

    def _received(self, receivers: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Step, link and chunk of all transfers to some nodes, by node, then by arrival."""
        indptr = self.network.indptr
        step, link, chunk = [], [], []
        for node in receivers:
            steps, links = self._in_links(int(indptr[node]), int(indptr[node + 1]))
            step.append(steps)
            link.append(links)
            chunk.append(self.log[node, self.own[node] :].astype(np.int64))
        return np.concatenate(step), np.concatenate(link), np.concatenate(chunk)

    def _in_links(self, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Step and link of all transfers on links `first..end-1`, in order of the steps."""
        link = np.arange(first, end)
        # Only the columns of these links are unpacked.
        bit = (link & 7).astype(np.uint8)
        used = self.carried[:, link >> 3] >> bit & 1
        step, which = np.nonzero(used)
        return step, link[which]
