"""All-gather by deadlines: right everywhere, never slower than before, faster where links wait."""

from __future__ import annotations

import numpy as np
import pytest
import tacos_networks
from collhub_tacos.link_network import LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.schedules.replay import replay
from collhub_tacos.search.seeds import Best, FractionReport, ignore_fraction
from collhub_tacos.spreading.heterogeneous import bound_ingress_ps, find_all_gather
from collhub_tacos.spreading.matching import search_with_deadlines
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core import Topology
from hub_core.network import Occupancy


def _problem(
    topology: Topology, chunks: int, occupancy: Occupancy = Occupancy.ALPHA_BETA
) -> tuple[LinkNetwork, LinkTimes, np.ndarray]:
    network = LinkNetwork.of(topology)
    origin = np.repeat(np.arange(network.num_npus), chunks)
    return network, network.link_times((1 << 20) // chunks, occupancy), origin


def _earlier(
    problem: tuple[LinkNetwork, LinkTimes, np.ndarray],
    begin: Best[LinkSchedule],
    report: FractionReport = ignore_fraction,
) -> Best[LinkSchedule]:
    goal_ps = bound_ingress_ps(*problem)
    return search_with_deadlines(*problem, begin, goal_ps=goal_ps, first_seed=0, report=report)


def _replayed_ps(schedule: LinkSchedule, times: LinkTimes, origin: np.ndarray) -> int:
    chunk, node = np.arange(len(origin)), np.arange(schedule.network.num_npus)
    wanted = np.repeat(chunk, len(node)), np.tile(node, len(chunk))
    return replay(schedule, times, origin, wanted)


# By hand: four messages on each link between groups, 40.0625 us each, then two inside, 10.065625.
def test_a_dragonfly_waits_for_no_fifth_message_between_its_groups() -> None:
    problem = _problem(tacos_networks.crowds(9, 4, 100.0, 25.0), 1)
    begin = find_all_gather(*problem)
    found = _earlier(problem, begin)
    assert begin.result.time_ps == 5 * 40_062_500
    assert _replayed_ps(found.result, *problem[1:]) == 4 * 40_062_500 + 2 * 10_065_625


@pytest.mark.parametrize("occupancy", list(Occupancy))
@settings(deadline=None, max_examples=15)
@given(
    draw=st.integers(0, 2**16),
    nodes=st.integers(2, 9),
    chunks=st.integers(1, 3),
)
def test_schedules_are_right_and_never_slower(
    occupancy: Occupancy, draw: int, nodes: int, chunks: int
) -> None:
    problem = _problem(tacos_networks.drawn(draw, nodes), chunks, occupancy)
    begin = find_all_gather(*problem, seeds=2)
    found = _earlier(problem, begin)
    assert _replayed_ps(found.result, *problem[1:]) <= begin.result.time_ps


# Links between so many groups have nothing to take at first, and are too slow later.
def test_what_would_arrive_late_is_not_begun() -> None:
    problem = _problem(tacos_networks.crowds(12, 3, 100.0, 25.0), 1)
    begin = find_all_gather(*problem)
    found = search_with_deadlines(*problem, begin, goal_ps=0, first_seed=0, report=ignore_fraction)
    assert found.result.time_ps <= begin.result.time_ps


def test_the_same_seed_gives_the_same_schedule() -> None:
    problem = _problem(tacos_networks.crowds(5, 4, 50.0, 25.0), 2)
    begin = find_all_gather(*problem, seeds=1)
    one, other = (_earlier(problem, begin).result for _ in range(2))
    for name in ("chunk", "link", "start", "finish"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_ctrl_c_keeps_the_best_so_far() -> None:
    problem = _problem(tacos_networks.crowds(9, 4, 100.0, 25.0), 1)
    begin = find_all_gather(*problem)

    def interrupt(fraction: float) -> None:
        if fraction > 0.01:
            raise KeyboardInterrupt

    found = _earlier(problem, begin, interrupt)
    assert found.is_interrupted
    assert _replayed_ps(found.result, *problem[1:]) < begin.result.time_ps
