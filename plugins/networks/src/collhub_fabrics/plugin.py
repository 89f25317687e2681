"""Offers of this package: readers of networks that tools of clusters describe, options, rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    OptionType,
    Rule,
    RuleSet,
    TopologyReader,
    declare_rules,
    hookimpl,
    option,
    optional,
)


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Properties that no description of a cluster contains: bandwidth within a host, and
    latencies.
    """

    node_bandwidth: float | None = optional(
        "bandwidth between a GPU and its host, if a host has several", OptionType.BANDWIDTH
    )
    latency: float = option(OptionType.TIME, 500e-9, "latency of every link", minimum=0)


@dataclass(frozen=True, slots=True)
class TreeOptions(HostOptions):
    """Options of trees without bandwidths."""

    bandwidth: str | None = optional(
        "bandwidth of a cable: one for all, or one per level from the hosts up, as 50GB/s,100GB/s"
    )
    gpus_per_node: int = option(
        OptionType.INT, 1, "GPUs per host; a host with several GPUs is a switch", minimum=1
    )
    nics: int | None = optional(
        "NICs per host, each with a cable: with equally many NICs and GPUs, each GPU has its own "
        "(default: one cable for the host)",
        OptionType.INT,
        minimum=1,
    )
    rails: int = option(
        OptionType.INT,
        1,
        "copies of the tree of switches: NIC k of every host is on rail k modulo this",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class TopographOptions(TreeOptions):
    """Options of the reader `topograph`."""

    nvlink_bandwidth: float | None = optional(
        "bandwidth of a host into its NVLink domain (default: domains are groups, no links)",
        OptionType.BANDWIDTH,
    )


@dataclass(frozen=True, slots=True)
class InfinibandOptions(HostOptions):
    """Options of the reader `ibnetdiscover`."""

    bandwidth: float | None = optional(
        "bandwidth of cables without a rate in the file", OptionType.BANDWIDTH
    )
    gpus_per_node: int | None = optional(
        "GPUs per host, which use all of its cards (default: a GPU for each card)",
        OptionType.INT,
        minimum=1,
    )


COLLHUB_PLUGIN_API = (1, 0)

INFINIBAND = TopologyReader(
    Format(
        "ibnetdiscover",
        "InfiniBand networks as printed by ibnetdiscover",
        (".ibnetdiscover", ".txt"),
        rb'(?m)^(?:(?:Switch|Ca|Rt)[ \t]+\d+[ \t]+"[SHR]-'
        rb"|(?:CA|SW|RT)[ \t]+\d+[ \t]+\d+[ \t]+0x[0-9a-fA-F]{16}[ \t])",
    ),
    "collhub_fabrics.ibnetdiscover:read",
    InfinibandOptions,
    samples="collhub_fabrics.ibnetdiscover:build_infiniband_samples",
)

SLURM = TopologyReader(
    Format(
        "slurm",
        "trees and blocks of Slurm's topology.conf",
        (".conf",),
        rb"(?im)^[ \t]*(?:switchname|blockname)=",
    ),
    "collhub_fabrics.scheduler_files:read_slurm",
    TreeOptions,
)

TOPOGRAPH = TopologyReader(
    Format(
        "topograph",
        "models of Topograph: trees of switches and NVLink domains",
        (".yaml", ".yml"),
        rb"(?m)^(?:switches|blocks|capacity_blocks)[ \t]*:",
    ),
    "collhub_fabrics.scheduler_files:read_topograph",
    TopographOptions,
)


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader]:
    """Return the readers of InfiniBand listings, Slurm's topology files and Topograph's documents,
    in this order.
    """
    return [INFINIBAND, SLURM, TOPOGRAPH]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Rules of the readers."""
    return [
        RuleSet(
            "fabrics", "findings in descriptions of clusters", "collhub_fabrics.plugin:list_rules"
        )
    ]


_RULES = (
    (
        "invalid-fabric",
        "The description of the cluster is incomplete or contradicts itself.",
        "Lines are missing, a switch is described twice, or a host is unknown.",
        "Give the complete output; the message names line and expected value.",
        "`SwitchName=s0 Switches=s1` without s1",
    ),
    (
        "aggregation-node",
        "A card of a switch that reduces in the network is left out.",
        "The switch has an aggregation node (SHARP).",
        "No action is needed.",
        "`Mellanox Technologies Aggregation Node`",
    ),
    (
        "unequal-rates",
        "The ends of a cable have different rates; the lower one is used.",
        "A port has negotiated a lower rate.",
        "Check the cable.",
        "4xHDR at one end, 4xEDR at the other",
    ),
    (
        "one-cable",
        "A host with several GPUs has one cable at each of its switches.",
        "The description contains no network cards.",
        "Give the cards: `FILE?nics=8`.",
        "`FILE?gpus_per_node=8`",
    ),
    (
        "nvlink-domains",
        "NVLink domains are groups without links.",
        "The description contains no bandwidth.",
        "Give it: `FILE?nvlink_bandwidth=450GB/s`.",
        "a domain of 18 hosts",
    ),
    (
        "empty-leaves",
        "Leaf switches have no hosts.",
        "A switch lists them, but no block of a Topograph model names them.",
        "No action is needed, unless the name of a block's switch is misspelt.",
        "a rack whose hosts are not installed yet",
    ),
    (
        "hosts-without-switch",
        "Hosts are left out, because they are at no switch.",
        "A block of a Topograph model names no switch.",
        "Add `switch` to the block.",
        "hosts without InfiniBand",
    ),
    (
        "inexpressible-topology",
        "The network cannot be written in the format.",
        "Links have no reverse link, or it has several planes.",
        "Write another format, such as the JSON document of the hub.",
        "a ring with links in one direction",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return declare_rules(
        "descriptions of clusters by ibnetdiscover, Slurm and Topograph, and network documents",
        _RULES,
    )
