"""All-gather by matchings: right everywhere, at the bound where it is known, the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from collhub_tacos.spreading.matching import build_matched_all_gather, find_best_matched_all_gather
from collhub_tacos.time_cuts import evacuation_bound
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import InputError, Topology, parse_topology
from hub_core.network import Links

STEP_PS = 1000
MOST_CELLS = 1 << 22


def _topology(nodes: int, pairs: set[tuple[int, int]]) -> Topology:
    source, destination = np.asarray(sorted(pairs), np.int64).T
    rate = np.full(len(source), 50e9)
    return Links(source, destination, rate, np.full(len(source), 5e-7)).topology(
        "drawn", nodes, nodes
    )


def _both_ways(pairs: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return pairs | {(other, one) for one, other in pairs}


def _clusters(clusters: int, size: int, bridges: int) -> Topology:
    """Full graphs in a ring, neighbours joined by bridges between different members."""
    pairs = set()
    for cluster in range(clusters):
        first, following = cluster * size, (cluster + 1) % clusters * size
        pairs |= {(first + a, first + b) for a in range(size) for b in range(a)}
        pairs |= {(first + 2 * at, following + 2 * at + 1) for at in range(bridges)}
    return _topology(clusters * size, _both_ways(pairs))


def _times(network: LinkNetwork, lag: int = 1) -> LinkTimes:
    busy = np.full(network.num_links, STEP_PS)
    return LinkTimes(busy, lag * busy)


def _replay(schedule: LinkSchedule, times: LinkTimes, origin: np.ndarray) -> None:
    chunk, node = np.arange(len(origin)), np.arange(schedule.network.num_npus)
    wanted = np.repeat(chunk, len(node)), np.tile(node, len(chunk))
    replay(schedule, times, origin, wanted)


# Oldest chunks first, as TACOS does, take twice as long on the barbells and clusters.
@pytest.mark.parametrize(
    ("topology", "chunks", "steps"),
    [
        pytest.param(_clusters(2, 16, 2), 4, 17, id="barbell"),
        pytest.param(_clusters(4, 8, 2), 2, 13, id="clusters"),
        pytest.param(parse_topology("torus:8x8"), 1, 16, id="torus"),
        pytest.param(parse_topology("mesh:4x4"), 2, 15, id="mesh"),
    ],
)
def test_the_bound_is_attained(topology, chunks, steps):
    network = LinkNetwork.of(topology)
    times, origin = _times(network), np.repeat(np.arange(network.num_npus), chunks)
    bound = evacuation_bound(network, times, origin, max_cells=MOST_CELLS)
    found = find_best_matched_all_gather(network, times, origin, seeds=20, goal_ps=bound.time_ps)
    _replay(found.result, times, origin)
    assert found.result.time_ps == bound.time_ps == steps * STEP_PS


@st.composite
def _connected(draw: st.DrawFn) -> Topology:
    nodes = draw(st.integers(2, 9))
    order = draw(st.permutations(range(nodes)))
    cycle = set(zip(order, order[1:] + order[:1], strict=True))
    ends = st.integers(0, nodes - 1)
    more = draw(st.sets(st.tuples(ends, ends).filter(lambda pair: pair[0] != pair[1])))
    return _topology(nodes, cycle | more)


@settings(max_examples=60, deadline=None)
@given(_connected(), st.integers(1, 3), st.integers(1, 4), st.integers(0, 5))
def test_every_chunk_comes_everywhere_once_and_never_before_the_bound(topology, chunks, lag, seed):
    network = LinkNetwork.of(topology)
    times, origin = _times(network, lag), np.repeat(np.arange(network.num_npus), chunks)
    found = build_matched_all_gather(network, times, origin, seed)
    _replay(found, times, origin)
    assert len(found) == len(origin) * (network.num_npus - 1)
    bound = evacuation_bound(network, times, origin)
    assert found.time_ps >= bound.time_ps


def test_a_seed_gives_the_same_schedule_each_time():
    network = LinkNetwork.of(_clusters(4, 4, 1))
    origin = np.arange(16)
    one, other = (
        build_matched_all_gather(network, _times(network), origin, seed=7) for _ in range(2)
    )
    assert np.array_equal(one.link, other.link)
    assert np.array_equal(one.chunk, other.chunk)


def test_a_seed_that_gets_too_slow_is_given_up():
    network = LinkNetwork.of(parse_topology("mesh:4x4"))
    origin = np.arange(16)
    assert build_matched_all_gather(network, _times(network), origin, limit_ps=8 * STEP_PS) is None
    assert (
        build_matched_all_gather(network, _times(network), origin, limit_ps=20 * STEP_PS)
        is not None
    )


def test_those_who_need_nothing_only_pass_on():
    # 0 and 1 are joined through 2 alone; 3 hangs behind 2.
    network = LinkNetwork.of(_topology(4, _both_ways({(0, 2), (1, 2), (2, 3)})))
    needed = np.asarray([True, True, False, False])
    found = build_matched_all_gather(network, _times(network), np.asarray([0, 1]), is_needed=needed)
    assert sorted(found.destination.tolist()) == [0, 1, 2, 2]


def test_a_chunk_that_cannot_come_everywhere_is_named():
    network = LinkNetwork.of(_topology(3, {(0, 1), (1, 0), (0, 2)}))
    with pytest.raises(InputError, match="NPU 2 cannot reach NPU 0"):
        build_matched_all_gather(network, _times(network), np.arange(3))
