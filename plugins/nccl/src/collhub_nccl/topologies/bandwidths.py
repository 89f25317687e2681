"""Bandwidths of links by what topology files say of their ends: NCCL's own constants (src/graph/topo.h), in GB/s one way."""

from __future__ import annotations

UNLIMITED = 5000.0
DEFAULT_PCI = 12.0
DEFAULT_NET_MBIT = 10_000

# Prefixes in the order in which NCCL compares them; 100 Mb/s per lane.
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

# Lowest compute capability and GB/s of one NVLink, highest first.
_NVLINKS = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
_OTHER_NVLINK = 20.0
_XGMI = {"gfx90a": 36.0, "gfx94": 48.0}
_OTHER_XGMI = 24.0
# RCCL's numbers for architectures, before it wrote their names.
_GCN_NAMES = {
    "906": "gfx906",
    "908": "gfx908",
    "910": "gfx90a",
    "940": "gfx940",
    "941": "gfx941",
    "942": "gfx942",
}

_INTEL_MODELS = ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0))
_OTHER_INTEL = 6.0
_BY_ARCHITECTURE = {"arm64": 6.0, "ppc64": 32.0}
_AMD = 16.0
_ZHAOXIN = ("CentaurHauls", "  Shanghai  ")


def lane_rate(link_speed: str) -> int:
    """Rate of one PCI lane in 100 Mb/s by the text of its link speed; what NCCL does not know counts as 8 GT/s."""
    return next(
        (rate for prefix, rate in _LINK_SPEEDS if link_speed.startswith(prefix)), _OTHER_SPEED
    )


def pci(link_speed: str, link_width: int) -> float:
    """A PCI link; width 0 means 16 lanes."""
    return (link_width or _DEFAULT_WIDTH) * lane_rate(link_speed) / 80


def net(speed_mbit: int | None) -> float:
    """A network port by its speed in Mb/s; 10 Gb/s where it is missing."""
    return (speed_mbit if speed_mbit and speed_mbit > 0 else DEFAULT_NET_MBIT) / 8000


def nvlink(compute_capability: int) -> float:
    """One NVLink of a GPU with this compute capability (90 for 9.0)."""
    return next((rate for lowest, rate in _NVLINKS if compute_capability >= lowest), _OTHER_NVLINK)


def xgmi(gcn: str) -> float:
    """One xGMI link of an AMD GPU by its architecture (`gfx90a`, or RCCL's older `910`)."""
    name = _GCN_NAMES.get(gcn, gcn)
    return next((rate for prefix, rate in _XGMI.items() if name.startswith(prefix)), _OTHER_XGMI)


def is_known_gcn(gcn: str) -> bool:
    """Whether RCCL has a number for this architecture."""
    return _GCN_NAMES.get(gcn, gcn) in _GCN_NAMES.values()


def intel_generation(model: int, is_rccl: bool) -> float:
    """Between the sockets of an Intel machine of family 6; RCCL knows no generation after Skylake."""
    rate = next((rate for lowest, rate in _INTEL_MODELS if model >= lowest), _OTHER_INTEL)
    return min(rate, 10.0) if is_rccl else rate


def socket_to_socket(
    architecture: str, vendor: str, family: int, model: int, is_rccl: bool
) -> float:
    """Between two CPUs of one machine, by the first one."""
    if architecture in _BY_ARCHITECTURE:
        return _BY_ARCHITECTURE[architecture]
    if vendor == "GenuineIntel":
        return intel_generation(model, is_rccl) if family == 6 else _OTHER_INTEL
    if vendor in _ZHAOXIN:
        return 9.0 if (family, model) == (7, 0x5B) else 6.0
    return _AMD if vendor == "AuthenticAMD" else UNLIMITED
