"""Register the report writers: networks and comparisons as SVG, runs as timelines."""

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
_JOB_TRACE = Format(
    "job-chrome-trace",
    "timeline of a job, which ui.perfetto.dev and chrome://tracing show",
    (".json",),
)
_COMPARISON = Format(
    "comparison-svg", "SVG picture of a comparison: bandwidth over size", (".svg",)
)
_COMPARISON_PAGE = Format(
    "comparison-html", "page with the picture and the numbers of a comparison", (".html",)
)

_WAITS = Format("waits-svg", "SVG picture of the wait-for graph of a hung job", (".svg",))


@hookimpl
def collhub_consumers() -> Sequence[ReportWriter]:
    """Return the report writers of this plugin: an SVG of a network, Chrome traces of a run and of
    a job, an SVG and a page of a comparison, and a picture of waits.
    """
    return [
        ReportWriter(_SVG, Shown.TOPOLOGY, "collhub_pictures.network_picture:write"),
        ReportWriter(_CHROME_TRACE, Shown.RUN, "collhub_pictures.timelines:write"),
        ReportWriter(_JOB_TRACE, Shown.JOB, "collhub_pictures.timelines:write_job"),
        ReportWriter(
            _COMPARISON, Shown.COMPARISON, "collhub_pictures.comparison_picture:write_picture"
        ),
        ReportWriter(
            _COMPARISON_PAGE, Shown.COMPARISON, "collhub_pictures.comparison_picture:write_page"
        ),
        ReportWriter(_WAITS, Shown.WAITS, "collhub_pictures.waits:write"),
    ]
