"""Read the text of `nvidia-smi topo -m`: which GPUs NVLink joins, and which devices share PCI switches and CPUs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.findings import MachineFindings
from collhub_nccl.topologies.machine import Fabric, LinkType, Machine, NodeKind, topology_of
from collhub_nccl.topologies.profiles import PROFILES, Profile
from hub_core.diagnostics import InputError, Location
from hub_core.plugins.contract import Options, Source
from hub_core.topology import Topology
from hub_core.units import parse_bandwidth

MAX_BYTES = 4 << 20
MAX_DEVICES = 1024
# What two devices share, nearest first: a PCI switch, several of them, a host bridge, a NUMA node; SOC is the old name of SYS.
_SHARED = ("PIX", "PXB", "PHB", "NODE")
_APART = ("SYS", "SOC")
_MOST_NVLINKS = 18
_DEFAULT_NVLINK = 20.0
_DEFAULT_SYS = 10.0
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"NV([0-9]{1,3})\Z")
_CURE = f"name the GPU with FILE?profile= ({', '.join(PROFILES)})"


@dataclass(frozen=True, slots=True)
class _Device:
    """A row of the matrix: name, line, relation to every device, NUMA node where stated."""

    name: str
    line: int
    cells: tuple[str, ...]
    numa: str

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("GPU")


def read(source: Source, options: Options) -> Topology:
    """GPUs become NPUs by their number; PCI switches, CPUs, NVSwitch and network cards become switches.

    Raises `InputError` naming file and line.
    """
    fabric = Fabric.of(options)
    findings = MachineFindings()
    devices = _matrix(source.name, source.content())
    profile = None if options["profile"] is None else PROFILES[str(options["profile"])]
    machine = Machine()
    nodes = [machine.add(*_node_of(device)) for device in devices]
    gpus = [node for node, device in zip(nodes, devices, strict=True) if device.is_gpu]
    _nvlinks(machine, devices, profile, findings, source.name)
    pci = profile.pci if profile else bandwidths.DEFAULT_PCI
    sockets = _DEFAULT_SYS
    if options["pci_bandwidth"] is not None:
        pci = parse_bandwidth(str(options["pci_bandwidth"])) / 1e9
    if options["cpu_bandwidth"] is not None:
        sockets = parse_bandwidth(str(options["cpu_bandwidth"])) / 1e9
    _tree(machine, devices, pci, sockets)
    if fabric.net_bandwidth is not None:
        for nic in machine.of_kind(NodeKind.NIC):
            net = machine.add(NodeKind.NET, f"net {machine.names[nic]}")
            machine.join(LinkType.NET, net, nic, fabric.net_bandwidth)
    topology = topology_of(machine, gpus, source.name, fabric)
    findings.tell(source.report)
    return topology


def _node_of(device: _Device) -> tuple[NodeKind, str]:
    return (
        (NodeKind.GPU, f"gpu {device.name[3:]}")
        if device.is_gpu
        else (NodeKind.NIC, f"nic {device.name}")
    )


def _matrix(name: str, content: bytes) -> list[_Device]:
    """The rows of the matrix; what follows it, the legend, is not read."""
    if len(content) > MAX_BYTES:
        _fail(name, None, f"the file is larger than {MAX_BYTES >> 20} MiB")
    lines = _ESCAPE.sub("", content.decode("utf-8", "replace")).splitlines()
    start = next((k for k, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if start is None:
        _fail(name, None, "this is not the output of nvidia-smi topo -m: no line begins with GPU0")
    words = lines[start].split()
    heads = list(itertools.takewhile(lambda word: word not in ("CPU", "NUMA", "GPU"), words))
    if len(heads) > MAX_DEVICES or len(set(heads)) < len(heads):
        _fail(name, start + 1, f"the first line names a device twice, or more than {MAX_DEVICES}")
    devices: list[_Device] = []
    for line, text in enumerate(lines[start + 1 : start + 1 + len(heads)], start + 2):
        devices.append(_row(name, line, text.split(), heads, len(devices)))
    if len(devices) < len(heads):
        _fail(
            name,
            len(lines),
            f"the matrix ends after {len(devices)} of {len(heads)} rows",
            "save the whole output",
        )
    for one, other in itertools.combinations(range(len(heads)), 2):
        if devices[one].cells[other] != devices[other].cells[one]:
            pair = f"{heads[one]} and {heads[other]}"
            _fail(
                name,
                devices[other].line,
                f"{pair} are {devices[one].cells[other]} one way, {devices[other].cells[one]} the other",
            )
    return devices


def _row(
    name: str, line: int, words: Sequence[str], heads: Sequence[str], position: int
) -> _Device:
    if len(words) < len(heads) + 1 or words[0] != heads[position]:
        _fail(
            name,
            line,
            f"the row of {heads[position][:40]} was expected, with {len(heads)} columns",
            "save the whole output",
        )
    cells = tuple(words[1 : len(heads) + 1])
    for column, cell in enumerate(cells):
        fits = (
            cell == "X"
            if column == position
            else cell in _SHARED or cell in _APART or _NVLINKS.match(cell) is not None
        )
        if not fits:
            message = f"{heads[position]} and {heads[column]}: {cell[:40]!r} is not one of X, NV#, {', '.join((*_SHARED, *_APART))}"
            _fail(name, line, message, f"write the PCI relation there; for links, {_CURE}")
    rest = words[len(heads) + 1 :]
    return _Device(words[0], line, cells, rest[1] if len(rest) > 1 and rest[1].isdecimal() else "")


def _nvlinks(
    machine: Machine,
    devices: Sequence[_Device],
    profile: Profile | None,
    findings: MachineFindings,
    name: str,
) -> None:
    """Direct links of pairs, or links of every GPU to NVSwitch, where one GPU cannot have as many links as its row says."""
    counts = {
        (a, b): int(match[1])
        for a, b in itertools.combinations(range(len(devices)), 2)
        if (match := _NVLINKS.match(devices[a].cells[b]))
    }
    if not counts:
        return
    if profile is None:
        message = f"how fast an NVLink is, the file does not say; {_DEFAULT_NVLINK:g} GB/s one way is assumed"
        findings.warn("unknown-gpu", Location(name), message, _CURE)
    rate = profile.link if profile else _DEFAULT_NVLINK
    gpus = [k for k, device in enumerate(devices) if device.is_gpu]
    most = profile.wiring.links if profile and profile.wiring.links else _MOST_NVLINKS
    totals = {k: sum(count for pair, count in counts.items() if k in pair) for k in gpus}
    if max(totals.values()) <= most:
        for (one, other), count in counts.items():
            machine.join(LinkType.NVLINK, one, other, count * rate)
        return
    switch = machine.add(NodeKind.NVSWITCH, "nvswitch")
    for gpu in gpus:
        links = max((count for pair, count in counts.items() if gpu in pair), default=0)
        machine.join(LinkType.NVLINK, gpu, switch, links * rate)


def _tree(machine: Machine, devices: Sequence[_Device], pci: float, sockets: float) -> None:
    """PCI switches and CPUs above the devices: one node for all that share it, from the nearest relation to the farthest.

    Between GPUs that NVLink joins the matrix hides what they share; what both share with others, and their NUMA
    nodes, tells it where anything does.
    """
    top = list(range(len(devices)))
    group = list(range(len(devices)))
    for level, relation in enumerate(_SHARED):
        for a, b in itertools.combinations(range(len(devices)), 2):
            is_last = level == len(_SHARED) - 1
            if devices[a].cells[b] == relation or (
                is_last and devices[a].numa and devices[a].numa == devices[b].numa
            ):
                _merge(group, a, b)
        for first in sorted(set(group)):
            below = sorted({top[k] for k in range(len(devices)) if group[k] == first})
            if len(below) == 1 and level < len(_SHARED) - 1:
                continue
            kind = NodeKind.PCI if level < len(_SHARED) - 1 else NodeKind.CPU
            node = machine.add(kind, f"{kind} {len(machine.of_kind(kind))}")
            for child in below:
                machine.join(LinkType.PCI, child, node, pci)
            top = [node if group[k] == first else top[k] for k in range(len(devices))]
    for one, other in itertools.combinations(machine.of_kind(NodeKind.CPU), 2):
        machine.join(LinkType.SYS, one, other, sockets)


def _merge(group: list[int], one: int, other: int) -> None:
    low, high = sorted((group[one], group[other]))
    if low != high:
        group[:] = [low if own == high else own for own in group]


def _fail(name: str, line: int | None, message: str, cure: str = "") -> NoReturn:
    raise InputError(message, location=Location(name, line), cure=cure, code="invalid-nvidia-smi")
