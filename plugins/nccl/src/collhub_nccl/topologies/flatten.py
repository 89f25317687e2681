"""Make one PCI switch of Broadcom's two-level switches, as NCCL does: the two levels are one chip."""

from __future__ import annotations

from collhub_nccl.topologies.elements import Element

_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")


def flatten_switches(element: Element) -> None:
    """Give the children of every lower switch to the upper switch above it, in the whole tree."""
    if generation := _generation(element, 0):
        element.children = [
            inner
            for child in element.children
            for inner in (
                child.children
                if child.name == "pci" and _generation(child, 1) == generation
                else [child]
            )
        ]
    for child in element.children:
        flatten_switches(child)


def _generation(element: Element, level: int) -> int:
    """4 or 5 for a Broadcom switch chip of that PCI generation at this level (0 upper, 1 lower), else 0."""
    if element.name != "pci":
        return 0
    vendor, device, subsystem_vendor, subsystem = (element.whole(name) or 0 for name in _IDS)
    family = subsystem & 0xF000
    if (vendor, subsystem_vendor) != (0x1000, 0x1000):
        return 0
    if device == 0xC010 and family == 0xA000:
        return 4
    return 5 if device == 0xC030 and family == level << 12 else 0
