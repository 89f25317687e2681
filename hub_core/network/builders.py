"""The table of the core's own topology builders, and topologies from texts with these alone."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hub_core.network.texts import TopologyFunction
    from hub_core.network.topology import Topology


@dataclass(frozen=True, slots=True)
class OwnBuilder:
    """A topology builder of the core.

    `reference`: `module:function`, a `TopologyFunction`. `example`: a text that it takes.
    """

    name: str
    description: str
    example: str
    reference: str

    def load(self) -> TopologyFunction:
        """Import the function."""
        module, _, function = self.reference.partition(":")
        builder: TopologyFunction = getattr(importlib.import_module(module), function)
        return builder


# References as texts, so that listing them imports no builder.
_REGULAR = "hub_core.network.regular"
_SWITCHED = "hub_core.network.switched"
_MACHINES = "hub_core.network.machines"
_ROWS = (
    ("line", "NPUs in a row", "line:8", f"{_REGULAR}:line"),
    ("ring", "NPUs in a ring", "ring:8", f"{_REGULAR}:ring"),
    ("mesh", "a product of lines", "mesh:4x4", f"{_REGULAR}:mesh"),
    ("torus", "a product of rings", "torus:4x4x4", f"{_REGULAR}:torus"),
    (
        "fully-connected",
        "a link each way between any two NPUs",
        "fully-connected:8",
        f"{_REGULAR}:fully_connected",
    ),
    ("fc", "short for fully-connected", "fc:8", f"{_REGULAR}:fully_connected"),
    ("switch", "NPUs at one switch", "switch:8", f"{_REGULAR}:switch"),
    ("hypercube", "2^n NPUs in n dimensions", "hypercube:3", f"{_REGULAR}:hypercube"),
    ("fat-tree", "switches of k ports in three levels", "fat-tree:4", f"{_SWITCHED}:fat_tree"),
    (
        "dragonfly",
        "groups of fully joined routers: routers a group, NPUs and global links a router",
        "dragonfly:4,2,2",
        f"{_SWITCHED}:dragonfly",
    ),
    ("rail", "nodes of GPUs, one switch per rail", "rail:4x8", f"{_SWITCHED}:rail"),
    ("dgx1p", "DGX-1 with P100", "dgx1p", f"{_MACHINES}:dgx1p"),
    ("dgx1v", "DGX-1 with V100", "dgx1v", f"{_MACHINES}:dgx1v"),
    ("dgx1v-smi", "DGX-1V as nvidia-smi numbers it", "dgx1v-smi", f"{_MACHINES}:dgx1v_smi"),
    ("dgx1-pcie", "the PCIe tree of a DGX-1", "dgx1-pcie", f"{_MACHINES}:dgx1_pcie"),
    ("dgx2", "DGX-2: 16 V100 behind NVSwitches", "dgx2", f"{_MACHINES}:dgx2"),
    ("dgx-a100", "DGX A100, one or several", "dgx-a100:2", f"{_MACHINES}:dgx_a100"),
    ("dgx-h100", "DGX H100, one or several", "dgx-h100:2", f"{_MACHINES}:dgx_h100"),
    ("mi250", "nodes of eight MI250, 16 dies", "mi250:2", f"{_MACHINES}:mi250"),
)
# By name, as texts name them.
OWN_BUILDERS: Mapping[str, OwnBuilder] = {row[0]: OwnBuilder(*row) for row in _ROWS}


def parse_topology(text: str) -> Topology:
    """Build the topology that a text names, as `build_topology` with the builders of the core.

    Raises `UsageError` naming the closest builder.
    """
    # Imported here: the table is listed where nobody needs numpy.
    from hub_core.network.texts import build_topology

    return build_topology(text, {name: own.load() for name, own in OWN_BUILDERS.items()})
