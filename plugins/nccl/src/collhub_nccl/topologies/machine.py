"""One machine as nodes and typed links, and the topology of one machine or of several behind a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from hub_core.diagnostics import InputError, Location, UsageError
from hub_core.plugins.contract import Options
from hub_core.topology import Links, Topology
from hub_core.units import parse_bandwidth, parse_time

MAX_NODES = 1 << 20
MAX_LINKS = 1 << 22


class NodeKind(StrEnum):
    """What a node of a machine is; GPU become NPUs, the others switches."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"
    PCI = "pci"
    CPU = "cpu"
    NIC = "nic"
    NET = "net"


class LinkType(IntEnum):
    """Types of links. Their order is that of the links in a topology, so that routes prefer NVLink where hops are equal."""

    NVLINK = 0
    C2C = 1
    LOC = 2
    PCI = 3
    SYS = 4
    NET = 5


@dataclass(frozen=True, slots=True)
class Fabric:
    """Which machines there are and how their network ports are joined; latency of a link that states none."""

    machines: int
    is_rail: bool
    latency_s: float
    net_bandwidth: float | None

    @classmethod
    def of(cls, options: Options) -> Fabric:
        """From the options `nodes`, `fabric`, `latency` and `net_bandwidth`."""
        machines, text = options["nodes"], options["net_bandwidth"]
        assert isinstance(machines, int)
        if machines < 1:
            raise UsageError(f"nodes={machines} is no number of machines", cure="give at least 1")
        rate = None if text is None else parse_bandwidth(str(text)) / 1e9
        return cls(machines, options["fabric"] == "rail", parse_time(str(options["latency"])), rate)


class Machine:
    """Nodes by kind and name, and directed links; bandwidths in GB/s, repeated links of one type add up."""

    def __init__(self) -> None:
        self.kinds: list[NodeKind] = []
        self.names: list[str] = []
        self.links: dict[tuple[LinkType, int, int], float] = {}
        self.latencies: dict[tuple[LinkType, int, int], float] = {}
        self._taken: dict[str, int] = {}

    def add(self, kind: NodeKind, name: str) -> int:
        """A new node; its name gets a number where another has it."""
        times = self._taken[name] = self._taken.get(name, 0) + 1
        self.kinds.append(kind)
        self.names.append(name if times == 1 else f"{name} #{times}")
        return len(self.kinds) - 1

    def connect(self, type: LinkType, source: int, destination: int, bandwidth: float) -> None:
        """A directed link."""
        if source != destination and bandwidth > 0:
            key = (type, source, destination)
            self.links[key] = self.links.get(key, 0.0) + bandwidth

    def join(
        self, type: LinkType, one: int, other: int, bandwidth: float, latency_s: float | None = None
    ) -> None:
        """A link in both directions."""
        for key in ((one, other), (other, one)):
            self.connect(type, *key, bandwidth)
            if latency_s is not None:
                self.latencies[(type, *key)] = latency_s

    def of_kind(self, kind: NodeKind) -> list[int]:
        """Nodes of one kind, in the order in which they were added."""
        return [node for node, own in enumerate(self.kinds) if own is kind]

    def net_bandwidth(self, net: int) -> float:
        """What a network port can send to its machine, in GB/s."""
        return sum(
            rate
            for (type, source, _), rate in self.links.items()
            if type is LinkType.NET and source == net
        )


def topology_of(machine: Machine, gpus: Sequence[int], source: str, fabric: Fabric) -> Topology:
    """The topology with `gpus` as NPUs in this order: NPU k of machine m is m * len(gpus) + k.

    Raises `InputError` where there is no GPU, or no network port to join machines by.
    """
    if not gpus:
        raise InputError(
            "no GPU is known",
            location=Location(source),
            cure="name the GPUs with FILE?gpus=",
            code="no-gpu",
        )
    nets = machine.of_kind(NodeKind.NET)
    if fabric.machines > 1 and not nets:
        cure = "state the speed of its network cards with FILE?net_bandwidth=400Gbit/s"
        raise InputError(
            "the machine has no network port to join several by",
            location=Location(source),
            cure=cure,
            code="no-net",
        )
    switches = (len(nets) if fabric.is_rail else 1) if fabric.machines > 1 else 0
    _check_size(
        fabric.machines * len(machine.kinds) + switches,
        fabric.machines * (len(machine.links) + 2 * len(nets)),
    )
    rest = [node for node in range(len(machine.kinds)) if node not in set(gpus)]
    number = _numbers(len(machine.kinds), gpus, rest, fabric.machines)
    first_switch = fabric.machines * len(machine.kinds)
    parts = [_inside(machine, number[m], fabric) for m in range(fabric.machines)]
    if switches:
        parts += [
            _outside(machine, number[m], nets, first_switch, fabric) for m in range(fabric.machines)
        ]
    names = _names(machine, gpus, rest, fabric, switches)
    npus = fabric.machines * len(gpus)
    groups = {
        f"machine {m}": tuple(range(m * len(gpus), (m + 1) * len(gpus)))
        for m in range(fabric.machines)
        if switches
    }
    return Links.joined(parts).topology(
        source, npus, first_switch + switches, node_names=tuple(names), groups=groups
    )


def _check_size(nodes: int, links: int) -> None:
    if nodes > MAX_NODES or links > MAX_LINKS:
        raise UsageError(
            f"that is {nodes} nodes and {links} links, too many",
            cure="give fewer machines with FILE?nodes=",
        )


def _numbers(
    nodes: int, gpus: Sequence[int], rest: Sequence[int], machines: int
) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Number in the topology of every node of every machine: all GPUs first."""
    number = np.empty((machines, nodes), np.int64)
    first = np.arange(machines)[:, None]
    number[:, list(gpus)] = first * len(gpus) + np.arange(len(gpus))
    number[:, list(rest)] = machines * len(gpus) + first * len(rest) + np.arange(len(rest))
    return number


def _inside(
    machine: Machine, number: np.ndarray[tuple[int], np.dtype[np.int64]], fabric: Fabric
) -> Links:
    keys = sorted(machine.links)
    latency = [machine.latencies.get(key, fabric.latency_s) for key in keys]
    ends = np.asarray([key[1:] for key in keys], np.int64).reshape(-1, 2)
    rates = np.asarray([machine.links[key] * 1e9 for key in keys], np.float64)
    return Links(number[ends[:, 0]], number[ends[:, 1]], rates, np.asarray(latency, np.float64))


def _outside(
    machine: Machine,
    number: np.ndarray[tuple[int], np.dtype[np.int64]],
    nets: Sequence[int],
    first_switch: int,
    fabric: Fabric,
) -> Links:
    """Links between the network ports of one machine and the switches of the network."""
    ports = number[list(nets)]
    switches = first_switch + (
        np.arange(len(nets)) if fabric.is_rail else np.zeros(len(nets), np.int64)
    )
    rates = np.tile([machine.net_bandwidth(net) * 1e9 for net in nets], 2)
    delays = np.full(2 * len(nets), fabric.latency_s)
    return Links(
        np.concatenate([ports, switches]), np.concatenate([switches, ports]), rates, delays
    )


def _names(
    machine: Machine, gpus: Sequence[int], rest: Sequence[int], fabric: Fabric, switches: int
) -> list[str]:
    if fabric.machines == 1:
        return [machine.names[node] for node in (*gpus, *rest)]
    names = [
        f"machine {m} {machine.names[node]}"
        for part in (gpus, rest)
        for m in range(fabric.machines)
        for node in part
    ]
    return names + ([f"rail {k}" for k in range(switches)] if fabric.is_rail else ["network"])
