"""Heterogeneous networks on which synthesizers are measured, here and in `benchmarks/tacos`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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

# Width, height, GiB/s of x and y links, chunks; the release in us, as reported and causal. Of 12x12
# and larger: the best of 1 to 3 runs.
_RELEASED_MESHES = (
    (4, 4, 50, 75, 1, 121.69, 133.71),
    (4, 4, 16, 73, 1, 279.90, 232.24),
    (5, 5, 50, 75, 1, 200.31, 200.31),
    (5, 5, 16, 73, 1, 375.21, 372.19),
    (8, 8, 50, 75, 1, 513.79, 513.79),
    (8, 8, 16, 73, 1, 824.81, 875.49),
    (7, 10, 16, 73, 1, 833.14, 848.02),
    (12, 12, 16, 73, 1, 1725.80, 1725.80),
    (12, 12, 50, 75, 1, 1161.81, 0.0),
    (16, 16, 16, 73, 1, 3064.78, 0.0),
    (16, 16, 50, 75, 1, 2063.22, 0.0),
    (4, 4, 16, 73, 4, 249.16, 244.31),
    (5, 5, 16, 73, 4, 363.33, 363.33),
    (4, 4, 50, 75, 4, 134.57, 134.57),
    (5, 5, 50, 75, 4, 214.05, 214.05),
    (8, 8, 50, 75, 4, 559.53, 559.53),
    (12, 12, 50, 75, 4, 1265.51, 0.0),
    (8, 8, 16, 73, 4, 949.50, 949.50),
    (12, 12, 16, 73, 4, 2150.91, 0.0),
)
# Groups, degree of the unwound switch, chunks; the release in us, as reported and causal. Of 2x4x16
# with 4 chunks: the best of 10 runs.
_RELEASED_RING_FULL_SWITCH = (
    (4, 1, 1, 145.60, 148.99),
    (8, 1, 1, 303.35, 365.45),
    (16, 1, 1, 626.74, 781.22),
    (16, 3, 1, 590.94, 684.83),
    (4, 1, 4, 125.97, 133.35),
    (8, 1, 4, 260.92, 279.23),
    (16, 1, 4, 536.30, 565.20),
    (16, 3, 4, 479.15, 492.93),
)


@dataclass(frozen=True, slots=True)
class ReleasedCase:
    """A network, chunks a node, and what TACOS v1.3.0 gives for an all-gather of 1 MiB a node.

    In us, the least of 20 runs: as it reports, which is the time of a schedule that cannot be, and
    of the schedule made causal (0: not measured).
    """

    name: str
    topology: Topology
    chunks: int
    reported_us: float
    causal_us: float


def released_cases() -> dict[str, ReleasedCase]:
    """The cases by name and chunks, as `mesh 4x4 50/75, 1` and `3D-RFS 2x4x16 g=3, 4`."""
    return {f"{case.name}, {case.chunks}": case for case in _released_cases()}


def _released_cases() -> Iterator[ReleasedCase]:
    for width, height, x_gib, y_gib, chunks, reported_us, causal_us in _RELEASED_MESHES:
        name = f"mesh {width}x{height} {x_gib}/{y_gib}"
        topology = mesh(width, height, x_gib, y_gib)
        yield ReleasedCase(name, topology, chunks, reported_us, causal_us)
    for groups, degree, chunks, reported_us, causal_us in _RELEASED_RING_FULL_SWITCH:
        name = f"3D-RFS 2x4x{groups}" + (f" g={degree}" if degree > 1 else "")
        topology = ring_full_switch(groups, degree)
        yield ReleasedCase(name, topology, chunks, reported_us, causal_us)


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


def crowds(groups: int, size: int, near_gib: float, far_gib: float) -> Topology:
    """Full groups of 300 ns a link, and between any two a link of 1 us, from members in turn.

    Rates in GiB/s. Nine groups of four make a dragonfly of 36.
    """
    member = np.arange(groups * size)
    pairs = [(a, b) for a in member for b in member if a != b and a // size == b // size]
    num_near = len(pairs)
    for group in range(groups):
        for other in range(group):
            one, two = group * size + other % size, other * size + (group - 1) % size
            pairs += [(one, two), (two, one)]
    is_near = np.arange(len(pairs)) < num_near
    source, destination = np.asarray(pairs, np.int64).T
    rate = GIB * np.where(is_near, near_gib, far_gib)
    latency = np.where(is_near, 3e-7, 1e-6)
    return Links(source, destination, rate, latency).topology(
        f"crowds {groups}x{size}", len(member), len(member)
    )


def drawn(seed: int, nodes: int) -> Topology:
    """A cycle one way, which connects all, and about twice as many links of random rates."""
    random = np.random.default_rng(seed)
    found = {tuple(pair) for pair in random.integers(0, nodes, (2 * nodes, 2)).tolist()}
    cycle = {(node, (node + 1) % nodes) for node in range(nodes)}
    pairs = sorted(pair for pair in found | cycle if pair[0] != pair[1])
    source, destination = np.asarray(pairs, np.int64).T
    rate = random.choice([25.0, 50.0, 200.0], len(pairs)) * GIB
    latency = random.choice([3e-7, 1e-6], len(pairs))
    return Links(source, destination, rate, latency).topology("drawn", nodes, nodes)


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
