"""Register the writer of interactive pages and the command `view`."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.plugin_api import Command, Format, ReportWriter, Shown, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

_PAGE = Format("page", "interactive page in one file, without network requests", (".html",))


@hookimpl
def collhub_consumers() -> Sequence[ReportWriter]:
    """Return the plugin's only report writer, that of interactive pages."""
    return [ReportWriter(_PAGE, Shown.PAGE, "collhub_viewer.write_page:write")]


@hookimpl
def collhub_commands() -> Sequence[Command]:
    """Return the plugin's only command, `collhub view`."""
    return [
        Command(
            "view",
            "Show runs, jobs, networks and comparisons on an interactive page.",
            "collhub_viewer.command:view",
        )
    ]
