"""Known GPUs: how files name them, their architecture, and results of NCCL's channel search.

Channel counts and speeds are results of NCCL's search on common machines (NCCL 2.18 to 2.30).
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU, with the machine around it.

    The search of NCCL gives `search_channels` channels of `channel_speed` GB/s for rings and
    `nvls_speed` GB/s per head for NVLS; `channels` and `nvls_channels` are those that collectives
    use. `links` describes the network within a node. A GPU without NVLink to all others of its
    node has `has_model` False: its times need a table.
    """

    name: str
    architecture: str
    gpus_per_node: int
    links: str
    search_channels: int = 0
    channel_speed: float = 0.0
    channels: int = 0
    nvls_speed: float = 0.0
    nvls_channels: int = 0
    has_model: bool = False

    @property
    def has_nvlink(self) -> bool:
        """Whether the description of the links within a node begins with `NVLink`."""
        return self.links.startswith("NVLink")


def _nvlink(
    name: str,
    architecture: str,
    gpus: int,
    links: str,
    search: tuple[int, float, int],
    nvls: tuple[float, int] = (0.0, 0),
) -> Gpu:
    return Gpu(name, architecture, gpus, links, *search, *nvls, has_model=True)


_BLACKWELL = (16, 45.0, 32)
GPUS = {
    gpu.name: gpu
    for gpu in (
        _nvlink("A100", "ampere", 8, "NVLink3, NVSwitch, 300 GB/s", (12, 20.0, 24)),
        _nvlink("H100", "hopper", 8, "NVLink4, NVSwitch, 450 GB/s", (12, 30.0, 24), (40.0, 16)),
        _nvlink("H200", "hopper", 8, "NVLink4, NVSwitch, 450 GB/s", (12, 30.0, 24), (40.0, 16)),
        _nvlink("B200", "blackwell", 8, "NVLink5, NVSwitch, 900 GB/s", _BLACKWELL, (90.0, 24)),
        _nvlink("B300", "blackwell", 8, "NVLink5, NVSwitch, 900 GB/s", _BLACKWELL, (90.0, 24)),
        _nvlink("GB200", "blackwell", 4, "NVLink5, NVSwitch, 900 GB/s", _BLACKWELL, (90.0, 24)),
        _nvlink("GB300", "blackwell", 4, "NVLink5, NVSwitch, 900 GB/s", _BLACKWELL, (90.0, 24)),
        Gpu("GH200", "hopper", 4, "NVLink4, all to all", 12, 30.0, 24),
        Gpu("L40S", "ada", 8, "PCIe 4"),
        Gpu("RTX PRO 6000", "blackwell", 8, "PCIe 5"),
        Gpu("MI300X", "cdna3", 8, "Infinity Fabric"),
        Gpu("MI250", "cdna2", 8, "Infinity Fabric"),
        Gpu("V100", "volta", 8, "NVLink2"),
    )
}

SIBLINGS = {"B300": "B200", "GB300": "GB200"}
"""GPUs without public measurements, and the similar GPU whose constants they take."""

_PATTERNS = (
    (re.compile(r"RTX[ _-]*(?:PRO)[ _-]*6000", re.IGNORECASE), "RTX PRO 6000"),
    (
        re.compile(
            r"(?:(?<![A-Za-z0-9])|(?<=dgx)|(?<=hgx))"
            r"(GB300|GB200|GH200|B300|B200|H200|H100|A100|L40S|MI300X|MI250|V100)(?![0-9])",
            re.IGNORECASE,
        ),
        "",
    ),
    (re.compile(r"\bp4de\b", re.IGNORECASE), "A100"),
    (re.compile(r"\bp5en\b", re.IGNORECASE), "H200"),
    (re.compile(r"\bp5\b", re.IGNORECASE), "H100"),
)
_WITHOUT_NVSWITCH = re.compile(r"PCI-?e|NVL\b|NVLink pairs", re.IGNORECASE)
_NODE_COUNT = re.compile(r"\b\d+ nodes? of |\b\d+x (?=p\d)", re.IGNORECASE)
_NICS = re.compile(r"\b([1-9]\d{0,2})x ([1-9]\d{0,4}) ?Gb/s")
_MAX_LABEL = 120


def known_gpu(text: str) -> Gpu | None:
    """Return the GPU whose name is in a label, a device name or a topology text, or None.

    Upper and lower case are equal. AWS machine names count for their GPU: p4de (A100), p5 (H100),
    p5en (H200). Only the first 200 characters are searched. Of several names the order of
    `_PATTERNS` decides: RTX PRO 6000 first, then the first GPU name in the text, then AWS names.
    """
    for pattern, name in _PATTERNS:
        match = pattern.search(text[:200])
        if match:
            return GPUS[name or match[1].upper()]
    return None


def has_switched_links(label: str) -> bool:
    """Whether a label is consistent with NVLink between all GPUs of a node: it does not name PCIe
    or another form without NVSwitch.
    """
    return _WITHOUT_NVSWITCH.search(label) is None


def network_rate_of_label(label: str) -> float | None:
    """Return the nominal rate of all NICs of a node in GB/s, or None if it is unknown.

    The result is 100.0 for a label that contains `4x 200 Gb/s`. The first such part of the label
    counts. Both numbers must be positive integers, and the unit exactly `Gb/s`. None if the label
    has no such part.
    """
    match = _NICS.search(label)
    return int(match[1]) * int(match[2]) / 8 if match else None


def machine_label(text: str) -> str:
    """Return the label of a machine without its number of nodes and repeated blanks, cut to 120
    characters. Equal labels denote equal machines.
    """
    return " ".join(_NODE_COUNT.sub("", text).split())[:_MAX_LABEL]
