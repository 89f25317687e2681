"""Several copies of a machine behind one network."""

from __future__ import annotations

from collhub_msccl.language.topologies.generic import Switch, Topology

__all__ = ["distributed_fully_connected", "distributed_hub_and_spoke"]


def distributed_fully_connected(
    local: Topology, num_copies: int, remote_bandwidth: int
) -> Topology:
    """Local links inside each copy, and a link of `remote_bandwidth` between any two nodes of different copies."""
    size = local.num_nodes()
    nodes = range(size * num_copies)
    links = [
        [
            local.link(src % size, dst % size) if src // size == dst // size else remote_bandwidth
            for src in nodes
        ]
        for dst in nodes
    ]
    name = (
        f"DistributedFullyConnected(local={local.name},copies={num_copies},bw={remote_bandwidth})"
    )
    return Topology(name, links, _local_switches(local, num_copies))


def distributed_hub_and_spoke(local: Topology, num_copies: int, remote_bandwidth: int) -> Topology:
    """The same, but all that a copy sends, and all that it receives, shares `remote_bandwidth`."""
    joined = distributed_fully_connected(local, num_copies, remote_bandwidth)
    size = local.num_nodes()
    switches: list[Switch] = []
    for copy in range(num_copies):
        own = list(range(copy * size, (copy + 1) * size))
        others = [node for node in joined.nodes() if node // size != copy]
        switches += [
            (own, others, remote_bandwidth, f"copy_{copy}_out"),
            (others, own, remote_bandwidth, f"copy_{copy}_in"),
        ]
    name = f"DistributedHubAndSpoke(local={local.name},copies={num_copies},bw={remote_bandwidth})"
    return Topology(name, joined.links, [*joined.switches, *(switches if num_copies > 1 else [])])


def _local_switches(local: Topology, num_copies: int) -> list[Switch]:
    size = local.num_nodes()
    return [
        (
            [node + copy * size for node in srcs],
            [node + copy * size for node in dsts],
            bandwidth,
            f"copy_{copy}_{name}",
        )
        for copy in range(num_copies)
        for srcs, dsts, bandwidth, name in local.switches
    ]
