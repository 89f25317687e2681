"""Offers of this distribution: reader and writer of InfraGraph documents."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_infragraph.options import InfragraphReadOptions, InfragraphWriteOptions
from hub_core.plugin_api import Format, TopologyReader, TopologyWriter, hookimpl

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
    """Return the reader and the writer."""
    return [
        TopologyReader(
            INFRAGRAPH,
            "collhub_infragraph.reading.read:read",
            InfragraphReadOptions,
            samples="collhub_infragraph.reading.read:build_samples",
        ),
        TopologyWriter(
            INFRAGRAPH,
            "collhub_infragraph.writing.write:write",
            InfragraphWriteOptions,
        ),
    ]
