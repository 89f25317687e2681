"""Offers of this distribution: topology texts, a check of networks and its rules, a command."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import (
    Check,
    Command,
    Rule,
    RuleSet,
    Subject,
    TopologyBuilder,
    declare_rules,
    hookimpl,
)

COLLHUB_PLUGIN_API = (1, 0)

# References as texts, so that listing the offers imports no builder.
_NETWORKS = "collhub_topologies.networks"

_MACHINES = "collhub_topologies.machines"

_BUILDERS = (
    TopologyBuilder(
        "hypercube",
        "2^n NPUs in n dimensions",
        f"{_NETWORKS}:build_hypercube",
        "hypercube:3",
    ),
    TopologyBuilder(
        "fat-tree",
        "switches of k ports in three levels",
        f"{_NETWORKS}:build_fat_tree",
        "fat-tree:4",
    ),
    TopologyBuilder(
        "dragonfly",
        "groups of fully connected routers: routers per group, NPUs and global links per router",
        f"{_NETWORKS}:build_dragonfly",
        "dragonfly:4,2,2",
    ),
    TopologyBuilder(
        "leaf-spine",
        "switches in two levels: leaves, NPUs per leaf, spines",
        f"{_NETWORKS}:build_leaf_spine",
        "leaf-spine:8,8,4",
    ),
    TopologyBuilder(
        "rail", "nodes of GPUs, one switch per rail", f"{_NETWORKS}:build_rail", "rail:4x8"
    ),
    TopologyBuilder(
        "dgx1p", "DGX-1 with P100, one or several", f"{_MACHINES}:build_dgx1p", "dgx1p:2"
    ),
    TopologyBuilder(
        "dgx1v", "DGX-1 with V100, one or several", f"{_MACHINES}:build_dgx1v", "dgx1v:2"
    ),
    TopologyBuilder(
        "dgx1v-smi",
        "DGX-1V as nvidia-smi numbers it, one or several",
        f"{_MACHINES}:build_dgx1v_smi",
        "dgx1v-smi:2",
    ),
    TopologyBuilder(
        "dgx1-pcie",
        "the PCIe trees of DGX-1, one or several",
        f"{_MACHINES}:build_dgx1_pcie",
        "dgx1-pcie:2",
    ),
    TopologyBuilder(
        "dgx2",
        "DGX-2 with 16 V100 behind NVSwitches, one or several",
        f"{_MACHINES}:build_dgx2",
        "dgx2:2",
    ),
    TopologyBuilder(
        "dgx-a100",
        "DGX A100, one or several",
        f"{_MACHINES}:build_dgx_a100",
        "dgx-a100:2",
    ),
    TopologyBuilder(
        "dgx-h100",
        "DGX H100, one or several",
        f"{_MACHINES}:build_dgx_h100",
        "dgx-h100:2",
    ),
    TopologyBuilder(
        "dgx-h200",
        "DGX H200, one or several",
        f"{_MACHINES}:build_dgx_h200",
        "dgx-h200:2",
    ),
    TopologyBuilder(
        "dgx-b200",
        "DGX B200, one or several",
        f"{_MACHINES}:build_dgx_b200",
        "dgx-b200:2",
    ),
    TopologyBuilder(
        "dgx-b300",
        "DGX B300, one or several",
        f"{_MACHINES}:build_dgx_b300",
        "dgx-b300:2",
    ),
    TopologyBuilder(
        "gb200",
        "tray of four GB200, or trays of an NVL72 in one NVLink domain",
        f"{_MACHINES}:build_gb200",
        "gb200:18",
    ),
    TopologyBuilder(
        "gb300",
        "tray of four GB300, or trays of an NVL72 in one NVLink domain",
        f"{_MACHINES}:build_gb200",
        "gb300:18",
    ),
    TopologyBuilder(
        "gh200-slingshot",
        "nodes of four GH200 with Slingshot NICs, one or several",
        f"{_MACHINES}:build_gh200_slingshot",
        "gh200-slingshot:2",
    ),
    TopologyBuilder(
        "p4de", "AWS p4de with 8 A100, one or several", f"{_MACHINES}:build_p4de", "p4de:2"
    ),
    TopologyBuilder("p5", "AWS p5 with 8 H100, one or several", f"{_MACHINES}:build_p5", "p5:2"),
    TopologyBuilder(
        "p6-b200", "AWS p6 with 8 B200, one or several", f"{_MACHINES}:build_p6_b200", "p6-b200:2"
    ),
    TopologyBuilder("l40s", "eight L40S on one PCIe 4 root", f"{_MACHINES}:build_l40s", "l40s"),
    TopologyBuilder(
        "rtx-pro-6000",
        "eight RTX PRO 6000 on one PCIe 5 root",
        f"{_MACHINES}:build_rtx_pro_6000",
        "rtx-pro-6000",
    ),
    TopologyBuilder(
        "mi250",
        "nodes of eight MI250, 16 dies",
        f"{_MACHINES}:build_mi250",
        "mi250:2",
    ),
    TopologyBuilder(
        "mi300x",
        "hosts of eight MI300X, one or several",
        f"{_MACHINES}:build_mi300x",
        "mi300x:2",
    ),
)


@hookimpl
def collhub_topologies() -> Sequence[TopologyBuilder]:
    """Return the builders of networks with several switches, and of commercial machines."""
    return _BUILDERS


_CHECK = Check(
    "connectedness",
    Subject.TOPOLOGY,
    "whether all NPUs reach one another, and likely mistakes",
    "collhub_topologies.connectedness:check",
)


@hookimpl
def collhub_checks() -> Sequence[Check | RuleSet]:
    """Return the check of networks, and its rules."""
    return [
        _CHECK,
        RuleSet("topologies", "findings in networks", "collhub_topologies.plugin:list_rules"),
    ]


_COMMAND = Command(
    "topology",
    "Show, check, draw and convert a network.",
    "collhub_topologies.topology_command:topology",
)


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the plugin's only command, `collhub topology`."""
    return [_COMMAND]


_NETWORK_RULES = (
    (
        "npu-without-links",
        "An NPU has no link.",
        "A link is missing, or NPUs are numbered from 1.",
        "Add links, or leave the NPU out.",
        "4 NPUs, and links between NPUs 0, 1 and 2",
    ),
    (
        "unreachable",
        "An NPU cannot reach another one.",
        "Links are missing, or lead in one direction only.",
        "Add the missing links, or name the NPUs of one part, as in `?npus=0-3`.",
        "two rings without a link between them",
    ),
    (
        "one-way-links",
        "Links have no reverse link.",
        "The network is directed, or links were left out.",
        "No action is needed for directed networks; else add the reverse links.",
        "a link from 0 to 1 without the opposite one",
    ),
    (
        "unequal-directions",
        "A link differs from its reverse link.",
        "Bandwidth or latency of one direction is different.",
        "No action is needed if this is intended.",
        "100 GB/s from 0 to 1 and 50 GB/s from 1 to 0",
    ),
    (
        "parallel-links",
        "Several links join the same two nodes in one direction.",
        "The network has bonded links.",
        "No action is needed if this is intended.",
        "two links from 0 to 1",
    ),
    (
        "idle-switch",
        "A switch has no links in or no links out, so that no message can pass.",
        "Its links were left out.",
        "Add the links, or leave the switch out.",
        "a switch with one link in",
    ),
)

_REQUESTS = (
    (
        "loads",
        "The file with loads of links is not readable.",
        "It is missing, or is no report with loads.",
        "Give the output of `collhub simulate --json`.",
        "`--loads` with another file",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return [
        *declare_rules("networks, by `collhub topology check`", _NETWORK_RULES),
        *declare_rules("requests: networks", _REQUESTS),
    ]
