"""Build the machine that a topology file describes: CPUs, PCI devices and network ports.

The links of GPUs are added later by `topology_xml`. Source of the meaning of elements:
`src/graph/topo.cc` and `src/graph/xml.cc` of NCCL 2.30, and RCCL's for files of version 2.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from collhub_networks import NetworkFindings

from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.fabric import LinkType, MachineGraph, MachineNodeKind
from collhub_nccl.topologies.xml_entries import Element, LinkRates, TargetKind, bus_of, device_kind

# Children that NCCL reads, by element.
_KNOWN = {
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "xgmi", "c2c"),
    "nic": ("net",),
    "net": (),
}
# Between two partitions of one GPU, in GB/s (MLOPart, NCCL 2.30).
_PARTITION_LINK = 2618.0


@dataclass(frozen=True, slots=True)
class XmlGpu:
    """A GPU of the file.

    `node`: in the machine; `host`: hash of the host, for files with several; `bus`: PCI bus id;
    `cpu`: node of the CPU above it; `partitions`: number of GPUs that share its PCI device;
    `element`: its `<gpu>`, None if the file has none.
    """

    node: int
    host: str
    bus: int
    cpu: int
    partitions: int
    element: Element | None

    @property
    def order(self) -> tuple[bool, int]:
        """Return a sort key: (False, device number) if `dev` is given, else (True, bus id).

        So GPUs with a device number come first, in ascending order of it. CUDA numbers devices
        by bus id if `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`. Raise `InputError` if `dev` is no
        integer.
        """
        dev = None if self.element is None else self.element.whole("dev")
        if dev is None:
            return True, self.bus
        return False, dev


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts that apply to a complete topology file, from its elements and the reader's options.

    `named_gpus`: bus ids of the option `gpus`; `has_gpus`: whether that option or the file names
    GPUs; `has_ranks`: whether a GPU of the file has a rank; `net_bandwidth`: of every network port
    in GB/s, instead of the file's.
    """

    is_rccl: bool
    named_gpus: frozenset[int]
    has_gpus: bool
    has_ranks: bool
    net_bandwidth: float | None


@dataclass(slots=True)
class XmlMachine:
    """Machine of a topology file while its elements are visited, and the collected devices.

    `cpus`: nodes and elements of the CPUs of every host; `nics`, `switches`: nodes by (host, bus
    id); `cross_links`: `<pcilink>` elements with their host and source switch.
    """

    facts: FileFacts
    rates: LinkRates
    findings: NetworkFindings
    machine: MachineGraph = field(default_factory=MachineGraph)
    gpus: list[XmlGpu] = field(default_factory=list)
    cpus: dict[str, list[tuple[int, Element]]] = field(default_factory=dict)
    nics: dict[tuple[str, int], int] = field(default_factory=dict)
    switches: dict[tuple[str, int], int] = field(default_factory=dict)
    cross_links: list[tuple[str, int, Element]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Above:
    """Ancestors of an element of the XML.

    `host`: hash in the file; `cpu`: node of its CPU; `node`: nearest node of any kind.
    """

    host: str
    cpu: int
    node: int


def build(root: Element, draft: XmlMachine) -> None:
    """Add everything in a topology file, except the links of GPUs, to the machine of `draft`.

    CPUs with the devices below them are added in the order of the file. A CPU is named `cpu`
    with its `numaid`, else with the number of CPUs before it on its host. Links between the CPUs
    of a host, at the rate of the sender, and unlimited `pcilink` links between switches follow,
    because they need both ends. Unknown elements, targets that are no switch of the host, and
    assumed values give warnings in `draft.findings`. Raise `InputError`, with the line, for the
    first fault that is met in this order: a root other than `<system>`, a device directly in it,
    or an invalid attribute.
    """
    if root.name != "system":
        root.fail(
            f"this is not an NCCL topology: <system> was expected, <{root.name}> stands there"
        )
    _check_children(root, draft)
    # Occurs in fictitious samples on the web: NCCL writes no such file.
    for element in root.named("gpu", "pci", "nic"):
        element.fail(f"<{element.name}> stands in <system>: a machine has <cpu>, and devices in it")
    for element in root.named("cpu"):
        # A file for one NVLink domain contains the CPUs of several hosts; the host hash
        # distinguishes them.
        host = element.text("host_hash")
        cpus_of_host = draft.cpus.setdefault(host, [])
        number = element.text("numaid", str(len(cpus_of_host)))
        node = draft.machine.add(MachineNodeKind.CPU, f"cpu {number}")
        cpus_of_host.append((node, element))
        _below(element, _Above(host, node, node), draft)
    for members in draft.cpus.values():
        for (first, element), (second, _) in itertools.permutations(members, 2):
            rate = draft.rates.between_sockets(element)
            draft.machine.connect(LinkType.SYS, first, second, rate)
    # One direction each: the reverse one is a separate element.
    for host, node, element in draft.cross_links:
        target = draft.switches.get((host, bus_of(element, "target")))
        if target is None:
            draft.findings.warn(
                "pcilink-target",
                element.place,
                f"<pcilink> to {element.text('target')}, which is no PCI switch of the file, "
                "is left out",
            )
        else:
            draft.machine.connect(LinkType.LOC, node, target, bandwidths.UNLIMITED)


def _below(element: Element, above: _Above, draft: XmlMachine) -> None:
    """Add the devices directly in a CPU or a PCI switch to `draft`, in order, with all below them.

    `element`: the CPU or switch; `above`: its host, CPU and node. By name of the child:
    - `pci`: added by `_pci`.
    - `nic`: in a CPU, a network card that is no PCI device. It is added with its ports and links of
      unlimited bandwidth to and from the CPU. In a switch it is ignored without a warning.
    - `pcilink`: stored in `draft.cross_links`, because its target may come later in the file. In a
      CPU it is also reported as unknown.

    All other children are ignored. First each child that NCCL does not know in this element gets
    the warning `unknown-element`. Raises `InputError` for invalid attributes of the devices.
    """
    _check_children(element, draft)
    for child in element.children:
        if child.name == "pci":
            _pci(child, above, draft)
        elif child.name == "nic" and element.name == "cpu":
            # A card that is no PCI device, such as sockets.
            node = draft.machine.add(MachineNodeKind.NIC, "nic")
            draft.machine.join(LinkType.PCI, node, above.cpu, bandwidths.UNLIMITED)
            _ports(child, node, draft)
        elif child.name == "pcilink":
            # The target may come later in the file.
            draft.cross_links.append((above.host, above.node, child))


def _pci(element: Element, above: _Above, draft: XmlMachine) -> None:
    """Add a PCI device to `draft`, with all devices below it. The first rule decides its kind:

    1. GPU: the option `gpus` names its bus address, or it has a `gpu` child. Without such a child
       it is one GPU. If some GPU of the file has a rank, children without a rank are left out with
       a warning, and none may remain. Several children are partitions of one GPU.
    2. GPU (as above) or network card: its PCI class is one of these; a card may also just have a
       `nic` child. Cards of one host with equal addresses are one node (RCCL: without the lowest 4
       bits). Its ports are the `net` elements with a `dev` in `nic` children; others give a
       warning. Without `nic` children, `net_bandwidth` gives one port.
    3. Switch: all other classes. The devices below it are added to it (`_below`).

    A missing `link_speed` and unknown children give warnings. Raises `InputError` if `busid` is
    missing or no bus address, for an invalid link width, and for invalid attributes of ports.
    """
    bus = bus_of(element)
    kind = device_kind(element.text("class"))
    # Cloud files contain only bridges (AWS g5, p5): the option identifies the GPUs.
    if bus in draft.facts.named_gpus or any(element.named("gpu")):
        kind = TargetKind.GPU
    # NCCL adds the class of a device when it loads a partial file.
    elif any(element.named("nic")):
        kind = TargetKind.NIC
    if kind is TargetKind.GPU:
        _gpus(element, bus, above, draft)
    elif kind is TargetKind.NIC:
        _nic(element, bus, above, draft)
    else:
        node = draft.machine.add(MachineNodeKind.PCI, f"pci {_bus_text(element)}")
        # Of several switches with one bus id, the last one is kept.
        draft.switches[above.host, bus] = node
        draft.machine.join(LinkType.PCI, node, above.node, draft.rates.of_pci(element))
        _below(element, _Above(above.host, above.cpu, node), draft)


def _bus_text(element: Element) -> str:
    return element.text("busid").strip()


def _gpus(element: Element, bus: int, above: _Above, draft: XmlMachine) -> None:
    """Add the GPU of a PCI device to `draft`, or the partitions of the GPU.

    `element`: the PCI device, at the address `bus`. A `gpu` child takes part if it has a rank, or
    if no GPU of the file has a rank. All links are in both directions:

    - No child (files with only bridges): the device is one GPU, with PCI links to the node above.
    - Children, but none takes part: no GPU is added. One takes part: it is added in the same way.
    - Several take part: each is one partition of the GPU. A node for the device is added too. It
      has PCI links to the node above, and links without a limit to every partition. Links of 2618
      GB/s join every two partitions.

    Warnings: `gpu-without-rank` once if a child does not take part, `unknown-element` for each
    unknown child. The rate of the PCI links is that of `LinkRates.of_pci`: a missing `link_speed`
    gives a warning, an invalid width raises `InputError`.
    """
    _check_children(element, draft)
    every = list(element.named("gpu"))
    # NCCL skips GPUs without a rank, unless no GPU has one.
    taking_part = [gpu for gpu in every if not draft.facts.has_ranks or bool(gpu.text("rank"))]
    if len(taking_part) < len(every):
        draft.findings.warn(
            "gpu-without-rank",
            element.place,
            "a GPU without a rank, beside GPUs with one, takes no part",
        )
        if not taking_part:
            return
    rate = draft.rates.of_pci(element)
    machine = draft.machine
    if len(taking_part) <= 1:
        # A partial file identifies the device only by its class.
        single = taking_part[0] if taking_part else None
        node = _gpu_node(element, single, draft)
        draft.gpus.append(XmlGpu(node, above.host, bus, above.cpu, 1, single))
        machine.join(LinkType.PCI, node, above.node, rate)
        return
    device = machine.add(MachineNodeKind.PCI, f"pci {_bus_text(element)}")
    machine.join(LinkType.PCI, device, above.node, rate)
    partitions = []
    for gpu in taking_part:
        node = _gpu_node(element, gpu, draft)
        partitions.append(node)
        draft.gpus.append(XmlGpu(node, above.host, bus, above.cpu, len(taking_part), gpu))
        machine.join(LinkType.LOC, node, device, bandwidths.UNLIMITED)
    for first, second in itertools.combinations(partitions, 2):
        machine.join(LinkType.LOC, first, second, _PARTITION_LINK)


def _gpu_node(element: Element, gpu: Element | None, draft: XmlMachine) -> int:
    """Add a GPU node without links to the machine of `draft`, and return the number of the node.

    Its name is such as `gpu 3`, with the text of the attribute `dev` of `gpu`. If `gpu` is None or
    has no `dev`, the bus id of its PCI device `element` takes the place of the number. A repeated
    name gets a suffix such as ` #2`.
    """
    dev = "" if gpu is None else gpu.text("dev")
    return draft.machine.add(MachineNodeKind.GPU, f"gpu {dev or _bus_text(element)}")


def _nic(element: Element, bus: int, above: _Above, draft: XmlMachine) -> None:
    """Add a network card and its ports to `draft`, with links to and from the node above it.

    `element`: the PCI device; `bus`: its address. Cards of one host with the same address are one
    node, which has the name of the first one. In a file from RCCL, the lowest four bits of the
    address are ignored. Each card adds its links and ports to the node; links of one pair add up.

    Ports are the `net` children, with a device number, of the `nic` children. A card without `nic`
    children gets one port if the option `net_bandwidth` is given, else none. The rate of the links
    is that of `LinkRates.of_pci`, which warns if `link_speed` is missing and raises `InputError`
    for an invalid width. Unknown children give the warning `unknown-element`.
    """
    _check_children(element, draft)
    # RCCL treats the ports of one card as one device.
    key = (above.host, bus & ~0xF if draft.facts.is_rccl else bus)
    if key not in draft.nics:
        draft.nics[key] = draft.machine.add(MachineNodeKind.NIC, f"nic {_bus_text(element)}")
    node = draft.nics[key]
    rate = draft.rates.of_pci(element)
    draft.machine.join(LinkType.PCI, node, above.node, rate)
    cards = list(element.named("nic"))
    for card in cards:
        _ports(card, node, draft)
    # A partial file contains no ports; with the option every card gets one.
    net_bandwidth = draft.facts.net_bandwidth
    if not cards and net_bandwidth is not None:
        net = draft.machine.add(MachineNodeKind.NET, f"net {_bus_text(element)}")
        draft.machine.join(LinkType.NET, net, node, net_bandwidth)


def _ports(card: Element, nic: int, draft: XmlMachine) -> None:
    """Add the network ports in `card` to `draft`, with links to and from the card's node `nic`.

    A port without `dev` is left out with the warning `port-without-device`.
    The rate is the option `net_bandwidth`, else the attribute `speed` in Mbit/s, else 10
    Gbit/s (also for a speed of at most 0). A rate above 5000 GB/s gives the warning
    `port-speed`. The attribute `latency` is in microseconds; if it is missing, 0 or
    negative, the links have no latency of their own and that of the fabric applies. The
    name has the attribute `name`, else `dev`. Raise `InputError` for a speed that is no
    integer (unless `net_bandwidth` is given), and for a latency that is no number.
    """
    _check_children(card, draft)
    for port in card.named("net"):
        # NCCL ignores ports without a device number.
        if port.whole("dev") is None:
            draft.findings.warn(
                "port-without-device",
                port.place,
                f"the network port {port.text('name')[:40]} without a device number is left out",
                'add dev="N", as in files that NCCL dumps',
            )
            continue
        net = draft.machine.add(MachineNodeKind.NET, f"net {port.text('name') or port.text('dev')}")
        rate = draft.rates.of_port(port, draft.facts.net_bandwidth)
        delay_us = port.real("latency")
        # NCCL writes 0 for an unknown latency.
        latency_s = delay_us * 1e-6 if delay_us and delay_us > 0 else None
        draft.machine.join(LinkType.NET, net, nic, rate, latency_s)


def _check_children(element: Element, draft: XmlMachine) -> None:
    """Warn once per child of `element` that is not known there and is therefore ignored.

    Known names depend on the name of the element; in `system`, elements known elsewhere are not
    reported here because they are refused elsewhere. At most 40 characters of the name are shown.
    """
    for child in element.children:
        if child.name in _KNOWN.get(element.name, ()):
            continue
        # Known elements in the root are refused elsewhere, with a better reason.
        if element.name == "system" and child.name in _KNOWN:
            continue
        name = child.name[:40]
        draft.findings.warn(
            "unknown-element",
            child.place,
            f"<{name}> in <{element.name}> is not known and left out",
            "supply the links of GPUs with FILE?profile=" if element.name == "gpu" else "",
            subject=name,
        )
