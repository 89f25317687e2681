"""Offers of this plugin to the hub: the reader of HLO text."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_hlo.options import HLO, HloOptions
from hub_core.plugin_api import Format, WorkloadReader, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

_HLO_TEXT = Format(
    HLO,
    "compiled programs of XLA (HLO text of JAX and others), one module for all devices",
    (".hlo", ".hlo.txt", ".hlo.gz", ".hlo.txt.gz"),
    rb"\A(?:\s|//[^\n]*\n)*HloModule\s",
)


@hookimpl
def collhub_producers() -> Sequence[WorkloadReader]:
    """Describe the reader."""
    return [
        WorkloadReader(
            _HLO_TEXT,
            "collhub_hlo.read:read",
            HloOptions,
            lines="collhub_hlo.read:lines",
            samples="collhub_hlo.samples:modules",
        )
    ]
