"""Networks of equal links of many kinds on which spreading is measured, drawn from fixed seeds.

The kinds are those of the tables in the documentation of `tacos`: barbells, random regular graphs,
clusters, dragonflies, cavemen, de Bruijn graphs, one-way graphs, geometric graphs, meshes, tori.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np

from hub_core import Topology, parse_topology
from hub_core.network import Links

_RATE, _LATENCY_S = 50e9, 500e-9
Pairs = set[tuple[int, int]]


def networks(seed: int = 0) -> Iterator[tuple[str, Topology]]:
    """Names and topologies of 44 networks of 10 to 64 NPUs."""
    for name, nodes, pairs in _drawn(seed):
        yield name, network(name, nodes, pairs)
    for text in ("mesh:4x4", "mesh:5x7", "mesh:3x3x3", "torus:4x4", "torus:8x8", "torus:3x4x5"):
        yield text, parse_topology(text)


def network(name: str, nodes: int, pairs: Iterable[tuple[int, int]]) -> Topology:
    """Topology of directed pairs of NPUs."""
    source, destination = np.asarray(sorted(pairs), np.int64).T
    rate = np.full(len(source), _RATE)
    return Links(source, destination, rate, np.full(len(source), _LATENCY_S)).topology(
        name, nodes, nodes
    )


def _drawn(seed: int) -> Iterator[tuple[str, int, Pairs]]:
    for size, bridges in ((5, 1), (8, 1), (8, 2), (16, 2)):
        yield f"barbell {size}+{size}, {bridges}", 2 * size, _clusters(2, size, bridges)
    for degree, nodes in ((3, 10), (3, 16), (3, 24), (3, 32), (4, 16), (4, 30), (4, 64), (6, 32)):
        pairs = _regular(nodes, degree, random.Random(seed + 100 * degree + nodes))
        yield f"{degree}-regular {nodes}", nodes, pairs
    for nodes in (24, 48):
        yield f"8-regular {nodes}", nodes, _regular(nodes, 8, random.Random(seed + nodes))
    for clusters, size, bridges in ((4, 4, 1), (4, 8, 1), (4, 8, 2), (6, 5, 1), (8, 8, 2)):
        yield (
            f"clusters {clusters}x{size}, {bridges}",
            clusters * size,
            _clusters(clusters, size, bridges),
        )
    for groups, routers in ((5, 4), (9, 4), (7, 6)):
        yield f"dragonfly {groups}x{routers}", groups * routers, _dragonfly(groups, routers)
    for caves, size in ((4, 5), (6, 6), (8, 8)):
        yield f"cavemen {caves}x{size}", caves * size, _cavemen(caves, size)
    for letters, length in ((2, 4), (2, 5), (3, 3), (2, 6)):
        yield f"de Bruijn {letters},{length}", letters**length, _de_bruijn(letters, length)
    for nodes, degree in ((12, 2), (20, 2), (20, 3), (32, 3)):
        pairs = _one_way(nodes, degree, random.Random(seed + nodes + degree))
        yield f"one-way {nodes}, {degree}", nodes, pairs
    for nodes, radius in ((16, 0.45), (30, 0.35), (48, 0.28), (64, 0.25)):
        yield f"geometric {nodes}", nodes, _geometric(nodes, radius, random.Random(seed + nodes))
    yield (
        "ring with chords 20",
        20,
        _both_ways({(at, (at + 1) % 20) for at in range(20)} | {(0, 10)}),
    )


def _both_ways(pairs: Iterable[tuple[int, int]]) -> Pairs:
    return {pair for one, other in pairs for pair in ((one, other), (other, one))}


def _clusters(clusters: int, size: int, bridges: int) -> Pairs:
    """Full graphs in a ring, neighbours joined by some links between different members."""
    found = set()
    for cluster in range(clusters):
        first = cluster * size
        found |= {(first + a, first + b) for a in range(size) for b in range(a)}
        following = (cluster + 1) % clusters * size
        found |= {(first + 2 * at % size, following + (2 * at + 1) % size) for at in range(bridges)}
    return _both_ways(found)


def _regular(nodes: int, degree: int, draw: random.Random) -> Pairs:
    """Random regular graph: ends joined at random where that is allowed, until all are used.

    Steger and Wormald, Combinatorics, Probability and Computing 8, 1999.
    """
    while True:
        both = _joined_at_random(nodes, degree, draw)
        if len(both) == nodes * degree and _reaches_all(nodes, both):
            return both


def _joined_at_random(nodes: int, degree: int, draw: random.Random) -> Pairs:
    ends = [node for node in range(nodes) for _ in range(degree)]
    found: Pairs = set()
    # As often without success in a row, nothing may be left that can be joined.
    failures = 0
    while ends and failures < nodes * degree:
        draw.shuffle(ends)
        one, other = ends[-2:]
        if one == other or (one, other) in found:
            failures += 1
            continue
        failures = 0
        found |= {(one, other), (other, one)}
        del ends[-2:]
    return found


def _reaches_all(nodes: int, pairs: Pairs) -> bool:
    reached, ahead = {0}, [0]
    while ahead:
        here = ahead.pop()
        new = {end for start, end in pairs if start == here} - reached
        reached |= new
        ahead.extend(new)
    return len(reached) == nodes


def _dragonfly(groups: int, routers: int) -> Pairs:
    """Full groups, and a link between any two groups from routers in turn."""
    found = set()
    for group in range(groups):
        first = group * routers
        found |= {(first + a, first + b) for a in range(routers) for b in range(a)}
        for other in range(group):
            found.add((first + other % routers, other * routers + (group - 1) % routers))
    return _both_ways(found)


def _cavemen(caves: int, size: int) -> Pairs:
    """Connected cavemen: full graphs in a ring, of each one link turned to the next."""
    found = set()
    for cave in range(caves):
        first = cave * size
        inside = {(first + a, first + b) for a in range(size) for b in range(a)}
        found |= inside - {(first + 1, first)}
        found.add((first, (first - 1) % (caves * size)))
    return _both_ways(found)


def _de_bruijn(letters: int, length: int) -> Pairs:
    """One-way de Bruijn graph, without the links from a node to itself."""
    nodes = letters**length
    ends = {(at, at * letters % nodes + letter) for at in range(nodes) for letter in range(letters)}
    return {(start, end) for start, end in ends if start != end}


def _one_way(nodes: int, degree: int, draw: random.Random) -> Pairs:
    """A cycle through all nodes in random order, and random links that go one way."""
    order = draw.sample(range(nodes), nodes)
    found = set(zip(order, order[1:] + order[:1], strict=True))
    while len(found) < nodes * degree:
        start, end = draw.sample(range(nodes), 2)
        found.add((start, end))
    return found


def _geometric(nodes: int, radius: float, draw: random.Random) -> Pairs:
    """Random points of the unit square, joined when near; joined in line so that all connect."""
    points = sorted((draw.random(), draw.random()) for _ in range(nodes))
    near = {
        (a, b)
        for a in range(nodes)
        for b in range(a)
        if np.hypot(points[a][0] - points[b][0], points[a][1] - points[b][1]) < radius
    }
    return _both_ways(near | {(at, at + 1) for at in range(nodes - 1)})
