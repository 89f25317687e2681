"""Bandwidths that NCCL and RCCL assign to links, in GB/s per direction.

Source: the constants and tables of `src/graph/topo.h` and `src/graph/topo.cc` of NCCL 2.30, and of
the same files of RCCL for AMD's machines. NCCL computes with these values, which are not the
hardware's, so a topology of the hub ranks links like NCCL.
"""

from __future__ import annotations

from collections.abc import Iterable

# NCCL's LOC_BW: links inside a device, which are never a bottleneck.
UNLIMITED = 5000.0
DEFAULT_PCI = 12.0
DEFAULT_NET_MBIT = 10_000

# Prefixes in the order in which NCCL compares them; 100 Mb/s per lane. The first five are texts of
# new kernels, the rest of old ones: "5.0 GT/s" without "PCIe" matches neither.
_LINK_SPEEDS = (
    ("2.5 GT/s", 15),
    ("5 GT/s", 30),
    ("8 GT/s", 60),
    ("16 GT/s", 120),
    ("32 GT/s", 240),
    ("5.0 GT/s PCIe", 30),
    ("8.0 GT/s PCIe", 60),
    ("16.0 GT/s PCIe", 120),
    ("32.0 GT/s PCIe", 240),
    ("64.0 GT/s PCIe", 480),
)
_OTHER_SPEED = 60
_DEFAULT_WIDTH = 16

# Minimum compute capability and GB/s of one NVLink, highest first. 86 is slower than 80: these GPUs
# (A40, RTX A6000) are cards that a bridge joins in pairs.
_NVLINKS = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
_OTHER_NVLINK = 20.0
_XGMI = {"gfx90a": 36.0, "gfx94": 48.0}
_OTHER_XGMI = 24.0
# RCCL's numbers for architectures, which it used before their names.
_GCN_NAMES = {
    "906": "gfx906",
    "908": "gfx908",
    "910": "gfx90a",
    "940": "gfx940",
    "941": "gfx941",
    "942": "gfx942",
}

# Minimum model number of family 6 and GB/s: Emerald Rapids, Sapphire Rapids, Skylake.
_INTEL_MODELS = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0))
_OTHER_INTEL = 6.0
# RCCL knows no Intel generation after Skylake.
_MOST_OF_RCCL = 10.0
_BY_ARCHITECTURE = {"arm64": 6.0, "ppc64": 32.0}
_AMD = 16.0
# The blanks are part of the processor's CPUID text.
_ZHAOXIN = ("CentaurHauls", "  Shanghai  ")
_YONGFENG = (7, 0x5B)


def lane_rate(link_speed: str) -> int:
    """Rate of one PCI lane in 100 Mb/s from its link speed text; unknown texts count as 8 GT/s."""
    for prefix, rate in _LINK_SPEEDS:
        if link_speed.startswith(prefix):
            return rate
    return _OTHER_SPEED


def pci(link_speed: str, link_width: int) -> float:
    """Bandwidth of a PCI link in GB/s; width 0 means 16 lanes."""
    lanes = link_width or _DEFAULT_WIDTH
    # 80 lanes of 100 Mb/s are 1 GB/s.
    return lanes * lane_rate(link_speed) / 80


def net(speed_mbit: int | None) -> float:
    """Bandwidth of a network port in GB/s from its speed in Mb/s; 10 Gb/s if missing or not
    positive."""
    if speed_mbit is None or speed_mbit <= 0:
        speed_mbit = DEFAULT_NET_MBIT
    return speed_mbit / 8000


def nvlink(compute_capability: int) -> float:
    """Bandwidth of one NVLink of a GPU with this compute capability (90 for 9.0), in GB/s."""
    return _of_generation(_NVLINKS, compute_capability, _OTHER_NVLINK)


def xgmi(gcn: str) -> float:
    """Bandwidth of one xGMI link of an AMD GPU in GB/s.

    `gcn`: architecture, such as `gfx90a`, or RCCL's older number for it, such as `910`.
    """
    # Prefixes, because the members of a family differ in the last digit.
    name = _GCN_NAMES.get(gcn, gcn)
    for prefix, rate in _XGMI.items():
        if name.startswith(prefix):
            return rate
    return _OTHER_XGMI


def is_known_gcn(gcn: str) -> bool:
    """Whether RCCL has a number for this architecture."""
    return _GCN_NAMES.get(gcn, gcn) in _GCN_NAMES.values()


def socket_to_socket(
    architecture: str, vendor: str, family: int, model: int, is_rccl: bool
) -> float:
    """Bandwidth between two CPUs of one machine in GB/s, from the facts about the sending CPU.

    Unlimited for an unknown vendor.
    """
    if architecture in _BY_ARCHITECTURE:
        return _BY_ARCHITECTURE[architecture]
    if vendor == "GenuineIntel":
        return _intel(family, model, is_rccl)
    if vendor in _ZHAOXIN:
        return 9.0 if (family, model) == _YONGFENG else 6.0
    if vendor == "AuthenticAMD":
        return _AMD
    return UNLIMITED


def _intel(family: int, model: int, is_rccl: bool) -> float:
    """Bandwidth between the sockets of an Intel machine in GB/s."""
    if family != 6:
        return _OTHER_INTEL
    rate = _of_generation(_INTEL_MODELS, model, _OTHER_INTEL)
    return min(rate, _MOST_OF_RCCL) if is_rccl else rate


def _of_generation(rates: Iterable[tuple[int, float]], generation: int, older_rate: float) -> float:
    """Rate of the first entry (minimum generation, rate) whose minimum is reached, else
    `older_rate`."""
    for lowest, rate in rates:
        if generation >= lowest:
            return rate
    return older_rate
