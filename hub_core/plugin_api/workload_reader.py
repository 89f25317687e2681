"""The offer `WorkloadReader`: a format becomes a workload."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.reader import FormatReader
from hub_core.plugin_api.references import Reference


@dataclass(frozen=True, slots=True)
class WorkloadReader(FormatReader):
    """Producer: `read(source: Source, options) -> Workload`, otherwise as `FormatReader`.

    `claims(source: Source) -> bool`: whether what a reader of algorithms would take is a workload;
    never raises; default: no. `lines(workload: Workload) -> Sequence[str]`: shown by `inspect`.
    `network(source: Source, options: NoOptions) -> Topology`: the network that the source states
    beside the job; default: none.
    """

    claims: Reference = ""
    lines: Reference = ""
    network: Reference = ""
