"""The offer `FormatWriter`: an algorithm becomes files of a format."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class FormatWriter(FormatOffer):
    """Consumer: `write(algorithm: Algorithm, options) -> WriteResult`."""

    write: Reference
    options: type = NoOptions
