"""Random networks with switches, and who reaches whom on them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hub_core import Topology
from hub_core.network import Links


@st.composite
def switched_networks(draw: st.DrawFn) -> Topology:
    npus, switches = draw(st.integers(2, 5)), draw(st.integers(1, 3))
    nodes = npus + switches
    pairs = draw(
        st.sets(st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1)), min_size=1)
    )
    ends = np.asarray(sorted((a, b) for a, b in pairs if a != b) or [(0, npus)], np.int64)
    return Links.uniform(ends[:, 0], ends[:, 1], 50e9, 1e-6).topology("random", npus, nodes)


def reached(topology: Topology, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
    """Which NPU reaches which over the given links: bool[NPUs, NPUs]."""
    table = np.eye(topology.num_nodes, dtype=np.bool_)
    table[source, destination] = True
    for _ in range(topology.num_nodes):
        table = table @ table
    return table[: topology.num_npus, : topology.num_npus]
