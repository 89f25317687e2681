"""Interpret entries of a topology file: kinds of PCI devices by class, and bus ids as numbers."""

from __future__ import annotations

import re
from enum import StrEnum

from collhub_nccl.topologies.elements import Element


class TargetKind(StrEnum):
    """Kind of device of a PCI class."""

    BRIDGE = "bridge"
    NVSWITCH = "nvswitch"
    CPU = "cpu"
    GPU = "gpu"
    NIC = "nic"


# Prefixes in the order in which NCCL compares them (`src/graph/topo.cc`); the last one is RCCL's.
# 0x068001 is the NVLink bridge of POWER machines, which leads to the CPU.
_CLASSES = (
    ("0x060400", TargetKind.BRIDGE),
    ("0x080100", TargetKind.BRIDGE),
    ("0x068000", TargetKind.NVSWITCH),
    ("0x068001", TargetKind.CPU),
    ("0x03", TargetKind.GPU),
    ("0x02", TargetKind.NIC),
    ("0x120000", TargetKind.GPU),
)
# Domain, bus, device and function in hexadecimal; some files omit the first, the last or both.
_BUS_ID = re.compile(r"\s*[0-9a-fA-F]{1,8}(:[0-9a-fA-F]{1,2}){1,2}(\.[0-9a-fA-F])?\s*\Z")


def device_kind(pci_class: str) -> TargetKind:
    """Kind of a PCI device; an unknown class counts as a bridge."""
    return _kind_of_class(pci_class) or TargetKind.BRIDGE


def target_kind(pci_class: str) -> TargetKind:
    """Kind of the target of an NVLink or xGMI link; an unknown class counts as NVSwitch."""
    kind = _kind_of_class(pci_class)
    if kind in (TargetKind.GPU, TargetKind.CPU):
        return kind
    return TargetKind.NVSWITCH


def _kind_of_class(pci_class: str) -> TargetKind | None:
    """Kind of the first matching prefix, None without a match."""
    for prefix, kind in _CLASSES:
        if pci_class.startswith(prefix):
            return kind
    return None


def is_gpu_class(pci_class: str) -> bool:
    """Whether a PCI class denotes a GPU."""
    return device_kind(pci_class) is TargetKind.GPU


def bus_number(text: str) -> int | None:
    """A bus id such as `0000:07:00.0` or `07:00.0` as a number; None for any other text."""
    if not _BUS_ID.match(text):
        return None
    head, _, function = text.strip().partition(".")
    parts = [int(part, 16) for part in head.split(":")]
    # Short texts omit the PCI domain, which is 0 on most machines.
    domain, bus, device = parts if len(parts) == 3 else (0, *parts)
    return domain << 20 | bus << 12 | device << 4 | int(function or "0", 16)


def bus_of(element: Element, name: str = "busid") -> int:
    """Bus id in an attribute of an element. Raises `InputError` for an invalid one."""
    number = bus_number(element.text(name))
    if number is None:
        element.fail_value(name, "a bus id such as 0000:07:00.0")
    return number
