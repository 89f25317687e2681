"""What thread blocks of a rank refer to: its channels and its remote buffers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from collhub_mscclpp.writing.work import PlanWork
from hub_core.columns import Int64Array

MEMORY = "memory"
PORT = "port"
SWITCH = "switch"


@dataclass(slots=True)
class RankTables:
    """One rank.

    `peers`: connected rank of every channel by type; `channels`: id of the channel of every
    connection; `buffers`: position of every remote (rank, buffer, type); `semaphores`: how many.
    `groups`: numbers of the groups of switches that the rank is in; a position is the id of its
    channel. All ranks list them in one order, as their set-up waits for all members.
    """

    peers: dict[str, list[int]] = field(default_factory=lambda: {MEMORY: [], PORT: []})
    channels: dict[int, int] = field(default_factory=dict)
    buffers: dict[tuple[int, int, str], int] = field(default_factory=dict)
    semaphores: int = 0
    groups: list[int] = field(default_factory=list)

    def join(self, group: int) -> None:
        """Take part in a group of a switch."""
        self.groups.append(group)

    def buffer(self, rank: int, buffer: int, channel_type: str) -> int:
        """Position of a buffer of another rank in the list of this one."""
        return self.buffers.setdefault((rank, buffer, channel_type), len(self.buffers))

    def another_semaphore(self) -> int:
        """The number of a further semaphore."""
        self.semaphores += 1
        return self.semaphores - 1

    def connect(self, number: int, peer: int, channel_type: str) -> None:
        """Give a connection the next channel of its type."""
        self.channels[number] = len(self.peers[channel_type])
        self.peers[channel_type].append(peer)


def tables_of(work: PlanWork, types: list[str], copies: int) -> list[RankTables]:
    """Tables of all ranks, with `copies` channels a connection.

    Both ranks of a connection list it in the order of connections, so that channels of equal
    ordinal between two ranks are its two ends. Channel `c * copies + k` is copy k of connection c.
    """
    tables = [RankTables() for _ in range(work.steps.num_ranks)]
    ends = zip(work.source.tolist(), work.destination.tolist(), strict=True)
    for connection, (source, destination) in enumerate(ends):
        for number in range(connection * copies, (connection + 1) * copies):
            tables[source].connect(number, destination, types[connection])
            tables[destination].connect(number, source, types[connection])
    return tables


def channel_types(work: PlanWork, domain: Int64Array) -> list[str]:
    """Type of every connection: port between domains, memory within; `domain`: int64[ranks]."""
    is_far = domain[work.source] != domain[work.destination]
    return np.where(is_far, PORT, MEMORY).tolist()  # type: ignore[no-any-return]
