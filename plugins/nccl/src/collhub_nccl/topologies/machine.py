"""One machine as nodes and typed links, before its nodes get the numbers of a topology."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum


class NodeKind(StrEnum):
    """Kind of a node of a machine; GPUs become NPUs, all other nodes switches."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCI = "pci"
    CPU = "cpu"
    NIC = "nic"
    NET = "net"


class LinkType(IntEnum):
    """Types of links, with NCCL's names.

    Their order is that of the links in a topology, so that routes prefer NVLink if the number of
    hops is equal.
    """

    NVLINK = 0
    C2C = 1
    LOC = 2
    PCI = 3
    SYS = 4
    NET = 5


LinkKey = tuple[LinkType, int, int]
"""(type, source, destination) of a directed link."""


class Machine:
    """Nodes by kind and name, and directed links between them.

    Repeated links of one type add up, as in NCCL. `latencies`: in seconds, of the links that have
    one in the file.
    """

    def __init__(self) -> None:
        self.kinds: list[NodeKind] = []
        self.names: list[str] = []
        # Number of links per bandwidth: sums of integers do not depend on their order.
        self._counts: dict[LinkKey, dict[float, int]] = {}
        self.latencies: dict[LinkKey, float] = {}
        self._taken: dict[str, int] = {}

    def add(self, kind: NodeKind, name: str) -> int:
        """Add a node and return its number; a repeated name gets the suffix ` #N`."""
        times = self._taken.get(name, 0) + 1
        self._taken[name] = times
        self.kinds.append(kind)
        self.names.append(name if times == 1 else f"{name} #{times}")
        return len(self.kinds) - 1

    @property
    def links(self) -> dict[LinkKey, float]:
        """Bandwidths in GB/s; independent of the order in which links were added."""
        link_rates = {}
        for key, counts in self._counts.items():
            link_rates[key] = math.fsum(count * bandwidth for bandwidth, count in counts.items())
        return link_rates

    def connect(
        self, type: LinkType, source: int, destination: int, bandwidth: float, count: int = 1
    ) -> None:
        """Add directed links of `bandwidth` GB/s each.

        Ignores loops and links without bandwidth.
        """
        # Some files contain links of a device to itself, or without bandwidth.
        if source == destination or bandwidth <= 0:
            return
        counts = self._counts.setdefault((type, source, destination), {})
        counts[bandwidth] = counts.get(bandwidth, 0) + count

    def join(
        self,
        type: LinkType,
        first: int,
        second: int,
        bandwidth: float,
        latency_s: float | None = None,
        count: int = 1,
    ) -> None:
        """Add links of `bandwidth` GB/s each in both directions."""
        for source, destination in ((first, second), (second, first)):
            self.connect(type, source, destination, bandwidth, count)
            if latency_s is not None:
                self.latencies[type, source, destination] = latency_s

    def of_kind(self, kind: NodeKind) -> list[int]:
        """Nodes of one kind, in the order in which they were added."""
        return [node for node, node_kind in enumerate(self.kinds) if node_kind is kind]

    def net_bandwidth(self, net: int) -> float:
        """Total bandwidth from a network port to its machine, in GB/s."""
        rates = []
        for (type, source, _), rate in self.links.items():
            if type is LinkType.NET and source == net:
                rates.append(rate)
        return sum(rates)
