from __future__ import annotations

import pytest
from collhub_infragraph.bandwidths import Contraction, Hop
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def graphs(draw):
    """(hops, which vertices are kept): a simple graph."""
    size = draw(st.integers(2, 12))
    kept = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    pairs = draw(st.sets(st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))))
    simple = sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]})
    rate = st.floats(1, 100)
    return [Hop(*pair, (row,), (draw(rate),)) for row, pair in enumerate(simple)], kept


def reached(hops, start):
    found, front = {start}, [start]
    while front:
        node = front.pop()
        for hop in hops:
            if node in (hop.first_vertex, hop.second_vertex):
                neighbour = hop.second_vertex if hop.first_vertex == node else hop.first_vertex
                if neighbour not in found:
                    found.add(neighbour)
                    front.append(neighbour)
    return found


@given(graphs())
def test_kept_vertices_reach_one_another_as_before(graph) -> None:
    hops, kept = graph
    left = Contraction(hops, kept, keeps_parallel=False).run()
    for vertex in [vertex for vertex, stays in enumerate(kept) if stays]:
        before = {other for other in reached(hops, vertex) if kept[other]}
        assert {other for other in reached(left, vertex) if kept[other]} == before


@pytest.mark.once
@given(graphs())
def test_nothing_is_left_that_could_vanish(graph) -> None:
    hops, kept = graph
    contraction = Contraction(hops, kept, keeps_parallel=False)
    left = contraction.run()
    pairs = {frozenset((hop.first_vertex, hop.second_vertex)) for hop in left}
    assert len(pairs) == len(left)
    for vertex, stays in enumerate(kept):
        around = [hop for hop in left if vertex in (hop.first_vertex, hop.second_vertex)]
        if stays or contraction.is_removed[vertex]:
            assert stays or not around
            continue
        assert len(around) >= 2
        if len(around) == 2:
            neighbours = {hop.first_vertex + hop.second_vertex - vertex for hop in around}
            assert frozenset(neighbours) in pairs


@given(graphs())
def test_bandwidth_of_a_path_is_the_least_on_it(graph) -> None:
    hops, kept = graph
    for hop in Contraction(hops, kept, keeps_parallel=False).run():
        rates = [hops[row].bandwidth_bytes_per_s for row in hop.links]
        assert hop.bandwidth_bytes_per_s == min(rates)
        # The edges of the path follow one another from its one end to the other.
        node = hop.first_vertex
        for row in hop.links:
            ends = {hops[row].first_vertex, hops[row].second_vertex}
            assert node in ends
            (node,) = ends - {node}
        assert node == hop.second_vertex


def test_a_switch_loses_hundreds_of_thousands_of_unused_ports() -> None:
    # With lists of hops this takes a minute, because every removal moves the remaining ones.
    count = 300_000
    hops = [Hop(0, port, (0,), (1.0,)) for port in range(1, count + 1)]
    contraction = Contraction(hops, [True] + [False] * count, keeps_parallel=False)
    assert contraction.run() == []
    assert contraction.is_removed == [False] + [True] * count
