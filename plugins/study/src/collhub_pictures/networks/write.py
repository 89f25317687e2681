"""Write a network as an SVG picture."""

from __future__ import annotations

from collhub_pictures.networks.collapsed_groups import Collapse
from collhub_pictures.networks.picture import draw
from hub_core.plugin_api import Artifact, NoOptions, ReportRequest, WriteResult


def write(request: ReportRequest, options: NoOptions) -> WriteResult:
    """One file. Raises `UsageError` as `draw` does."""
    assert request.topology is not None
    collapse = Collapse(request.collapse)
    content = draw(request.topology, request.link_loads, request.time_ns, collapse)
    return WriteResult([Artifact("", lambda: content)])
