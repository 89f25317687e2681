"""Write a network as an SVG picture."""

from __future__ import annotations

from collhub_pictures.networks.picture import draw
from hub_core.plugin_api import Artifact, NoOptions, ReportRequest, WriteResult


def write(request: ReportRequest, options: NoOptions) -> WriteResult:
    """One file. Raises `UsageError` for a network that is too large for a picture."""
    assert request.topology is not None
    content = draw(request.topology)
    return WriteResult([Artifact("", lambda: content)])
