"""Networks whose links stand in levels, each of one class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from collhub_columns import Int64Array

from hub_core.network import MAX_NODES, Links, Topology, TopologyText


def check_npus(text: TopologyText, npus: int) -> None:
    """Raise `UsageError` for more NPUs than a network with switches can have."""
    # At least as many switches and links come with them.
    if npus > MAX_NODES // 2:
        raise text.error("too large", f"stay below {MAX_NODES // 2} NPUs")


def span(index: int, size: int) -> tuple[int, ...]:
    """The NPUs of one group.

    Groups of `size` stand one after the other.
    """
    return tuple(range(index * size, (index + 1) * size))


def both_ways(
    low: Int64Array, high: Int64Array, bandwidth_bytes_per_s: float, latency_s: float
) -> Links:
    """A link each way between `low[i]` and `high[i]`, all those from `low` first."""
    # Both directions of a pair are links of their own.
    source, destination = np.concatenate([low, high]), np.concatenate([high, low])
    return Links.uniform(source, destination, bandwidth_bytes_per_s, latency_s)


def joined_levels(
    name: str,
    npus: int,
    switch_names: Sequence[str],
    levels: Sequence[tuple[Int64Array, Int64Array]],
    constants: Sequence[tuple[float, float]],
    groups: Mapping[str, tuple[int, ...]],
) -> Topology:
    """A network of levels.

    Every (low, high) pair is a link each way, of one class a level; links stand in the order of
    their sources. `switch_names`: in the order of their ids.
    """
    parts = []
    for ends, pair in zip(levels, constants, strict=True):
        parts.append(both_ways(*ends, *pair))
    # The order of links decides ties in routing; texts promise the order of sources.
    links = Links.joined(parts).by_source()
    names = (*map(str, range(npus)), *switch_names)
    nodes = npus + len(switch_names)
    return links.topology(name, npus, nodes, node_names=names, groups=groups)
