"""Options of the reader and the writer; nothing here needs either."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api import OptionType, choice, option, optional


@dataclass(frozen=True, slots=True)
class InfragraphReadOptions:
    """What a document leaves open."""

    npu_types: str = option(
        OptionType.TEXT, "xpu", "kinds of components that are NPUs, separated by commas: xpu,gpu"
    )
    bandwidth: str | None = optional(
        "bandwidth by name of link, as bandwidth.nvlink=450GB/s, device/link where several "
        "devices have a link of the name, bandwidth.*= for all that are left",
        OptionType.PAIRS,
    )
    latency: float | None = optional(
        "latency of every link for which the document states none (default: 0)",
        OptionType.TIME,
        minimum=0,
    )
    missing: str = choice(
        ("refuse", "unlimited"),
        "what becomes of links without a bandwidth: unlimited is for pictures and hop counts",
    )
    detail: str = choice(
        ("network", "full"),
        "network: cards, ports and slots that only pass data on become part of their links; "
        "full: every component is a node",
    )
    planes: str | None = optional(
        "names of links, separated by commas: links of each are a plane, all others the last one"
    )


@dataclass(frozen=True, slots=True)
class InfragraphWriteOptions:
    """Options of the writer `infragraph`."""

    annotations: bool = option(
        OptionType.BOOL,
        True,
        "add annotations where the document alone would give another network back; false: the bare "
        "document, which InfraGraph's own tools take as it is",
    )
