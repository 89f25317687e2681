"""Topology documents, by which the kit tries the core's own reader."""

from __future__ import annotations

from collections.abc import Sequence

from hub_core.documents.topologies import topology_to_json
from hub_core.network.regular import regular
from hub_core.network.texts import build_topology
from hub_core.plugin_api.sources import Source


def topology_samples() -> Sequence[Source]:
    """A ring, a switch, and a product of both."""
    found = []
    for text in ("ring:4", "switch:3", "ring:2*switch:2"):
        content = topology_to_json(build_topology(text, lambda name: regular))
        found.append(Source.of_bytes(f"{text}.json", content))
    return found
