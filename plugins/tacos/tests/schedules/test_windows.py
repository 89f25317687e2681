"""Windows: how many messages of one link may be on their way at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_tacos.link_network import CAPPED, UNCAPPED, LinkNetwork, LinkTimes
from collhub_tacos.schedules.link_schedule import compute_link_windows, compute_windows

from hub_core import parse_topology


def test_link_begins_with_one_message_and_ends_at_its_window() -> None:
    # Ten messages of one link, each 1 long, that take 4: after two doublings four are under way.
    turn = np.arange(10, dtype=np.int64)
    found = compute_windows(np.zeros(10, np.int64), turn, turn + 4, np.full(10, 4), 2)
    assert (turn - found).tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 4, 5]


def test_message_waits_for_the_last_to_arrive_of_all_before_its_window() -> None:
    # The first message goes far, the second one does not: nobody may wait for the second one alone.
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
