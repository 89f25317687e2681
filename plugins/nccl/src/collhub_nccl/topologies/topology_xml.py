"""Read NCCL's and RCCL's topology XML as a topology.

NCCL loads such files by `NCCL_TOPO_FILE` and writes them by `NCCL_TOPO_DUMP_FILE`.
"""

from __future__ import annotations

from collections.abc import Iterator

from collhub_networks import NetworkFindings

from collhub_nccl.options import MachineXmlOptions
from collhub_nccl.topologies.bandwidths import PROFILES
from collhub_nccl.topologies.fabric import Fabric, gigabytes_per_s, topology_of
from collhub_nccl.topologies.gpu_links import join_gpus
from collhub_nccl.topologies.xml_entries import (
    Element,
    LinkRates,
    bus_number,
    flatten_switches,
    is_gpu_class,
    parse,
)
from collhub_nccl.topologies.xml_machine import FileFacts, XmlMachine, build
from hub_core.model import UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Source


def read(source: Source, options: MachineXmlOptions) -> Topology:
    """Read a machine; GPUs become NPUs in the order of their `dev`, all other devices switches.

    Bandwidths are NCCL's, per direction; every link has the latency of the option, except ports
    with a latency in the file. Assumptions are reported to `source.report`. Raises `InputError`
    with file and line.
    """
    fabric = Fabric.of(options)
    root = parse(source.content(), source.name)
    # Before devices get nodes: the upper switch takes over the devices below the lower one.
    flatten_switches(root)
    draft = _draft(root, options, fabric)
    build(root, draft)
    place_of_host = {host: index for index, host in enumerate(draft.cpus)}
    gpus = sorted(draft.gpus, key=lambda gpu: (place_of_host[gpu.host], *gpu.order))
    join_gpus(draft, gpus, source.name)
    if not gpus:
        _refuse_empty(root)
    nodes = [gpu.node for gpu in gpus]
    topology = topology_of(draft.machine, nodes, source.name, fabric)
    draft.findings.tell(source.report)
    return topology


def _draft(root: Element, options: MachineXmlOptions, fabric: Fabric) -> XmlMachine:
    """Return an empty machine for the elements of a file, with the facts that apply to all of them.

    The rates are those of the option profile and of the option for links of CPUs, where given.
    """
    facts = _facts(root, options, fabric)
    findings = NetworkFindings()
    rates = LinkRates(
        is_rccl=facts.is_rccl,
        profile=None if options.profile is None else PROFILES[options.profile],
        cpu_bandwidth=gigabytes_per_s(options.cpu_bandwidth),
        findings=findings,
    )
    return XmlMachine(facts, rates, findings)


def _facts(root: Element, options: MachineXmlOptions, fabric: Fabric) -> FileFacts:
    """Return the facts that apply to the complete file.

    The file is of RCCL if its version is 2. It has GPUs if it contains any or the option names
    some, and ranks if any GPU states one. The named GPUs and the network bandwidth are those of the
    options.
    """
    gpus = [element for element in root.walk() if element.name == "gpu"]
    named = options.gpus or ""
    return FileFacts(
        # NCCL writes version 1.
        is_rccl=root.text("version") == "2",
        named_gpus=frozenset(_named_gpus(named)),
        has_gpus=bool(named or gpus),
        has_ranks=any(gpu.text("rank") for gpu in gpus),
        net_bandwidth=fabric.net_bandwidth,
    )


def _named_gpus(text: str) -> Iterator[int]:
    """Yield the bus ids of the option `gpus` as numbers, separated by commas in the text.

    Empty parts are ignored. Raises `UsageError` (code `bus-id`) for an invalid one.
    """
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
    # Two devices that might be GPUs give an example that the user can adapt.
    examples = [
        element.text("busid")
        for element in root.walk()
        if element.name == "pci" and not is_gpu_class(element.text("class"))
    ][:2]
    first = f", for example FILE?gpus={','.join(examples)}" if examples else ""
    root.fail(
        "the file names no GPU, neither as <gpu> nor by the class of a PCI device",
        f"say which devices are GPUs{first}",
    )
