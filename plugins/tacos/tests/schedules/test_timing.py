"""Times of transfers: what a sender sends next, and how many messages of a link are in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_tacos.link_network import CAPPED, UNCAPPED, LinkNetwork, LinkTimes, contract_switches
from collhub_tacos.schedules.link_schedule import compute_link_windows, compute_windows
from collhub_tacos.schedules.timing import compute_times
from hypothesis import given
from hypothesis import strategies as st

import hub_core
from hub_core import parse_topology
from hub_core.network import Occupancy

_NPUS = 4


def _started(
    target: list[int], rank: list[int], waits: tuple[list[int], list[int]] = ([], [])
) -> np.ndarray:
    """Start of messages of NPU 0 behind a switch; the last one is from NPU 1."""
    network = contract_switches(
        hub_core.parse_topology(f"switch:{_NPUS}?bandwidth=50GB/s&latency=0ns")
    )
    times = replace(network.link_times(50_000, Occupancy.SERIALIZATION), rule=UNCAPPED)
    source = np.zeros(len(target), np.int64)
    source[-1] = 1
    key = network.destination * network.num_nodes + network.source
    arc = np.searchsorted(key, np.asarray(target) * network.num_nodes + source)
    before, after = (np.asarray(column, np.int64) for column in waits)
    start, _ = compute_times(network, times, arc, (before, after), np.asarray(rank), is_fixed=False)
    return start


@given(data=st.data(), targets=st.lists(st.integers(1, _NPUS - 1), min_size=1, max_size=12))
def test_messages_that_meet_nobody_go_by_rank_whatever_their_arc(
    data: st.DataObject, targets: list[int]
) -> None:
    rank = data.draw(st.permutations(range(len(targets))))
    # The message of the other sender comes last, to a place of its own.
    started = _started([*targets, 0], [*rank, len(targets)])[:-1]
    assert np.argsort(started).tolist() == np.argsort(rank).tolist()


def test_what_is_released_later_goes_before_what_waits_with_a_larger_rank() -> None:
    # NPU 0 has five messages to NPU 2; the one of rank 0 waits for what NPU 1 sends.
    started = _started([2, 2, 2, 2, 2, 0], [4, 0, 2, 1, 3, 5], ([5], [1]))
    # That takes two turns, one on each link, and in the third one NPU 0 sends already.
    assert np.argsort(started[:5]).tolist() == [3, 2, 4, 1, 0]


def test_link_begins_with_one_message_and_ends_at_its_window() -> None:
    # Ten messages of one link, each 1 long, that take 4: after two doublings four are under way.
    turn = np.arange(10, dtype=np.int64)
    found = compute_windows(np.zeros(10, np.int64), turn, turn + 4, np.full(10, 4), 2)
    assert (turn - found).tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 4, 5]


def test_message_waits_for_the_last_to_arrive_of_all_before_its_window() -> None:
    # The first message arrives at 20, after the second one: later messages wait for both.
    row, start = np.zeros(5, np.int64), np.arange(5, dtype=np.int64)
    found = compute_windows(row, start, np.asarray([20, 3, 4, 5, 6]), np.full(5, 2), 4)
    assert (start - found).tolist() == [-1, 0, 0, 0, 0]


def test_without_slow_start_a_turn_waits_only_for_the_one_a_window_before() -> None:
    turn = np.arange(10, dtype=np.int64)
    found = compute_windows(np.zeros(10, np.int64), turn, turn + 4, np.full(10, 4), 0)
    assert (turn - found).tolist() == [-1, -1, -1, -1, 0, 1, 2, 3, 4, 5]


def test_window_is_as_wide_as_keeps_the_link_busy_or_at_most_what_the_rule_says() -> None:
    network = LinkNetwork.of(parse_topology("ring:4"))
    # A message takes the link for 10 and arrives after 500: 49 more fit in between.
    slow = LinkTimes(np.full(8, 10), np.full(8, 500), rule=UNCAPPED)
    assert set(compute_link_windows(network, slow)) == {50}
    assert set(compute_link_windows(network, replace(slow, rule=CAPPED))) == {12}
