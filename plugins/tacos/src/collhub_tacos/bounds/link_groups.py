"""Groups of links over which messages must go, and the time below which they cannot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collhub_tacos.networks.link_network import LinkTimes
from hub_core.columns import BoolArray, Float64Array, Int64Array, row_pointer


@dataclass(frozen=True, slots=True, eq=False)
class LinkGroups:
    """Groups of links, each with the number of messages that must go over it; int64 columns.

    Group i is `links[indptr[i]:indptr[i + 1]]`, over which `needed[i]` messages must go.
    """

    links: Int64Array
    indptr: Int64Array
    needed: Int64Array

    @classmethod
    def one(cls, is_member: BoolArray, needed: int) -> LinkGroups:
        """One group: the links for which `is_member` (bool per link) holds."""
        links = np.flatnonzero(is_member)
        return cls(links, row_pointer([len(links)]), np.asarray([needed]))

    def crossed(self) -> LinkGroups:
        """Without the groups that nothing must cross, and those that nothing can."""
        size = np.diff(self.indptr)
        # `reduceat` takes no empty groups.
        is_kept = (self.needed > 0) & (size > 0)
        links = self.links[np.repeat(is_kept, size)]
        return LinkGroups(links, row_pointer(size[is_kept]), self.needed[is_kept])

    def time_ps(self, times: LinkTimes) -> int:
        """Least time by which all groups can deliver what they must, by bisection if need be."""
        groups = self.crossed()
        if not len(groups.needed):
            return 0
        busy, arrival = times.busy[groups.links], times.arrival[groups.links]
        first = groups.indptr[:-1]
        if np.ptp(busy) == 0 and np.ptp(arrival) == 0:
            # Alike links of a group take turns.
            rounds = -(-groups.needed // np.diff(groups.indptr))
            return int(arrival[0] + (rounds.max() - 1) * busy[0])
        low = 0
        # By one link of a group alone, the slowest.
        high = int(arrival.max() + (groups.needed.max() - 1) * busy.max())
        while low < high:
            middle = (low + high) // 2
            # A link delivers its first message after `arrival`, the next ones every `busy`; all at
            # the same time if a message takes less than half a picosecond.
            messages = (middle - arrival) // np.maximum(busy, 1) + 1
            messages = np.where(busy > 0, messages, groups.needed.max())
            delivered = np.where(middle < arrival, 0, messages)
            if np.all(np.add.reduceat(delivered, first) >= groups.needed):
                high = middle
            else:
                low = middle + 1
        return low

    def fluid_s(
        self,
        rate: Float64Array,
        chunk_bytes: int,
    ) -> float:
        """Seconds of the slowest group, its bytes by its bandwidth; `rate`: bytes/s per link."""
        groups = self.crossed()
        if not len(groups.needed):
            return 0.0
        together = np.add.reduceat(rate[groups.links], groups.indptr[:-1])
        seconds = groups.needed * chunk_bytes / together
        return float(np.max(seconds))
