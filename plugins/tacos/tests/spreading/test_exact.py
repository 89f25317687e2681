"""The exact search: all-gathers at the bound in cases that the rules miss."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.spreading.exact import find_exact_all_gather

import hub_core
from hub_core import Collective, CollectiveKind, Topology, parse_topology, verify
from hub_core.network import Links, Occupancy


def tree_of_rings() -> Topology:
    """A ring of 4 NPUs, each on a ring of 5 of its own: 20 NPUs, equal links both ways."""
    cables = [(0, 1), (1, 2), (2, 3), (3, 0)]
    for head in range(4):
        ring = [head, *range(4 + 4 * head, 8 + 4 * head), head]
        cables += pairwise(ring)
    pairs = np.array([*cables, *((b, a) for a, b in cables)]).T
    rate, latency = np.full(len(pairs[0]), 50e9), np.full(len(pairs[0]), 5e-7)
    return Links(pairs[0], pairs[1], rate, latency).topology("tree of rings", 20, 20)


@pytest.mark.parametrize(("chunks", "steps"), [(1, 10), (2, 20)])
def test_a_tree_of_rings_takes_ten_steps_for_each_chunk(chunks: int, steps: int) -> None:
    """19 chunks enter an NPU by two links: 10 steps are needed, and the rules take 12.

    Two chunks have too many variables: the schedule of one is repeated.
    """
    topology = tree_of_rings()
    size = 2**20
    result = hub_core.synthesize(
        Collective(CollectiveKind.ALL_GATHER, 20, 20 * chunks, in_place=True),
        topology,
        size,
        name="tacos",
        options={"chunks": str(chunks)},
        occupancy=Occupancy.ALPHA_BETA,
    )
    step_ns = 500 + size / (20 * chunks) / 50
    assert result.statistics["kernel"] == "exact"
    assert result.time_ns == pytest.approx(steps * step_ns, abs=steps)
    assert verify(result.algorithm).ok


def test_too_few_steps_and_too_large_cases_give_the_reason() -> None:
    network = LinkNetwork.of(parse_topology("ring:4"))
    origin = np.arange(4)
    assert (
        find_exact_all_gather(network, origin, 1, 1000)
        == "no schedule within the limits of the search"
    )
    schedule = find_exact_all_gather(network, origin, 2, 1000)
    assert isinstance(schedule, LinkSchedule)
    assert schedule.time_ps == 2000
    large = LinkNetwork.of(parse_topology("torus:8x8"))
    reason = find_exact_all_gather(large, np.arange(64), 20, 1000)
    assert reason == "not run, more than 10000 variables"


def test_chunks_are_divided_only_if_all_npus_have_equally_many() -> None:
    """Four chunks per NPU have halves and quarters; NPUs with 2 and 6 chunks have none."""
    network = LinkNetwork.of(parse_topology("torus:8x8"))
    uneven = np.repeat(np.arange(64), np.where(np.arange(64) % 2, 2, 6))
    reason = find_exact_all_gather(network, uneven, 128, 1000)
    assert reason == "not run, more than 10000 variables"


@pytest.mark.parametrize("kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER])
def test_report_says_why_the_exact_search_did_not_run(kind: CollectiveKind) -> None:
    """57 chunks enter an NPU by two links in 29 steps, a number that three does not divide."""
    result = hub_core.synthesize(
        Collective(kind, 20, 60, in_place=True),
        tree_of_rings(),
        2**20,
        name="tacos",
        options={"chunks": "3"},
        occupancy=Occupancy.ALPHA_BETA,
    )
    reason = "not run, more than 10000 variables (29 steps)"
    assert result.statistics["exact search"] == reason


def test_report_is_silent_where_the_bound_is_met() -> None:
    collective = Collective(CollectiveKind.ALL_GATHER, 4, 4, in_place=True)
    result = hub_core.synthesize(collective, parse_topology("ring:4"), 4096, name="tacos")
    assert "exact search" not in result.statistics
