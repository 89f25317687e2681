"""The offer `TopologyWriter`: a topology becomes a file of a format."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class TopologyWriter(FormatOffer):
    """Consumer: `write(topology: Topology, options) -> WriteResult`."""

    write: Reference
    options: type = NoOptions
