"""Write a network as text: a line a link."""

from __future__ import annotations

from hub_core import UsageError
from hub_core.plugin_api import Artifact, NoOptions, ReportRequest, WriteResult


def write(request: ReportRequest, options: NoOptions) -> WriteResult:
    """Return one artifact."""
    if request.topology is None:
        raise UsageError("example shows networks only")
    topology = request.topology
    lines = [f"{request.title}: {topology.num_npus} NPUs, {topology.num_links} links"]
    for link in topology.links():
        ends = f"{topology.node_name(link.source)} -> {topology.node_name(link.destination)}"
        lines.append(f"{ends}  {link.bandwidth_bytes_per_s / 1e9:g} GB/s")
    return WriteResult([Artifact("", ("\n".join(lines) + "\n").encode("utf-8"))])
