"""A network of named hosts, switches and cables, before its nodes are numbered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NoReturn

from collhub_networks import Cable, topology_of

from collhub_fabrics.plugin import HostOptions
from hub_core.model import InputError, Location
from hub_core.network import MAX_NODES, Topology


class FabricPlan:
    """Hosts, switches and the cables between them.

    A host with one GPU is an NPU. A host with several GPUs is a switch, and each GPU an NPU linked
    to it. With `nics_per_host`, cables start at NICs: with equally many NICs and GPUs, each GPU has
    its own NIC, which is its link to the network; otherwise a NIC is a switch between the network
    and its GPUs (GPU g has NIC g * NICs // GPUs) or its single GPU.
    """

    def __init__(
        self,
        file: str,
        gpus_per_host: int,
        options: HostOptions,
        nics_per_host: int | None = None,
    ) -> None:
        self._file = file
        self._gpus = gpus_per_host
        self._nics = nics_per_host
        self._nic_rates: dict[tuple[str, int], float] = {}
        self._options = options
        self._hosts: dict[str, int] = {}
        self._switches: dict[str, int] = {}
        self._cables: list[tuple[str, str, float]] = []

    @property
    def hosts(self) -> Sequence[str]:
        """Names of the hosts, in the order of their NPUs."""
        return list(self._hosts)

    def add_host(self, name: str) -> None:
        """Append a host, unless it was added before."""
        # Files name a host at each of its switches.
        self._hosts.setdefault(name, len(self._hosts))

    def add_switch(self, name: str) -> None:
        """Append a switch, unless it was added before."""
        self._switches.setdefault(name, len(self._switches))

    def add_cable(
        self,
        first: str,
        second: str,
        bandwidth_bytes_per_s: float,
    ) -> None:
        """Add a cable between two hosts or switches by name, with its bandwidth per direction;
        parallel cables are allowed. Names are checked later, by `topology`.
        """
        self._cables.append((first, second, bandwidth_bytes_per_s))

    def add_nic(self, host: str, nic: int, switch: str, bandwidth_bytes_per_s: float) -> None:
        """Add a cable between a network card (NIC) of a host and a switch.

        `nic`: number of the card in its host, from 0. The bandwidth is in bytes/s per
        direction. A NIC that was added before gets one more cable. If NICs are nodes, the links
        between a NIC and the GPUs of its host have the bandwidth of its cable that was added
        last. Names and number are checked later, by `topology`.
        """
        self._nic_rates[host, nic] = bandwidth_bytes_per_s
        self._cables.append((_build_nic_name(host, nic), switch, bandwidth_bytes_per_s))

    @property
    def _has_nic_nodes(self) -> bool:
        """Whether NICs are nodes; a NIC of a single GPU is the GPU's link instead."""
        return self._nics is not None and self._nics != self._gpus

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Topology:
        """Return the network of the hosts, switches, NICs and cables that were added.

        Nodes are NPUs (consecutive per host), switches, hosts with several GPUs, and NICs (if they
        are nodes), each kind as added. They keep their names; an NPU is `HOST/NUMBER` (from 0), or
        is the host itself if that has one GPU; a NIC is `HOST nic NUMBER`. A cable is two links,
        one per direction, in this order: GPU to host, GPU to NIC, added cables.

        `groups`: names of hosts by group name; they become groups of NPUs. With several GPUs per
        host, groups `host NAME` for all hosts come first. If `groups` has the name `host NAME`, its
        NPUs replace those of the host at the same position.

        Raises `InputError` (`invalid-fabric`) for the first of: a name of a host and a switch; no
        host; more than `MAX_NODES` nodes; several GPUs per host without the option
        `node_bandwidth`. Raises `KeyError` for an unknown name in a cable or group.
        """
        npus = len(self._hosts) * self._gpus
        is_split = self._gpus > 1
        # Hosts with one GPU are NPUs and no additional nodes.
        nodes = npus + len(self._switches) + (len(self._hosts) if is_split else 0)
        nodes += len(self._nic_rates) if self._has_nic_nodes else 0
        # Cables refer to nodes by name, so that names must be unique.
        ambiguous = self._hosts.keys() & self._switches.keys()
        if ambiguous:
            refuse(
                self._file, None, f"{min(ambiguous)} is a host and a switch", "rename one of them"
            )
        if not npus:
            refuse(self._file, None, "no host is described", "name the hosts")
        if nodes > MAX_NODES:
            refuse(
                self._file,
                None,
                f"{nodes} nodes are more than {MAX_NODES}",
                "give a smaller gpus_per_node",
            )
        cables = [*self._build_gpu_cables(), *self._build_nic_cables()]
        for first, second, rate in self._cables:
            ends = self._find_node(first), self._find_node(second)
            cables.append(Cable(*ends, rate, self._options.latency))
        topology = topology_of(self._file, npus, nodes, cables)
        numbered = {
            title: tuple(npu for host in hosts for npu in self._list_npus(self._hosts[host]))
            for title, hosts in groups.items()
        }
        # GPUs of a host are a group, as in the hub's builders of machines.
        if is_split:
            of_host = {
                f"host {host}": tuple(self._list_npus(row)) for host, row in self._hosts.items()
            }
            numbered = of_host | numbered
        nics = list(self._nics_by_name) if self._has_nic_nodes else []
        node_names = [*self._hosts, *self._switches, *nics]
        if is_split:
            gpus = [f"{host}/{gpu}" for host in self._hosts for gpu in range(self._gpus)]
            node_names = [*gpus, *self._switches, *self._hosts, *nics]
        return replace(topology, node_names=tuple(node_names), groups=numbered)

    def _build_gpu_cables(self) -> list[Cable]:
        """Return a cable from every GPU to its host; [] with one GPU per host.

        The cables are in the order of the hosts, and for each host by GPU number. A cable
        is for both directions. It has the bandwidth of the option `node_bandwidth` in
        bytes/s and the latency of the option `latency` in s. Raises `InputError` if hosts
        have several GPUs and the option `node_bandwidth` is not given.
        """
        if self._gpus == 1:
            return []
        rate = self._options.node_bandwidth
        if rate is None:
            cure = "give it as FILE?node-bandwidth=450GB/s"
            refuse(self._file, None, f"a host has {self._gpus} GPUs, at an unknown bandwidth", cure)
        cables = []
        for host in self._hosts:
            for npu in self._list_npus(self._hosts[host]):
                cables.append(Cable(npu, self._find_node(host), rate, self._options.latency))
        return cables

    def _build_nic_cables(self) -> list[Cable]:
        """Return the cables between the GPUs of each host and its network cards (NICs).

        The result is empty if NICs are not nodes: no number of NICs per host, or as many NICs as
        GPUs. G is the number of GPUs of a host, N that of its NICs (the arguments of the class),
        both numbered from 0:

        - N < G: GPU g uses NIC g * N // G, so a NIC has one cable per GPU. With 8 GPUs and 2 NICs,
          NIC 0 has GPUs 0 to 3.
        - N > G: NIC n has one cable, to GPU n * G // N. With 2 GPUs and 4 NICs, NICs 0 and 1 have
          GPU 0.

        NICs are in the order of `add_nic`, the cables of a NIC by GPU. The bandwidth is that of the
        last cable that was added for the NIC, the latency that of the options. Only added NICs have
        cables.
        """
        if not self._has_nic_nodes or self._nics is None:
            return []
        cables = []
        for (host, nic), rate in self._nic_rates.items():
            npus = self._list_npus(self._hosts[host])
            if self._nics < self._gpus:
                members = [g for g in range(self._gpus) if g * self._nics // self._gpus == nic]
            else:
                members = [nic * self._gpus // self._nics]
            node = self._find_node(_build_nic_name(host, nic))
            cables += [Cable(npus[gpu], node, rate, self._options.latency) for gpu in members]
        return cables

    def _list_npus(self, host: int) -> range:
        """Return the numbers of the NPUs of the host with this number; hosts have equally many
        consecutive NPUs.
        """
        return range(host * self._gpus, (host + 1) * self._gpus)

    def _find_node(self, name: str) -> int:
        """Return the number of the node with this name: a switch, network card (NIC) or host.

        Names are searched in this order. Nodes are numbered from 0: NPUs, switches, hosts with
        several GPUs, NICs, each kind in the order in which it was added. A host with one GPU is its
        NPU, a host with several GPUs is a node of its own. If NICs are not nodes, NIC n of a host
        (named `HOST nic n`) is NPU n of this host. GPUs of a host have no name here.

        Raises `KeyError` for an unknown name, and `IndexError` for a NIC that is not a node and
        whose number is not below the GPUs per host.
        """
        npus = len(self._hosts) * self._gpus
        if name in self._switches:
            return npus + self._switches[name]
        # Order of nodes: NPUs, switches, hosts with several GPUs, NICs.
        hosts = len(self._hosts) if self._gpus > 1 else 0
        if name in self._nics_by_name:
            host, nic, position = self._nics_by_name[name]
            if not self._has_nic_nodes:
                return self._list_npus(self._hosts[host])[nic]
            return npus + len(self._switches) + hosts + position
        if self._gpus == 1:
            return self._hosts[name]
        return npus + len(self._switches) + self._hosts[name]

    @cached_property
    def _nics_by_name(self) -> dict[str, tuple[str, int, int]]:
        """Return (host, number within the host, position among all NICs) by the name of the NIC;
        positions follow the order of `add_nic`.
        """
        return {
            _build_nic_name(host, nic): (host, nic, position)
            for position, (host, nic) in enumerate(self._nic_rates)
        }


def _build_nic_name(host: str, nic: int) -> str:
    """Build the name of a NIC; hosts and switches of Slurm have no blanks in their names."""
    return f"{host} nic {nic}"


CODE = "invalid-fabric"
"""The code of all errors in descriptions."""


def refuse(file: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    """Raise `InputError` with the code of all fabric formats, at a line of a file (from 1), or for
    the entire file if `line` is None.
    """
    # All formats share one code, by which scripts recognize refused files.
    raise InputError(
        message,
        location=Location(file, line),
        cure=cure,
        code=CODE,
    )
