"""Build the machine that a topology file describes: CPUs, PCI devices, network ports, and the links of GPUs."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.elements import Element
from collhub_nccl.topologies.findings import MachineFindings
from collhub_nccl.topologies.machine import LinkType, Machine, NodeKind
from collhub_nccl.topologies.profiles import Profile
from collhub_nccl.topologies.xml_nodes import TargetKind, bus_of, device_kind

_KNOWN = {
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "xgmi", "c2c"),
    "nic": ("net",),
    "net": (),
}
_PARTITION_LINK = 2618.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: node, place, the CPU above it, how many GPUs share its device, and its element where the file has one."""

    node: int
    host: str
    bus: int
    cpu: int
    partitions: int
    device: Element
    element: Element | None

    @property
    def order(self) -> tuple[bool, int]:
        """By device number; where the file states none, by bus id, as CUDA numbers devices under PCI_BUS_ID."""
        dev = None if self.element is None else self.element.whole("dev")
        return (dev is None, self.bus if dev is None else dev)


@dataclass(slots=True)
class Hub:
    """What is known while and after the elements of a file are walked."""

    is_rccl: bool
    named_gpus: frozenset[int]
    has_gpus: bool
    has_ranks: bool
    net_bandwidth: float | None
    profile: Profile | None
    cpu_bandwidth: float | None
    findings: MachineFindings
    machine: Machine = field(default_factory=Machine)
    gpus: list[Gpu] = field(default_factory=list)
    cpus: dict[str, list[tuple[int, Element]]] = field(default_factory=dict)
    nics: dict[tuple[str, int], int] = field(default_factory=dict)
    switches: dict[tuple[str, int], int] = field(default_factory=dict)
    cross_links: list[tuple[str, int, Element]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the walk is: the host, the node of its CPU, and the node above."""

    host: str
    cpu: int
    above: int


def build(root: Element, hub: Hub) -> None:
    """Fill the machine with everything but the links of GPUs. Raises `InputError` with the line of what is wrong."""
    if root.name != "system":
        root.fail(
            f"this is not an NCCL topology: <system> was expected, <{root.name}> stands there"
        )
    _check_children(root, hub)
    for element in root.named("gpu", "pci", "nic"):
        element.fail(f"<{element.name}> stands in <system>: a machine has <cpu>, and devices in it")
    for element in root.named("cpu"):
        host = element.text("host_hash")
        name = f"cpu {element.text('numaid', str(len(hub.cpus.get(host, ()))))}"
        node = hub.machine.add(NodeKind.CPU, name)
        hub.cpus.setdefault(host, []).append((node, element))
        _below(element, _Place(host, node, node), hub)
    for members in hub.cpus.values():
        for (one, element), (other, _) in itertools.permutations(members, 2):
            hub.machine.connect(LinkType.SYS, one, other, _socket_rate(element, hub))
    _cross_links(hub)


def _below(element: Element, place: _Place, hub: Hub) -> None:
    _check_children(element, hub)
    for child in element.children:
        if child.name == "pci":
            _pci(child, place, hub)
        elif child.name == "nic" and element.name == "cpu":
            node = hub.machine.add(NodeKind.NIC, "nic")
            hub.machine.join(LinkType.PCI, node, place.cpu, bandwidths.UNLIMITED)
            _nets(child, node, hub)
        elif child.name == "pcilink":
            hub.cross_links.append((place.host, place.above, child))


def _pci(element: Element, place: _Place, hub: Hub) -> None:
    bus = bus_of(element)
    kind = device_kind(element.text("class"))
    if bus in hub.named_gpus or any(element.named("gpu")):
        kind = TargetKind.GPU
    if kind is TargetKind.GPU:
        _gpus(element, bus, place, hub)
    elif kind is TargetKind.NIC:
        _nic(element, bus, place, hub)
    else:
        node = hub.machine.add(NodeKind.PCI, f"pci {element.text('busid').strip()}")
        hub.switches[place.host, bus] = node
        hub.machine.join(LinkType.PCI, node, place.above, _pci_rate(element, hub))
        _below(element, _Place(place.host, place.cpu, node), hub)


def _gpus(element: Element, bus: int, place: _Place, hub: Hub) -> None:
    """The GPU of a PCI device, or its partitions, which then hang on a node of their own."""
    _check_children(element, hub)
    stated = [gpu for gpu in element.named("gpu") if not hub.has_ranks or gpu.text("rank")]
    if len(stated) < sum(1 for _ in element.named("gpu")):
        hub.findings.warn(
            "gpu-without-rank",
            element.place,
            "a GPU without a rank, beside GPUs with one, takes no part",
        )
        if not stated:
            return
    rate = _pci_rate(element, hub)
    above = place.above
    if len(stated) > 1:
        above = hub.machine.add(NodeKind.PCI, f"pci {element.text('busid').strip()}")
        hub.machine.join(LinkType.PCI, above, place.above, rate)
    nodes: list[int] = []
    entries: list[Element | None] = [*stated] if stated else [None]
    for gpu in entries:
        dev = "" if gpu is None else gpu.text("dev")
        nodes.append(hub.machine.add(NodeKind.GPU, f"gpu {dev or element.text('busid').strip()}"))
        hub.gpus.append(
            Gpu(nodes[-1], place.host, bus, place.cpu, max(1, len(stated)), element, gpu)
        )
        loose = len(stated) > 1
        hub.machine.join(
            LinkType.LOC if loose else LinkType.PCI,
            nodes[-1],
            above,
            bandwidths.UNLIMITED if loose else rate,
        )
    for one, other in itertools.combinations(nodes, 2):
        hub.machine.join(LinkType.LOC, one, other, _PARTITION_LINK)


def _nic(element: Element, bus: int, place: _Place, hub: Hub) -> None:
    _check_children(element, hub)
    # RCCL takes the ports of one card as one device.
    key = (place.host, bus & ~0xF if hub.is_rccl else bus)
    if key not in hub.nics:
        hub.nics[key] = hub.machine.add(NodeKind.NIC, f"nic {element.text('busid').strip()}")
    node = hub.nics[key]
    hub.machine.join(LinkType.PCI, node, place.above, _pci_rate(element, hub))
    cards = list(element.named("nic"))
    for card in cards:
        _nets(card, node, hub)
    if not cards and hub.net_bandwidth is not None:
        net = hub.machine.add(NodeKind.NET, f"net {element.text('busid').strip()}")
        hub.machine.join(LinkType.NET, net, node, hub.net_bandwidth)


def _nets(card: Element, nic: int, hub: Hub) -> None:
    _check_children(card, hub)
    for port in card.named("net"):
        if port.whole("dev") is None:
            continue
        net = hub.machine.add(NodeKind.NET, f"net {port.text('name') or port.text('dev')}")
        rate = (
            bandwidths.net(port.whole("speed")) if hub.net_bandwidth is None else hub.net_bandwidth
        )
        if rate > bandwidths.UNLIMITED:
            message = f"a port of {port.text('speed')} Mb/s is faster than any that is sold; it is taken as written"
            hub.findings.warn(
                "port-speed",
                port.place,
                message,
                "state the speed with FILE?net_bandwidth=200Gbit/s",
            )
        delay = port.real("latency")
        hub.machine.join(
            LinkType.NET, net, nic, rate, delay * 1e-6 if delay and delay > 0 else None
        )


def _pci_rate(element: Element, hub: Hub) -> float:
    speed, width = element.text("link_speed"), element.whole("link_width")
    if not speed:
        cure = "with FILE?profile= the GPU's PCI generation is taken"
        rate = bandwidths.DEFAULT_PCI if hub.profile is None else hub.profile.pci
        message = f"a PCI device states no link_speed; {rate:g} GB/s is assumed"
        hub.findings.warn("no-link-speed", element.place, message, "" if hub.profile else cure)
        return rate
    if width is not None and not 0 <= width <= 64:
        element.fail_value("link_width", "a number of lanes of at most 64")
    return bandwidths.pci(speed, width or 0)


def _socket_rate(cpu: Element, hub: Hub) -> float:
    if hub.cpu_bandwidth is not None:
        return hub.cpu_bandwidth
    architecture, vendor = cpu.text("arch"), cpu.text("vendor")
    if not architecture or (architecture == "x86_64" and not vendor):
        rate = f"{bandwidths.UNLIMITED:g} GB/s between CPUs"
        message = (
            f"a CPU states no architecture or vendor; {rate} are assumed, which limits nothing"
        )
        hub.findings.warn(
            "unknown-cpu", cpu.place, message, "state the bandwidth with FILE?cpu_bandwidth=22GB/s"
        )
    family, model = cpu.whole("familyid") or 0, cpu.whole("modelid") or 0
    return bandwidths.socket_to_socket(architecture, vendor, family, model, hub.is_rccl)


def _cross_links(hub: Hub) -> None:
    for host, node, element in hub.cross_links:
        target = hub.switches.get((host, bus_of(element, "target")))
        if target is None:
            message = f"<pcilink> to {element.text('target')}, which is no PCI switch of the file, is left out"
            hub.findings.warn("pcilink-target", element.place, message)
        else:
            hub.machine.connect(LinkType.LOC, node, target, bandwidths.UNLIMITED)


def _check_children(element: Element, hub: Hub) -> None:
    for child in element.children:
        if child.name not in _KNOWN.get(element.name, ()) and not (
            element.name == "system" and child.name in _KNOWN
        ):
            message = f"<{child.name[:40]}> in <{element.name}> is not known and left out"
            cure = "supply the links of GPUs with FILE?profile=" if element.name == "gpu" else ""
            hub.findings.warn(f"unknown-element-{child.name[:40]}", child.place, message, cure)
