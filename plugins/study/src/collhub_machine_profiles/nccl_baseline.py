"""Predict what NCCL does today for a call on a known machine, and how long it takes.

The communicator has the GPUs and network cards of the machine. The choice is that of NCCL's cost
model; the time is that of the machine's profile: measured, interpolated or modelled. Without a
profile that covers the call it is NCCL's own cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from collhub_machine_profiles.gpus import GPUS, Gpu, known_gpu
from collhub_machine_profiles.nccl_choice import (
    NcclChoice,
    cheapest_alternative,
    choose_exchange,
    launch_of,
)
from collhub_machine_profiles.nccl_constants import DEFAULT_VERSION
from collhub_machine_profiles.nccl_costs import ALGORITHMS_OF, Communicator, NodeNetwork, cost_us
from collhub_machine_profiles.shipped import find_profile
from hub_core.model import UsageError

if TYPE_CHECKING:
    from collhub_machine_profiles.machine_profile import MachineProfile
    from collhub_machine_profiles.prediction import Prediction
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
    """Return the number of hosts of a topology, which is that of its groups.

    The groups must have equal sizes and together contain every NPU exactly once. Otherwise, and
    also without groups, the result is 1.
    """
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
    """Return the communicator (GPU, ranks, nodes, network) that NCCL would use on a machine.

    P is the number of ranks of a full node of `topology`, without a topology that of the GPU.
    A `nodes` of 0 counts as None.

    - `ranks` and `nodes`: both are used.
    - Only `ranks`: as few nodes of P ranks as possible.
    - Only `nodes`: P ranks on each.
    - Neither: all nodes of the topology; without a topology one node of P ranks.

    The network is None on one node. On several nodes it is the first one that is known: that
    of the links that leave the first node of the topology, of the profile `machine`, of the
    GPU. `version` is copied without a check.

    Raises `UsageError` in the first of these cases: NCCL's channels on the GPU are unknown; P
    exceeds the ranks that the GPU permits on a node; there are fewer than 2 ranks, nodes of
    different numbers of ranks, or more than P ranks on a node; the topology has fewer nodes;
    several nodes have no known network.
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
    if ranks is None:
        nodes = nodes or total_nodes or 1
        ranks = nodes * per_node
    else:
        nodes = nodes or -(-ranks // per_node)
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


def _network_of_topology(topology: Topology, gpu: Gpu) -> NodeNetwork | None:
    """Return the network cards of a node, from the links that leave the first node of a topology.

    The first node is group 0 of `group_of_nodes`. Every link from it to another group counts as one
    card, and the mean bandwidth of these links (GB/s) is the rate of a card. Other properties are
    those of the usual network of this GPU, or defaults for a GPU without one. Returns None if no
    link leaves the node.
    """
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


NCCL_COST = "NCCL's cost model"
"""Method of a time that no profile covers. On one NVLink node its median error is 24 %."""


@dataclass(frozen=True, slots=True)
class NcclBaseline:
    """NCCL's execution of a call and its expected time in us.

    `choice` is None on machines whose channels are unknown. `method` is a value of `Method`, or
    `NCCL_COST`. `median_error` is the held-out error of the profile as a fraction, None if it is
    not known. `machine` is the name of the profile, "" without one.
    """

    choice: NcclChoice | None
    time_us: float
    method: str
    median_error: float | None
    machine: str
    version: str

    @property
    def name(self) -> str:
        """Algorithm and protocol, such as `ring ll`; `NCCL` if they are unknown."""
        return "NCCL" if self.choice is None else f"{self.choice.algorithm} {self.choice.protocol}"


def nccl_version_of(profile: MachineProfile | None) -> str:
    """Return the version of NCCL with which a profile was measured, or `DEFAULT_VERSION`.

    The default is returned if there is no profile, it is of another library, or its version is
    empty.
    """
    if profile is None or profile.library.name != "NCCL" or not profile.library.version:
        return DEFAULT_VERSION
    return profile.library.version


def communicator_of_topology(
    topology: Topology,
    *,
    profile: MachineProfile | None = None,
    version: str = "",
    ranks: int | None = None,
    nodes: int | None = None,
) -> Communicator | None:
    """Return the communicator with which NCCL would run on ranks of a known machine's topology.

    - `profile`: if None, the shipped profile of the machine that the topology names, if any.
    - The GPU is that of the profile; without a profile, the one that the topology's name contains.
    - `version` of NCCL: if "", that of the profile; without a profile `DEFAULT_VERSION`.
    - `ranks`, `nodes`: both None means all nodes of the topology. Only `ranks`: as few full nodes
      as possible. Only `nodes`: all ranks of these nodes.

    Returns None if no GPU is known, and instead of each `UsageError` of `find_communicator`:
    unknown channels, an unknown network of several nodes, nodes with more ranks than the GPU
    permits, or ranks and nodes that do not fit.
    """
    profile = profile or find_profile(topology)
    gpu = profile.known_gpu if profile is not None else known_gpu(topology.name)
    if gpu is None:
        return None
    try:
        return find_communicator(
            gpu,
            version or nccl_version_of(profile),
            ranks=ranks,
            nodes=nodes,
            topology=topology,
            machine="" if profile is None else profile.name,
        )
    except UsageError:
        return None


def predict_baseline(
    topology: Topology,
    collective: str,
    size_bytes: int,
    *,
    profile: MachineProfile | None = None,
    version: str = "",
    dtype: str = "",
) -> NcclBaseline | None:
    """Predict NCCL's choice for a call by all ranks of a topology, and its time in us.

    `profile`: None is the shipped profile of the machine that the topology names, if any.
    `size_bytes`: full buffer. `dtype`: "" is unknown. An empty `version` of NCCL means that
    of the profile for the choice and in the result, and any version for the time.

    - Choice: the cheapest by NCCL's cost model (`cheapest_alternative`). None if
      `communicator_of_topology` gives no communicator, e.g. for an unknown GPU, or if the model
      lacks the collective.
    - Time: that of the profile, with its method and median error. If it has none, the cost in the
      model, with the method `NCCL_COST` and no error. An all-to-all has a choice but no cost.
    - Without a time the result is None. Raises `ValueError` if the model allows no algorithm.
    """
    profile = profile or find_profile(topology)
    machine = "" if profile is None else profile.name
    # None for ranks of another machine and for GPUs with unknown channels: a table may have them.
    communicator = communicator_of_topology(topology, profile=profile, version=version)
    choice, cost = None, None
    if communicator is not None and collective == "all-to-all":
        choice = choose_exchange(communicator, size_bytes)
    elif communicator is not None and collective in ALGORITHMS_OF:
        best = cheapest_alternative(communicator, collective, size_bytes, dtype)
        cost = cost_us(communicator, collective, best, size_bytes)
        choice = launch_of(communicator, collective, best, size_bytes)
    predicted = None
    if profile is not None:
        nodes = count_nodes(topology)
        predicted = expected_time(
            profile, collective, topology.num_npus, nodes, size_bytes, version, dtype
        )
    if predicted is not None:
        error = predicted.median_error
        method, time_us = str(predicted.method), predicted.time_us
    elif cost is not None:
        error, method, time_us = None, NCCL_COST, cost
    else:
        return None
    used_version = version or nccl_version_of(profile)
    return NcclBaseline(choice, time_us, method, error, machine, used_version)


def expected_time(
    profile: MachineProfile,
    collective: str,
    ranks: int,
    nodes: int,
    size_bytes: int,
    version: str = "",
    dtype: str = "",
) -> Prediction | None:
    """Return the time of a call with NCCL's own choice in us, by a profile; None if it has none.

    The following libraries are tried in this order, and the first prediction of `predict_time`
    (by a table of the profile, else by its model) is returned:

    1. NCCL of `version` without a variant. An empty `version` fits any version, as does a table
       without a version.
    2. The libraries of the profile's tables, then those of its networks, if their name is NCCL and
       their variant begins with `+` (a network plugin, such as `+ aws-ofi-nccl`). They are tried
       with their own versions; `version` is ignored.

    `size_bytes`: bytes of the full buffer. `nodes`: nodes on which the ranks are distributed
    equally. `dtype`: data type of the call, "" if unknown; a table must have the same text.
    """
    # Imported here: choices without times need no numpy.
    from collhub_machine_profiles.calls import PlannedCall
    from collhub_machine_profiles.prediction import predict_time
    from hub_core.plugin_api import Library

    libraries = [Library("NCCL", version)]
    # Times with a network plugin are the only ones of some machines: `NCCL, + aws-ofi-nccl`.
    profile_libraries = [table.library for table in profile.tables]
    profile_libraries += [network.library for network in profile.networks]
    libraries += [
        library
        for library in profile_libraries
        if library.name == "NCCL" and library.variant.startswith("+")
    ]
    for library in libraries:
        call = PlannedCall(collective, ranks, nodes, size_bytes, library, dtype)
        predicted = predict_time(profile, call)
        if predicted is not None:
            return predicted
    return None


def expected_time_of_choice_us(
    profile: MachineProfile,
    communicator: Communicator,
    collective: str,
    size: int,
    choice: NcclChoice,
) -> float | None:
    """Return the time in us of a call that NCCL executes by `choice`, by the model of one node.

    `size`: bytes of the full buffer. The ranks, nodes and NCCL version are those of `communicator`.
    The algorithm, protocol, channels, threads and chunk are those of `choice`, the constants those
    of `profile`.

    Returns None if the profile has no known GPU, has no constants, or does not model the call (as
    on several nodes). Also None if the algorithm of the choice is not ring, nvls or p2p. Raises
    `ValueError` if the model has no formula for the pair of algorithm and protocol.
    """
    from collhub_machine_profiles.calls import PlannedCall
    from collhub_machine_profiles.time_models import call_columns, predict
    from hub_core.plugin_api import Library

    library = Library("NCCL", communicator.version)
    call = PlannedCall(collective, communicator.ranks, communicator.nodes, size, library)
    gpu = profile.modelled_gpu(call)
    if gpu is None or choice.algorithm not in {"ring", "nvls", "p2p"}:
        return None
    columns = call_columns(gpu, [call], communicator.version, [choice])
    return float(predict(profile.constant_values(), columns)[0])
