"""Offers of this package: reader and writer of InfraGraph documents; their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hub_core.plugin_api import (
    Format,
    OptionType,
    RuleSet,
    TopologyReader,
    TopologyWriter,
    choice,
    hookimpl,
    option,
    optional,
)


@dataclass(frozen=True, slots=True)
class InfragraphReadOptions:
    """Values that a document does not contain."""

    npu_types: str = option(
        OptionType.TEXT, "xpu", "kinds of components that are NPUs, separated by commas: xpu,gpu"
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
            "collhub_infragraph.reading.read:read",
            InfragraphReadOptions,
            samples="collhub_infragraph.reading.read:build_samples",
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
            "infragraph", "findings in InfraGraph documents", "collhub_infragraph.rules:list_rules"
        )
    ]
