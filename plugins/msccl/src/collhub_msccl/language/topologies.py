"""Topologies of the language: which ranks may send to which ranks, and with which bandwidth.

The class `Topology`, regular topologies, copies of a topology connected by a network, and the
machines that the language defines.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "Topology",
    "amd4",
    "amd8",
    "binarize_topology",
    "dgx1",
    "dgx_a100",
    "distributed_fully_connected",
    "distributed_hub_and_spoke",
    "fully_connected",
    "hub_and_spoke",
    "line",
    "nvlink_only",
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
        """Yield all bandwidth limits of the topology as (sources, destinations, bandwidth, name).

        First every link with a positive bandwidth, ordered by destination, then by source, with the
        name `src->dst`. Then all switches, in their order.
        """
        for dst, row in enumerate(self.links):
            for src, bandwidth in enumerate(row):
                if bandwidth > 0:
                    yield [src], [dst], bandwidth, f"{src}->{dst}"
        yield from self.switches


def _build_links(num_nodes: int, bandwidth: Callable[[int, int], int]) -> list[list[int]]:
    """Build the table of link bandwidths `[dst][src]` from a function of (source, destination).

    A node has bandwidth 0 to itself; the function is not called for it.
    """
    nodes = range(num_nodes)
    return [[bandwidth(src, dst) if src != dst else 0 for src in nodes] for dst in nodes]


def fully_connected(num_nodes: int) -> Topology:
    """Build a topology with a link of bandwidth 1 between any two nodes."""
    return Topology(f"FullyConnected(n={num_nodes})", _build_links(num_nodes, lambda src, dst: 1))


def hub_and_spoke(num_nodes: int) -> Topology:
    """Build a topology in which one hub connects all nodes; its name is `HubAndSpoke(n=N)`.

    Each ordered pair of different nodes has a link of bandwidth 1. Each node N has two switches:
    `node_N_out` limits the total of its sends to all other nodes to 1, `node_N_in` the total of its
    receives from them. The list of switches is ordered by node, out before in. 0 nodes give no
    links and no switches; for one node, the two switches have no peers.
    """
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
    """Build a ring topology with links of bandwidth 1 in both directions between neighbours.

    Node n is linked with nodes n - 1 and n + 1, modulo the number of nodes. Two nodes have
    one link in each direction, one node has none. The topology is named `Ring(n=NODES)`.
    """
    neighbours = (1, num_nodes - 1)
    links = _build_links(num_nodes, lambda src, dst: int((src - dst) % num_nodes in neighbours))
    return Topology(f"Ring(n={num_nodes})", links)


def line(num_nodes: int) -> Topology:
    """Build a line of nodes: links of bandwidth 1, in both directions, between neighbours.

    The ends have one neighbour. The topology is named `Line(n=NODES)`.
    """
    links = _build_links(num_nodes, lambda src, dst: int(abs(src - dst) == 1))
    return Topology(f"Line(n={num_nodes})", links)


def star(num_nodes: int, non_blocking: bool = True) -> Topology:
    """Build a star: links of bandwidth 1, in both directions, between node 0 and each other node.

    It is named `Star(n=NODES)`. Unless `non_blocking`, the name is `BlockingStar(n=NODES)`,
    and the switches `hub_in` and `hub_out` limit the total bandwidth of node 0 per
    direction to 1, too.
    """
    leaves = list(range(1, num_nodes))
    links = _build_links(num_nodes, lambda src, dst: int(0 in (src, dst)))
    if non_blocking:
        return Topology(f"Star(n={num_nodes})", links)
    switches = [(leaves, [0], 1, "hub_in"), ([0], leaves, 1, "hub_out")]
    return Topology(f"BlockingStar(n={num_nodes})", links, switches)


def reverse_topology(topology: Topology) -> Topology:
    """Return a new topology with the direction of all links and switches reversed.

    The link from a to b gets the bandwidth that the link from b to a has in `topology`. Each switch
    swaps its sources and destinations, and keeps its bandwidth and position. The name gets the
    prefix "Reverse", and names of switches get the suffix "_reversed". The argument is not changed.
    """
    nodes = topology.nodes()
    links = [[topology.link(dst, src) for src in nodes] for dst in nodes]
    switches = [
        (dsts, srcs, bandwidth, f"{name}_reversed")
        for srcs, dsts, bandwidth, name in topology.switches
    ]
    return Topology(f"Reverse{topology.name}", links, switches)


def binarize_topology(topology: Topology) -> Topology:
    """Return a copy of the topology with bandwidth 1 on every link, and without switches.

    There is a link where the bandwidth was positive; all other bandwidths become 0. The
    name gets the prefix `Binarized`. The argument is not changed.
    """
    links = [[int(bandwidth > 0) for bandwidth in row] for row in topology.links]
    return Topology(f"Binarized{topology.name}", links)


def distributed_fully_connected(
    local: Topology, num_copies: int, remote_bandwidth: int
) -> Topology:
    """Build copies of a topology; nodes of different copies have links of `remote_bandwidth`.

    Every node is linked with all nodes of all other copies. Node k of copy c has number c *
    (nodes of `local`) + k. Each copy keeps its links and its switches, whose names get the
    prefix `copy_c_`; switches are ordered by copy. With one copy no links are added; with
    `remote_bandwidth` 0 the copies are not connected. `remote_bandwidth` has the unit of the
    bandwidths of `local`, which is not changed. The name of the result is
    `DistributedFullyConnected(local=NAME,copies=N,bw=BANDWIDTH)`.
    """
    size = local.num_nodes()

    def get_bandwidth(src: int, dst: int) -> int:
        """Return the bandwidth from node `src` to node `dst` of the result.

        Within a copy it is that of the local link, otherwise `remote_bandwidth`.
        """
        if src // size == dst // size:
            return local.link(src % size, dst % size)
        return remote_bandwidth

    nodes = range(size * num_copies)
    links = [[get_bandwidth(src, dst) for src in nodes] for dst in nodes]
    name = (
        f"DistributedFullyConnected(local={local.name},copies={num_copies},bw={remote_bandwidth})"
    )
    switches: list[Switch] = []
    for copy in range(num_copies):
        first = copy * size
        for srcs, dsts, bandwidth, switch_name in local.switches:
            sources = [first + node for node in srcs]
            destinations = [first + node for node in dsts]
            switches.append((sources, destinations, bandwidth, f"copy_{copy}_{switch_name}"))
    return Topology(name, links, switches)


def distributed_hub_and_spoke(local: Topology, num_copies: int, remote_bandwidth: int) -> Topology:
    """Build copies of a topology; each copy has `remote_bandwidth` in total in each direction.

    Nodes, links (also those between copies) and local switches are those of
    `distributed_fully_connected`. After the local switches, two further switches per copy limit
    its total bandwidth to the nodes of other copies (`copy_c_out`) and from them (`copy_c_in`)
    to `remote_bandwidth` each. A single copy gets no further switches. The name begins with
    `DistributedHubAndSpoke`. Raises `ValueError` for several copies and a `remote_bandwidth`
    that is not positive.
    """
    joined = distributed_fully_connected(local, num_copies, remote_bandwidth)
    size = local.num_nodes()
    switches = list(joined.switches)
    # A single copy does not use the network.
    for copy in range(num_copies if num_copies > 1 else 0):
        local_nodes = list(range(copy * size, (copy + 1) * size))
        remote_nodes = [node for node in joined.nodes() if node // size != copy]
        switches += [
            (local_nodes, remote_nodes, remote_bandwidth, f"copy_{copy}_out"),
            (remote_nodes, local_nodes, remote_bandwidth, f"copy_{copy}_in"),
        ]
    name = f"DistributedHubAndSpoke(local={local.name},copies={num_copies},bw={remote_bandwidth})"
    return Topology(name, joined.links, switches)


def amd4() -> Topology:
    """Build the topology `AMD4`: four GPUs in a ring, with links of bandwidth 1 in both directions.

    The order of the ring is 0, 1, 3, 2.
    """
    # Rows of destinations, one digit per source.
    rows = ("0110", "1001", "1001", "0110")
    return Topology("AMD4", [[int(cell) for cell in row] for row in rows])


def amd8() -> Topology:
    """Build the topology `AMD8`: eight GPUs, each with a link to each other one.

    The bandwidth is 6 between the two GPUs of a module (0-1, 2-3, ...), 5 between modules.
    """
    # The GPUs of a module have numbers that differ in the last bit.
    links = _build_links(8, lambda src, dst: 6 if src ^ 1 == dst else 5)
    return Topology("AMD8", links)


# Rows of destinations, one digit per source: NVLinks of the hybrid cube mesh.
_DGX1 = "02112000 20120100 11020020 12200001 20000211 01002012 00201102 00011220"


def dgx1() -> Topology:
    """DGX-1V: eight GPUs, one or two NVLinks between neighbours."""
    return Topology("DGX1", [[int(links) for links in row] for row in _DGX1.split()])


def dgx_a100() -> Topology:
    """Build the topology `DGX_A100`: eight GPUs, each with a link to each other one.

    The bandwidth of every link is 12, the number of NVLinks of a GPU. The total of a GPU
    has no limit, because the topology has no switches.
    """
    gpus = range(8)
    return Topology("DGX_A100", [[12 if src != dst else 0 for src in gpus] for dst in gpus])


def nvlink_only(nvidia_smi_topo: str | None = None) -> Topology:
    """Build the topology of a host's NVLinks from the text of `nvidia-smi topo -m`.

    If the text is None, the command is executed on this host, which raises `OSError` or
    `CalledProcessError` if it fails. The result is named `NVLinkOnly` and has no switches. Node n
    is the n-th row of a GPU. Such a row begins with `GPU` and a number, and its second word is
    another text (a row of column names is skipped). Of its cells, the first n count for n rows.

    The bandwidth of a link is the number of its NVLinks: 12 for a cell `NV12`. Any other cell (such
    as `PIX` or `X`) is no link, 0. The cell of row r and column c is `links[r][c]`. Raises
    `ValueError` without rows of GPUs, and for a row with fewer cells than there are rows.
    """
    text = nvidia_smi_topo
    if text is None:
        command = ["nvidia-smi", "topo", "-m"]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if re.match(r"\s*GPU\d+\s+\S", line)]
    rows = [line.split() for line in lines]
    # The line with the column names has a GPU name instead of a cell value.
    table = [row[1:] for row in rows if not re.fullmatch(r"GPU\d+", row[1])]
    size = len(table)
    if not size or any(len(cells) < size for cells in table):
        raise ValueError("this is not the table that nvidia-smi topo -m prints")
    # The table is from row to column; links are symmetric.
    links = []
    for cells in table:
        matches = [re.fullmatch(r"NV(\d+)", cell) for cell in cells[:size]]
        links.append([int(match[1]) if match else 0 for match in matches])
    return Topology("NVLinkOnly", links)
