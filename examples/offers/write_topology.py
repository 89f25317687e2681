"""Write a network as text, a line a link; what a line cannot say is a loss."""

from __future__ import annotations

from hub_core import InputError, Loss, Topology
from hub_core.network import DEFAULT_BANDWIDTH_BYTES_PER_S, DEFAULT_LATENCY_S
from hub_core.plugin_api import Artifact, NoOptions, WriteResult

TITLE = "example-links 1"


def write(topology: Topology, options: NoOptions) -> WriteResult:
    """One file. Raises `InputError` for networks with switches."""
    if topology.num_nodes > topology.num_npus:
        message = f"{topology.name} has switches, which a line a link cannot name"
        raise InputError(message, cure="write the hub's JSON document", code="has-switches")
    pairs = zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
    lines = [TITLE, *(f"{source} {destination}" for source, destination in pairs)]
    content = "\n".join(lines).encode() + b"\n"
    return WriteResult([Artifact("", content)], _losses(topology))


def _losses(topology: Topology) -> list[Loss]:
    """What a line does not say, where the network has it: a loss is what reading back shows."""
    is_plain = (topology.bandwidth_bytes_per_s == DEFAULT_BANDWIDTH_BYTES_PER_S).all()
    is_plain &= (topology.latency_s == DEFAULT_LATENCY_S).all()
    lost = {
        "bandwidths and latencies": not is_plain,
        "planes": topology.num_planes > 1,
        "dimensions": bool(topology.dimensions),
        "node names": bool(topology.node_names),
        "groups": bool(topology.groups),
    }
    where = topology.name
    return [Loss(feature, where, "a line has no word for it") for feature in lost if lost[feature]]
