"""What this distribution offers to the hub: networks as SVG, runs as timelines."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Format, ReportWriter, Shown, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

_SVG = Format("svg", "SVG picture of a network", (".svg",))
# The "Trace Event Format" of the Chromium project.
_CHROME_TRACE = Format(
    "chrome-trace",
    "timeline of a run, which ui.perfetto.dev and chrome://tracing show",
    (".json",),
)


@hookimpl
def collhub_consumers() -> Sequence[ReportWriter]:
    """Describe the writers of reports."""
    return [
        ReportWriter(_SVG, Shown.TOPOLOGY, "collhub_pictures.networks.write:write"),
        ReportWriter(_CHROME_TRACE, Shown.RUN, "collhub_pictures.timelines.write:write"),
    ]
