"""What this distribution offers to the hub: topology texts, a check of networks, a command."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Check, Command, Subject, TopologyBuilder, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

# References as texts, so that listing the offers imports no builder.
_SWITCHED = "collhub_topologies.builders.switched"
_MACHINES = "collhub_topologies.builders.machines"

_BUILDERS = (
    TopologyBuilder(
        "hypercube",
        "2^n NPUs in n dimensions",
        "collhub_topologies.builders.hypercubes:hypercube",
        "hypercube:3",
    ),
    TopologyBuilder(
        "fat-tree",
        "switches of k ports in three levels",
        f"{_SWITCHED}:fat_tree",
        "fat-tree:4",
    ),
    TopologyBuilder(
        "dragonfly",
        "groups of fully joined routers: routers a group, NPUs and global links a router",
        f"{_SWITCHED}:dragonfly",
        "dragonfly:4,2,2",
    ),
    TopologyBuilder(
        "leaf-spine",
        "switches in two levels: leaves, NPUs a leaf, spines",
        f"{_SWITCHED}:leaf_spine",
        "leaf-spine:8,8,4",
    ),
    TopologyBuilder("rail", "nodes of GPUs, one switch per rail", f"{_SWITCHED}:rail", "rail:4x8"),
    TopologyBuilder("dgx1p", "DGX-1 with P100, one or several", f"{_MACHINES}:dgx1p", "dgx1p:2"),
    TopologyBuilder("dgx1v", "DGX-1 with V100, one or several", f"{_MACHINES}:dgx1v", "dgx1v:2"),
    TopologyBuilder(
        "dgx1v-smi",
        "DGX-1V as nvidia-smi numbers it, one or several",
        f"{_MACHINES}:dgx1v_smi",
        "dgx1v-smi:2",
    ),
    TopologyBuilder(
        "dgx1-pcie",
        "the PCIe trees of DGX-1, one or several",
        f"{_MACHINES}:dgx1_pcie",
        "dgx1-pcie:2",
    ),
    TopologyBuilder(
        "dgx2",
        "DGX-2 with 16 V100 behind NVSwitches, one or several",
        f"{_MACHINES}:dgx2",
        "dgx2:2",
    ),
    TopologyBuilder(
        "dgx-a100",
        "DGX A100, one or several",
        f"{_MACHINES}:dgx_a100",
        "dgx-a100:2",
    ),
    TopologyBuilder(
        "dgx-h100",
        "DGX H100, one or several",
        f"{_MACHINES}:dgx_h100",
        "dgx-h100:2",
    ),
    TopologyBuilder(
        "mi250",
        "nodes of eight MI250, 16 dies",
        f"{_MACHINES}:mi250",
        "mi250:2",
    ),
    TopologyBuilder(
        "mi300x",
        "MI300X, one machine of eight or several",
        f"{_MACHINES}:mi300x",
        "mi300x:2",
    ),
)


@hookimpl
def collhub_topologies() -> Sequence[TopologyBuilder]:
    """Describe the texts that name networks of several switches, and machines."""
    return _BUILDERS


_CHECK = Check(
    "connectedness",
    Subject.TOPOLOGY,
    "whether all NPUs reach one another, and what is often a slip",
    "collhub_topologies.facts.connectedness:check",
)


@hookimpl
def collhub_checks() -> Sequence[Check]:
    """Describe the check of networks."""
    return [_CHECK]


_COMMAND = Command(
    "topology",
    "Show, check, draw and convert a network.",
    "collhub_topologies.command.topology:topology",
)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Describe the command."""
    return [_COMMAND]
