"""Cycles that ASTRA-sim printed for graphs small enough to follow by hand.

It was the public release of March 2026.

Parameters unless stated: 50 GiB/s, 500 ns, congestion-aware; a rank without work finishes at 1.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trace_graphs as graphs
from astra_calls import simulate_analytically
from collhub_astra_sim.simulating.analytical import simulate_nodes
from collhub_astra_sim.simulating.simulated_network import TimingModel
from trace_graphs import COMP, Graph, GraphNode

from hub_core import parse_topology
from hub_core.testing import ring_all_reduce as sample_ring_all_reduce

MIB = 1 << 20
Cycles = list[int | None]


def cycles(
    graph: Graph,
    topology: str,
    *,
    aware: bool = True,
    constants: str = "bandwidth=50GiB/s&latency=500ns",
) -> Cycles:
    times = simulate_nodes(
        graph.table(), parse_topology(f"{topology}?{constants}"), TimingModel(aware)
    )
    return list(times.rank_finish_ns)


def one_message(num_ranks: int, source: int, destination: int, size: int = MIB) -> Graph:
    graph = Graph(num_ranks)
    graph.send(source, destination, size)
    graph.recv(destination, source, size)
    return graph


def test_one_message() -> None:
    assert cycles(one_message(3, 0, 1), "fc:3") == [20031, 20031, 1]
    assert cycles(one_message(3, 0, 1), "fc:3", aware=False) == [20031, 20031, 1]
    assert cycles(one_message(3, 0, 1), "fc:3", constants="bandwidth=50GiB/s&latency=0ns") == [
        19531,
        19531,
        1,
    ]


def test_a_send_completes_when_its_message_has_arrived_posted_or_not() -> None:
    graph = Graph(3)
    graph.comp(0, 0, [graph.send(0, 1, MIB)])
    graph.recv(1, 0, MIB, after=[graph.comp(1, 100)])
    assert cycles(graph, "fc:3") == [20032, 100000, 1]


def test_messages_queue_for_a_link() -> None:
    graph = Graph(3)
    for tag in range(3):
        graph.send(0, 1, MIB, tag)
        graph.recv(1, 0, MIB, tag)
    assert cycles(graph, "fc:3") == [59093, 59093, 1]
    assert cycles(graph, "fc:3", aware=False) == [20031, 20031, 1]


def test_messages_to_one_rank_share_the_link_from_the_switch() -> None:
    graph = Graph(3)
    for source in (0, 1):
        graph.send(source, 2, MIB)
        graph.recv(2, source, MIB)
    assert cycles(graph, "switch:3") == [40062, 59593, 59593]
    assert cycles(graph, "switch:3", aware=False) == [20531, 20531, 20531]


def test_messages_are_stored_and_forwarded_whole() -> None:
    assert cycles(one_message(4, 0, 2), "ring:4") == [40062, 1, 40062, 1]
    assert cycles(one_message(4, 0, 2), "ring:4", aware=False) == [20531, 1, 20531, 1]


@pytest.mark.parametrize(
    ("topology", "aware", "time"),
    # A congestion-aware ring of two is ours: ASTRA-sim aborts.
    [
        ("fc:2", True, 20031),
        ("switch:2", True, 40062),
        ("ring:2", False, 20031),
        ("ring:2", True, 20031),
    ],
)
def test_two_ranks(topology: str, aware: bool, time: int) -> None:
    assert cycles(one_message(2, 0, 1), topology, aware=aware) == [time, time]


def test_small_messages() -> None:
    assert cycles(one_message(3, 0, 1, 54), "fc:3") == [501, 501, 1]
    assert cycles(one_message(3, 0, 1, 1), "fc:3", aware=False) == [500, 500, 1]
    later = Graph(3)
    later.send(0, 1, 1, after=[later.comp(0)])
    later.recv(1, 0, 1)
    assert cycles(later, "fc:3") == [501, 501, 1]


@pytest.mark.parametrize(
    ("microseconds", "time"), [(0, 1), (1, 1000), (7, 7000), (1000000, 1000000000)]
)
def test_a_comp_takes_whole_microseconds_or_1_ns(microseconds: int, time: int) -> None:
    graph = Graph(3)
    graph.comp(0, microseconds)
    assert cycles(graph, "fc:3") == [time, 1, 1]


def test_comps_of_one_rank_run_side_by_side() -> None:
    graph = Graph(3)
    for _ in range(3):
        graph.comp(0, 5)
    assert cycles(graph, "fc:3") == [5000, 1, 1]


def test_control_dependencies_count_as_dependencies() -> None:
    graph = Graph(3)
    for place in range(3):
        graph.add(
            0, GraphNode(place, COMP, duration_ns=1000, control=(place - 1,) if place else ())
        )
    assert cycles(graph, "fc:3") == [3000, 1, 1]


def test_unaware_networks_count_the_first_differing_dimension_only() -> None:
    constants = "bandwidth=50GiB/s,25GiB/s&latency=500ns,1000ns"
    for destination, time in ((1, 20031), (2, 41062), (3, 20031)):
        found = cycles(
            one_message(4, 0, destination), "ring:2*switch:2", aware=False, constants=constants
        )
        assert found[0] == found[destination] == time


def test_reused_tags_can_deadlock() -> None:
    """Rank 1 posts R1 before R0: R1 takes the first message, R0 waits for one that never leaves."""
    graph = Graph(2)
    graph.send(0, 1, MIB, 0)
    graph.send(0, 1, MIB, 0, [graph.recv(0, 1, MIB, 9)])
    graph.recv(1, 0, MIB, 0)
    graph.send(1, 0, MIB, 9, [graph.recv(1, 0, MIB, 0)])
    assert cycles(graph, "fc:2") == [None, None]


def test_tags_match_modulo_500_million() -> None:
    graph = Graph(2)
    graph.send(0, 1, MIB, 500_000_003)
    graph.recv(1, 0, MIB, 3)
    assert cycles(graph, "fc:2") == [20031, 20031]


ALGORITHMS: dict[str, tuple[Callable[[], Graph], int]] = {
    "ring all-reduce": (lambda: graphs.ring_all_reduce(8, MIB), 8),
    "ring all-gather": (lambda: graphs.ring_all_gather(8, 131072), 8),
    "halving and doubling": (lambda: graphs.halving_doubling(8, MIB), 8),
    "direct all-to-all 8": (lambda: graphs.direct_all_to_all(8, 65536), 8),
    "direct all-to-all 16": (lambda: graphs.direct_all_to_all(16, 65536), 16),
    "direct all-to-all 128": (lambda: graphs.direct_all_to_all(128, 65536), 128),
    "two-phase 16": (lambda: graphs.two_phase(16, 65536), 16),
    "two-phase 32": (lambda: graphs.two_phase(32, 65536), 32),
    "gather": (graphs.gather5, 5),
    "chain": (graphs.chain4, 4),
    "broadcast": (graphs.broadcast8, 8),
    "skew": (graphs.skew4, 4),
}
# Ring, fully connected, switch; one number stands for all ranks, four of eight for both halves.
AWARE: dict[str, list[list[int] | None]] = {
    "ring all-reduce": [[41181], None, None],
    "ring all-gather": [[20587], [20587], [41174]],
    "halving and doubling": [[109533], [37179], [74355]],
    "direct all-to-all 8": [[13200], [1720], [10760]],
    "direct all-to-all 16": [[44920], [1720], [20520]],
    "direct all-to-all 128": [None, [1720], [157160]],
    "two-phase 16": [[89341], [3441], [41041]],
    "two-phase 32": [[332841], [3441], [80081]],
    "gather": [
        [9044, 1720, 5882, 9044, 5382],
        [5382, 1720, 2941, 4162, 5382],
        [14426, 3440, 5882, 9544, 14426],
    ],
    "chain": [
        [20028, 25410, 30792, 30792],
        [20028, 25410, 30792, 30792],
        [25410, 36174, 46938, 46938],
    ],
    "broadcast": [
        [138717, 119686, 159248, 140217],
        [20031, 40062, 40062, 60093],
        [79124, 99655, 99655, 120186],
    ],
    "skew": [[15967, 9813, 13605, 15967], [9880, 7226, 7518, 9880], [19760, 14038, 15036, 19760]],
}
UNAWARE: dict[str, list[list[int] | None]] = {
    "ring all-gather": [[20587], [20587], [24087]],
    "halving and doubling": [[41179], [37179], [40179]],
    "direct all-to-all 8": [[3220], [1720], [2220]],
    "direct all-to-all 16": [[5220], [1720], [2220]],
    "two-phase 16": [[10441], [3441], [4441]],
    "two-phase 32": [[18441], [3441], [4441]],
    "gather": [
        [5382, 1720, 3441, 4662, 5382],
        [5382, 1720, 2941, 4162, 5382],
        [5882, 2220, 3441, 4662, 5882],
    ],
    "chain": [
        [5382, 10764, 16146, 16146],
        [5382, 10764, 16146, 16146],
        [5882, 11764, 17646, 17646],
    ],
    "broadcast": [
        [21531, 41562, 42062, 62093],
        [20031, 40062, 40062, 60093],
        [20531, 41062, 41062, 61593],
    ],
    "skew": [[10380, 7226, 8018, 10380], [9880, 7226, 7518, 9880], [11380, 7726, 8518, 11380]],
}
ROWS = [
    (name, topology, aware, expected)
    for aware, table in ((True, AWARE), (False, UNAWARE))
    for name, row in table.items()
    for topology, expected in zip(("ring", "fc", "switch"), row, strict=True)
    if expected is not None
]


@pytest.mark.parametrize(("name", "topology", "aware", "expected"), ROWS)
def test_algorithms(name: str, topology: str, aware: bool, expected: list[int]) -> None:
    build, n = ALGORITHMS[name]
    assert cycles(build(), f"{topology}:{n}", aware=aware) == expected * (n // len(expected))


@pytest.mark.parametrize(
    ("topology", "aware", "expected"),
    [
        ("ring", True, [15142, 10045, 13109, 15142]),
        ("fc", True, [9103, 7037, 7070, 9103]),
        ("switch", True, [18206, 14081, 14140, 18206]),
        ("ring", False, [9133, 7037, 7100, 9133]),
        ("fc", False, [9103, 7037, 7070, 9103]),
        ("switch", False, [9194, 7067, 7131, 9194]),
    ],
)
def test_fractions_are_truncated_once(topology: str, aware: bool, expected: list[int]) -> None:
    constants = "bandwidth=46.5GiB/s&latency=30.5ns"
    assert cycles(graphs.skew4(), f"{topology}:4", aware=aware, constants=constants) == expected


RING_ALL_REDUCE_64_MIB = {8: 2194507, 16: 2358765, 32: 2452875, 64: 2523969, 128: 2607437}


@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize(("n", "time"), RING_ALL_REDUCE_64_MIB.items())
def test_ring_all_reduce(n: int, time: int, aware: bool) -> None:
    assert cycles(graphs.ring_all_reduce(n, 64 * MIB), f"ring:{n}", aware=aware) == [time] * n


def test_ring_all_reduce_of_128_ranks_and_1_mib() -> None:
    assert cycles(graphs.ring_all_reduce(128, MIB), "ring:128") == [165735] * 128


@pytest.mark.parametrize(("n", "time"), [*RING_ALL_REDUCE_64_MIB.items(), (256, 2745075)])
def test_the_sample_ring_takes_as_long_as_the_measured_one(n: int, time: int) -> None:
    """Its receives of the second half wait for a send that is long complete: nothing is later."""
    topology = parse_topology(f"ring:{n}?bandwidth=50GiB/s&latency=500ns")
    assert (
        simulate_analytically(sample_ring_all_reduce(n), topology, 64 * MIB).rank_finish_ns
        == (time,) * n
    )
