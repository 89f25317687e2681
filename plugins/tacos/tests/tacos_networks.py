"""Heterogeneous networks on which synthesizers are measured; also loaded by `benchmarks/tacos/heterogeneous.py`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hub_core.topologies import parse_topology
from hub_core.topology import Links, Topology

_GIB = 1 << 30
_LATENCY_S = 0.5e-6
_RATES = {"ring": 200 * _GIB, "full": 100 / 3 * _GIB, "switch": 50 * _GIB}


def mesh(width: int, height: int, x_gib: int, y_gib: int) -> Topology:
    """A mesh whose x links differ from its y links; 1.5 us where the x links have 16 GiB/s, else 0.5 us."""
    latency_ns = 1500 if x_gib == 16 else 500
    return parse_topology(f"mesh:{width}x{height}?bandwidth={x_gib}GiB/s,{y_gib}GiB/s&latency={latency_ns}ns")


def ring_full_switch(groups: int, degree: int = 1) -> Topology:
    """3D-RFS, 2 x 4 x `groups` NPUs: a link each way, four fully connected, and a switch unwound into one-way links.

    NPU (i, j, k) is `(k * 4 + j) * 2 + i`; in the third dimension it sends to the next `degree` NPUs, cyclic. Groups are
    the pairs of the first dimension and the boards of the first two.
    """
    source, destination, kinds = (np.asarray(column) for column in zip(*_links(groups, degree), strict=True))
    rate = np.asarray([_RATES[kind] / (degree if kind == "switch" else 1) for kind in kinds])
    links = Links(source.astype(np.int64), destination.astype(np.int64), rate, np.full(len(rate), _LATENCY_S))
    crowds = {f"pair {pair}": (2 * pair, 2 * pair + 1) for pair in range(4 * groups)}
    crowds |= {f"board {board}": tuple(range(8 * board, 8 * board + 8)) for board in range(groups)}
    return links.topology(f"3d-rfs 2x4x{groups}, degree {degree}", 8 * groups, 8 * groups, groups=crowds)


def _links(groups: int, degree: int) -> Iterator[tuple[int, int, str]]:
    for k in range(groups):
        for j in range(4):
            for i in range(2):
                here = (k * 4 + j) * 2 + i
                yield here, (k * 4 + j) * 2 + 1 - i, "ring"
                yield from ((here, (k * 4 + other) * 2 + i, "full") for other in range(4) if other != j)
                yield from ((here, ((k + step) % groups * 4 + j) * 2 + i, "switch") for step in range(1, degree + 1))
