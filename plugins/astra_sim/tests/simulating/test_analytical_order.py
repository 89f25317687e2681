"""The order of equal sends on one link follows libstdc++'s hash sets.

Ids and orders are as measured on ASTRA-sim.
"""

from __future__ import annotations

import numpy as np
import pytest
from collhub_astra_sim.simulating.analytical import simulate_nodes
from spec_simulator import SpecSimulator
from trace_graphs import Graph, equal_sends

from hub_core import parse_topology

TO_13 = [12, 13, *range(12)]
TO_19 = [12, 11, 10, 9, 8, 7, 6, 19, 18, 5, 17, 4, 16, 3, 15, 2, 14, 1, 13, 0]


def wire_order(identities: list[int], are_freed_together: bool) -> list[int]:
    table = equal_sends(identities, are_freed_together).table()
    end = simulate_nodes(table, parse_topology("fc:2?bandwidth=50GiB/s")).end_ns
    sends = np.flatnonzero(table.type == 5)
    return [int(identity) for identity in table.node_id[sends[np.argsort(end[sends])]]]


@pytest.mark.parametrize(
    "identities",
    [[0, 1, 2, 3], [3, 2, 1, 0], [10, 20, 30, 40], [0, 13, 26, 5], list(range(13))],
    ids=lambda ids: str(len(ids)),
)
@pytest.mark.parametrize("are_freed_together", [False, True])
def test_up_to_13_sends_leave_in_file_order(
    identities: list[int], are_freed_together: bool
) -> None:
    assert wire_order(identities, are_freed_together) == identities


@pytest.mark.parametrize("are_freed_together", [False, True])
def test_a_14th_send_overtakes(are_freed_together: bool) -> None:
    assert wire_order(list(range(14)), are_freed_together) == TO_13


def test_20_sends_are_scrambled() -> None:
    assert wire_order(list(range(20)), False) == TO_19


def test_comps_of_a_rank_that_end_together_come_one_after_the_other() -> None:
    """Rank 0's second COMP began after rank 1's.

    Still its message is the first to take the link to rank 2.
    """
    graph = Graph(3)
    graph.comp(0, 3)
    later = graph.comp(0, 1, [graph.comp(0, 2)])
    graph.send(0, 2, 100000, 0, [later])
    graph.send(1, 2, 100000, 0, [graph.comp(1, 3)])
    first, second = graph.recv(2, 0, 100000), graph.recv(2, 1, 100000)
    table = graph.table()
    ends = simulate_nodes(table, parse_topology("switch:3")).end_ns[table.rank_indptr[2] :]
    assert ends[first] < ends[second]


def test_a_delivered_message_frees_its_sender_before_its_receiver() -> None:
    """After 0 -> 1, both send to 2 at once.

    Rank 0, although its message reached rank 1, is first at the last link.
    """
    graph = Graph(3)
    sent, received = graph.send(0, 1, 100000), graph.recv(1, 0, 100000)
    graph.send(0, 2, 100000, 0, [sent])
    graph.send(1, 2, 100000, 0, [received])
    from_0, from_1 = graph.recv(2, 0, 100000), graph.recv(2, 1, 100000)
    table = graph.table()
    ends = simulate_nodes(table, parse_topology("switch:3")).end_ns[table.rank_indptr[2] :]
    assert ends[from_0] < ends[from_1]


def test_events_of_times_that_share_a_place_keep_their_order() -> None:
    """Times that differ by 128 us share a place among the recent ones, 128000 being 125 * 1024.

    So every event drives the bucket of the one before out, and one time has several buckets.
    """
    senders = 12
    graph = Graph(senders + 1)
    for rank in range(senders):
        ready = graph.comp(rank, 1 if rank % 2 else 129)
        graph.send(rank, senders, 1 << 16, rank, [ready])
        graph.recv(senders, rank, 1 << 16, rank)
    topology = parse_topology(f"switch:{senders + 1}?bandwidth=50GiB/s")
    links = {
        (link.source, link.destination): (50 * 2**30 / 1e9, 500.0) for link in topology.links()
    }
    plain = SpecSimulator(graph, links, lambda a, b: [a, senders + 1, b]).run()
    finish = list(simulate_nodes(graph.table(), topology).rank_finish_ns)
    assert finish == plain
    # The senders of a time stand in line at the last link in the order of their numbers.
    assert finish[1:senders:2] == sorted(finish[1:senders:2])
