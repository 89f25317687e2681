"""Machines of AMD as the language knows them."""

from __future__ import annotations

from collhub_msccl.language.topologies.generic import Topology

__all__ = ["amd4", "amd8"]


def amd4() -> Topology:
    """Four GPUs in a ring."""
    return Topology(
        "AMD4", [[int(cell) for cell in row] for row in ("0110", "1001", "1001", "0110")]
    )


def amd8() -> Topology:
    """Eight GPUs, all linked: 6 between the two of a module, 5 between modules."""
    return Topology(
        "AMD8",
        [[0 if src == dst else 6 if src ^ 1 == dst else 5 for src in range(8)] for dst in range(8)],
    )
