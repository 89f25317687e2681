"""The offer `TopologyReader`: a file becomes a topology."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import Format
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class TopologyReader:
    """`read(source: Source, options) -> Topology`; `samples` as in `FormatReader`."""

    format: Format
    read: Reference
    options: type = NoOptions
    samples: Reference = ""

    @property
    def name(self) -> str:
        """The name of the format."""
        return self.format.name
