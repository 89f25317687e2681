"""All-to-all of 64 MiB by `flows` beside the bound of the optimal flow and `tacos`.

    python benchmarks/synthesis/flows.py [--peer tacos] [NAME ...]

Prints time by bound, CPU seconds, and the time of the peer by the same bound.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

import hub_core
from hub_core.model import Collective, CollectiveKind
from hub_core.network import Occupancy, Topology

_BYTES = 64 << 20
_BANDWIDTH = 50e9
_LATENCY_S = 500e-9


def _topology(name: str, nodes: int, pairs: Sequence[tuple[int, int]]) -> Topology:
    """Network of equal directed links; of equal pairs the first counts."""
    distinct = list(dict.fromkeys(pairs))
    source, destination = np.array(distinct, np.int64).T.copy()
    bandwidth = np.full(len(distinct), _BANDWIDTH)
    latency = np.full(len(distinct), _LATENCY_S)
    return Topology(name, nodes, nodes, source, destination, bandwidth, latency)


def _both_ways(edges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [*edges, *((b, a) for a, b in edges)]


def _irregular(nodes: int, extra: int, seed: int) -> list[tuple[int, int]]:
    """Random tree with `extra` chords, both ways."""
    draw = np.random.default_rng(seed)
    edges = [(int(draw.integers(node)), node) for node in range(1, nodes)]
    while len(edges) < nodes - 1 + extra:
        a, b = sorted(draw.choice(nodes, 2, replace=False).tolist())
        if (a, b) not in edges:
            edges.append((a, b))
    return _both_ways(edges)


def _cycle_with_chords(nodes: int, extra: int, seed: int) -> list[tuple[int, int]]:
    draw = np.random.default_rng(seed)
    edges = [(node, (node + 1) % nodes) for node in range(nodes)]
    chords = [draw.choice(nodes, 2, replace=False).tolist() for _ in range(extra)]
    return _both_ways([*edges, *((a, b) for a, b in chords)])


def _permutations(nodes: int, degree: int, seed: int) -> list[tuple[int, int]]:
    """Directed random network: the cycle, and random permutations."""
    draw = np.random.default_rng(seed)
    pairs = [(node, (node + 1) % nodes) for node in range(nodes)]
    for _ in range(degree - 1):
        image = draw.permutation(nodes).tolist()
        pairs += [(a, b) for a, b in enumerate(image) if a != b]
    return pairs


def _ring_with_slow_link() -> Topology:
    ring = _topology("slow-ring", 8, _cycle_with_chords(8, 0, 0))
    ring.bandwidth_bytes_per_s.setflags(write=True)
    bandwidth = ring.bandwidth_bytes_per_s.copy()
    bandwidth[0] /= 4
    source, destination = ring.source, ring.destination
    return Topology("slow-ring", 8, 8, source, destination, bandwidth, ring.latency_s)


def _named(text: str) -> Callable[[], Topology]:
    return lambda: hub_core.parse_topology(text)


# Behind switches, which forward in the order of arrival.
_SWITCHED = (
    *("switch:16", "fat-tree:4", "leaf-spine:8,8,8"),
    *("dgx-h100:4", "dgx-a100:2", "dragonfly:4,2,2"),
)
_CASES: dict[str, Callable[[], Topology]] = {
    "irregular 14": lambda: _topology("irregular14", 14, _irregular(14, 10, 1)),
    "irregular 14b": lambda: _topology("irregular14b", 14, _irregular(14, 8, 2)),
    "cycle 13": lambda: _topology("cycle13", 13, _cycle_with_chords(13, 5, 1)),
    "directed 24": lambda: _topology("directed24", 24, _permutations(24, 3, 1)),
    "4-regular 30": lambda: _topology("regular30", 30, _both_ways(_permutations(30, 2, 1))),
    "ring with slow link": _ring_with_slow_link,
    "mesh 5x7": _named("mesh:5x7"),
    "torus 8x8": _named("torus:8x8"),
    "mesh 8x8": _named("mesh:8x8"),
    "4-regular 64": lambda: _topology("regular64", 64, _both_ways(_permutations(64, 2, 1))),
    "torus 8x8x8": _named("torus:8x8x8"),
    **{text: _named(text) for text in _SWITCHED},
}


def _measure(topology: Topology, occupancy: Occupancy, name: str) -> tuple[int, int, float, str]:
    """Time and bound in nanoseconds, CPU seconds, and how."""
    begin = time.process_time()
    ranks = topology.num_npus
    collective = Collective(CollectiveKind.ALL_TO_ALL, ranks, ranks, in_place=True)
    result = hub_core.synthesize(collective, topology, _BYTES, name=name, occupancy=occupancy)
    taken = time.process_time() - begin
    how = str(result.statistics.get("pieces", ""))
    return result.time_ns, result.bounds_ns.get("flow", 0), taken, how


def main(arguments: Sequence[str]) -> None:
    """Measure all cases, or those named."""
    peers = [arguments[1]] if arguments[:1] == ["--peer"] else []
    chosen = arguments[2:] if peers else arguments
    print(f"{'case':22} {'links':13} {'by bound':>9} {'CPU s':>7} pieces  peers")
    for name in chosen or _CASES:
        topology = _CASES[name]()
        for occupancy in (Occupancy.SERIALIZATION, Occupancy.ALPHA_BETA):
            time_ns, bound, taken, how = _measure(topology, occupancy, "flows")
            line = f"{name:22} {occupancy!s:13} {time_ns / bound:9.4f} {taken:7.2f} {how:6}"
            for peer in peers:
                peer_ns, _, peer_s, _ = _measure(topology, occupancy, peer)
                line += f"  {peer} {peer_ns / bound:.4f} in {peer_s:.2f} s"
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
