"""A machine as nodes and typed links, and the topology of one or of several on a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np

from collhub_nccl.options import NcclMachineOptions
from hub_core.columns import Int64Array
from hub_core.model import InputError, Location, UsageError
from hub_core.network import Links, Topology


class MachineNodeKind(StrEnum):
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


class MachineGraph:
    """Nodes by kind and name, and directed links between them.

    Repeated links of one type add up, as in NCCL. `latencies`: in seconds, of the links that have
    one in the file.
    """

    def __init__(self) -> None:
        self.kinds: list[MachineNodeKind] = []
        self.names: list[str] = []
        # Number of links per bandwidth: sums of integers do not depend on their order.
        self._counts: dict[LinkKey, dict[float, int]] = {}
        self.latencies: dict[LinkKey, float] = {}
        self._taken: dict[str, int] = {}

    def add(self, kind: MachineNodeKind, name: str) -> int:
        """Add a node and return its number; numbers count from 0.

        A second node of the same name gets the suffix ` #2`, a third one ` #3`, and so on.
        """
        times = self._taken.get(name, 0) + 1
        self._taken[name] = times
        self.kinds.append(kind)
        self.names.append(name if times == 1 else f"{name} #{times}")
        return len(self.kinds) - 1

    @property
    def links(self) -> dict[LinkKey, float]:
        """Return the total bandwidth in GB/s of parallel links, by (type, source, destination).

        The sum is exactly rounded, so it does not depend on the order in which links were added.
        """
        link_rates = {}
        for key, counts in self._counts.items():
            link_rates[key] = math.fsum(count * bandwidth for bandwidth, count in counts.items())
        return link_rates

    def connect(
        self, type: LinkType, source: int, destination: int, bandwidth: float, count: int = 1
    ) -> None:
        """Add `count` parallel links from `source` to `destination`, of `bandwidth` GB/s each.

        Existing links of the pair stay. Links from a node to itself, and links with a bandwidth
        of 0 or less, are ignored, because some files contain them. The other direction is not
        added.
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
        """Add `count` links of `bandwidth` GB/s each in both directions.

        Without `latency_s` the latency of the topology's options applies.
        """
        for source, destination in ((first, second), (second, first)):
            self.connect(type, source, destination, bandwidth, count)
            if latency_s is not None:
                self.latencies[type, source, destination] = latency_s

    def of_kind(self, kind: MachineNodeKind) -> list[int]:
        """Return the numbers of the nodes of one kind, in the order in which they were added."""
        return [node for node, node_kind in enumerate(self.kinds) if node_kind is kind]

    def net_bandwidth(self, net: int) -> float:
        """Return the total bandwidth from a network port to its machine in GB/s.

        `net` is the node of the port. The result is 0 for a port without links.
        """
        rates = []
        for (type, source, _), rate in self.links.items():
            if type is LinkType.NET and source == net:
                rates.append(rate)
        return sum(rates)


# Larger than any cluster: a mistyped number of machines must not exhaust the memory.
MAX_NODES = 1 << 20
MAX_LINKS = 1 << 22


@dataclass(frozen=True, slots=True)
class Fabric:
    """Number of machines, and how their network ports are joined.

    `is_rail`: one switch for the k-th ports of all machines, else one for all ports; `latency_s`:
    of links without one; `net_bandwidth`: of every network port in GB/s, instead of the file's.
    """

    machines: int
    is_rail: bool
    latency_s: float
    net_bandwidth: float | None

    @classmethod
    def of(cls, options: NcclMachineOptions) -> Fabric:
        """Fabric from the options `nodes`, `fabric`, `latency` and `net_bandwidth`."""
        return cls(
            options.nodes,
            is_rail=options.fabric == "rail",
            net_bandwidth=gigabytes_per_s(options.net_bandwidth),
            latency_s=options.latency,
        )


def gigabytes_per_s(bytes_per_s: float | None) -> float | None:
    """Convert bytes/s to GB/s (10^9 bytes/s), the unit of NCCL's tables.

    None (no bandwidth given) stays None.
    """
    if bytes_per_s is None:
        return None
    return bytes_per_s / 1e9


def topology_of(
    machine: MachineGraph, gpus: Sequence[int], source: str, fabric: Fabric
) -> Topology:
    """Return the topology of one machine, or of several equal ones that a network connects.

    `gpus`: GPU nodes of the machine, in the order of NPUs. `source`: name of the topology.
    `fabric`: number of machines and their network. Nodes are numbered in this order:

    1. NPUs, machine by machine: NPU k of machine m is m * len(gpus) + k.
    2. All other nodes, machine by machine, in the order of the machine.
    3. The network's switches: none for one machine; with rails one per network port; otherwise one.

    Links are those within the machines, machine by machine (`inner_links`), then those between
    ports and switches (`port_links`). Each of several machines is a group `machine M`; a single one
    has no groups. Raises, in this order: `InputError` without GPUs (`no-gpu`), or for several
    machines without network ports (`no-net`); `UsageError` above `MAX_NODES` nodes or about
    `MAX_LINKS` links.
    """
    copies = _MachineCopies(machine, gpus, fabric)
    copies.check(source)
    numbers = copies.numbers()
    parts = [copies.inner_links(of_machine) for of_machine in numbers]
    if copies.num_switches:
        parts += [copies.port_links(of_machine) for of_machine in numbers]
    return Links.joined(parts).topology(
        source,
        copies.num_npus,
        copies.first_switch + copies.num_switches,
        node_names=tuple(copies.names()),
        groups=copies.groups(),
    )


class _MachineCopies:
    """Equal machines and the switches between them, as nodes of one topology.

    NPUs come first, machine by machine, then the remaining nodes of all machines, then the switches
    of the network.
    """

    def __init__(self, machine: MachineGraph, gpus: Sequence[int], fabric: Fabric) -> None:
        self._machine = machine
        self._gpus = list(gpus)
        self._fabric = fabric
        self._nets = machine.of_kind(MachineNodeKind.NET)
        nodes = range(len(machine.kinds))
        self._others = sorted(set(nodes) - set(gpus))
        self.num_npus = fabric.machines * len(gpus)
        self.first_switch = fabric.machines * len(nodes)
        # With rails, the ports of the same number of all machines have a switch of their own.
        switches = len(self._nets) if fabric.is_rail else 1
        self.num_switches = switches if fabric.machines > 1 else 0

    def check(self, source: str) -> None:
        """Raise an error if the machines cannot be connected to a topology; otherwise do nothing.

        `source`: name of the file, for messages. The checks, in this order:

        - `InputError` (`no-gpu`) if there is no GPU.
        - `InputError` (`no-net`) for several machines without network ports.
        - `UsageError` if there are more than `MAX_NODES` (2^20) nodes, or more than `MAX_LINKS`
          (2^22) links. Links are those of all machines, and two per network port, even of a single
          machine.
        """
        if not self._gpus:
            raise InputError(
                "no GPU is known",
                location=Location(source),
                cure="name the GPUs with FILE?gpus=",
                code="no-gpu",
            )
        if self._fabric.machines > 1 and not self._nets:
            raise InputError(
                "the machine has no network port to join several by",
                location=Location(source),
                cure="state the speed of its network cards with FILE?net_bandwidth=400Gbit/s",
                code="no-net",
            )
        nodes = self.first_switch + self.num_switches
        # Every port is joined to a switch in both directions.
        links_of_machine = len(self._machine.links) + 2 * len(self._nets)
        links = self._fabric.machines * links_of_machine
        if nodes > MAX_NODES or links > MAX_LINKS:
            raise UsageError(
                f"that is {nodes} nodes and {links} links, too many",
                cure="give fewer machines with FILE?nodes=",
            )

    def numbers(self) -> Int64Array:
        """Return the number in the topology of every node of every machine: int64[machines, nodes].

        Columns are node numbers of the machine, in which GPUs need not come first. A topology
        numbers its NPUs first: the GPUs of all machines, machine by machine, within a machine in
        the order given to the constructor. All other nodes follow in the same way, in ascending
        order.
        """
        # A topology numbers its NPUs first, so the GPUs of all machines precede all other nodes.
        machines = self._fabric.machines
        number = np.empty((machines, len(self._machine.kinds)), np.int64)
        first = 0
        for part in (self._gpus, self._others):
            part_numbers = np.arange(machines * len(part)).reshape(machines, len(part))
            number[:, part] = first + part_numbers
            first += machines * len(part)
        return number

    def inner_links(self, number: Int64Array) -> Links:
        """Return the directed links within one machine, whose nodes have the numbers `number`.

        `number`: int64, by node of the machine, its number in the topology. Links are sorted by
        type (NVLink first, see `LinkType`), then by source and destination in the numbering of the
        machine. This order matters: of routes with equally many hops, `Topology.routes` takes the
        one with the earlier link.

        Parallel links of one type are one link with the sum of their bandwidths. Bandwidths are in
        bytes/s, latencies in seconds. A link without a latency in the file has that of the fabric.
        Network switches between machines are not included.
        """
        machine = self._machine
        # By type first: routes prefer the earlier of two links if the hops are equal.
        links = machine.links
        keys = sorted(links)
        link_ends = np.asarray([key[1:] for key in keys], np.int64).reshape(-1, 2)
        rates = [links[key] * 1e9 for key in keys]
        delays = [machine.latencies.get(key, self._fabric.latency_s) for key in keys]
        return Links(
            number[link_ends[:, 0]],
            number[link_ends[:, 1]],
            np.asarray(rates, np.float64),
            np.asarray(delays, np.float64),
        )

    def port_links(self, number: Int64Array) -> Links:
        """Return the links between a machine's network ports and the switches, in both directions.

        The ports are its NET nodes in the order in which they were added. First come the links from
        port 0, 1 and so on to their switches, then those back in the same order. With rails, port i
        is linked to switch i of the network; otherwise all ports are linked to its only switch.
        Both directions have the total bandwidth from the port to its machine, in bytes/s, and the
        latency of the fabric in seconds. `number` maps the nodes of the machine to those of the
        topology.
        """
        ports = number[self._nets]
        switches = np.full(len(ports), self.first_switch)
        if self._fabric.is_rail:
            switches += np.arange(len(ports))
        rates = [self._machine.net_bandwidth(net) * 1e9 for net in self._nets]
        delays = np.full(2 * len(ports), self._fabric.latency_s)
        return Links(
            np.concatenate([ports, switches]),
            np.concatenate([switches, ports]),
            np.tile(rates, 2),
            delays,
        )

    def names(self) -> list[str]:
        """Return the names of all nodes by their number: GPUs, all other nodes, switches.

        GPUs are sorted by machine, then in the order of NPUs; other nodes by machine, then by node
        number. The nodes of a single machine have the names in the file, and there are no switches.
        Those of several machines have the prefix "machine M ", with M from 0. The switches between
        them are "rail 0", "rail 1" and so on with rails, otherwise one "network".
        """
        node_names = self._machine.names
        machines = self._fabric.machines
        # The names of a single machine are those of the file.
        if machines == 1:
            return [node_names[node] for node in (*self._gpus, *self._others)]
        names = []
        for part in (self._gpus, self._others):
            for m in range(machines):
                names += [f"machine {m} {node_names[node]}" for node in part]
        return names + (
            [f"rail {k}" for k in range(self.num_switches)] if self._fabric.is_rail else ["network"]
        )

    def groups(self) -> dict[str, tuple[int, ...]]:
        """Return the NPUs of each machine by name, such as `machine 0`.

        Machines have consecutive NPUs. {} for a single machine, which needs no network switch.
        """
        size = len(self._gpus)
        if not self.num_switches:
            return {}
        return {
            f"machine {m}": tuple(range(m * size, (m + 1) * size))
            for m in range(self._fabric.machines)
        }
