"""Read NCCL's and RCCL's topology XML (`NCCL_TOPO_FILE`, `NCCL_TOPO_DUMP_FILE`) as a topology."""

from __future__ import annotations

from collections.abc import Iterator

from collhub_nccl.topologies.elements import Element, parse
from collhub_nccl.topologies.findings import MachineFindings
from collhub_nccl.topologies.flatten import flatten_switches
from collhub_nccl.topologies.gpu_links import join_gpus
from collhub_nccl.topologies.machine import Fabric, topology_of
from collhub_nccl.topologies.profiles import PROFILES
from collhub_nccl.topologies.xml_machine import Hub, build
from collhub_nccl.topologies.xml_nodes import bus_number, is_gpu_class
from hub_core.diagnostics import UsageError
from hub_core.plugins.contract import Options, Source
from hub_core.topology import Topology
from hub_core.units import parse_bandwidth


def read(source: Source, options: Options) -> Topology:
    """GPUs become NPUs in the order of their `dev`; CPUs, PCI switches, NVSwitch, NICs and ports become switches.

    Bandwidths are NCCL's, one way; every link has the latency of the option but ports that state one. Raises
    `InputError` naming file and line.
    """
    fabric = Fabric.of(options)
    root = parse(source.content(), source.name)
    flatten_switches(root)
    hub = _hub(root, options, fabric)
    build(root, hub)
    hosts = list(hub.cpus)
    gpus = sorted(hub.gpus, key=lambda gpu: (hosts.index(gpu.host), *gpu.order))
    join_gpus(hub, gpus, source.name)
    if not gpus:
        _refuse_empty(root)
    topology = topology_of(hub.machine, [gpu.node for gpu in gpus], source.name, fabric)
    hub.findings.tell(source.report)
    return topology


def _hub(root: Element, options: Options, fabric: Fabric) -> Hub:
    elements = list(_all(root))
    named = str(options["gpus"] or "")
    profile, rate = options["profile"], options["cpu_bandwidth"]
    return Hub(
        is_rccl=root.text("version") == "2",
        named_gpus=frozenset(_named_gpus(named)),
        has_gpus=bool(named) or any(element.name == "gpu" for element in elements),
        has_ranks=any(element.name == "gpu" and element.text("rank") for element in elements),
        net_bandwidth=fabric.net_bandwidth,
        profile=None if profile is None else PROFILES[str(profile)],
        cpu_bandwidth=None if rate is None else parse_bandwidth(str(rate)) / 1e9,
        findings=MachineFindings(),
    )


def _all(element: Element) -> Iterator[Element]:
    yield element
    for child in element.children:
        yield from _all(child)


def _named_gpus(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        number = bus_number(part)
        if number is None:
            raise UsageError(
                f"gpus: {part[:40]!r} is no bus id",
                cure="write for example 00:16.0,00:17.0",
                code="bus-id",
            )
        yield number


def _refuse_empty(root: Element) -> None:
    plain = [
        element.text("busid")
        for element in _all(root)
        if element.name == "pci" and not is_gpu_class(element.text("class"))
    ]
    first = f", for example FILE?gpus={','.join(plain[:2])}" if plain else ""
    root.fail(
        "the file names no GPU, neither as <gpu> nor by the class of a PCI device",
        f"say which devices are GPUs{first}",
    )
