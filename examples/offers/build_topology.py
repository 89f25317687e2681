"""Build the networks that texts such as `example:4` name: all NPUs joined to NPU 0."""

from __future__ import annotations

import numpy as np

from hub_core import Topology
from hub_core.network import Links, TopologyText


def build(text: TopologyText) -> Topology:
    """Return the star that a text names. Raises `UsageError` for other arguments."""
    (npus,) = text.parameters(1, "x", "example:4")
    ((bandwidth, latency),) = text.per_dimension(1)
    leaf = np.arange(1, npus, dtype=np.int64)
    out = Links.uniform(0 * leaf, leaf, bandwidth, latency)
    back = Links.uniform(leaf, 0 * leaf, bandwidth, latency)
    return Links.joined([out, back]).topology(text.text, npus, npus)
