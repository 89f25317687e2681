"""Write a network as text: a line a link."""

from __future__ import annotations

from hub_core.plugin_api import Artifact, NoOptions, TopologyDrawing, WriteResult


def write(drawing: TopologyDrawing, options: NoOptions) -> WriteResult:
    """Return one artifact."""
    topology = drawing.topology
    lines = [f"{drawing.title}: {topology.num_npus} NPUs, {topology.num_links} links"]
    for link in topology.links():
        ends = f"{topology.node_name(link.source)} -> {topology.node_name(link.destination)}"
        lines.append(f"{ends}  {link.bandwidth_bytes_per_s / 1e9:g} GB/s")
    return WriteResult([Artifact("", ("\n".join(lines) + "\n").encode("utf-8"))])
