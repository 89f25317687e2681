"""AMD machines as defined by the language."""

from __future__ import annotations

from collhub_msccl.language.topologies.generic import Topology

# Names that `from msccl.topologies.amd import *` imports.
__all__ = ["amd4", "amd8"]


def amd4() -> Topology:
    """Four GPUs in a ring."""
    # Rows of destinations, one digit per source.
    rows = ("0110", "1001", "1001", "0110")
    return Topology("AMD4", [[int(cell) for cell in row] for row in rows])


def amd8() -> Topology:
    """Eight GPUs, all linked: bandwidth 6 between the two GPUs of a module, 5 between modules."""
    gpus = range(8)
    return Topology("AMD8", [[_get_amd8_bandwidth(src, dst) for src in gpus] for dst in gpus])


def _get_amd8_bandwidth(src: int, dst: int) -> int:
    """Bandwidth between two GPUs, 0 from a GPU to itself."""
    if src == dst:
        return 0
    # The GPUs of a module have numbers that differ in the last bit.
    return 6 if src ^ 1 == dst else 5
