"""Join GPUs by what a topology file says of NVLink, xGMI and C2C, or by what is known of GPUs of a name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from collhub_nccl.topologies import bandwidths
from collhub_nccl.topologies.elements import Element
from collhub_nccl.topologies.machine import LinkType, Machine, NodeKind
from collhub_nccl.topologies.profiles import PROFILES, Profile
from collhub_nccl.topologies.xml_machine import Gpu, Hub
from collhub_nccl.topologies.xml_nodes import TargetKind, bus_of, target_kind
from hub_core.diagnostics import Location, UsageError

_LINKS = ("nvlink", "xgmi", "c2c")
_CURE = f"name the GPU with FILE?profile= ({', '.join(PROFILES)})"
MAX_COUNT = 1 << 16


def join_gpus(hub: Hub, gpus: Sequence[Gpu], source: str) -> None:
    """Add the links that the file states; where it states none, those of the profile, if one is given."""
    stated = [
        (gpu, link)
        for gpu in gpus
        if gpu.element is not None
        for link in gpu.element.children
        if link.name in _LINKS
    ]
    partners: dict[tuple[str, int], list[Gpu]] = {}
    for gpu in gpus:
        partners.setdefault((gpu.host, gpu.bus), []).append(gpu)
        for child in gpu.element.children if gpu.element is not None else ():
            if child.name not in _LINKS:
                message = f"<{child.name[:40]}> in <gpu> is no link that is known; it is left out"
                hub.findings.warn("unknown-link", child.place, message, _CURE)
    switch = [-1]
    for gpu, link in stated:
        _join(hub, gpu, link, partners, switch)
    if hub.profile is not None and not stated:
        join_by_profile(hub.machine, [gpu.node for gpu in gpus], hub.profile)
    elif hub.profile is None and not hub.has_gpus:
        message = "the file names no <gpu>, so PCI devices of a GPU's class are taken; how NVLink joins them, it does not say"
        hub.findings.warn("partial-topology", Location(source), message, _CURE)


def join_by_profile(machine: Machine, gpus: Sequence[int], profile: Profile) -> None:
    """Add the usual NVLink or xGMI wiring of `gpus`, in this order. Raises `UsageError` where it is for another number."""
    wiring = profile.wiring
    if wiring.gpus not in (None, len(gpus)):
        message = f"the profile's wiring is for {wiring.gpus} GPUs, the machine has {len(gpus)}"
        raise UsageError(
            message,
            cure="choose another profile, or name the GPUs with FILE?gpus=",
            code="profile-size",
        )
    for one, other, count in wiring.lanes(len(gpus)):
        machine.join(LinkType.NVLINK, gpus[one], gpus[other], count * profile.link)
    if wiring.links:
        switch = machine.add(NodeKind.NVSWITCH, "nvswitch")
        for gpu in gpus:
            machine.join(LinkType.NVLINK, gpu, switch, wiring.links * profile.link)


def _join(
    hub: Hub, gpu: Gpu, link: Element, partners: dict[tuple[str, int], list[Gpu]], switch: list[int]
) -> None:
    count = link.whole("count")
    if count is None or not 0 < count <= MAX_COUNT:
        link.fail_value("count", f"a number of links in 1..{MAX_COUNT}")
    if link.name == "c2c":
        rate = link.real("bw")
        if rate is None or not 0 < rate < 1e9:
            link.fail_value("bw", "a bandwidth in MB/s")
        hub.machine.join(LinkType.C2C, gpu.node, gpu.cpu, rate * count / 1000)
        return
    rate = count * _rate(hub, gpu, link) / gpu.partitions
    kind = target_kind(link.text("tclass")) if link.text("tclass") else _no_class(link)
    if kind is TargetKind.CPU:
        hub.machine.join(LinkType.NVLINK, gpu.node, gpu.cpu, rate)
    elif kind is TargetKind.NVSWITCH:
        # All NVSwitch chips, of all machines of an NVLink domain, act as one.
        switch[0] = hub.machine.add(NodeKind.NVSWITCH, "nvswitch") if switch[0] < 0 else switch[0]
        hub.machine.join(LinkType.NVLINK, gpu.node, switch[0], rate)
    else:
        _to_gpu(hub, gpu, link, rate, partners.get((gpu.host, bus_of(link, "target")), []))


def _to_gpu(hub: Hub, gpu: Gpu, link: Element, rate: float, targets: Sequence[Gpu]) -> None:
    if not targets:
        message = (
            f"<{link.name}> to {link.text('target')}, which is no GPU of the file, is left out"
        )
        hub.findings.warn("link-target", link.place, message)
    for target in targets:
        hub.machine.connect(LinkType.NVLINK, gpu.node, target.node, rate / len(targets))


def _rate(hub: Hub, gpu: Gpu, link: Element) -> float:
    """GB/s of one link by the GPU's generation. Raises `InputError` where neither file nor profile tells it."""
    assert gpu.element is not None
    element = gpu.element
    if link.name == "nvlink":
        capability = element.whole("sm")
        if capability is not None:
            return bandwidths.nvlink(capability)
        return (
            hub.profile.link
            if hub.profile
            else element.fail("the GPU states no sm, which tells the speed of NVLink", _CURE)
        )
    name = element.text("gcn")
    if name and bandwidths.is_known_gcn(name):
        return bandwidths.xgmi(name)
    if hub.profile:
        return hub.profile.link
    if not name:
        element.fail("the GPU states no gcn, which tells the speed of xGMI", _CURE)
    rate = bandwidths.xgmi(name)
    hub.findings.warn(
        "unknown-gpu",
        element.place,
        f"the GPU gcn={name[:40]!r} is not known; {rate:g} GB/s a link is assumed",
        _CURE,
    )
    return rate


def _no_class(link: Element) -> NoReturn:
    link.fail(f"<{link.name}> has no tclass, which tells what it leads to", "get the whole dump")
