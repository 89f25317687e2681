"""GPU models by name, for files that contain neither the GPU model nor the NVLink or xGMI
wiring."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collhub_nccl.topologies import bandwidths

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
        """Yield (GPU, GPU, links) for every pair that is joined directly."""
        if self.is_full_mesh:
            for one in range(gpus):
                for other in range(one):
                    yield one, other, 1
        for (one, other), count in self.pairs.items():
            yield one, other, count

    @property
    def gpus(self) -> int | None:
        """Number of GPUs for which the pairs are defined; None for any number."""
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
    """Profile of an NVIDIA GPU with 16 PCI lanes of this speed."""
    link = bandwidths.nvlink(compute_capability)
    return GpuProfile(link, bandwidths.pci(speed, 16), wiring)


def _amd(gcn: str, speed: str, wiring: Wiring) -> GpuProfile:
    """Profile of an AMD GPU with 16 PCI lanes of this speed."""
    link = bandwidths.xgmi(gcn)
    return GpuProfile(link, bandwidths.pci(speed, 16), wiring)


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
