"""Networks of equal links of many kinds on which spreading is measured, drawn from fixed seeds.

The kinds are those of the tables in the documentation of `tacos`: barbells, random regular graphs,
clusters, dragonflies, cavemen, de Bruijn graphs, one-way graphs, geometric graphs, meshes, tori.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from hub_core import Topology, parse_topology
from hub_core.model import UsageError
from hub_core.network import LinkChanges, Links, list_failures

_RATE, _LATENCY_S = 50e9, 500e-9
Pairs = set[tuple[int, int]]


def networks(seed: int = 0) -> Iterator[tuple[str, Topology]]:
    """Names and topologies of 44 networks of 10 to 64 NPUs."""
    for name, nodes, pairs in _drawn(seed):
        yield name, network(name, nodes, pairs)
    for text in ("mesh:4x4", "mesh:5x7", "mesh:3x3x3", "torus:4x4", "torus:8x8", "torus:3x4x5"):
        yield text, parse_topology(text)


def draw_networks(seed: int) -> Iterator[tuple[str, Topology]]:
    """Yield names and topologies of 60 networks of 6 to 64 NPUs, new for every seed.

    40 direct networks: random regular, one-way and geometric graphs, clusters, and grids, half of
    them with unequal bandwidths. 20 networks with switches: leaves and spines, dragonflies, rails
    and machines below a network, with odd bandwidths; every fourth has a failed link. The name of a
    switched network is its text.
    """
    draw = random.Random(seed)
    for index in range(10):
        degree, nodes = draw.choice((3, 4, 5)), 2 * draw.randint(4, 24)
        yield _weighted(
            f"{degree}-regular {nodes}", nodes, _regular(nodes, degree, draw), index, draw
        )
        nodes, degree = draw.randint(8, 32), draw.choice((2, 3))
        yield _weighted(
            f"one-way {nodes}, {degree}", nodes, _one_way(nodes, degree, draw), index, draw
        )
        nodes = draw.randint(10, 48)
        pairs = _geometric(nodes, draw.uniform(0.3, 0.5), draw)
        yield _weighted(f"geometric {nodes}", nodes, pairs, index, draw)
        clusters, size = draw.randint(3, 6), draw.randint(3, 8)
        pairs = _clusters(clusters, size, draw.randint(1, 2))
        yield _weighted(f"clusters {clusters}x{size}", clusters * size, pairs, index, draw)
    for index in range(20):
        text = _draw_switched_text(draw)
        topology = parse_topology(text)
        if index % 4 == 0:
            text, topology = _without_a_link(text, topology, draw)
        yield text, topology


def _weighted(
    name: str, nodes: int, pairs: Pairs, index: int, draw: random.Random
) -> tuple[str, Topology]:
    """Return a network with the index in its name; every second one has unequal bandwidths."""
    topology = network(f"{name} #{index}", nodes, pairs)
    if index % 2:
        rates = np.asarray([draw.choice((12.5e9, 25e9, 50e9, 100e9)) for _ in topology.source])
        topology = replace(topology, name=f"{name} #{index}, unequal", bandwidth_bytes_per_s=rates)
    return topology.name, topology


def _draw_switched_text(draw: random.Random) -> str:
    host, network_rate = draw.choice((100, 300, 450)), draw.choice((25, 37, 50))
    kind = draw.randrange(4)
    if kind == 0:
        shape = f"leaf-spine:{draw.randint(2, 6)},{draw.randint(2, 8)},{draw.randint(2, 4)}"
        return f"{shape}?bandwidth={network_rate}GB/s,{draw.choice((25, 40, 100))}GB/s"
    if kind == 1:
        return f"dragonfly:{draw.randint(2, 3)},{draw.randint(1, 2)},1?bandwidth={network_rate}GB/s"
    if kind == 2:
        shape = f"rail:{draw.randint(2, 6)}x{draw.randint(2, 8)}"
        return f"{shape}?bandwidth={host}GB/s,{network_rate}GB/s"
    machine, machines = draw.choice(("dgx-a100", "dgx-h100", "mi300x")), draw.randint(2, 6)
    return f"{machine}:{machines}"


def _without_a_link(text: str, topology: Topology, draw: random.Random) -> tuple[str, Topology]:
    """Return the network without a random link whose failure separates no NPU, if there is one."""
    names = [failure.name for failure in list_failures(topology)]
    for name in draw.sample(names, len(names)):
        changed = LinkChanges(failed=(name,)).append_to(text)
        try:
            return changed, parse_topology(changed)
        except UsageError:
            continue
    return text, topology


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
