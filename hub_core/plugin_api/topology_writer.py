"""The offer `TopologyWriter`: a topology becomes a file of a format."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import Format
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class TopologyWriter:
    """Consumer: `write(topology: Topology, options) -> WriteResult`."""

    format: Format
    write: Reference
    options: type = NoOptions

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name
