"""Merge Broadcom's two-level PCI switches into one switch, like NCCL: both levels are one chip.

Source: `ncclTopoFlattenBcmSwitches` in `src/graph/topo.cc` of NCCL.
"""

from __future__ import annotations

from collhub_nccl.topologies.elements import Element

_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")
_BROADCOM = 0x1000
_GENERATION_4 = 0xC010
_GENERATION_5 = 0xC030
_UPPER, _LOWER = 0, 1


def flatten_switches(element: Element) -> None:
    """Move the children of every lower switch to the upper switch above it, in place,
    recursively."""
    generation = _generation(element, _UPPER)
    if generation:
        element.children = _without_lower_switches(element.children, generation)
    for child in element.children:
        flatten_switches(child)


def _without_lower_switches(children: list[Element], generation: int) -> list[Element]:
    """The children, with each lower switch of this generation replaced by its children."""
    kept: list[Element] = []
    for child in children:
        if _generation(child, _LOWER) == generation:
            kept += child.children
        else:
            kept.append(child)
    return kept


def _generation(element: Element, level: int) -> int:
    """PCI generation (4 or 5) of a Broadcom switch chip at this level, else 0."""
    if element.name != "pci":
        return 0
    vendor, device, subsystem_vendor, subsystem = (element.whole(name) or 0 for name in _IDS)
    if (vendor, subsystem_vendor) != (_BROADCOM, _BROADCOM):
        return 0
    family = subsystem & 0xF000
    # Generation 4 has the same family at both levels, generation 5 the level itself.
    if device == _GENERATION_4 and family == 0xA000:
        return 4
    if device == _GENERATION_5 and family == level << 12:
        return 5
    return 0
