"""Bandwidths that NCCL and RCCL assign to links, in GB/s per direction, and those of GPU models.

Source: the constants and tables of `src/graph/topo.h` and `src/graph/topo.cc` of NCCL 2.30, and of
the same files of RCCL for AMD's machines. NCCL computes with these values, which are not the
hardware's, so a topology of the hub ranks links like NCCL. GPU models serve files that contain
neither the GPU model nor the NVLink or xGMI wiring.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
    """Return the usable rate that NCCL assigns to a PCI lane, in units of 100 Mb/s.

    `link_speed`: a text such as `16.0 GT/s PCIe`, which gives 120 (12 Gb/s). The first
    prefix in `_LINK_SPEEDS` that fits decides. An unknown text, also "", counts as 8 GT/s,
    which gives 60.
    """
    for prefix, rate in _LINK_SPEEDS:
        if link_speed.startswith(prefix):
            return rate
    return _OTHER_SPEED


def pci(link_speed: str, link_width: int) -> float:
    """Return the bandwidth that NCCL assigns to a PCI link, in GB/s per direction.

    It is the number of lanes times `lane_rate`: 24 GB/s for 16 lanes of `16.0 GT/s PCIe`.
    `link_width`: number of lanes; 0 means `_DEFAULT_WIDTH`, which is 16.
    """
    lanes = link_width or _DEFAULT_WIDTH
    # 80 lanes of 100 Mb/s are 1 GB/s.
    return lanes * lane_rate(link_speed) / 80


def net(speed_mbit: int | None) -> float:
    """Return the speed of a network port in GB/s, from one in Mbit/s.

    None and values up to 0 count as `DEFAULT_NET_MBIT`, which is 10 Gbit/s.
    """
    if speed_mbit is None or speed_mbit <= 0:
        speed_mbit = DEFAULT_NET_MBIT
    return speed_mbit / 8000


def nvlink(compute_capability: int) -> float:
    """Bandwidth of one NVLink of a GPU with this compute capability (90 for 9.0), in GB/s."""
    return _of_generation(_NVLINKS, compute_capability, _OTHER_NVLINK)


def xgmi(gcn: str) -> float:
    """Return the bandwidth of one xGMI link of an AMD GPU in GB/s.

    `gcn` is the architecture, such as `gfx90a`, or RCCL's older number for it, such as `910`. The
    first prefix in `_XGMI` that fits decides. Unknown architectures have `_OTHER_XGMI`.
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
    """Return the bandwidth between two CPUs of a machine in GB/s, from facts about the sender.

    The first rule that applies decides:

    1. Architecture `arm64` or `ppc64`: its value in `_BY_ARCHITECTURE`.
    2. Vendor Intel: by `family` and `model`; in a file of RCCL (`is_rccl`) at most 10.
    3. Vendor Zhaoxin: 9 for the processor Yongfeng (family 7, model 0x5b), otherwise 6.
    4. Vendor AMD: 16.
    5. Otherwise `UNLIMITED`, also for an empty vendor.
    """
    if architecture in _BY_ARCHITECTURE:
        return _BY_ARCHITECTURE[architecture]
    if vendor == "GenuineIntel":
        # Models of family 6 have the rate of their generation.
        rate = _OTHER_INTEL if family != 6 else _of_generation(_INTEL_MODELS, model, _OTHER_INTEL)
        return min(rate, _MOST_OF_RCCL) if is_rccl else rate
    if vendor in _ZHAOXIN:
        return 9.0 if (family, model) == _YONGFENG else 6.0
    if vendor == "AuthenticAMD":
        return _AMD
    return UNLIMITED


def _of_generation(rates: Iterable[tuple[int, float]], generation: int, older_rate: float) -> float:
    """Return the rate of the first entry whose minimum generation is reached, else `older_rate`.

    `rates` has (minimum generation, rate), the newest generation first.
    """
    for lowest, rate in rates:
        if generation >= lowest:
            return rate
    return older_rate


Pairs = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Wiring:
    """How the GPUs of a machine are joined, in one of three forms.

    `links`: links of every GPU to one switch; `pairs`: links between two GPUs, by (GPU, GPU);
    `is_full_mesh`: one link between any two GPUs.
    """

    links: int = 0
    pairs: Pairs = field(default_factory=dict)
    is_full_mesh: bool = False

    def lanes(self, gpus: int) -> Iterator[tuple[int, int, int]]:
        """Yield (GPU, GPU, number of links) for every pair of GPUs with direct links.

        With `is_full_mesh`, each pair of the GPUs 0 to `gpus` - 1 comes once, the higher number
        first, with one link. Then come the entries of `pairs`, whatever `gpus` is. Links to a
        switch are not yielded.
        """
        if self.is_full_mesh:
            for first in range(gpus):
                for second in range(first):
                    yield first, second, 1
        for (first, second), count in self.pairs.items():
            yield first, second, count

    @property
    def gpus(self) -> int | None:
        """Return the number of GPUs that this wiring is for, or None for any number.

        It is the highest number in `pairs` plus 1. It is None without pairs.
        """
        if not self.pairs:
            return None
        last = max(max(pair) for pair in self.pairs)
        return last + 1


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """Bandwidths of a GPU in GB/s one way, and its usual wiring.

    `link`: one NVLink or xGMI link. `pci`: the GPU's PCI link.
    """

    link: float
    pci: float
    wiring: Wiring = Wiring()


# The hybrid cube mesh of a DGX-1 with V100, in nvidia-smi's numbering: six links per GPU.
_DGX1V = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
# Eight dies on four packages, as in a Frontier node: four links within a package, seven per die.
_MI250X = {
    (0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4, (0, 2): 1, (4, 6): 1, (1, 5): 1, (3, 7): 1,
    (0, 6): 2, (2, 4): 2, (1, 3): 2, (5, 7): 2,
}  # fmt: skip


def _nvidia(compute_capability: int, speed: str, wiring: Wiring = Wiring()) -> GpuProfile:
    """Return the profile of an NVIDIA GPU: GB/s of an NVLink, GB/s of 16 PCI lanes, and wiring.

    `compute_capability` is a number such as 90. `speed` is that of a PCI lane, as a text such as
    `16.0 GT/s PCIe`.
    """
    link = nvlink(compute_capability)
    return GpuProfile(link, pci(speed, 16), wiring)


def _amd(gcn: str, speed: str, wiring: Wiring) -> GpuProfile:
    """Return the profile of an AMD GPU: GB/s of an xGMI link, GB/s of 16 PCI lanes, and wiring.

    `gcn` is the architecture. `speed` is that of a PCI lane, as a text such as `16.0 GT/s PCIe`.
    """
    link = xgmi(gcn)
    return GpuProfile(link, pci(speed, 16), wiring)


# NVLinks of A100 and later are connected to NVSwitch, as on HGX boards. T4, A10 and L40 have none.
PROFILES: Mapping[str, GpuProfile] = {
    "v100": _nvidia(70, "8.0 GT/s PCIe", Wiring(pairs=_DGX1V)),
    "t4": _nvidia(75, "8.0 GT/s PCIe"),
    "a100": _nvidia(80, "16.0 GT/s PCIe", Wiring(links=12)),
    "a10": _nvidia(86, "16.0 GT/s PCIe"),
    "l40": _nvidia(89, "16.0 GT/s PCIe"),
    "h100": _nvidia(90, "32.0 GT/s PCIe", Wiring(links=18)),
    "h200": _nvidia(90, "32.0 GT/s PCIe", Wiring(links=18)),
    "b200": _nvidia(100, "32.0 GT/s PCIe", Wiring(links=18)),
    "b300": _nvidia(103, "64.0 GT/s PCIe", Wiring(links=18)),
    "mi250x": _amd("gfx90a", "16.0 GT/s PCIe", Wiring(pairs=_MI250X)),
    "mi300x": _amd("gfx942", "32.0 GT/s PCIe", Wiring(is_full_mesh=True)),
}
PROFILE_CURE = f"name the GPU with FILE?profile= ({', '.join(PROFILES)})"
