"""Sample topologies, and topology documents as samples for the core's reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hub_core.documents.topologies import topology_to_json
from hub_core.network.links import Links
from hub_core.network.planes import side_by_side
from hub_core.network.regular import regular
from hub_core.network.texts import build_topology
from hub_core.network.topology import Topology
from hub_core.plugin_api.sources import Source


def topology_samples() -> Sequence[Source]:
    """Topology documents (JSON) of a ring, a switch, and a product of both."""
    sources = []
    for text in ("ring:4", "switch:3", "ring:2*switch:2"):
        content = topology_to_json(_build_regular(text))
        sources.append(Source.of_bytes(f"{text}.json", content))
    return sources


def sample_topologies() -> Mapping[str, Topology]:
    """Build sample topologies by name.

    Four regular ones, two planes, a two-level fat tree with node names and groups, a switch that
    multicasts and reduces, unidirectional links, and two cables between two nodes.
    """
    samples = {
        text: _build_regular(text)
        for text in ("ring:4", "switch:4", "ring:2*switch:2", "torus:3x3")
    }
    samples["two planes"] = side_by_side(
        "two planes", [_build_regular("ring:4"), _build_regular("switch:4")]
    )
    samples["two leaves"] = _build_fat_tree()
    samples["multiplying switch"] = replace(
        _build_regular("switch:4?multicast=true&reduce=true"), name="multiplying switch"
    )
    ring = np.arange(4)
    one_way = Links.uniform(ring, (ring + 1) % 4, 25e9, 1e-6)
    samples["one way"] = one_way.topology("one way", 4, 4)
    pair = np.asarray([0, 1, 0, 1])
    double = Links.uniform(pair, 1 - pair, 25e9, 1e-6)
    samples["two cables"] = double.topology("two cables", 2, 2)
    return samples


def _build_fat_tree() -> Topology:
    """Four NPUs at two leaf switches, which are connected by two spine switches."""
    cables = np.asarray([(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (4, 7), (5, 6), (5, 7)])
    ends = np.stack([cables, cables[:, ::-1]], axis=1).reshape(-1, 2)
    links = Links.uniform(ends[:, 0], ends[:, 1], 50e9, 1e-6)
    names = ("a", "b", "c", "d", "leaf 0", "leaf 1", "spine 0", "spine 1")
    groups = {"left": (0, 1), "right": (2, 3)}
    return links.topology("two leaves", 4, 8, node_names=names, groups=groups)


def _build_regular(text: str) -> Topology:
    """Build a topology text of regular networks, without the registry."""
    return build_topology(text, lambda name: regular)
