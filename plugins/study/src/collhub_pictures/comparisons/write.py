"""Write a comparison as an SVG picture, or as an HTML page."""

from __future__ import annotations

from collhub_pictures.comparisons.page import page
from collhub_pictures.comparisons.picture import draw
from hub_core.plugin_api import Artifact, NoOptions, ReportRequest, WriteResult


def write_picture(request: ReportRequest, options: NoOptions) -> WriteResult:
    """One file. Raises `UsageError` as `draw` does."""
    content = draw(request)
    return WriteResult([Artifact("", lambda: content)])


def write_page(request: ReportRequest, options: NoOptions) -> WriteResult:
    """One file. Raises `UsageError` as `draw` does."""
    content = page(request)
    return WriteResult([Artifact("", lambda: content)])
