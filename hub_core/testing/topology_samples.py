"""Networks, and topology documents by which the kit tries the core's own reader."""

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
    """A ring, a switch, and a product of both."""
    found = []
    for text in ("ring:4", "switch:3", "ring:2*switch:2"):
        content = topology_to_json(_built(text))
        found.append(Source.of_bytes(f"{text}.json", content))
    return found


def sample_topologies() -> Mapping[str, Topology]:
    """Networks by name.

    Regular ones, a fat tree of two levels with names and groups, links one way alone, several
    cables between two nodes, several planes, and a switch that multicasts and reduces.
    """
    found = {text: _built(text) for text in ("ring:4", "switch:4", "ring:2*switch:2", "torus:3x3")}
    found["two planes"] = side_by_side("two planes", [_built("ring:4"), _built("switch:4")])
    found["two leaves"] = _two_leaves()
    found["multiplying switch"] = replace(
        _built("switch:4?multicast=true&reduce=true"), name="multiplying switch"
    )
    ring = np.arange(4)
    one_way = Links.uniform(ring, (ring + 1) % 4, 25e9, 1e-6)
    found["one way"] = one_way.topology("one way", 4, 4)
    pair = np.asarray([0, 1, 0, 1])
    double = Links.uniform(pair, 1 - pair, 25e9, 1e-6)
    found["two cables"] = double.topology("two cables", 2, 2)
    return found


def _two_leaves() -> Topology:
    """Four NPUs at two leaf switches, which two spine switches join."""
    cables = np.asarray([(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (4, 7), (5, 6), (5, 7)])
    ends = np.stack([cables, cables[:, ::-1]], axis=1).reshape(-1, 2)
    links = Links.uniform(ends[:, 0], ends[:, 1], 50e9, 1e-6)
    names = ("a", "b", "c", "d", "leaf 0", "leaf 1", "spine 0", "spine 1")
    groups = {"left": (0, 1), "right": (2, 3)}
    return links.topology("two leaves", 4, 8, node_names=names, groups=groups)


def _built(text: str) -> Topology:
    return build_topology(text, lambda name: regular)
