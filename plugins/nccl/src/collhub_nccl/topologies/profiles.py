"""GPUs by name, for files that do not say what their GPUs are and how NVLink or xGMI joins them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from collhub_nccl.topologies import bandwidths

Pairs = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class Wiring:
    """Who is joined to whom in a machine: `links` of every GPU to one switch, or lanes by pairs of GPUs, or each to each."""

    links: int = 0
    pairs: Pairs = field(default_factory=dict)
    is_full_mesh: bool = False

    def lanes(self, gpus: int) -> Iterator[tuple[int, int, int]]:
        """(GPU, GPU, links) of every pair that is joined directly."""
        if self.is_full_mesh:
            yield from ((a, b, 1) for a in range(gpus) for b in range(a))
        yield from ((a, b, count) for (a, b), count in self.pairs.items())

    @property
    def gpus(self) -> int | None:
        """The number of GPUs that the pairs are for, None for any."""
        return max(map(max, self.pairs)) + 1 if self.pairs else None


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU: bandwidth of one of its NVLink or xGMI links and of its PCI link in GB/s one way, and the usual wiring."""

    link: float
    pci: float
    wiring: Wiring = Wiring()


# The hybrid cube mesh of a DGX-1 with V100, numbered as nvidia-smi does it there: six links a GPU.
_DGX1V = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
# Eight dies on four packages, as in a Frontier node: four lanes within a package, seven a die.
_MI250X = {
    (0, 1): 4, (2, 3): 4, (4, 5): 4, (6, 7): 4, (0, 2): 1, (4, 6): 1, (1, 5): 1, (3, 7): 1,
    (0, 6): 2, (2, 4): 2, (1, 3): 2, (5, 7): 2,
}  # fmt: skip


def _nvidia(compute_capability: int, speed: str, wiring: Wiring = Wiring()) -> Profile:
    return Profile(bandwidths.nvlink(compute_capability), bandwidths.pci(speed, 16), wiring)


def _amd(gcn: str, speed: str, wiring: Wiring) -> Profile:
    return Profile(bandwidths.xgmi(gcn), bandwidths.pci(speed, 16), wiring)


PROFILES: Mapping[str, Profile] = {
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
