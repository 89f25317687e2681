"""Networks for the tests of packings, and what every packing must hold."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from collhub_packing import CapacityGraph, DirectNetwork, SpanningTree
from hypothesis import strategies as st

from hub_core import parse_topology

# Algorithm bandwidth of all-gather in GB/s: optimum, trees a root, with one tree a root, and trees
# of ForestColl's public code in 2026-11 (the lesser of two numbers); Zhao et al., arXiv 2402.06787,
# recomputed exactly.
MACHINES = {
    "dgx-a100": (Fraction(2400, 7), 1, Fraction(2400, 7), 8),
    "dgx-a100:2": (Fraction(1040, 3), 13, Fraction(2400, 7), 43),
    "dgx-a100:4": (Fraction(800, 3), 1, Fraction(800, 3), 32),
    "mi250": (Fraction(2400, 7), 3, Fraction(800, 3), 30),
    "mi250:2": (Fraction(5312, 15), 83, Fraction(320), 141),
    "dgx1v": (Fraction(1200, 7), 6, Fraction(400, 3), 22),
    "dgx1p": (Fraction(640, 7), 4, None, 15),
    "dgx2": (Fraction(160), 1, Fraction(160), 16),
    "dgx-h100": (Fraction(3600, 7), 1, Fraction(3600, 7), 8),
    "rail:2x8": (Fraction(1600, 3), 2, None, 24),
    "dgx-h100:2": (Fraction(1600, 3), 2, None, 29),
    "dgx-h100:4": (Fraction(16000, 31), 10, None, 91),
    "dgx-h100:8": (Fraction(3200, 7), 1, Fraction(3200, 7), 64),
}


def graph_of(text: str) -> CapacityGraph:
    """The network that a topology text names."""
    return CapacityGraph.of(parse_topology(text))


def graph_from(
    num_nodes: int, arcs: Sequence[tuple[int, int, int]], num_compute: int | None = None
) -> CapacityGraph:
    """A network of arcs (from, to, capacity)."""
    columns = np.asarray(arcs, np.int64).reshape(-1, 3)
    rows = np.arange(len(columns))
    compute = num_nodes if num_compute is None else num_compute
    return CapacityGraph(
        num_nodes, compute, columns[:, 0], columns[:, 1], columns[:, 2], rows, Fraction(1)
    )


@st.composite
def directed_graphs(draw: st.DrawFn, most_nodes: int = 6) -> CapacityGraph:
    """Strongly connected networks: a cycle and more arcs."""
    n = draw(st.integers(2, most_nodes))
    capacities = st.integers(1, 6)
    arcs = {(v, (v + 1) % n): draw(capacities) for v in range(n)}
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(
        lambda pair: pair[0] != pair[1]
    )
    arcs |= draw(st.dictionaries(pairs, capacities, max_size=2 * n))
    return graph_from(n, [(u, v, c) for (u, v), c in sorted(arcs.items())])


@st.composite
def duplex_graphs(draw: st.DrawFn, most_nodes: int = 6, switches: int = 0) -> CapacityGraph:
    """Connected networks of duplex links, the last nodes of which may be switches."""
    n = draw(st.integers(2, most_nodes))
    total = n + draw(st.integers(0, switches))
    capacities = st.integers(1, 5)
    links = {(draw(st.integers(0, v - 1)), v): draw(capacities) for v in range(1, total)}
    pairs = st.tuples(st.integers(0, total - 1), st.integers(0, total - 1)).filter(
        lambda pair: pair[0] < pair[1]
    )
    links |= draw(st.dictionaries(pairs, capacities, max_size=2 * total))
    names = draw(st.permutations(range(total)))
    both = [(names[u], names[v], c) for (u, v), c in links.items()]
    return graph_from(total, sorted(both + [(v, u, c) for u, v, c in both]), n)


def renumbered(graph: CapacityGraph, names: Sequence[int]) -> CapacityGraph:
    """The same network with node v called `names[v]`."""
    name = np.asarray(names, np.int64)
    return CapacityGraph(
        graph.num_nodes,
        graph.num_compute,
        name[graph.source],
        name[graph.destination],
        graph.capacity,
        graph.row,
        graph.unit,
    )


def leaving(graph: CapacityGraph, side: Sequence[int]) -> int:
    """Capacity of the arcs that leave a set of nodes."""
    inside = np.isin(np.arange(graph.num_nodes), list(side))
    return int(graph.capacity[inside[graph.source] & ~inside[graph.destination]].sum())


def node_sets(graph: CapacityGraph) -> Iterator[tuple[tuple[int, ...], int]]:
    """All sets of nodes with some but not all compute nodes, and how many these are."""
    for size in range(1, graph.num_nodes):
        for side in itertools.combinations(range(graph.num_nodes), size):
            inside = sum(node < graph.num_compute for node in side)
            if 0 < inside < graph.num_compute:
                yield side, inside


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    """All partitions of a list."""
    if not items:
        yield []
        return
    for found in partitions(items[1:]):
        yield [[items[0]], *found]
        for place, block in enumerate(found):
            yield [*found[:place], [items[0], *block], *found[place + 1 :]]


def check_trees(
    graph: CapacityGraph, trees: Sequence[SpanningTree], both_ways: bool = False
) -> Counter[int]:
    """Check that trees span and fit; return the weight of each root's.

    `both_ways`: their arcs' opposites fit as well.
    """
    load: Counter[tuple[int, int]] = Counter()
    sent: Counter[int] = Counter()
    for tree in trees:
        assert tree.weight > 0
        assert np.all(tree.depths >= 0)
        nodes = np.flatnonzero(tree.parent >= 0)
        arcs = tree.arc[nodes]
        assert len(nodes) == graph.num_nodes - 1
        assert np.array_equal(graph.source[arcs], tree.parent[nodes])
        assert np.array_equal(graph.destination[arcs], nodes)
        sent[tree.root] += tree.weight
        for u, v in zip(tree.parent[nodes].tolist(), nodes.tolist(), strict=True):
            load[u, v] += tree.weight
            load[v, u] += tree.weight * both_ways
    room: Counter[tuple[int, int]] = Counter()
    for u, v, c in zip(
        graph.source.tolist(), graph.destination.tolist(), graph.capacity.tolist(), strict=True
    ):
        room[u, v] += c
    assert all(amount <= room[ends] for ends, amount in load.items())
    return sent


def check_routes(
    network: DirectNetwork,
    trees: Sequence[SpanningTree],
    switched: CapacityGraph,
    times: Fraction,
    both_ways: bool = False,
) -> None:
    """Check that arcs run over links from switch to switch, and that trees fit.

    Into capacities `times` as large.
    """
    back = {
        ends: arc
        for arc, ends in enumerate(
            zip(switched.source.tolist(), switched.destination.tolist(), strict=True)
        )
    }
    load = Counter[int]()
    for tree in trees:
        for node in np.flatnonzero(tree.arc >= 0).tolist():
            route = network.routes[tree.arc[node]]
            ends = [
                int(switched.source[route[0]]),
                *(int(switched.destination[arc]) for arc in route),
            ]
            assert (ends[0], ends[-1]) == (tree.parent[node], node)
            assert [int(switched.source[arc]) for arc in route] == ends[:-1]
            assert all(passed >= switched.num_compute for passed in ends[1:-1])
            for u, v in itertools.pairwise(ends):
                load[back[u, v]] += tree.weight
                if both_ways:
                    load[back[v, u]] += tree.weight
    assert all(amount <= switched.capacity[arc] * times for arc, amount in load.items())
