"""Switches that multicast and reduce, against times that follow from the model by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core import parse_topology, simulate, verify
from hub_core.model import (
    Algorithm,
    Buffer,
    Collective,
    CollectiveKind,
    StepKind,
    StepTableBuilder,
)
from hub_core.network import Links, Topology
from hub_core.schedules import find_switch_groups

MULTICAST, REDUCE = "multicast=true", "reduce=true"
# One byte per nanosecond and link, 10 ns a link.
RATE = "bandwidth=1GB/s&latency=10ns"
SIZE = 1000


def switch(npus: int, *abilities: str) -> Topology:
    return parse_topology("&".join([f"switch:{npus}?{RATE}", *abilities]))


def algorithm_of(
    kind: CollectiveKind, steps: StepTableBuilder, ranks: int, units: int = 1
) -> Algorithm:
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, units, root)
    algorithm = Algorithm(collective, steps.build(), np.zeros(ranks, np.int64))
    assert verify(algorithm).ok
    return algorithm


def broadcast(ranks: int, is_in_turn: bool = False) -> Algorithm:
    """The root sends to all others; `is_in_turn`: each message after the one before."""
    steps = StepTableBuilder(ranks)
    here = {"src_buffer": Buffer.INPUT, "count": 1}
    sent: list[int] = []
    for peer in range(1, ranks):
        control = sent[-1:] if is_in_turn else []
        sent.append(steps.add(0, StepKind.SEND, peer=peer, control=control, **here))
    steps.add(0, StepKind.COPY, dst_buffer=Buffer.OUTPUT, **here)
    for rank in range(1, ranks):
        steps.add(rank, StepKind.RECV, peer=0, dst_buffer=Buffer.OUTPUT, count=1)
    return algorithm_of(CollectiveKind.BROADCAST, steps, ranks)


def reduction(ranks: int) -> Algorithm:
    """All others send to the root, which adds up."""
    steps = StepTableBuilder(ranks)
    copied = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT, "count": 1}
    done = steps.add(0, StepKind.COPY, **copied)
    output = {"src_buffer": Buffer.OUTPUT, "dst_buffer": Buffer.OUTPUT, "count": 1}
    for rank in range(1, ranks):
        done = steps.add(0, StepKind.RECV_REDUCE, peer=rank, data=[done], **output)
        steps.add(rank, StepKind.SEND, peer=0, src_buffer=Buffer.INPUT, count=1)
    return algorithm_of(CollectiveKind.REDUCE, steps, ranks)


def time_ns(algorithm: Algorithm, topology: Topology, size: int = SIZE) -> int:
    found = simulate(algorithm, topology, size).time_ns
    assert found is not None
    return found


@pytest.mark.parametrize("ranks", [3, 5, 9])
def test_a_multicast_takes_a_link_once(ranks: int) -> None:
    algorithm = broadcast(ranks)
    assert time_ns(algorithm, switch(ranks, MULTICAST)) == 2 * (SIZE + 10)
    # Else one message after the other leaves the root.
    assert time_ns(algorithm, switch(ranks)) == (ranks - 1) * SIZE + SIZE + 20
    loads = simulate(algorithm, switch(ranks, MULTICAST), SIZE).link_loads
    assert {load.bytes for load in loads} == {SIZE}


def test_messages_in_turn_are_no_multicast() -> None:
    algorithm = broadcast(4, is_in_turn=True)
    topology = switch(4, MULTICAST)
    assert find_switch_groups(algorithm, topology) is None
    assert time_ns(algorithm, topology) == time_ns(algorithm, switch(4))


@pytest.mark.parametrize("ranks", [3, 5, 9])
def test_a_sum_takes_a_link_once(ranks: int) -> None:
    algorithm = reduction(ranks)
    # Additions at the root take a nanosecond each, the copy is done by then.
    assert time_ns(algorithm, switch(ranks, REDUCE)) == 2 * (SIZE + 10) + ranks - 1
    assert time_ns(algorithm, switch(ranks)) == SIZE + 10 + (ranks - 1) * SIZE + 10 + 1


def test_a_sum_waits_for_its_last_part() -> None:
    steps = StepTableBuilder(4)
    copied = {"src_buffer": Buffer.INPUT, "dst_buffer": Buffer.OUTPUT, "count": 1}
    done = steps.add(0, StepKind.COPY, **copied)
    output = {"src_buffer": Buffer.OUTPUT, "dst_buffer": Buffer.OUTPUT, "count": 1}
    for rank in (1, 2, 3):
        done = steps.add(0, StepKind.RECV_REDUCE, peer=rank, data=[done], **output)
    for rank in (1, 2, 3):
        waits = []
        if rank == 3:
            waits = [steps.add(3, StepKind.COMPUTE, duration_ns=5000)]
        read = {"src_buffer": Buffer.INPUT, "count": 1}
        steps.add(rank, StepKind.SEND, peer=0, control=waits, **read)
    slow = algorithm_of(CollectiveKind.REDUCE, steps, 4)
    assert time_ns(slow, switch(4, REDUCE)) == 5000 + 2 * (SIZE + 10) + 3


def two_levels(multicast: tuple[int, ...], reduction: tuple[int, ...]) -> Topology:
    """NPUs 0 and 1 at switch 4, 2 and 3 at switch 5, and a link between the switches."""
    cables = np.asarray([(0, 4), (1, 4), (2, 5), (3, 5), (4, 5)])
    ends = np.concatenate([cables, cables[:, ::-1]])
    links = Links.uniform(ends[:, 0], ends[:, 1], 1e9, 10e-9)
    plain = links.topology("two levels", 4, 6)
    return Topology(
        "two levels", 4, 6, plain.source, plain.destination, plain.bandwidth_bytes_per_s,
        plain.latency_s, multicast=multicast, reduction=reduction,
    )  # fmt: skip


@pytest.mark.parametrize(("able", "between"), [((), 2), ((4,), 2), ((5,), 1), ((4, 5), 1)])
def test_only_switches_that_can_copy_or_add(able: tuple[int, ...], between: int) -> None:
    """To NPUs 2 and 3 two messages cross, unless switch 5 makes two of one, or one of two back."""
    for algorithm, topology, link in (
        (broadcast(4), two_levels(able, ()), (4, 5)),
        (reduction(4), two_levels((), able), (5, 4)),
    ):
        loads = simulate(algorithm, topology, SIZE).link_loads
        carried = {(load.source, load.destination): load.bytes for load in loads}
        assert carried[link] == between * SIZE


def test_sums_of_sums() -> None:
    # Two hops to switch 4 for NPUs 2 and 3, whose sum meets that of NPU 1 there.
    topology = two_levels((), (4, 5))
    assert time_ns(reduction(4), topology) == 3 * (SIZE + 10) + 3


def test_without_congestion_nothing_is_shared() -> None:
    algorithm, model = broadcast(5), {"network": "congestion-unaware"}
    times = [
        simulate(algorithm, topology, SIZE, options=model).time_ns
        for topology in (switch(5), switch(5, MULTICAST))
    ]
    assert times[0] == times[1]


def direct_all_reduce(ranks: int) -> Algorithm:
    """Each adds up its share of all, and sends it to all."""
    steps = StepTableBuilder(ranks)
    for rank in range(ranks):
        others = [peer for peer in range(ranks) if peer != rank]
        for peer in others:
            place = {"src_buffer": Buffer.INPUT, "src_offset": peer, "count": 1}
            steps.add(rank, StepKind.SEND, peer=peer, **place)
        own = {"src_offset": rank, "dst_offset": rank, "count": 1, "dst_buffer": Buffer.OUTPUT}
        done = steps.add(rank, StepKind.COPY, src_buffer=Buffer.INPUT, **own)
        for peer in others:
            done = steps.add(
                rank, StepKind.RECV_REDUCE, peer=peer, data=[done], src_buffer=Buffer.OUTPUT, **own
            )
        for peer in others:
            place = {"src_buffer": Buffer.OUTPUT, "src_offset": rank, "count": 1}
            steps.add(rank, StepKind.SEND, peer=peer, data=[done], channel=1, **place)
        for peer in others:
            place = {"dst_buffer": Buffer.OUTPUT, "dst_offset": peer, "count": 1}
            steps.add(rank, StepKind.RECV, peer=peer, channel=1, **place)
    return algorithm_of(CollectiveKind.ALL_REDUCE, steps, ranks, units=ranks)


@pytest.mark.once
@given(
    ranks=st.integers(2, 9),
    size=st.integers(100, 100_000),
    abilities=st.lists(st.sampled_from([MULTICAST, REDUCE]), unique=True),
)
def test_every_rank_ends_and_links_carry_no_more(
    ranks: int, size: int, abilities: list[str]
) -> None:
    algorithm = direct_all_reduce(ranks)
    plain = simulate(algorithm, switch(ranks), size)
    able = simulate(algorithm, switch(ranks, *abilities), size)
    assert None not in able.rank_finish_ns
    most = {(load.source, load.destination): load.bytes for load in plain.link_loads}
    for load in able.link_loads:
        assert load.bytes <= most[load.source, load.destination]


def test_a_switch_that_does_both_halves_an_all_reduce() -> None:
    topology = switch(8, MULTICAST, REDUCE)
    loads = simulate(direct_all_reduce(8), topology, 8000).link_loads
    # A vector each way: 7 parts to be added and the own sum; one sum and 7 parts of others.
    assert {load.bytes for load in loads} == {8000}


def test_routes_without_switches_are_as_ever() -> None:
    ring = parse_topology(f"ring:4?{RATE}")
    assert find_switch_groups(broadcast(4), ring) is None
