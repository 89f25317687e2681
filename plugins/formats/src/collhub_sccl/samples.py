"""Small correct algorithms for the conformance kit."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hub_core.plugin_api import Source


def samples() -> Sequence[Source]:
    """Ring all-gather of three ranks, and a reduce-scatter of two ranks with times."""
    ring = [[[(rank - step) % 3, rank, (rank + 1) % 3] for rank in range(3)] for step in range(2)]
    gather = [{"pre": [rank], "post": [0, 1, 2], "addr": rank} for rank in range(3)]
    scatter = [
        {"pre": [source], "post": [target], "addr": target}
        for target in range(2)
        for source in range(2)
    ]
    swap = [[[1, 0, 1, 0.0, 1.0, "rrc"], [0, 1, 0, 0.0, 1.0, "rrc"]]]
    return [
        build_document("ring.json", "msccl_type", "Allgather(n=3)", 3, gather, ring),
        build_document("swap.json", "sccl_type", "ReduceScatter(n=2)", 2, scatter, swap),
    ]


def profiles() -> Sequence[Source]:
    """A node of four equal GPUs, and one of three GPUs in a line with two links between the
    first two."""
    alike = {
        "name": "alike",
        "gpus_per_node": 4,
        "alpha": 0.5,
        "node_betas_list": [20],
        "node_invbws_list": [20.5],
    }
    line = {
        "name": "line",
        "gpus_per_node": 3,
        "alpha": 1,
        "links": [[0, 2, 0], [2, 0, 1], [0, 1, 0]],
        "betas": [[0, 10, 0], [10, 0, 20], [0, 20, 0]],
        "invbws": [[0, 11, 0], [11, 0, 21], [0, 21, 0]],
    }
    return [
        Source.of_bytes(f"{profile['name']}.json", json.dumps(profile).encode())
        for profile in (alike, line)
    ]


def build_document(
    file: str,
    tag: str,
    name: str,
    ranks: int,
    chunks: Sequence[object],
    steps: Sequence[Sequence[Sequence[object]]],
    divisions: int = 1,
) -> Source:
    """File with an algorithm of these chunks and sends per step."""
    instance = {tag: "instance", "steps": len(steps), "chunks": divisions, "pipeline": None}
    collective = {tag: "collective", "name": name, "nodes": ranks, "chunks": chunks}
    content = {
        tag: "algorithm",
        "name": name,
        "instance": instance,
        "steps": [{tag: "step", "rounds": 1, "sends": sends} for sends in steps],
        "collective": collective,
        "topology": {tag: "topology", "name": "any"},
    }
    return Source.of_bytes(file, json.dumps(content).encode())
