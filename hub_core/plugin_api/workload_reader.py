"""The offer `WorkloadReader`: a format becomes a workload."""

from __future__ import annotations

from dataclasses import dataclass

from hub_core.plugin_api.reader import FormatReader


@dataclass(frozen=True, slots=True)
class WorkloadReader(FormatReader):
    """Producer: `read(source: Source, options) -> Workload`, otherwise as `FormatReader`.

    Where a file holds messages and local work alone, it may return a timing-only `Algorithm`.
    """
