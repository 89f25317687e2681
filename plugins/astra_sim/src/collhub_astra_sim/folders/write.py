"""Write the folder that ASTRA-sim runs as it is, or refuse what the simulator would abort on."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from collhub_astra_sim.fixed_size import check_size
from collhub_astra_sim.folders.folder import AstraFolder
from collhub_astra_sim.folders.losses import location_of, own_losses
from collhub_astra_sim.folders.placement import WorldPlacement, world_placement
from collhub_astra_sim.folders.workload_traces import COLLECTIVE_KEYS
from collhub_astra_sim.networks.expressible import AstraNetwork, expressed, fully_connected
from collhub_astra_sim.options import CONGESTION_AWARE, AstraFolderOptions
from hub_core import (
    NodeTable,
    NodeType,
    chakra_bytes,
    chakra_nodes,
    chakra_traces,
    parse_topology,
)
from hub_core.model import (
    Algorithm,
    BoolArray,
    CollectiveKind,
    InputError,
    Int64Array,
    UsageError,
    format_bytes,
    group_of_entry,
    placed,
)
from hub_core.network import Topology
from hub_core.plugin_api import WriteResult

_DEFAULT_BANDWIDTH_BYTES_PER_S = 50.0 * (1 << 30)
_DEFAULT_LATENCY_S = 500e-9
# ASTRA-sim adds 10^9 to tags of its own and takes all others modulo this.
_TAG_LIMIT = 500_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def write(algorithm: Algorithm, options: AstraFolderOptions) -> WriteResult:
    """Writer of the format `astra-sim`.

    Raises `UsageError` and `InputError` for what ASTRA-sim cannot run.
    """
    topology = parse_topology(options.topology) if options.topology else None
    folder = folder_of(algorithm, topology, options)
    if options.size is not None or algorithm.collective_bytes is not None:
        return WriteResult(folder.artifacts(), folder.losses)
    # A folder is of one size, as nobody would guess: it and its traces state the default.
    size = format_bytes(folder.collective_bytes)
    note = f"written for {size}, as no size was stated; -O size=... states one"
    return WriteResult(folder.artifacts(), folder.losses, ("collective_bytes",), (note,))


def folder_of(
    algorithm: Algorithm, topology: Topology | None, options: AstraFolderOptions
) -> AstraFolder:
    """The folder for an algorithm on a topology.

    Without one, the world is fully connected by links of 50 GiB/s and 500 ns. Raises as `write`.
    """
    size = options.size or algorithm.collective_bytes or chakra_bytes(algorithm)
    check_size(algorithm, size)
    kind = algorithm.collective.kind
    name = _name(options, kind)
    is_congestion_aware = options.network == CONGESTION_AWARE
    placement = world_placement(algorithm, topology, options)
    nodes = chakra_nodes(algorithm, size)
    _check_messages(nodes, algorithm)
    network = _network(topology, placement, nodes, is_congestion_aware)
    traces = chakra_traces(placed(algorithm, placement.members), replace(options, size=size))
    losses = own_losses(algorithm, nodes, network, options)
    return AstraFolder(
        name,
        size,
        kind if kind in COLLECTIVE_KEYS else CollectiveKind.ALL_REDUCE,
        _comm_size(algorithm, size, options),
        placement,
        network,
        is_congestion_aware,
        traces,
        (*traces.losses, *network.losses, *losses),
    )


def _name(options: AstraFolderOptions, kind: CollectiveKind) -> str:
    """The name of the traces, which becomes a part of paths. Raises `UsageError`."""
    name = options.name or str(kind)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"option name: {name[:80]!r} is not letters, digits, '.', '_' and '-'",
            cure="write for example ring",
        )
    return name


def _comm_size(algorithm: Algorithm, size: int, options: AstraFolderOptions) -> int:
    """Bytes in the workload node: no influence on absolute traces, the measure of symbolic ones."""
    # An all-gather counts the input of one rank. But the only reader of symbolic sizes, a branch of
    # ASTRA-sim, divides this number by the units of the whole output, so it gets the whole.
    is_share = algorithm.collective.kind is CollectiveKind.ALL_GATHER
    if not is_share or options.dialect == "symbolic":
        return size
    # With 0 bytes the ranks of an all-gather never finish.
    return max(1, size // algorithm.num_ranks)


def _check_messages(nodes: NodeTable, algorithm: Algorithm) -> None:
    """Refuse messages on which the simulator aborts."""
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    is_own = nodes.peer == group_of_entry(nodes.rank_indptr)
    defects: tuple[tuple[BoolArray, str, str], ...] = (
        (is_message & (nodes.size <= 0), "a message of 0 bytes", "remove the step"),
        (is_message & is_own, "a message to its own rank", "copy instead"),
        (
            nodes.tag >= _TAG_LIMIT,
            f"more than {_TAG_LIMIT} messages between two ranks",
            "use fewer steps",
        ),
    )
    for is_wrong, what, cure in defects:
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            place = location_of(algorithm, int(nodes.step[first]))
            raise InputError(f"{what}, on which ASTRA-sim aborts", location=place, cure=cure)


def _network(
    topology: Topology | None,
    placement: WorldPlacement,
    nodes: NodeTable,
    is_congestion_aware: bool,
) -> AstraNetwork:
    """The network that the folder states. Raises `UsageError` where ASTRA-sim has none like it."""
    if topology is None:
        return fully_connected(
            placement.npus,
            _DEFAULT_BANDWIDTH_BYTES_PER_S,
            _DEFAULT_LATENCY_S,
        )
    sources, destinations = _ends(nodes, np.asarray(placement.members, np.int64))
    return expressed(topology, sources, destinations, is_congestion_aware=is_congestion_aware)


def _ends(nodes: NodeTable, members: Int64Array) -> tuple[Int64Array, Int64Array]:
    """(sending NPU, receiving NPU) of every message; `members`: the NPU of every rank."""
    rank = group_of_entry(nodes.rank_indptr)
    is_send = nodes.type == NodeType.COMM_SEND
    sources = members[rank[is_send]]
    destinations = members[nodes.peer[is_send]]
    return sources, destinations
