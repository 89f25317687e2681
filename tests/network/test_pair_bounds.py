"""Bounds from pairs of a source and a destination: closed forms, exact flows, no false bound."""

from __future__ import annotations

import itertools
import math
import random
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import HubError
from hub_core.model.kinds import CollectiveKind
from hub_core.network.bounds import lower_bounds_ps
from hub_core.network.cuts import orders, partitions
from hub_core.network.links import Links
from hub_core.network.pair_bounds import PairBounds
from hub_core.network.topology import Topology

ALL_REDUCE, BROADCAST, REDUCE = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
KIB = 1 << 10
# 50 bytes per ns and 500 ns, unless a text specifies others.
RATE, LATENCY = 50.0, 500.0
Row = tuple[int, int, float, float]


def bound_ns(kind: CollectiveKind, topology: str | Topology, size: int, root: int = 0) -> float:
    """The bound of the core for all NPUs, in ns with three decimals."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    n = network.num_npus
    collective = Collective(kind, n, n, root if kind is not ALL_REDUCE else None)
    bounds = lower_bounds_ps(collective, network, (size,))
    assert bounds is not None
    return bounds[0] / 1000


def graph(npus: int, nodes: int, rows: list[Row]) -> Topology:
    """Links (source, destination, bytes per ns, latency in ns)."""
    source, destination, rate, latency = zip(*rows, strict=True)
    ends = np.asarray(source, np.int64), np.asarray(destination, np.int64)
    columns = np.asarray(rate) * 1e9, np.asarray(latency) / 1e9
    return Links(*ends, *columns).topology("graph", npus, nodes)


def test_small_all_reduce_at_a_switch_receives_all_contributions() -> None:
    # Before two messages can follow each other, no message holds more than one contribution.
    assert bound_ns(ALL_REDUCE, "switch:8", KIB) == pytest.approx(2 * LATENCY + 7 * KIB / RATE)


def test_all_reduce_at_a_switch_may_send_sums_after_two_latencies() -> None:
    size = 16 * KIB
    # From 1000 ns on a rank can send a sum of all: until 2000 ns it receives single contributions.
    least = 4 * LATENCY + (7 * size / RATE - 2 * LATENCY) / 7
    assert bound_ns(ALL_REDUCE, "switch:8", size) == pytest.approx(least, abs=1e-3)


def test_neighbours_send_the_entire_vector_over_their_link() -> None:
    size = 16 * KIB
    assert bound_ns(ALL_REDUCE, "fc:8", size) == pytest.approx(LATENCY + size / RATE, abs=1e-3)


def test_late_paths_carry_a_part_of_a_larger_vector() -> None:
    # Direct link from 500 ns, six paths over other NPUs from 1000 ns.
    size = 64 * KIB
    least = (size / RATE + LATENCY + 6 * 2 * LATENCY) / 7
    assert bound_ns(ALL_REDUCE, "fc:8", size) == pytest.approx(least, abs=1e-3)


@pytest.mark.parametrize("kind", [ALL_REDUCE, BROADCAST, REDUCE])
def test_far_pair_takes_its_latency_and_the_time_of_its_links(kind: CollectiveKind) -> None:
    size = 4 * KIB
    # Two links lead into the opposite corner.
    least = 4 * LATENCY + size / (2 * RATE)
    assert bound_ns(kind, "mesh:3x3", size) == pytest.approx(least, abs=1e-3)


def test_switches_that_reduce_and_multicast_unite_contributions() -> None:
    text = "switch:8?multicast=true&reduce=true"
    assert bound_ns(ALL_REDUCE, text, KIB) == pytest.approx(2 * LATENCY + KIB / RATE, abs=1e-3)


def test_switches_that_only_multicast_do_not_unite_contributions() -> None:
    least = 2 * LATENCY + 7 * KIB / RATE
    assert bound_ns(ALL_REDUCE, "switch:8?multicast=true", KIB) == pytest.approx(least, abs=1e-3)
    assert bound_ns(BROADCAST, "switch:8?multicast=true", KIB) == pytest.approx(
        2 * LATENCY + KIB / RATE, abs=1e-3
    )


def test_npus_that_are_no_ranks_may_unite_contributions() -> None:
    # Four NPUs around NPU 4, which could sum for them: two latencies and the time of one vector.
    rows = [link for npu in range(4) for link in ((npu, 4, 1.0, 10.0), (4, npu, 1.0, 10.0))]
    ranks = np.arange(4)
    assert PairBounds(graph(5, 5, rows), ranks, ranks).bound_ns(8, 0.0) == 28


def test_latencies_too_long_for_exact_sums_give_no_flow() -> None:
    topology = graph(2, 2, [(0, 1, 1.0, 1e15), (1, 0, 1.0, 1e15)])
    ends = np.arange(2)
    assert PairBounds(topology, ends, ends).bound_ns(100, 1.0) == 1.0


def test_empty_message_and_single_rank_have_no_bound() -> None:
    topology = parse_topology("ring:4")
    ends = np.arange(4)
    assert PairBounds(topology, ends, ends).bound_ns(0, 3.0) == 3.0
    assert PairBounds(topology, ends[:1], ends[:1]).bound_ns(100, 3.0) == 3.0


def test_large_network_without_switches_uses_one_distant_pair() -> None:
    topology = parse_topology("mesh:24x24")
    pairs = PairBounds.of(Collective(ALL_REDUCE, 576, 576), topology, np.arange(576), [], [])
    assert pairs is not None
    assert (len(pairs.sources), len(pairs.destinations)) == (1, 1)
    least = 46 * LATENCY + KIB / (2 * RATE)
    assert bound_ns(ALL_REDUCE, topology, KIB) == pytest.approx(least, abs=1e-3)


def _draw_network(rng: random.Random, *, num_switches: int) -> Topology:
    """Draw NPUs in a ring, or at a line of switches, with up to 6 further links of integer time."""
    npus = rng.randint(2, 4)
    ends = {(node, (node + 1) % npus) for node in range(npus)}
    if num_switches:
        at = [npus + rng.randrange(num_switches) for _ in range(npus)]
        ends = set(enumerate(at)) | {(switch, npu) for npu, switch in enumerate(at)}
        for switch in range(npus, npus + num_switches - 1):
            ends |= {(switch, switch + 1), (switch + 1, switch)}
    nodes = npus + num_switches
    extra = [(rng.randrange(nodes), rng.randrange(nodes)) for _ in range(rng.randint(0, 6))]
    ends |= {(tail, head) for tail, head in extra if tail != head}
    rows = [(*link, float(rng.randint(1, 3)), float(rng.randint(0, 4))) for link in sorted(ends)]
    return graph(npus, nodes, rows)


def _count_bytes(topology: Topology, pair: tuple[int, int], end: int, extra_ns: int) -> int:
    """Return the bytes that get from the first to the second node by `end` ns, in steps of 1 ns.

    It is the maximum flow in the network of (node, interval). A byte that is sent in an interval
    arrives in the interval one latency and `extra_ns` later: with 1 no fluid is slower, with 0
    none is faster.
    """
    source, destination = pair
    last = end - 1 + extra_ns
    nodes = topology.num_nodes
    capacity: dict[tuple[int, int], int] = {}
    arcs: dict[int, set[int]] = {}

    def add(tail: int, head: int, count: int) -> None:
        capacity[tail, head] = capacity.get((tail, head), 0) + count
        capacity.setdefault((head, tail), 0)
        arcs.setdefault(tail, set()).add(head)
        arcs.setdefault(head, set()).add(tail)

    for time in range(last):
        for node in range(nodes):
            add(time * nodes + node, (time + 1) * nodes + node, 10**6)
    for time in range(end):
        for link in topology.links():
            arrival = time + extra_ns + round(link.latency_s * 1e9)
            if arrival <= last:
                rate = round(link.bandwidth_bytes_per_s / 1e9)
                add(time * nodes + link.source, arrival * nodes + link.destination, rate)
    total, goal = 0, last * nodes + destination
    while True:
        before = {source: source}
        queue = deque([source])
        while queue and goal not in before:
            node = queue.popleft()
            for head in arcs.get(node, ()):
                if head not in before and capacity[node, head]:
                    before[head] = node
                    queue.append(head)
        if goal not in before:
            return total
        path = [goal]
        while path[-1] != source:
            path.append(before[path[-1]])
        hops = list(itertools.pairwise(path[::-1]))
        amount = min(capacity[hop] for hop in hops)
        for tail, head in hops:
            capacity[tail, head] -= amount
            capacity[head, tail] += amount
        total += amount


@pytest.mark.once
@given(st.randoms(use_true_random=False))
def test_one_pair_takes_the_time_of_the_quickest_flow(rng: random.Random) -> None:
    topology = _draw_network(rng, num_switches=rng.choice([0, 0, 2]))
    size = rng.randint(1, 40)
    pair = np.asarray([0]), np.asarray([1])
    found = PairBounds(topology, *pair).bound_ns(size, 0.0)
    slowest, fastest = (
        next(end for end in range(1, 400) if _count_bytes(topology, (0, 1), end, extra) >= size)
        for extra in (1, 0)
    )
    assert fastest <= math.ceil(found) <= slowest


def _find_delays(topology: Topology, start: int, *, only_switches: bool) -> dict[int, int]:
    """Return the latency in ns from a node to each node; `only_switches`: on paths over switches."""
    delays, queue = {start: 0}, deque([start])
    while queue:
        node = queue.popleft()
        if only_switches and node != start and node < topology.num_npus:
            continue
        for link in topology.links():
            delay = delays[node] + round(link.latency_s * 1e9)
            if link.source == node and delay < delays.get(link.destination, 1 << 30):
                delays[link.destination] = delay
                queue.append(link.destination)
    return delays


def _count_pairs(topology: Topology, inside: set[int], end: int) -> float:
    """Return the bytes that leave a set by `end` ns, each times the pairs of NPUs that it serves.

    A byte that leaves at time t belongs to one message, from one NPU over switches to another one.
    """
    npus, far = range(topology.num_npus), 1 << 30
    all_paths = {node: _find_delays(topology, node, only_switches=False) for node in npus}
    switched = {
        node: _find_delays(topology, node, only_switches=True) for node in range(topology.num_nodes)
    }
    total = 0.0
    for link in topology.links():
        if link.source not in inside or link.destination in inside:
            continue
        window = end - round(link.latency_s * 1e9)
        for time in range(window):
            held = max(
                sum(
                    source in inside and all_paths[source].get(npu, far) <= time - delay
                    for source in npus
                )
                for npu in npus
                if (delay := switched[npu].get(link.source, far)) < far
            )
            served = max(
                sum(
                    other not in inside and all_paths[npu].get(other, far) < window - time - delay
                    for other in npus
                )
                for npu in npus
                if (delay := switched[link.destination].get(npu, far)) < far
            )
            total += held * served * link.bandwidth_bytes_per_s / 1e9
    return total


@pytest.mark.once
@given(st.randoms(use_true_random=False))
def test_cuts_count_the_pairs_that_a_message_can_serve(rng: random.Random) -> None:
    topology = _draw_network(rng, num_switches=rng.choice([1, 2, 3]))
    npus, size = np.arange(topology.num_npus), rng.randint(1, 30)
    sets = [*partitions(topology)], [each for each in orders(topology) if each.min() >= 0]
    bounds = PairBounds(topology, npus, npus, *sets)
    assert bounds._cuts
    for inside, (pairs, cut) in zip(bounds._list_sets(), bounds._cuts, strict=True):
        nodes = set(np.flatnonzero(inside).tolist())
        time = float(cut.times_ns(pairs * size))
        assert _count_pairs(topology, nodes, math.floor(time)) <= pairs * size * (1 + 1e-9)
        assert _count_pairs(topology, nodes, math.ceil(time)) >= pairs * size * (1 - 1e-9)


@pytest.mark.once
@pytest.mark.needs_plugins
@pytest.mark.parametrize("seed", range(3))
def test_no_synthesizer_is_faster_than_the_bound(seed: int) -> None:
    import hub_core
    from hub_core.plugin_api import Synthesizer

    rng = random.Random(seed)
    topology = _draw_network(rng, num_switches=rng.choice([0, 1, 2]))
    n = topology.num_npus
    for kind, size in itertools.product((ALL_REDUCE, BROADCAST, REDUCE), (60, 3600)):
        root = None if kind is ALL_REDUCE else rng.randrange(n)
        collective = Collective(kind, n, n, root, in_place=True)
        bounds = lower_bounds_ps(collective, topology, (size,))
        assert bounds is not None
        for provided in hub_core.discover().all(Synthesizer):
            if provided.offer.only_by_name or provided.name == "auto":
                continue
            try:
                result = hub_core.synthesize(collective, topology, size, name=provided.name)
            except HubError:
                continue
            assert result.time_ns >= bounds[0] // 1000, provided.name
            assert not [one for one in result.diagnostics if one.code == "bound-beaten"]
