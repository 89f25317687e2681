"""Write the folder that ASTRA-sim runs as it is: algorithm traces, workload traces, configurations and `run.sh`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collhub_astra_sim.expressible import AstraNetwork, expressed, fully_connected
from collhub_astra_sim.fixed_size import check_size
from collhub_astra_sim.folder_losses import location_of, own_losses
from collhub_astra_sim.inputs import rank_of_nodes
from collhub_astra_sim.network_yaml import network_text
from collhub_astra_sim.options import NETWORKS
from collhub_astra_sim.run_script import GROUPS, MEMORY, NETWORK, SCRIPT, SYSTEM, WORKLOAD, script
from collhub_astra_sim.workload import COLLECTIVE_KEYS, GROUP, collective_workload, idle_workload
from hub_core import parse_topology
from hub_core.chakra.nodes import NodeTable, NodeType, lower
from hub_core.chakra.profile import default_bytes
from hub_core.chakra.write import write as write_traces
from hub_core.model import Algorithm, CollectiveKind, InputError, Loss, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Artifact, Options, WriteResult

Int64Array = npt.NDArray[np.int64]

_DEFAULT_BANDWIDTH_BYTES_PER_S = 50.0 * (1 << 30)
_DEFAULT_LATENCY_S = 500e-9
_MOST_NPUS = 1 << 20
# ASTRA-sim adds 10^9 to tags of its own and takes all others modulo this.
_TAG_LIMIT = 500_000_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TRACE_OPTIONS = ("size", "dialect", "flatten")


@dataclass(frozen=True, slots=True)
class Folder:
    """What stands in a folder.

    `run_as`: the collective under which ASTRA-sim knows the algorithm. `comm_size`: bytes in its workload node.
    `npus`: size of the world; `members`: the NPU of every rank, ascending.
    """

    name: str
    run_as: CollectiveKind
    comm_size: int
    npus: int
    members: tuple[int, ...]
    network: AstraNetwork
    is_congestion_aware: bool
    traces: WriteResult
    losses: tuple[Loss, ...]

    @property
    def has_groups(self) -> bool:
        """Whether the algorithm runs on a part of the world."""
        return len(self.members) < self.npus

    def artifacts(self) -> Iterator[Artifact]:
        """All files, in a fixed order; the algorithm's traces one by one."""
        for artifact in self.traces.artifacts:
            yield Artifact(f"{self._trace_prefix}{artifact.name}", artifact.content)
        member = collective_workload(self.run_as, self.comm_size, in_group=self.has_groups)
        idle, inside = idle_workload(), frozenset(self.members)
        for rank in range(self.npus):
            yield Artifact(f"{WORKLOAD}.{rank}.et", _constant(member if rank in inside else idle))
        for name, text in self._texts().items():
            yield Artifact(name, _constant(text.encode("ascii")), executable=name == SCRIPT)

    def _texts(self) -> dict[str, str]:
        system = {
            "scheduling-policy": "FIFO",
            # With any other number no rank ever finishes a custom algorithm.
            "preferred-dataset-splits": 1,
            COLLECTIVE_KEYS[self.run_as]: [self._trace_prefix],
        }
        return {
            SYSTEM: _json(system),
            NETWORK: network_text(self.network.dimensions),
            MEMORY: _json({"memory-type": "NO_MEMORY_EXPANSION"}),
            **({GROUPS: _json({GROUP: list(self.members)})} if self.has_groups else {}),
            SCRIPT: script(
                self.npus,
                self._trace_prefix,
                len(self.members),
                is_congestion_aware=self.is_congestion_aware,
                has_groups=self.has_groups,
            ),
        }

    @property
    def _trace_prefix(self) -> str:
        return f"traces/{self.name}"


def write(algorithm: Algorithm, options: Options) -> WriteResult:
    """Writer of the format `astra-sim`. Raises `UsageError` and `InputError` for what ASTRA-sim cannot run."""
    text = options.get("topology")
    folder = folder_of(algorithm, parse_topology(str(text)) if text else None, options)
    return WriteResult(folder.artifacts(), folder.losses)


def folder_of(algorithm: Algorithm, topology: Topology | None, options: Options) -> Folder:
    """The folder for an algorithm on a topology, or on a fully connected world of 50 GiB/s and 500 ns."""
    stated = options.get("size")
    size = int(stated) if stated else algorithm.collective_bytes or default_bytes(algorithm)
    check_size(algorithm, size)
    kind = algorithm.collective.kind
    is_congestion_aware = (options.get("network") or NETWORKS[0]) == NETWORKS[0]
    npus, members = _world(algorithm.num_ranks, topology, options)
    nodes = lower(algorithm, size)
    _check_messages(nodes, algorithm)
    network = _network(topology, npus, np.asarray(members, np.int64), nodes, is_congestion_aware)
    traces = write_traces(
        algorithm, {key: options[key] for key in _TRACE_OPTIONS if key in options}
    )
    return Folder(
        _name(options, kind),
        kind if kind in COLLECTIVE_KEYS else CollectiveKind.ALL_REDUCE,
        _comm_size(algorithm, size, options),
        npus,
        members,
        network,
        is_congestion_aware,
        traces,
        (
            *traces.losses,
            *network.losses,
            *own_losses(algorithm, nodes, network, is_congestion_aware),
        ),
    )


def _name(options: Options, kind: CollectiveKind) -> str:
    name = str(options.get("name") or kind)
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"option name: {name[:80]!r} is not letters, digits, '.', '_' and '-'",
            cure="write for example ring",
        )
    return name


def _comm_size(algorithm: Algorithm, size: int, options: Options) -> int:
    """Bytes in the workload node: without influence on absolute traces, the measure of symbolic ones.

    An all-gather counts the input of one rank; the only reader of symbolic sizes (a branch of ASTRA-sim) divides
    this number by the units of the whole output nevertheless, so that it gets the whole.
    """
    is_share = (
        algorithm.collective.kind is CollectiveKind.ALL_GATHER
        and options.get("dialect") != "symbolic"
    )
    return max(1, size // algorithm.num_ranks) if is_share else size


def _world(
    num_ranks: int, topology: Topology | None, options: Options
) -> tuple[int, tuple[int, ...]]:
    """Number of NPUs, and the NPU of every rank."""
    group = _group(options.get("group"), num_ranks)
    stated = options.get("npus")
    npus = topology.num_npus if topology else int(stated or group[-1] + 1)
    if stated is not None and npus != int(stated):
        raise UsageError(
            f"option npus: {stated}, but topology {topology.name if topology else ''} has {npus} NPUs"
        )
    if npus > _MOST_NPUS:
        raise UsageError(f"{npus} NPUs are more than {_MOST_NPUS}", cure="name a smaller world")
    if group[-1] >= npus:
        raise UsageError(
            f"the algorithm needs NPU {group[-1]}, the world has {npus} NPUs",
            cure="name a larger topology, or another group",
            code="topology-too-small",
        )
    return npus, group


def _group(stated: object, num_ranks: int) -> tuple[int, ...]:
    if not stated:
        return tuple(range(num_ranks))
    parts = str(stated).split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 7 for part in parts):
        raise UsageError(
            f"option group: {str(stated)[:80]!r} is not a list of NPUs",
            cure="write for example 1,3",
        )
    group = tuple(map(int, parts))
    if len(group) != num_ranks:
        raise UsageError(
            f"option group: {len(group)} NPUs for {num_ranks} ranks",
            cure="name one NPU for every rank",
        )
    if list(group) != sorted(set(group)):
        raise UsageError(
            "option group: the NPUs do not ascend; ASTRA-sim would mix up ranks and peers",
            cure="sort them: rank i is the i-th",
        )
    return group


def _check_messages(nodes: NodeTable, algorithm: Algorithm) -> None:
    """Refuse messages on which the simulator aborts."""
    is_message = (nodes.type == NodeType.COMM_SEND) | (nodes.type == NodeType.COMM_RECV)
    for is_wrong, what, cure in (
        (is_message & (nodes.size <= 0), "a message of 0 bytes", "remove the step"),
        (
            is_message & (nodes.peer == rank_of_nodes(nodes)),
            "a message to its own rank",
            "copy instead",
        ),
        (
            nodes.tag >= _TAG_LIMIT,
            f"more than {_TAG_LIMIT} messages between two ranks",
            "use fewer steps",
        ),
    ):
        if is_wrong.any():
            place = location_of(algorithm, int(nodes.step[np.argmax(is_wrong)]))
            raise InputError(f"{what}, on which ASTRA-sim aborts", location=place, cure=cure)


def _network(
    topology: Topology | None,
    npus: int,
    members: Int64Array,
    nodes: NodeTable,
    is_congestion_aware: bool,
) -> AstraNetwork:
    if topology is None:
        link = (_DEFAULT_BANDWIDTH_BYTES_PER_S, _DEFAULT_LATENCY_S)
        return fully_connected(npus, *link)
    sends = np.flatnonzero(nodes.type == NodeType.COMM_SEND)
    sources, destinations = members[rank_of_nodes(nodes)[sends]], members[nodes.peer[sends]]
    return expressed(topology, sources, destinations, is_congestion_aware=is_congestion_aware)


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"


def _constant(content: bytes) -> Callable[[], bytes]:
    return lambda: content
