"""The core's own builders (to be replaced)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OwnBuilder:
    """A builder."""

    name: str
    description: str
    build: str
    example: str


_NAMES = "line ring mesh torus fully-connected fc switch hypercube fat-tree dragonfly rail dgx1p dgx1v dgx1v-smi dgx1-pcie dgx2 dgx-a100 dgx-h100 mi250"
OWN_BUILDERS = tuple(
    OwnBuilder(name, name, "hub_core.network.texts:build_own", name) for name in _NAMES.split()
)
