"""The offer `TopologyReader`: a file becomes a topology."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class TopologyReader(FormatOffer):
    """`read(source: Source, options) -> Topology`; `samples` as in `FormatReader`."""

    read: Reference
    options: type = NoOptions
    samples: Reference = ""
