"""Several copies of a machine connected by one network."""

from __future__ import annotations

from collhub_msccl.language.topologies.generic import Switch, Topology

# Names that `from msccl.topologies.distributed import *` imports.
__all__ = ["distributed_fully_connected", "distributed_hub_and_spoke"]


def distributed_fully_connected(
    local: Topology, num_copies: int, remote_bandwidth: int
) -> Topology:
    """Local links inside each copy, and `remote_bandwidth` between any two nodes of different
    copies."""
    size = local.num_nodes()

    def get_bandwidth(src: int, dst: int) -> int:
        """Bandwidth between two nodes of all copies."""
        if src // size == dst // size:
            return local.link(src % size, dst % size)
        return remote_bandwidth

    nodes = range(size * num_copies)
    links = [[get_bandwidth(src, dst) for src in nodes] for dst in nodes]
    name = (
        f"DistributedFullyConnected(local={local.name},copies={num_copies},bw={remote_bandwidth})"
    )
    return Topology(name, links, _copy_switches(local, num_copies))


def distributed_hub_and_spoke(local: Topology, num_copies: int, remote_bandwidth: int) -> Topology:
    """The same, but all sends of a copy share `remote_bandwidth`, and so do all its receives."""
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


def _copy_switches(local: Topology, num_copies: int) -> list[Switch]:
    """Switches of every copy."""
    switches: list[Switch] = []
    for copy in range(num_copies):
        first = copy * local.num_nodes()
        for srcs, dsts, bandwidth, name in local.switches:
            sources = [first + node for node in srcs]
            destinations = [first + node for node in dsts]
            switches.append((sources, destinations, bandwidth, f"copy_{copy}_{name}"))
    return switches
