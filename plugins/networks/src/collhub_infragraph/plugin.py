"""Offers of this package: reader and writer of InfraGraph documents; their options and rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    OptionType,
    Rule,
    RuleSet,
    TopologyReader,
    TopologyWriter,
    choice,
    declare_rules,
    hookimpl,
    option,
    optional,
)


@dataclass(frozen=True, slots=True)
class InfragraphReadOptions:
    """Values that a document does not contain."""

    npu_types: str = option(
        OptionType.TEXT,
        "xpu,npu",
        "kinds of components that are NPUs, separated by commas: xpu,gpu",
    )
    bandwidth: str | None = optional(
        "bandwidth by name of link, as bandwidth.nvlink=450GB/s; device/link if several "
        "devices have a link of that name; bandwidth.*= for all remaining links",
        OptionType.PAIRS,
    )
    latency: float | None = optional(
        "latency of every link without one in the document (default: 0)",
        OptionType.TIME,
        minimum=0,
    )
    missing: str = choice(
        ("refuse", "unlimited"),
        "treatment of links without a bandwidth: unlimited is for pictures and hop counts",
    )
    detail: str = choice(
        ("network", "full"),
        "network: cards, ports and slots that only forward become part of their links; "
        "full: every component is a node",
    )
    planes: str | None = optional(
        "names of links, separated by commas: each name is a plane, the remaining links are "
        "the last one"
    )


@dataclass(frozen=True, slots=True)
class InfragraphWriteOptions:
    """Options of the writer `infragraph`."""

    annotations: bool = option(
        OptionType.BOOL,
        True,
        "add annotations if the bare document would give another network back; false: the bare "
        "document, which InfraGraph's own tools read unchanged",
    )


COLLHUB_PLUGIN_API = (1, 0)

# A key at the start of a line (YAML), or in quotes (JSON). `nodes` belongs to the node-link form.
_SIGNATURE = (
    rb"(?m)^(?:infrastructure|instances|devices|directed)[ \t]*:"
    rb'|"(?:infrastructure|instances|devices)"[ \t]*:'
)

INFRAGRAPH = Format(
    "infragraph",
    "networks as InfraGraph documents, in YAML or JSON",
    (".yaml", ".yml", ".json"),
    _SIGNATURE,
    members=("infrastructure", "instances", "devices", "edges"),
)


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader | TopologyWriter]:
    """Return the reader and the writer of topologies in the InfraGraph format, in this order."""
    return [
        TopologyReader(
            INFRAGRAPH,
            "collhub_infragraph.read:read",
            InfragraphReadOptions,
            samples="collhub_infragraph.read:build_samples",
        ),
        TopologyWriter(
            INFRAGRAPH,
            "collhub_infragraph.write:write",
            InfragraphWriteOptions,
        ),
    ]


@hookimpl
def collhub_checks() -> Sequence[RuleSet]:
    """Rules of the reader and the writer."""
    return [
        RuleSet(
            "infragraph", "findings in InfraGraph documents", "collhub_infragraph.plugin:list_rules"
        )
    ]


_RULES = (
    (
        "invalid-infragraph",
        "The document is no valid InfraGraph.",
        "A member is missing, or an endpoint, device or link does not exist.",
        "Correct the member that the message names.",
        "an edge to a device that is not defined",
    ),
    (
        "no-bandwidth",
        "Edges have no bandwidth.",
        "InfraGraph describes the structure; bandwidths are optional.",
        "Give them: `FILE?bandwidth=50GB/s`, or per link.",
        "a link without `physical.bandwidth`",
    ),
    (
        "no-npu",
        "No component is of the kind that counts as NPU.",
        "The devices have other kinds.",
        "Name the kind: `FILE?npu_types=`.",
        "a document with only switches",
    ),
    (
        "unconnected-npus",
        "Some NPUs cannot reach the others over links.",
        "Edges are missing.",
        "Add edges, or read a part of the document.",
        "two hosts without a network",
    ),
    (
        "ranks",
        "The annotations `rank` do not number all NPUs once; document order is used.",
        "Annotations were copied.",
        "Give every NPU a different rank.",
        "two NPUs with rank 0",
    ),
    (
        "cut-edges",
        "Slices of different lengths are paired up to the shorter one.",
        "An edge names more ports at one end.",
        "Use slices of equal length.",
        "nic[0:2] to port[0:4]",
    ),
    (
        "supplied-bandwidth",
        "Bandwidths are those of the option.",
        "The document lacks them, or the option replaces them.",
        "No action is needed.",
        "`FILE?bandwidth=50GB/s`",
    ),
    (
        "supplied-latency",
        "Latencies are those of the option or its default.",
        "The document lacks them.",
        "Give them: `FILE?latency=500ns`.",
        "a link without `physical.latency`",
    ),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration."""
    return declare_rules("InfraGraph documents, when they are read", _RULES)
