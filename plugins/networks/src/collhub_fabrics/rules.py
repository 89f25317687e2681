"""Rules of descriptions of clusters: ibnetdiscover, Slurm and Topograph."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Rule, declare_rules

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
