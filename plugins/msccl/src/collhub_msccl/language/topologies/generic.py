"""The class `Topology` of the language, and regular topologies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

# Names that `from msccl.topologies.generic import *` imports.
__all__ = [
    "Switch",
    "Topology",
    "binarize_topology",
    "fully_connected",
    "hub_and_spoke",
    "line",
    "reverse_topology",
    "ring",
    "star",
]

Switch = tuple[list[int], list[int], int, str]
"""(sources, destinations, bandwidth, name): limit of the total from sources to destinations."""


# Programs import `Topology` by this name, which the core uses for a different class.
class Topology:
    """Links between nodes: `links[dst][src]` is a bandwidth, 0 for no link.

    Raises `ValueError` if the links are not square, or a switch has no bandwidth.
    """

    def __init__(
        self, name: str, links: Sequence[Sequence[int]], switches: Sequence[Switch] = ()
    ) -> None:
        if any(len(row) != len(links) for row in links):
            raise ValueError(f"topology {name}: the links are not a square table")
        if any(bandwidth <= 0 for _, _, bandwidth, _ in switches):
            raise ValueError(f"topology {name}: a switch without bandwidth")
        self.name = name
        self.links = [list(row) for row in links]
        self.switches = list(switches)

    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.links)

    def nodes(self) -> range:
        """All nodes."""
        return range(len(self.links))

    def link(self, src: int, dst: int) -> int:
        """Bandwidth from `src` to `dst`, 0 for no link."""
        return self.links[dst][src]

    def sources(self, dst: int) -> Iterator[int]:
        """Iterate the nodes with a link to `dst`."""
        return (src for src in self.nodes() if self.link(src, dst) > 0)

    def destinations(self, src: int) -> Iterator[int]:
        """Iterate the nodes to which `src` has a link."""
        return (dst for dst in self.nodes() if self.link(src, dst) > 0)

    def bandwidth_constraints(self) -> Iterator[Switch]:
        """Yield every link, then every switch, as (sources, destinations, bandwidth, name)."""
        for dst, row in enumerate(self.links):
            for src, bandwidth in enumerate(row):
                if bandwidth > 0:
                    yield [src], [dst], bandwidth, f"{src}->{dst}"
        yield from self.switches


def _build_links(num_nodes: int, bandwidth: Callable[[int, int], int]) -> list[list[int]]:
    """Table of links from a function of source and destination; 0 from a node to itself."""
    nodes = range(num_nodes)
    return [[bandwidth(src, dst) if src != dst else 0 for src in nodes] for dst in nodes]


def fully_connected(num_nodes: int) -> Topology:
    """A link with bandwidth 1 between any two nodes."""
    return Topology(f"FullyConnected(n={num_nodes})", _build_links(num_nodes, lambda src, dst: 1))


def hub_and_spoke(num_nodes: int) -> Topology:
    """All nodes are connected by one hub; the total bandwidth of each node and direction is 1."""
    switches: list[Switch] = []
    for node in range(num_nodes):
        peers = [peer for peer in range(num_nodes) if peer != node]
        switches += [
            ([node], peers, 1, f"node_{node}_out"),
            (peers, [node], 1, f"node_{node}_in"),
        ]
    return Topology(
        f"HubAndSpoke(n={num_nodes})", _build_links(num_nodes, lambda src, dst: 1), switches
    )


def ring(num_nodes: int) -> Topology:
    """Links to both neighbours in a cycle."""
    neighbours = (1, num_nodes - 1)
    links = _build_links(num_nodes, lambda src, dst: int((src - dst) % num_nodes in neighbours))
    return Topology(f"Ring(n={num_nodes})", links)


def line(num_nodes: int) -> Topology:
    """Links to both neighbours on a line."""
    links = _build_links(num_nodes, lambda src, dst: int(abs(src - dst) == 1))
    return Topology(f"Line(n={num_nodes})", links)


def star(num_nodes: int, non_blocking: bool = True) -> Topology:
    """Node 0 in the centre; unless `non_blocking`, its total bandwidth per direction is 1."""
    leaves = list(range(1, num_nodes))
    links = _build_links(num_nodes, lambda src, dst: int(0 in (src, dst)))
    if non_blocking:
        return Topology(f"Star(n={num_nodes})", links)
    switches = [(leaves, [0], 1, "hub_in"), ([0], leaves, 1, "hub_out")]
    return Topology(f"BlockingStar(n={num_nodes})", links, switches)


def reverse_topology(topology: Topology) -> Topology:
    """The topology with all links and switches reversed."""
    nodes = topology.nodes()
    links = [[topology.link(dst, src) for src in nodes] for dst in nodes]
    switches = [
        (dsts, srcs, bandwidth, f"{name}_reversed")
        for srcs, dsts, bandwidth, name in topology.switches
    ]
    return Topology(f"Reverse{topology.name}", links, switches)


def binarize_topology(topology: Topology) -> Topology:
    """The topology with bandwidth 1 on every link and without switches."""
    links = [[int(bandwidth > 0) for bandwidth in row] for row in topology.links]
    return Topology(f"Binarized{topology.name}", links)
