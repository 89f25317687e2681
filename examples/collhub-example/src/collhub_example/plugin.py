"""What this distribution offers to the hub; listing it imports neither reader nor writer."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_example.options import WriteOptions
from hub_core.plugin_api import Format, FormatReader, FormatWriter, hookimpl

COLLHUB_PLUGIN_API = (1, 0)

FORMAT = Format("example", "one line of text a step", (".example",), rb"^example 1\n")


@hookimpl
def collhub_producers() -> Sequence[FormatReader]:
    """Offer the reader."""
    return [FormatReader(FORMAT, "collhub_example.read:read")]


@hookimpl
def collhub_consumers() -> Sequence[FormatWriter]:
    """Offer the writer."""
    return [FormatWriter(FORMAT, "collhub_example.write:write", WriteOptions)]
