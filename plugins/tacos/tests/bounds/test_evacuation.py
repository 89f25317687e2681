"""The evacuation bound: exact where all is known, the same under other numbers, none below it."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.time_cuts import compute_evacuation_bound, evacuation_bound

from hub_core import Collective, CollectiveKind, parse_topology
from hub_core.network import Links
from hub_core.schedules import Chunks

STEP_PS = 1000


def _network(nodes: int, pairs: list[tuple[int, int]]) -> LinkNetwork:
    source, destination = np.asarray(pairs, np.int64).T
    rate = np.full(len(pairs), 50e9)
    topology = Links(source, destination, rate, np.full(len(pairs), 5e-7)).topology(
        "drawn", nodes, nodes
    )
    return LinkNetwork.of(topology)


def _times(network: LinkNetwork, lag: int = 1) -> LinkTimes:
    busy = np.full(network.num_links, STEP_PS)
    return LinkTimes(busy, lag * busy)


# A mesh: what its corners lack, by two links.
@pytest.mark.parametrize(
    ("text", "lag", "steps"),
    [
        ("mesh:4x4", 1, 8),
        ("fully-connected:6", 2, 2),
    ],
)
def test_known_networks(text, lag, steps):
    network = LinkNetwork.of(parse_topology(text))
    bound = evacuation_bound(network, _times(network, lag), np.arange(network.num_npus))
    assert bound.time_ps == steps * STEP_PS


@pytest.mark.parametrize("lag", [1, 3])
def test_on_a_one_way_ring_chunks_go_round(lag):
    network = _network(5, [(at, (at + 1) % 5) for at in range(5)])
    bound = evacuation_bound(network, _times(network, lag), np.arange(5))
    assert bound.time_ps == 4 * lag * STEP_PS


def test_a_cut_and_the_way_behind_it_count_together():
    # Two full groups of three behind one link each way: three chunks cross in three steps, then
    # the last one must still be passed on. What enters a node would allow two.
    inside = [(a + g, b + g) for g in (0, 3) for a in range(3) for b in range(3) if a != b]
    network = _network(6, [*inside, (0, 3), (3, 0)])
    bound = evacuation_bound(network, _times(network), np.arange(6))
    assert bound.steps == 4


def test_other_numbers_change_nothing():
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (3, 1)]
    renamed = [3, 0, 4, 1, 2]
    one = _network(5, pairs)
    other = _network(5, [(renamed[start], renamed[end]) for start, end in pairs])
    found = [evacuation_bound(net, _times(net, 2), np.arange(5)).steps for net in (one, other)]
    assert found[0] == found[1]


def test_a_search_that_begins_at_another_bound_ends_at_the_same():
    network = LinkNetwork.of(parse_topology("mesh:3x4"))
    times, origin = _times(network, 2), np.repeat(np.arange(12), 2)
    found = evacuation_bound(network, times, origin)
    assert evacuation_bound(network, times, origin, found.time_ps - 1).time_ps == found.time_ps
    assert evacuation_bound(network, times, origin, found.time_ps).time_ps == found.time_ps


def test_a_bound_within_a_step_is_not_rounded_up():
    # Two links one after the other, each of 1300 ps, of which it is busy for 1000.
    network = _network(3, [(0, 1), (1, 2), (2, 0)])
    times = LinkTimes(np.full(3, 1000), np.full(3, 1300))
    found = evacuation_bound(network, times, np.arange(3), 2600)
    assert (found.time_ps, found.since) == (2600, None)


def test_a_reduce_scatter_is_bounded_backwards():
    # 0 sends to all, but gets from one link alone: hard for the all-gather, easy backwards.
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (3, 1), (1, 0)]
    network = _network(4, pairs)
    collective = Collective(CollectiveKind.REDUCE_SCATTER, 4, 4)
    chunks = Chunks.cut(collective, np.ones(1, np.int64))
    backwards = compute_evacuation_bound(collective, network, _times(network), chunks, 0)
    turned = _network(4, [(end, start) for start, end in pairs])
    assert backwards.steps == evacuation_bound(turned, _times(turned), np.arange(4)).steps


def test_none_where_links_differ_or_it_would_take_long():
    network = LinkNetwork.of(parse_topology("mesh:4x4"))
    times = _times(network)
    uneven = LinkTimes(times.busy + np.arange(network.num_links), times.arrival + 99)
    assert evacuation_bound(network, uneven, np.arange(16)) is None
    assert evacuation_bound(network, times, np.arange(16), max_cells=100) is None
