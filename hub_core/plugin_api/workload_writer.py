"""The offer `WorkloadWriter`: a workload becomes files of a format."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.formats import FormatOffer
from hub_core.plugin_api.options import NoOptions
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class WorkloadWriter(FormatOffer):
    """Consumer: `write(workload: Workload, options) -> WriteResult`."""

    write: Reference
    options: type = NoOptions
