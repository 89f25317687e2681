"""Read NCCL's and RCCL's topology XML as a topology; join GPUs by NVLink, xGMI and C2C.

NCCL loads such files by `NCCL_TOPO_FILE` and writes them by `NCCL_TOPO_DUMP_FILE`. The links of
GPUs are those of the file, or those of a GPU profile.
"""

from __future__ import annotations

from collections.abc import Sequence

from collhub_networks import NetworkFindings

from collhub_nccl.options import MachineXmlOptions
from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.bandwidths import PROFILE_CURE, PROFILES, GpuProfile
from collhub_nccl.topologies.fabric import (
    Fabric,
    LinkType,
    MachineGraph,
    MachineNodeKind,
    gigabytes_per_s,
    topology_of,
)
from collhub_nccl.topologies.xml_entries import (
    Element,
    LinkRates,
    TargetKind,
    bus_number,
    bus_of,
    flatten_switches,
    is_gpu_class,
    parse,
    target_kind,
)
from collhub_nccl.topologies.xml_machine import FileFacts, XmlGpu, XmlMachine, build
from hub_core.model import Location, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import Source

_LINKS = ("nvlink", "xgmi", "c2c")
# Sanity limit: no GPU has that many links, so the file is damaged.
_MAX_COUNT = 1 << 16


def read(source: Source, options: MachineXmlOptions) -> Topology:
    """Return the machine of NCCL's or RCCL's topology XML as a topology, or several equal machines.

    GPUs are the NPUs, ordered by host (in file order), then by device number `dev`; GPUs without
    one come last on their host, by bus id. All other devices become switches. A PCI switch of two
    levels is one switch. Links between GPUs are those of the file, otherwise those of the profile
    in `options` (`_join_gpus`). With several machines, their network is added (`topology_of`).

    Bandwidths are those of NCCL or RCCL, per direction. Every link has the latency of the options,
    except network ports with a latency in the file. Findings are reported to `source.report` at the
    end, not after an error.

    Raises `InputError` with file and line for an invalid file, also without GPUs. Raises
    `UsageError` for an invalid bus id in the options, and a profile for another number of GPUs.
    """
    fabric = Fabric.of(options)
    root = parse(source.content(), source.name)
    # Before devices get nodes: the upper switch takes over the devices below the lower one.
    flatten_switches(root)
    draft = _draft(root, options, fabric)
    build(root, draft)
    place_of_host = {host: index for index, host in enumerate(draft.cpus)}
    gpus = sorted(draft.gpus, key=lambda gpu: (place_of_host[gpu.host], *gpu.order))
    _join_gpus(draft, gpus, source.name)
    if not gpus:
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
    nodes = [gpu.node for gpu in gpus]
    topology = topology_of(draft.machine, nodes, source.name, fabric)
    draft.findings.tell(source.report)
    return topology


def _draft(root: Element, options: MachineXmlOptions, fabric: Fabric) -> XmlMachine:
    """Return a machine without nodes for a topology file, with the facts and rates to build it.

    The facts of a file (`FileFacts`) are:

    - It is from RCCL if the root's `version` is 2; otherwise, also without a version, from
      NCCL. The rates of links are those of this library.
    - It has GPUs if it contains a <gpu> at any depth, or if the option `gpus` is not empty.
    - It has ranks if any <gpu> has a `rank` that is not empty.
    - The GPUs that the option `gpus` names, as the set of their bus ids as numbers. Empty parts
      between the commas of the option are ignored.

    The profile, the CPU bandwidth and the network bandwidth (both in GB/s) are those of the options
    and of `fabric`, None if they are not given. The machine collects warnings in a new, empty list.
    Raises `UsageError` (`bus-id`) for an invalid bus id in the option `gpus`.
    """
    gpus = [element for element in root.walk() if element.name == "gpu"]
    named = options.gpus or ""
    numbers = set()
    for part in filter(None, named.split(",")):
        number = bus_number(part)
        if number is None:
            raise UsageError(
                f"gpus: {part[:40]!r} is no bus id",
                cure="write for example 00:16.0,00:17.0",
                code="bus-id",
            )
        numbers.add(number)
    facts = FileFacts(
        # NCCL writes version 1.
        is_rccl=root.text("version") == "2",
        named_gpus=frozenset(numbers),
        has_gpus=bool(named or gpus),
        has_ranks=any(gpu.text("rank") for gpu in gpus),
        net_bandwidth=fabric.net_bandwidth,
    )
    findings = NetworkFindings()
    rates = LinkRates(
        is_rccl=facts.is_rccl,
        profile=None if options.profile is None else PROFILES[options.profile],
        cpu_bandwidth=gigabytes_per_s(options.cpu_bandwidth),
        findings=findings,
    )
    return XmlMachine(facts, rates, findings)


def _join_gpus(draft: XmlMachine, gpus: Sequence[XmlGpu], source: str) -> None:
    """Add the links of the GPUs to `draft.machine`, from the file or from the profile.

    `gpus`: all GPUs in the order of NPUs. The first rule that applies decides:

    1. Any GPU has a link element (`nvlink`, `xgmi`, `c2c`): the links of these elements are added
       (`_StatedLinks.add`). Other GPUs get no links.
    2. The options name a profile of the GPU: its wiring is added.
    3. Otherwise no link is added.

    Warnings are added to `draft.findings`. `unknown-link`: a `<gpu>` has an element of another
    name, which is ignored. `partial-topology`: there is no profile, and neither a `<gpu>` nor the
    option `gpus` names GPUs. Case 1 warns of an unknown target or architecture.

    Raises `InputError` with the line of an invalid link element. Raises `UsageError`
    (`profile-size`) in case 2 if the wiring is for another number of GPUs.
    """
    children = [
        (gpu, child) for gpu in gpus if gpu.element is not None for child in gpu.element.children
    ]
    for _, child in children:
        if child.name not in _LINKS:
            draft.findings.warn(
                "unknown-link",
                child.place,
                f"<{child.name[:40]}> in <gpu> is no link that is known; it is left out",
                PROFILE_CURE,
            )
    stated = [(gpu, child) for gpu, child in children if child.name in _LINKS]
    links = _StatedLinks(draft, gpus)
    for gpu, element in stated:
        links.add(gpu, element)
    profile = draft.rates.profile
    if profile is not None and not stated:
        _join_by_profile(draft.machine, [gpu.node for gpu in gpus], profile)
    elif profile is None and not draft.facts.has_gpus:
        draft.findings.warn(
            "partial-topology",
            Location(source),
            "the file names no <gpu>, so PCI devices of a GPU's class are taken; "
            "how NVLink joins them, it does not say",
            PROFILE_CURE,
        )


def _join_by_profile(machine: MachineGraph, gpus: Sequence[int], profile: GpuProfile) -> None:
    """Add the wiring of a profile to the machine, in both directions, between the nodes `gpus`.

    GPU i of the wiring is node `gpus[i]`. First come direct links: one between any two GPUs in a
    full mesh, and the given numbers of links between pairs. If the wiring has `links`, one new
    NVSwitch is added then, and each GPU gets that number of links to it. Each link has the rate of
    one link of the profile, in GB/s. Raises `UsageError` (`profile-size`) if the wiring has pairs
    and is for another number of GPUs; other wirings fit any number.
    """
    wiring = profile.wiring
    if wiring.gpus not in (None, len(gpus)):
        raise UsageError(
            f"the profile's wiring is for {wiring.gpus} GPUs, the machine has {len(gpus)}",
            cure="choose another profile, or name the GPUs with FILE?gpus=",
            code="profile-size",
        )
    for first, second, count in wiring.lanes(len(gpus)):
        machine.join(LinkType.NVLINK, gpus[first], gpus[second], profile.link, count=count)
    if wiring.links:
        switch = machine.add(MachineNodeKind.NVSWITCH, "nvswitch")
        for gpu in gpus:
            machine.join(LinkType.NVLINK, gpu, switch, profile.link, count=wiring.links)


class _StatedLinks:
    """Adds the links of `<gpu>` elements to a machine."""

    def __init__(self, draft: XmlMachine, gpus: Sequence[XmlGpu]) -> None:
        self._draft = draft
        self._machine = draft.machine
        self._switch: int | None = None
        # Several if one device has partitions.
        self._gpus_by_bus: dict[tuple[str, int], list[XmlGpu]] = {}
        for gpu in gpus:
            self._gpus_by_bus.setdefault((gpu.host, gpu.bus), []).append(gpu)

    def add(self, gpu: XmlGpu, link: Element) -> None:
        """Add the links of one element of a GPU to the machine.

        An element <c2c> adds C2C links to the CPU, each of `bw` MB/s. Any other element adds
        NVLinks (`_nvlink_rate`) or xGMI links (`_xgmi_rate`), to a GPU, a CPU or the NVSwitch.
        Their bandwidth is divided by the number of partitions of the device, as NCCL does.
        `count` is the number of links.

        Raises `InputError` at the element if `count` is missing or not a number from 1 to
        `_MAX_COUNT`, then for an invalid bandwidth, a missing class, or an invalid target. A
        target that is no GPU of the file, or this GPU, gives only a warning.
        """
        count = link.whole("count")
        if count is None or not 0 < count <= _MAX_COUNT:
            link.fail_value("count", f"a number of links in 1..{_MAX_COUNT}")
        if link.name == "c2c":
            rate_mbyte = link.real("bw")
            if rate_mbyte is None or not 0 < rate_mbyte < 1e9:
                link.fail_value("bw", "a bandwidth in MB/s")
            # Not divided among the partitions of a device.
            rate = rate_mbyte / 1000
            self._machine.join(LinkType.C2C, gpu.node, gpu.cpu, rate, count=count)
        else:
            assert gpu.element is not None
            rate_of_one = self._nvlink_rate if link.name == "nvlink" else self._xgmi_rate
            # NCCL divides the bandwidth of a device's links among its partitions.
            rate = rate_of_one(gpu.element) / gpu.partitions
            self._add_nvlinks(gpu, link, rate, count)

    def _add_nvlinks(self, gpu: XmlGpu, link: Element, rate: float, count: int) -> None:
        """Add `count` NVLinks or xGMI links of `rate` GB/s each from a GPU to the link's target.

        `link`: the XML element. The links are added to the machine by the PCI class `tclass`:

        - CPU: in both directions to `gpu.cpu`.
        - GPU: only to the GPUs of the same host at the bus address `target`. Partitions of one
          device share an address: each of n gets `count` links of `rate` / n. Without such a GPU,
          or if it is `gpu` itself, there is no link, and the warning `link-target` is given.
        - Any other class: in both directions to the one NVSwitch, which the first call adds.

        Raises `InputError` (`invalid-nccl-topology`) with the line if `tclass` is missing or empty,
        and for a `target` of a GPU that is missing or no bus id.
        """
        if not link.text("tclass"):
            # NCCL looks the class up in the running machine, which a file cannot do.
            link.fail(
                f"<{link.name}> has no tclass, which tells what it leads to", "get the whole dump"
            )
        kind = target_kind(link.text("tclass"))
        if kind is TargetKind.CPU:
            self._machine.join(LinkType.NVLINK, gpu.node, gpu.cpu, rate, count=count)
            return
        if kind is TargetKind.NVSWITCH:
            # All chips of an NVLink domain are one node.
            if self._switch is None:
                self._switch = self._machine.add(MachineNodeKind.NVSWITCH, "nvswitch")
            switch = self._switch
            self._machine.join(LinkType.NVLINK, gpu.node, switch, rate, count=count)
            return
        bus = bus_of(link, "target")
        targets = self._gpus_by_bus.get((gpu.host, bus), [])
        if targets in ([], [gpu]):
            # The file of Azure for NC A100 v4 has links of this kind.
            fault = "the GPU itself" if targets else "no GPU of the file"
            self._draft.findings.warn(
                "link-target",
                link.place,
                f"<{link.name}> to {link.text('target')}, which is {fault}, is left out",
            )
            return
        # One direction only: the element of the other GPU adds the opposite links.
        for target in targets:
            share = rate / len(targets)
            self._machine.connect(LinkType.NVLINK, gpu.node, target.node, share, count)

    def _nvlink_rate(self, element: Element) -> float:
        """Return the bandwidth of one NVLink of the GPU in `element`, in GB/s.

        If the element has a compute capability (`sm`, 90 for 9.0), it decides, even with a
        profile; an unknown capability has the rate of `bandwidths.nvlink`. Otherwise it is the
        rate of the profile of the machine. Raises `InputError` if there is neither, and for an
        `sm` that is no integer.
        """
        capability = element.whole("sm")
        profile = self._draft.rates.profile
        if capability is not None:
            return bandwidths.nvlink(capability)
        if profile is None:
            element.fail("the GPU states no sm, which tells the speed of NVLink", PROFILE_CURE)
        return profile.link

    def _xgmi_rate(self, element: Element) -> float:
        """Return the bandwidth in GB/s of one xGMI link of the GPU in `element`.

        The first rule that applies:

        1. The architecture (`gcn`) is known: its rate.
        2. There is a profile: the rate of one link of the profile.
        3. The architecture is given but unknown: an assumed rate, with the warning `unknown-gpu`.
        4. Otherwise `InputError` (`invalid-nccl-topology`) is raised with the line of the element.
        """
        name = element.text("gcn")
        profile = self._draft.rates.profile
        if name and bandwidths.is_known_gcn(name):
            return bandwidths.xgmi(name)
        if profile is not None:
            return profile.link
        if not name:
            element.fail("the GPU states no gcn, which tells the speed of xGMI", PROFILE_CURE)
        rate = bandwidths.xgmi(name)
        self._draft.findings.warn(
            "unknown-gpu",
            element.place,
            f"the GPU gcn={name[:40]!r} is not known; {rate:g} GB/s a link is assumed",
            PROFILE_CURE,
        )
        return rate
