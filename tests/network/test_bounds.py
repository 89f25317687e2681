from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology
from hub_core.model.collectives import Collective
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import ROOTED, STANDARD_KINDS, CollectiveKind
from hub_core.network.bounds import distance_bounds_ps, lower_bound_ns, lower_bounds_ps
from hub_core.network.cuts import slowest_blocks
from hub_core.network.links import Links
from hub_core.network.topology import Topology
from hub_core.testing import custom_collective

MIB = 1 << 20
# 50 bytes a ns and 500 ns, unless a text says otherwise.
RATE, LATENCY = 50.0, 500.0


def collective(kind, ranks, root=0):
    return Collective(kind, ranks, ranks, root=root if kind in ROOTED else None)


def bound(kind, text, size=MIB, ranks=None, root=0):
    topology = parse_topology(text) if isinstance(text, str) else text
    found = lower_bound_ns(collective(kind, ranks or topology.num_npus, root), topology, size)
    assert found is not None
    return found


def comm(size):
    """Time of one message on one link, in exact arithmetic of doubles."""
    return LATENCY + size / RATE


def graph(npus, nodes, *links):
    """Links (source, destination, bytes a ns, latency in ns)."""
    ends = np.asarray([link[:2] for link in links], np.int64).reshape(-1, 2)
    rates = np.asarray([link[2] for link in links], np.float64) * 1e9
    return Links(
        ends[:, 0], ends[:, 1], rates, np.asarray([link[3] for link in links]) / 1e9
    ).topology("graph", npus, nodes)


@pytest.mark.parametrize("n", [2, 3, 8, 64])
@pytest.mark.parametrize(
    "kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL]
)
def test_direct_exchange_on_a_fully_connected_network_is_optimal(kind, n):
    assert bound(kind, f"fully-connected:{n}", n * 65536) == math.floor(comm(65536))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_all_reduce_on_a_fully_connected_network_moves_everything_twice(n):
    assert bound(CollectiveKind.ALL_REDUCE, f"fully-connected:{n}", n * 65536) == math.floor(
        LATENCY + 2 * 65536 / RATE
    )


@pytest.mark.parametrize("n", [3, 8, 64])
def test_all_gather_on_a_ring_uses_both_directions(n):
    assert bound(CollectiveKind.ALL_GATHER, f"ring:{n}", n * MIB) == math.floor(
        LATENCY + (n - 1) * MIB / (2 * RATE)
    )


@pytest.mark.parametrize("n", [4, 64])
def test_small_sizes_are_bound_by_the_latency_across_the_network(n):
    assert bound(CollectiveKind.ALL_REDUCE, f"ring:{n}", 1) == n // 2 * LATENCY


@pytest.mark.parametrize(
    "kind", [CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL]
)
def test_switch_takes_the_latency_of_both_links_and_the_time_of_one(kind):
    assert bound(kind, "switch:8", 8 * MIB) == math.floor(2 * LATENCY + 7 * MIB / RATE)


def test_all_reduce_on_a_switch_takes_two_times_the_share_of_the_others():
    assert bound(CollectiveKind.ALL_REDUCE, "switch:8", 8 * MIB) == math.floor(
        2 * LATENCY + 2 * 7 * MIB / RATE
    )


@pytest.mark.parametrize(("kind", "root"), [(kind, root) for kind in ROOTED for root in (0, 3)])
def test_root_sends_or_receives_through_its_own_links(kind, root):
    size = 8 * MIB
    least = 2 * LATENCY + size * 7 / 8 / RATE
    if kind in (CollectiveKind.BROADCAST, CollectiveKind.REDUCE):
        # In the first, or last, 4 latencies a message concerns one other rank, before that 7.
        least = size / RATE + (1 * 2 + 6 * 4) * LATENCY / 7
    assert bound(kind, "switch:8", size, root=root) == math.floor(least)


def test_broadcast_along_a_line_takes_the_latency_of_all_links():
    assert bound(CollectiveKind.BROADCAST, "line:5", 1) == 4 * LATENCY
    assert bound(CollectiveKind.BROADCAST, "line:5", 1, root=2) == 2 * LATENCY


def test_reduction_to_a_root_goes_against_the_links():
    one_way = graph(3, 3, (1, 0, 1.0, 10.0), (2, 1, 1.0, 20.0), (0, 2, 1.0, 5.0))
    # One byte takes 1 ns on the last link into, or the first one out of, the farthest rank.
    assert bound(CollectiveKind.REDUCE, one_way, 1) == 10 + 20 + 1
    assert bound(CollectiveKind.BROADCAST, one_way, 1) == 5 + 20 + 1


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE])
def test_the_last_byte_of_a_broadcast_or_reduce_travels_the_longest_distance(kind):
    """1 MiB over the six links of the root, and 2 + 2 + 2 hops of 500 ns to the opposite rank."""
    topology = parse_topology("torus:4x4x4")
    (found,) = lower_bounds_ps(collective(kind, 64), topology, (1 << 20,))
    assert found == pytest.approx((1 << 20) / 6 / 50 * 1000 + 6 * 500_000, abs=1)


def test_slow_link_that_starts_late_is_left_out_where_others_are_done_before():
    fast_and_late = graph(2, 2, (0, 1, 1.0, 10.0), (0, 1, 1000.0, 5000.0), (1, 0, 1.0, 10.0))
    assert bound(CollectiveKind.BROADCAST, fast_and_late, 100) == 110
    # Both: 1 * (T - 10) + 1000 * (T - 5000) = 10^6.
    assert bound(CollectiveKind.BROADCAST, fast_and_late, 10**6) == math.floor(
        (10**6 + 10 + 5 * 10**6) / 1001
    )


def test_links_to_npus_that_are_no_ranks_do_not_help():
    alone, beside = (
        bound(CollectiveKind.ALL_REDUCE, "switch:4", ranks=4),
        bound(CollectiveKind.ALL_REDUCE, "switch:9", ranks=4),
    )
    assert alone == beside


@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_one_rank_needs_no_time(kind):
    assert bound(kind, "ring:1") == 0


def test_custom_collective_has_no_bound():
    assert lower_bound_ns(custom_collective(2, 1), parse_topology("ring:2"), 1) is None


def test_more_ranks_than_npus_are_refused():
    with pytest.raises(InputError, match="8 ranks, but topology ring:4 has 4 NPUs"):
        lower_bound_ns(collective(CollectiveKind.ALL_REDUCE, 8), parse_topology("ring:4"), MIB)


def test_disconnected_network_takes_for_ever():
    assert bound(CollectiveKind.BROADCAST, graph(3, 3, (0, 1, 1.0, 1.0)), 1) == math.inf


def test_ranks_without_bytes_and_without_a_path_bound_nothing():
    """Of one byte for three ranks the last has it, which alone is reached."""
    network = graph(3, 3, (0, 2, 1.0, 1.0))
    one_byte = Collective(CollectiveKind.SCATTER, 3, 3, root=0)
    assert distance_bounds_ps(one_byte, network, [1], None, np.ones(1)) == (1000.0,)


@pytest.mark.parametrize("num_nodes", [2, 3])
def test_networks_without_links_take_for_ever(num_nodes):
    assert bound(CollectiveKind.ALL_GATHER, graph(2, num_nodes), 2) == math.inf


# Closed forms of section 7 of the timing rules, in doubles: what the algorithms take, which no
# bound may exceed.
@pytest.mark.once
@given(
    st.integers(1, 6),
    st.integers(1, 1 << 24),
    st.sampled_from(["ring", "fully-connected", "switch"]),
)
def test_recursive_halving_and_doubling_is_not_below_the_bound(order, share, network):
    n = 1 << order
    steps = [share * (1 << k) for k in range(order)]
    hops = 2 if network == "switch" else 1
    messages = [comm(size) for size in steps] * 2
    if network == "ring" and n > 2:
        return
    assert bound(CollectiveKind.ALL_REDUCE, f"{network}:{n}", share * n) <= hops * sum(messages)


@pytest.mark.once
@given(
    st.integers(2, 40),
    st.integers(1, 1 << 24),
    st.sampled_from(["ring", "fully-connected", "switch"]),
)
def test_ring_algorithms_are_not_below_the_bound(n, share, network):
    hops = 2 if network == "switch" else 1
    for kind, rounds in (
        (CollectiveKind.ALL_REDUCE, 2 * (n - 1)),
        (CollectiveKind.ALL_GATHER, n - 1),
        (CollectiveKind.REDUCE_SCATTER, n - 1),
    ):
        assert bound(kind, f"{network}:{n}", share * n) <= rounds * hops * comm(share)


@pytest.mark.once
@given(st.integers(2, 40), st.integers(1, 1 << 24))
def test_direct_exchange_on_a_switch_is_not_below_the_bound(n, share):
    time = 2 * comm(share) + (n - 2) * share / RATE
    found = bound(CollectiveKind.ALL_TO_ALL, f"switch:{n}", share * n)
    assert found <= time
    assert time <= found + share / RATE + 1


@given(st.integers(2, 20), st.integers(1, 50), st.integers(1, 1 << 20))
def test_pipelined_broadcast_along_a_line_is_not_below_the_bound(n, pieces, size):
    time = (n - 1) * comm(size) + (pieces - 1) * size / RATE
    assert bound(CollectiveKind.BROADCAST, f"line:{n}", pieces * size) <= time


@pytest.mark.once
@given(
    st.sampled_from(STANDARD_KINDS),
    st.integers(2, 9),
    st.integers(1, 1 << 30),
    st.sampled_from(["ring", "switch", "line", "fc"]),
)
def test_bound_grows_with_the_size(kind, n, size, network):
    assert bound(kind, f"{network}:{n}", size) <= bound(kind, f"{network}:{n}", size + 1000)


@given(st.sampled_from(STANDARD_KINDS), st.permutations(range(6)))
def test_bound_does_not_depend_on_the_order_of_the_links(kind, order):
    rows = [
        (0, 1, 5.0, 7.0),
        (1, 2, 2.0, 3.0),
        (2, 0, 1.0, 11.0),
        (1, 0, 4.0, 2.0),
        (2, 1, 8.0, 1.0),
        (0, 2, 9.0, 30.0),
    ]
    assert bound(kind, graph(3, 3, *(rows[row] for row in order)), 999) == bound(
        kind, graph(3, 3, *rows), 999
    )


def simulated(algorithm, topology: Topology, size: int):
    import hub_core

    result = hub_core.simulate(algorithm, topology, size)
    assert result.time_ns is not None
    return result.time_ns


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    "text",
    ["ring:4", "switch:4", "fc:4", "torus:2x2", "line:4", "rail:2x2", "fat-tree:4", "ring:7"],
)
def test_simulated_time_of_every_sample_is_not_below_the_bound(text):
    from hub_core.testing.samples import all_samples

    topology = parse_topology(f"{text}?latency=936.25ns")
    size = 64 * MIB
    tried = 0
    for algorithm in all_samples().values():
        if (
            algorithm.num_ranks > topology.num_npus
            or algorithm.collective.kind is CollectiveKind.CUSTOM
        ):
            continue
        least = lower_bound_ns(algorithm.collective, topology, size)
        # Every message loses less than 1 ns to truncation: one in 10^4 for these sizes.
        assert least is not None
        assert simulated(algorithm, topology, size) * (1 + 1e-4) >= least
        tried += 1
    assert tried


# Machines and halves: closed forms of the bytes that cross a cut, by the links that cross it.
def bound_of(kind, text, size, root=0):
    """The bound in ns at a size where latencies hardly count."""
    return bound(kind, text, size, root=root) / 1e9


@pytest.mark.parametrize(
    ("text", "seconds_per_byte"),
    [
        # 8 GPUs send to 24 others; 8 NICs of 50 GB/s leave a machine.
        ("dgx-h100:4", 8 * 24 / 32 / 400e9),
        # 8 GPUs to 8 others, 8 NICs of 25 GB/s.
        ("dgx-a100:2", 8 * 8 / 16 / 200e9),
        # Half of the torus to the other: 32 * 32 pairs over 16 links each way.
        ("torus:8x8", 32 * 32 / 64 / (16 * 50e9)),
        ("mesh:6x4", 12 * 12 / 24 / (4 * 50e9)),
        # 8 NPUs below a leaf send to 56 others, by 4 links up.
        ("leaf-spine:8,8,4", 8 * 56 / 64 / (4 * 50e9)),
        # 28 pairs a link and way between two quads of a hybrid cube mesh are no closed form; the
        # 16 * 16 / 32 shares of two rings of 16 that one link joins are.
        ("line:32", 16 * 16 / 32 / 50e9),
    ],
)
@pytest.mark.needs_plugins
def test_an_all_to_all_is_bound_by_what_leaves_a_machine_or_a_half(text, seconds_per_byte):
    size = 1 << 33
    assert bound_of(CollectiveKind.ALL_TO_ALL, text, size) == pytest.approx(
        size * seconds_per_byte, rel=1e-4
    )


@pytest.mark.needs_plugins
def test_an_all_reduce_of_machines_sends_everything_to_all_but_one_machine_twice():
    # 2 (4 - 1) vectors leave 4 machines of 8 NICs; NVLink is no bottleneck at 10 TB/s.
    text = "dgx-h100:4?bandwidth=10TB/s,50GB/s"
    size = 1 << 33
    assert bound_of(CollectiveKind.ALL_REDUCE, text, size) == pytest.approx(
        size * 6 / (4 * 400e9), rel=1e-4
    )


def test_a_narrow_link_between_two_cliques_bounds_collectives_without_any_names():
    # Two cliques of 4 and one cable: nothing but the links tells where it is.
    links = [
        (a, b, 50.0, 500.0)
        for half in (range(4), range(4, 8))
        for a in half
        for b in half
        if a != b
    ]
    barbell = graph(8, 8, *links, (3, 4, 50.0, 500.0), (4, 3, 50.0, 500.0))
    size = 1 << 33
    for kind, crossing in (
        (CollectiveKind.ALL_GATHER, 0.5),
        (CollectiveKind.REDUCE_SCATTER, 0.5),
        (CollectiveKind.ALL_TO_ALL, 4 * 4 / 8),
        (CollectiveKind.ALL_REDUCE, 1.0),
        (CollectiveKind.BROADCAST, 1.0),
    ):
        assert bound_of(kind, barbell, size) == pytest.approx(size * crossing / 50e9, rel=1e-4)


def test_ranks_on_other_npus_are_bound_where_they_are():
    topology = parse_topology("line:8")
    wanted = collective(CollectiveKind.BROADCAST, 2)
    assert lower_bounds_ps(wanted, topology, (1,), (0, 7)) == (7 * 500_000 + 20,)
    assert lower_bounds_ps(wanted, topology, (1,), (3, 4)) == (500_000 + 20,)


@pytest.mark.parametrize("size", [7, 1000, 1001, 1023])
@pytest.mark.parametrize("kind", STANDARD_KINDS)
def test_bounds_count_the_bytes_of_shares_that_do_not_divide(kind, size):
    # 3 ranks with shares of floor((r + 1) size / 3) - floor(r size / 3) bytes, at one switch.
    shares = [(r + 1) * size // 3 - r * size // 3 for r in range(3)]
    most, least = max(shares), min(shares)
    # Received by the rank that needs most, in the best case for every kind.
    at_least = {
        # Contributions of two ranks: a sum of both would need two more latencies.
        CollectiveKind.ALL_REDUCE: 2 * size,
        CollectiveKind.ALL_GATHER: size - least,
        CollectiveKind.REDUCE_SCATTER: size - least,
        CollectiveKind.ALL_TO_ALL: 2 * most,
        # The root sends or receives twice: forwarding takes two more latencies.
        CollectiveKind.BROADCAST: 2 * size,
        CollectiveKind.REDUCE: 2 * size,
        CollectiveKind.GATHER: size - shares[0],
        CollectiveKind.SCATTER: size - shares[0],
    }[kind]
    (found,) = lower_bounds_ps(collective(kind, 3), parse_topology("switch:3"), (size,))
    assert found == math.floor(1_000_000 + at_least * 20 + 1e-6)


def _cut_bound(kind, topology, size):
    """The best cut of all sets of NPUs, latencies left out: the truth for small networks."""
    n = topology.num_npus
    worst = 0.0
    for code in range(1, 2**n - 1):
        inside = [bool(code >> node & 1) for node in range(n)]
        count = sum(inside)
        needed = {
            CollectiveKind.ALL_GATHER: size * count / n,
            CollectiveKind.ALL_TO_ALL: count * (n - count) * size / n,
            CollectiveKind.BROADCAST: size * inside[0],
        }[kind]
        leaves = [
            inside[a] and not inside[b]
            for a, b in zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
        ]
        rate = float(topology.bandwidth_bytes_per_s[np.asarray(leaves)].sum())
        if needed:
            worst = max(worst, needed / rate if rate else math.inf)
    return worst * 1e9


def _random_ring_with_chords(rng):
    """A ring with links both ways and some more, of three speeds, on 3 to 7 NPUs."""
    n = rng.randint(3, 7)
    ring = [(node, (node + 1) % n) for node in range(n)]
    extra = [(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randint(0, 12))]
    pairs = {*ring, *((b, a) for a, b in ring), *((a, b) for a, b in extra if a != b)}
    return graph(n, n, *((a, b, rng.choice([1.0, 5.0, 50.0]), 0.0) for a, b in sorted(pairs)))


@pytest.mark.once
@given(st.randoms(use_true_random=False))
def test_cuts_of_random_networks_are_true(rng):
    topology, size = _random_ring_with_chords(rng), 1 << 32
    for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST):
        # No cut of NPUs is better in a network without latencies or switches: flows attain it.
        assert bound(kind, topology, size) <= _cut_bound(kind, topology, size) * (1 + 1e-9)


def test_cuts_of_most_random_networks_are_the_best():
    rng, size = random.Random(32), 1 << 32
    ratios = []
    for _ in range(100):
        topology = _random_ring_with_chords(rng)
        for kind in (CollectiveKind.ALL_GATHER, CollectiveKind.BROADCAST):
            ratios.append(bound(kind, topology, size) / _cut_bound(kind, topology, size))
    # Not every set of NPUs is tried: a few bounds are lower than the best cut.
    assert np.mean(np.asarray(ratios) > 1 - 1e-6) >= 0.95
    assert min(ratios) > 0.5


def test_a_block_whose_time_rounds_to_zero_is_examined_for_its_delay():
    # Block 0 needs nothing, and block 1 takes 0.1 ps; both delays are 500 ns.
    needs, rates = np.array([0.0, 1.0]), np.array([1e13, 1e13])
    assert slowest_blocks(needs, rates, np.array([0, 1]), np.array([500.0, 500.0])) == [1]
