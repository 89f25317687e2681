"""Communicators of known machines: GPUs, nodes and network cards for NCCL's cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from collhub_machine_profiles.gpus import GPUS, Gpu
from collhub_machine_profiles.nccl_costs import Communicator, NodeNetwork
from hub_core.model import UsageError

if TYPE_CHECKING:
    from hub_core.network import Topology

# Network cards and CPUs of usual nodes, by shipped profile or GPU. EFA joins the four cards of a
# GPU of p5 to one device.
_NETWORKS: Mapping[str, NodeNetwork] = {
    "p4de": NodeNetwork(4, 12.5, "intel"),
    "p5": NodeNetwork(8, 50.0, "amd"),
    "p6-b200": NodeNetwork(8, 50.0, "intel"),
    "A100": NodeNetwork(8, 25.0, "amd"),
    "H100": NodeNetwork(8, 50.0, "intel"),
    "H200": NodeNetwork(8, 50.0, "intel"),
    "B200": NodeNetwork(8, 50.0, "intel"),
    "B300": NodeNetwork(8, 100.0, "intel"),
    "GB200": NodeNetwork(4, 50.0, "arm"),
    "GB300": NodeNetwork(4, 100.0, "arm"),
    "GH200": NodeNetwork(4, 25.0, "arm"),
}
_NAMED = ", ".join(sorted(name for name, gpu in GPUS.items() if gpu.search_channels))


def network_of_machine(machine: str) -> NodeNetwork | None:
    """Return the network cards of a node of the shipped profile `machine`, None if unknown."""
    return _NETWORKS.get(machine)


def count_nodes(topology: Topology) -> int:
    """Count the groups of a topology if they have equal sizes and contain every NPU; else 1."""
    members = [npu for group in topology.groups.values() for npu in group]
    sizes = {len(group) for group in topology.groups.values()}
    is_complete = sorted(members) == list(range(topology.num_npus))
    return len(topology.groups) if is_complete and len(sizes) == 1 else 1


def find_communicator(
    gpu: Gpu,
    version: str = "",
    *,
    ranks: int | None = None,
    nodes: int | None = None,
    topology: Topology | None = None,
    machine: str = "",
) -> Communicator:
    """Return the communicator of a machine with this GPU.

    Number of ranks and nodes: as given, else those of the topology, else one full node. The network
    cards are those of the topology, else the usual ones of the shipped profile `machine` or of the
    GPU. Raises `UsageError` if ranks and nodes do not fit the machine, and for GPUs whose channels
    are unknown.
    """
    if not gpu.search_channels:
        message = f"the channels that NCCL finds on {gpu.name} are unknown"
        raise UsageError(
            message, cure=f"give --search CHANNELSxGB/s of its log, or one of {_NAMED}"
        )
    per_node = gpu.gpus_per_node
    total_nodes = None
    if topology is not None:
        total_nodes = count_nodes(topology)
        per_node = topology.num_npus // total_nodes
        if per_node > gpu.gpus_per_node:
            message = f"{topology.name} has nodes of {per_node} ranks, {gpu.name} of at most"
            cure = "give the topology of this machine, or the machine of this topology"
            raise UsageError(f"{message} {gpu.gpus_per_node}", cure=cure)
    ranks, nodes = _ranks_and_nodes(ranks, nodes, per_node, total_nodes)
    if ranks < 2 or ranks % nodes or ranks // nodes > per_node:
        message = f"{ranks} ranks on {nodes} nodes do not fit nodes of {per_node} {gpu.name}"
        raise UsageError(message, cure="give --ranks and --nodes of equally filled nodes")
    if total_nodes is not None and nodes > total_nodes:
        message = f"{nodes} nodes are more than the {total_nodes} of the topology"
        raise UsageError(message, cure="give a larger topology")
    network = None
    if nodes > 1:
        network = _network_of_topology(topology, gpu) if topology is not None else None
        network = network or _NETWORKS.get(machine) or _NETWORKS.get(gpu.name)
        if network is None:
            message = f"the network of several nodes of {gpu.name} is unknown"
            raise UsageError(message, cure="give --topology, such as dgx-h100:2")
    return Communicator(gpu, ranks, nodes, version, network)


def _ranks_and_nodes(
    ranks: int | None, nodes: int | None, per_node: int, total_nodes: int | None
) -> tuple[int, int]:
    if ranks is None:
        nodes = nodes or total_nodes or 1
        return nodes * per_node, nodes
    # As few nodes as the ranks fill.
    return ranks, nodes or -(-ranks // per_node)


def _network_of_topology(topology: Topology, gpu: Gpu) -> NodeNetwork | None:
    """Return the links that leave the first node of a topology, as network cards."""
    import numpy as np  # Imported here: a listing of machines does without it.

    from hub_core.network import group_of_nodes

    group = group_of_nodes(topology)
    leaves = (group[topology.source] == 0) & (group[topology.destination] != 0)
    count = int(np.count_nonzero(leaves))
    if not count:
        return None
    rate = float(topology.bandwidth_bytes_per_s[leaves].sum()) / count / 1e9
    usual = _NETWORKS.get(gpu.name, NodeNetwork(count, rate))
    return replace(usual, nics=count, nic_rate=rate)
