"""A network of named hosts, switches and cables, before its nodes have numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from collhub_networks import Cable, topology_of

from collhub_fabrics.options import HostOptions
from collhub_fabrics.refusals import refuse
from hub_core.network import MAX_NODES, Topology


class FabricPlan:
    """Hosts, switches and the cables between them.

    A host of one GPU is an NPU. Of several GPUs it is a switch, and each GPU an NPU at it. With
    `nics_per_host`, cables start at NICs: of as many as GPUs, each GPU has its own, and its link to
    the network is the NIC's; else a NIC is a switch between the network and its GPUs (GPU g has NIC
    g * NICs // GPUs) or its one GPU.
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
        """Add a host behind those before it, once."""
        # Files name a host at every switch that it hangs on.
        self._hosts.setdefault(name, len(self._hosts))

    def add_switch(self, name: str) -> None:
        """Add a switch behind those before it, once."""
        self._switches.setdefault(name, len(self._switches))

    def add_cable(
        self,
        one: str,
        other: str,
        bandwidth_bytes_per_s: float,
    ) -> None:
        """Join two hosts or switches by one cable more."""
        self._cables.append((one, other, bandwidth_bytes_per_s))

    def add_nic(self, host: str, nic: int, switch: str, bandwidth_bytes_per_s: float) -> None:
        """Join a NIC of a host, and through it its GPUs, to a switch."""
        self._nic_rates[host, nic] = bandwidth_bytes_per_s
        self._cables.append((_nic_name(host, nic), switch, bandwidth_bytes_per_s))

    @property
    def _has_nic_nodes(self) -> bool:
        """Whether NICs are nodes; a NIC of one GPU with one NIC is the GPU's link itself."""
        return self._nics is not None and self._nics != self._gpus

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Topology:
        """The network; `groups`: hosts by name of group. Raises `InputError`."""
        npus = len(self._hosts) * self._gpus
        is_split = self._gpus > 1
        # Hosts of one GPU are their NPUs, and no nodes beside them.
        nodes = npus + len(self._switches) + (len(self._hosts) if is_split else 0)
        nodes += len(self._nic_rates) if self._has_nic_nodes else 0
        # Cables name their ends, so that a name has to mean one node.
        doubled = self._hosts.keys() & self._switches.keys()
        if doubled:
            refuse(self._file, None, f"{min(doubled)} is a host and a switch", "rename one of them")
        if not npus:
            refuse(self._file, None, "no host is described", "name the hosts")
        if nodes > MAX_NODES:
            refuse(
                self._file,
                None,
                f"{nodes} nodes are more than {MAX_NODES}",
                "give a smaller gpus_per_node",
            )
        cables = [*self._gpu_cables(), *self._nic_cables(), *self._outer_cables()]
        found = topology_of(
            self._file,
            npus,
            nodes,
            cables,
        )
        numbered = {
            title: tuple(npu for host in hosts for npu in self._npus(self._hosts[host]))
            for title, hosts in groups.items()
        }
        # GPUs of a host are a group, as machines are in the builders of the hub.
        if is_split:
            of_host = {f"host {host}": tuple(self._npus(row)) for host, row in self._hosts.items()}
            numbered = of_host | numbered
        return replace(found, node_names=tuple(self._names()), groups=numbered)

    def _gpu_cables(self) -> list[Cable]:
        """A cable between every GPU and its host, where a host has several."""
        if self._gpus == 1:
            return []
        rate = self._options.node_bandwidth
        if rate is None:
            cure = "state it as FILE?node-bandwidth=450GB/s"
            refuse(self._file, None, f"a host has {self._gpus} GPUs, at an unknown bandwidth", cure)
        found = []
        for host in self._hosts:
            for npu in self._npus(self._hosts[host]):
                found.append(Cable(npu, self._number(host), rate, self._options.latency))
        return found

    def _nic_cables(self) -> list[Cable]:
        """A cable between every GPU and its NICs, where these are nodes."""
        if not self._has_nic_nodes or self._nics is None:
            return []
        found = []
        for (host, nic), rate in self._nic_rates.items():
            npus = self._npus(self._hosts[host])
            if self._nics < self._gpus:
                members = [g for g in range(self._gpus) if g * self._nics // self._gpus == nic]
            else:
                members = [nic * self._gpus // self._nics]
            node = self._number(_nic_name(host, nic))
            found += [Cable(npus[gpu], node, rate, self._options.latency) for gpu in members]
        return found

    def _outer_cables(self) -> list[Cable]:
        found = []
        for one, other, rate in self._cables:
            ends = self._number(one), self._number(other)
            found.append(Cable(*ends, rate, self._options.latency))
        return found

    def _npus(self, host: int) -> range:
        return range(host * self._gpus, (host + 1) * self._gpus)

    def _number(self, name: str) -> int:
        """The node of a host or switch."""
        npus = len(self._hosts) * self._gpus
        if name in self._switches:
            return npus + self._switches[name]
        # NPUs come first in the hub, then switches; hosts of GPUs and NICs are switches as well.
        hosts = len(self._hosts) if self._gpus > 1 else 0
        if name in self._nic_places:
            host, nic, place = self._nic_places[name]
            if not self._has_nic_nodes:
                return self._npus(self._hosts[host])[nic]
            return npus + len(self._switches) + hosts + place
        if self._gpus == 1:
            return self._hosts[name]
        return npus + len(self._switches) + self._hosts[name]

    @cached_property
    def _nic_places(self) -> dict[str, tuple[str, int, int]]:
        """Host, number in it and place among all NICs, by name."""
        return {
            _nic_name(host, nic): (host, nic, place)
            for place, (host, nic) in enumerate(self._nic_rates)
        }

    def _names(self) -> list[str]:
        """Names of all nodes, in the order of their numbers."""
        nics = list(self._nic_places) if self._has_nic_nodes else []
        if self._gpus == 1:
            return [*self._hosts, *self._switches, *nics]
        gpus = [f"{host}/{gpu}" for host in self._hosts for gpu in range(self._gpus)]
        return [*gpus, *self._switches, *self._hosts, *nics]


def _nic_name(host: str, nic: int) -> str:
    """Name of a NIC; no host or switch of Slurm has a blank in its name."""
    return f"{host} nic {nic}"
