"""A network of named hosts, switches and cables, before its nodes have numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from collhub_networks import Cable, topology_of

from collhub_fabrics.options import HostOptions
from collhub_fabrics.refusals import refuse
from hub_core.network import MAX_NODES, Topology


class FabricPlan:
    """Hosts, switches and the cables between them.

    A host of one GPU is an NPU. Of several GPUs it is a switch, and each GPU an NPU at it.
    """

    def __init__(self, file: str, gpus_per_host: int, options: HostOptions) -> None:
        self._file = file
        self._gpus = gpus_per_host
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

    def topology(self, groups: Mapping[str, Sequence[str]]) -> Topology:
        """The network; `groups`: hosts by name of group. Raises `InputError`."""
        npus = len(self._hosts) * self._gpus
        is_split = self._gpus > 1
        # Hosts of one GPU are their NPUs, and no nodes beside them.
        nodes = npus + len(self._switches) + (len(self._hosts) if is_split else 0)
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
        cables = [*self._gpu_cables(), *self._outer_cables()]
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
        if self._gpus == 1:
            return self._hosts[name]
        # NPUs come first in the hub, then switches; hosts of GPUs are switches as well.
        return npus + len(self._switches) + self._hosts[name]

    def _names(self) -> list[str]:
        """Names of all nodes, in the order of their numbers."""
        if self._gpus == 1:
            return [*self._hosts, *self._switches]
        gpus = [f"{host}/{gpu}" for host in self._hosts for gpu in range(self._gpus)]
        return [*gpus, *self._switches, *self._hosts]
