"""Stages through switches: everybody gets everything, and slow links carry a chunk once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_tacos.link_network import FREE, LinkNetwork, LinkTimes, contract_switches
from collhub_tacos.schedules.link_schedule import LinkSchedule
from collhub_tacos.search.candidates import Trials
from collhub_tacos.spreading.staged import (
    build_free_all_gathers,
    find_group_grids,
    generate_staged_all_gathers,
    generate_staged_broadcasts,
)

from hub_core import Collective, CollectiveKind, parse_topology, verify
from hub_core.network import Occupancy
from hub_core.schedules import Chunks, algorithm_of

KIB = 1 << 10
SWITCHED = ["switch:2", "switch:5", "switch:8", "fat-tree:4", "dgx-h100:2", "dragonfly:2,1,1"]


def network_of(text: str) -> tuple[LinkNetwork, LinkTimes]:
    network = contract_switches(parse_topology(text))
    return network, network.link_times(KIB, Occupancy.SERIALIZATION)


def check(collective: Collective, schedule: LinkSchedule, times: LinkTimes) -> None:
    pieces = collective.units_per_rank
    chunks = Chunks.cut(collective, np.ones(pieces, np.int64))
    report = verify(algorithm_of(collective, chunks, schedule.transfers(times)))
    assert report.ok, report.diagnostics[:3]


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("text", SWITCHED)
def test_all_gathers_are_right(text: str, pieces: int) -> None:
    network, times = network_of(text)
    n = network.num_npus
    collective = Collective(CollectiveKind.ALL_GATHER, n, n * pieces, in_place=True)
    origin = np.repeat(np.arange(n), pieces)
    schedules = list(generate_staged_all_gathers(network, times, origin, Trials()))
    assert schedules
    for schedule in schedules:
        check(collective, schedule, times)


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("text", SWITCHED)
def test_all_gathers_without_turns_are_right(text: str, pieces: int) -> None:
    network, times = network_of(text)
    times = replace(times, rule=FREE)
    n = network.num_npus
    collective = Collective(CollectiveKind.ALL_GATHER, n, n * pieces, in_place=True)
    schedules = build_free_all_gathers(network, times, np.repeat(np.arange(n), pieces))
    assert schedules
    for schedule in schedules:
        assert not schedule.transfers(times).window.any()
        check(collective, schedule, times)


@pytest.mark.parametrize("pieces", [1, 2, 9, 16])
@pytest.mark.parametrize("root", [0, 1])
@pytest.mark.parametrize("text", SWITCHED)
def test_broadcasts_are_right(text: str, root: int, pieces: int) -> None:
    network, times = network_of(text)
    collective = Collective(
        CollectiveKind.BROADCAST, network.num_npus, pieces, root=root, in_place=True
    )
    schedules = list(generate_staged_broadcasts(network, times, root, pieces, Trials()))
    assert len(schedules) >= 2
    for schedule in schedules:
        check(collective, schedule, times)


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("switch:8", []),
        ("fat-tree:4", [2, 4]),
        ("dgx-a100:2", [8]),
        ("dgx-h100:4", [8]),
        ("dragonfly:4,2,2", [2, 8]),
    ],
)
def test_groups_are_those_that_are_near(text: str, widths: list[int]) -> None:
    assert [grid.width for grid in find_group_grids(*network_of(text))] == widths


def test_network_without_the_arcs_has_no_stages() -> None:
    # Three boards in a line: the first and the last one have no arc to one another.
    network, times = network_of("line:3*switch:2")
    assert not list(
        generate_staged_all_gathers(network, times, np.arange(network.num_npus), Trials())
    )


def test_chunks_cross_slow_links_once() -> None:
    network, times = network_of("dgx-h100:4")
    n = network.num_npus
    fewest = min(
        np.count_nonzero(found.source // 8 != found.destination // 8)
        for found in generate_staged_all_gathers(network, times, np.arange(n), Trials())
    )
    assert fewest == n * 3
