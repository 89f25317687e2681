"""Repair after a link failure: only messages over the link change, and the result is correct."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_compose.passes import run_repair
from collhub_compose.plugin import RepairOptions

import hub_core
from hub_core import Algorithm, UsageError, parse_topology, verify
from hub_core.model import Findings, match_messages
from hub_core.network import Topology, select_links
from hub_core.plugin_api import Simulator
from hub_core.schedules import Repair, repair_messages
from hub_core.schedules.repair import _find_path
from hub_core.testing import binomial_broadcast, ring_all_gather, ring_all_reduce

SIZE = 1 << 20


def without(algorithm: Algorithm, text: str, link: str) -> tuple[Repair, Topology]:
    network = parse_topology(text)
    return repair_messages(algorithm, network, select_links(network, link), SIZE), network


def connections(algorithm: Algorithm) -> list[tuple[int, int]]:
    steps = algorithm.steps
    sends = np.flatnonzero(steps.sends)
    return list(zip(steps.rank[sends].tolist(), steps.peer[sends].tolist(), strict=True))


@pytest.mark.parametrize(
    ("algorithm", "text", "link", "changed"),
    [
        (ring_all_reduce(4), "ring:4", "0-1", 6),
        (ring_all_gather(4), "ring:4", "0->1", 3),
        (binomial_broadcast(8), "hypercube:3", "0-1", 1),
        # Ranks 3 and 7 lose their rail, so that messages between machines have a relay.
        (ring_all_reduce(8), "rail:2x4", "3-rail 3", 0),
        (ring_all_reduce(8), "fc:8", "7-0", 14),
    ],
)
def test_messages_over_the_link_get_relays(
    algorithm: Algorithm, text: str, link: str, changed: int
) -> None:
    result, network = without(algorithm, text, link)
    assert (result.changed, result.messages) == (changed, len(connections(algorithm)))
    assert verify(result.algorithm).ok
    fails = select_links(network, link)
    broken = set(
        zip(network.source[fails].tolist(), network.destination[fails].tolist(), strict=True)
    )
    assert not broken & set(connections(result.algorithm))
    # Every other message is unchanged.
    hops = sum(len(path) - 2 for path in result.paths) * (changed // max(1, len(result.paths)))
    assert len(connections(result.algorithm)) == result.messages + hops


def test_messages_through_switches_with_another_route_stay() -> None:
    algorithm = ring_all_reduce(4)
    result, _ = without(algorithm, "leaf-spine:2,2,2", "leaf 0-spine 0")
    assert result.algorithm is algorithm


def test_paths_avoid_slow_links() -> None:
    network = parse_topology("fc:4?degrade=0-2=0.01")
    result = repair_messages(ring_all_gather(4), network, select_links(network, "0-1"), SIZE)
    assert result.paths == ((0, 3, 1),)


def test_paths_over_links_without_a_time_end() -> None:
    network = parse_topology("ring:4")
    time_ns = np.where(select_links(network, "2-3"), np.inf, 0.0)
    links = _find_path(network, 2, 3, time_ns)
    assert network.destination[links].tolist() == [1, 0, 3]


def test_relays_can_run_row_by_row() -> None:
    """A runtime that executes the rows of each rank in their order does not deadlock."""
    algorithm = without(ring_all_reduce(4), "ring:4", "0-1")[0].algorithm
    steps = algorithm.steps
    messages = match_messages(steps, Findings(None))
    sender_of = dict(zip(messages.receive.tolist(), messages.send.tolist(), strict=True))
    done: set[int] = set()
    next_row = steps.rank_indptr[:-1].tolist()
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, stop in enumerate(steps.rank_indptr[1:].tolist()):
            while next_row[rank] < stop and sender_of.get(next_row[rank], -1) in done | {-1}:
                done.add(next_row[rank])
                next_row[rank] += 1
                is_moving = True
    assert len(done) == len(steps)


def test_the_pass_reports_changes_paths_and_times() -> None:
    if "analytical" not in {found.name for found in hub_core.discover().all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    options = RepairOptions("ring:4?without=0-1", size="1MiB")
    result, report = run_repair(ring_all_reduce(4), options)
    assert verify(result).ok
    assert report.changes[:2] == ("messages: 6 of 24 rerouted", "path: 0 -> 3 -> 2 -> 1")
    assert report.changes[2].startswith("time: ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (RepairOptions(), "unchanged: give -O topology=ring:8"),
        (RepairOptions("ring:4"), "unchanged: give failed links, for example -O without=0-1"),
    ],
)
def test_without_a_failure_nothing_changes(options: RepairOptions, reason: str) -> None:
    algorithm = ring_all_reduce(4)
    result, report = run_repair(algorithm, options)
    assert result is algorithm
    assert report.changes == (reason,)


def test_a_separated_network_is_refused() -> None:
    with pytest.raises(UsageError, match="is not connected"):
        run_repair(ring_all_reduce(4), RepairOptions("line:4", "0-1", "1MiB"))
