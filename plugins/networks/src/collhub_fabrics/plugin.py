"""Offers of this distribution: readers of networks as described by the tools of clusters."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_fabrics.options import InfinibandOptions, TopographOptions, TreeOptions
from hub_core.plugin_api import Format, TopologyReader, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

INFINIBAND = TopologyReader(
    Format(
        "ibnetdiscover",
        "InfiniBand networks as printed by ibnetdiscover",
        (".ibnetdiscover", ".txt"),
        rb'(?m)^(?:Switch|Ca|Rt)[ \t]+\d+[ \t]+"[SHR]-',
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
    "collhub_fabrics.slurm:read",
    TreeOptions,
)

TOPOGRAPH = TopologyReader(
    Format(
        "topograph",
        "models of Topograph: trees of switches and NVLink domains",
        (".yaml", ".yml"),
        rb"(?m)^(?:switches|blocks|capacity_blocks)[ \t]*:",
    ),
    "collhub_fabrics.topograph:read",
    TopographOptions,
)


@hookimpl
def collhub_topologies() -> Sequence[TopologyReader]:
    """Return the readers."""
    return [INFINIBAND, SLURM, TOPOGRAPH]
