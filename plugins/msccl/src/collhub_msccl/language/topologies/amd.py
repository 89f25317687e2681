"""Machines of AMD as the language knows them."""

from __future__ import annotations

from collhub_msccl.language.topologies.generic import Topology

# What `from msccl.topologies.amd import *` gives a program.
__all__ = ["amd4", "amd8"]


def amd4() -> Topology:
    """Four GPUs in a ring."""
    # Rows of destinations, a digit for each source.
    rows = ("0110", "1001", "1001", "0110")
    return Topology("AMD4", [[int(cell) for cell in row] for row in rows])


def amd8() -> Topology:
    """Eight GPUs, all linked: 6 between the two of a module, 5 between modules."""
    gpus = range(8)
    return Topology("AMD8", [[_amd8_link(src, dst) for src in gpus] for dst in gpus])


def _amd8_link(src: int, dst: int) -> int:
    if src == dst:
        return 0
    # The GPUs of a module have numbers that differ in the last bit.
    return 6 if src ^ 1 == dst else 5
