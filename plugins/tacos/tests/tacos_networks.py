"""Heterogeneous networks on which synthesizers are measured, here and in `benchmarks/tacos`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hub_core import parse_topology
from hub_core.network import Links, Topology

GIB = 1 << 30
_LATENCY_S = 0.5e-6
_RATES = {"ring": 200 * GIB, "full": 100 / 3 * GIB, "switch": 50 * GIB}

# Network, chunks a node, total bytes, microseconds: what the tests of TACOS v1.3.0 expect, which is
# the bound.
TESTS_OF_THE_RELEASE = [
    ("mesh:5x5?bandwidth=50GiB/s&latency=500ns", 1, GIB, 9606.00),
    ("mesh:10x10?bandwidth=100GiB/s&latency=1us", 2, GIB, 5049.00),
    ("mesh:7x12?bandwidth=100GiB/s&latency=1us", 3, 4 * GIB, 19966.27),
    ("mesh:5x5?bandwidth=50GiB/s,75GiB/s&latency=500ns", 1, GIB, 8005.00),
    ("mesh:8x5?bandwidth=80GiB/s,35GiB/s&latency=1us", 2, GIB, 8595.43),
    ("mesh:7x10?bandwidth=16GiB/s,73GiB/s&latency=1.5us", 3, 4 * GIB, 44612.47),
    ("mesh:3x3x3?bandwidth=50GiB/s&latency=500ns", 1, GIB, 6671.17),
    ("mesh:3x4x5?bandwidth=50GiB/s&latency=500ns", 2, 2 * GIB, 13353.33),
    ("mesh:4x2x3?bandwidth=50GiB/s&latency=500ns", 3, 3 * GIB, 19178.17),
    ("torus:3x3x3?bandwidth=50GiB/s&latency=500ns", 1, GIB, 3706.20),
    ("torus:3x4x5?bandwidth=50GiB/s&latency=500ns", 2, 2 * GIB, 6676.67),
    ("torus:4x2x3?bandwidth=50GiB/s&latency=500ns", 3, 3 * GIB, 11673.67),
]


def mesh(width: int, height: int, x_gib: int, y_gib: int) -> Topology:
    """Mesh whose x links differ from its y links; 1.5 us where x links have 16 GiB/s, else 0.5."""
    latency_ns = 1500 if x_gib == 16 else 500
    return parse_topology(
        f"mesh:{width}x{height}?bandwidth={x_gib}GiB/s,{y_gib}GiB/s&latency={latency_ns}ns"
    )


def ring_full_switch(groups: int, degree: int = 1) -> Topology:
    """3D-RFS, 2 x 4 x `groups` NPUs: a link each way, four fully connected, a switch unwound.

    NPU (i, j, k) is `(k * 4 + j) * 2 + i`; in the third dimension it sends to the next `degree`
    NPUs, cyclic. Groups are the pairs of the first dimension and the boards of the first two.
    """
    source, destination, kinds = (
        np.asarray(column) for column in zip(*_links(groups, degree), strict=True)
    )
    rate = np.asarray([_RATES[kind] / (degree if kind == "switch" else 1) for kind in kinds])
    links = Links(
        source.astype(np.int64), destination.astype(np.int64), rate, np.full(len(rate), _LATENCY_S)
    )
    crowds = {f"pair {pair}": (2 * pair, 2 * pair + 1) for pair in range(4 * groups)}
    crowds |= {f"board {board}": tuple(range(8 * board, 8 * board + 8)) for board in range(groups)}
    return links.topology(
        f"3d-rfs 2x4x{groups}, degree {degree}", 8 * groups, 8 * groups, groups=crowds
    )


def _links(groups: int, degree: int) -> Iterator[tuple[int, int, str]]:
    for k in range(groups):
        for j in range(4):
            for i in range(2):
                here = (k * 4 + j) * 2 + i
                yield here, (k * 4 + j) * 2 + 1 - i, "ring"
                yield from (
                    (here, (k * 4 + other) * 2 + i, "full") for other in range(4) if other != j
                )
                yield from (
                    (here, ((k + step) % groups * 4 + j) * 2 + i, "switch")
                    for step in range(1, degree + 1)
                )
