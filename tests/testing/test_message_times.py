"""The kit's own simulation agrees with what can be computed by hand, and with the analytical simulator."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

import hub_core
from hub_core import Algorithm, StepKind, StepTableBuilder
from hub_core.network import Occupancy, lower_bound_ns
from hub_core.testing import all_samples, ring_all_gather, ring_all_reduce
from hub_core.testing.reference_results import simulate_time_ns

SIZE = 1 << 20
TOPOLOGIES = ("fully-connected:4", "ring:4", "switch:4", "mesh:2x2")


def _time_ns(
    algorithm: Algorithm, text: str, occupancy: Occupancy = Occupancy.SERIALIZATION
) -> int:
    time_ns = simulate_time_ns(algorithm, hub_core.parse_topology(text), SIZE, occupancy)
    assert time_ns is not None
    return time_ns


def test_ring_takes_a_message_a_step() -> None:
    # 3 rounds of a quarter of the data: 1 MiB / 4 at 1 GB/s, and 100 ns.
    ring = "ring:4?bandwidth=1GB/s&latency=100ns"
    assert _time_ns(ring_all_gather(4), ring) == 3 * (SIZE // 4 + 100)


def test_link_carries_one_message_at_a_time() -> None:
    builder = StepTableBuilder(2)
    for channel in range(3):
        builder.add(0, StepKind.SEND, peer=1, channel=channel, count=2)
        builder.add(1, StepKind.RECV, peer=0, channel=channel, count=2)
    sample = ring_all_gather(2)
    algorithm = replace(sample, steps=builder.build())
    text = "ring:2?bandwidth=1GB/s&latency=100ns"
    assert _time_ns(algorithm, text) == 3 * SIZE + 100
    assert _time_ns(algorithm, text, Occupancy.ALPHA_BETA) == 3 * (SIZE + 100)


def test_message_without_a_sender_never_ends() -> None:
    builder = StepTableBuilder(2)
    builder.add(1, StepKind.RECV, peer=0, count=1)
    algorithm = replace(ring_all_reduce(2), steps=builder.build())
    network = hub_core.parse_topology("ring:2")
    assert simulate_time_ns(algorithm, network, SIZE, Occupancy.SERIALIZATION) is None


@pytest.mark.parametrize("text", TOPOLOGIES)
def test_no_time_is_below_the_lower_bound(text: str) -> None:
    for algorithm in all_samples(4).values():
        bound = lower_bound_ns(algorithm.collective, hub_core.parse_topology(text), SIZE)
        assert _time_ns(algorithm, text) >= (bound or 0)


@pytest.mark.needs_plugins
# On meshes the two differ where messages come to a link at the same time.
@pytest.mark.parametrize("text", ["fully-connected:4", "ring:4", "switch:4"])
def test_times_are_those_of_the_analytical_simulator(text: str) -> None:
    if importlib.util.find_spec("collhub_astra_sim") is None:
        pytest.skip("the plugin collhub_astra_sim is not installed")
    for algorithm in all_samples(4).values():
        expected = hub_core.simulate(algorithm, text, SIZE).time_ns
        assert expected is not None
        # That simulator rounds the times of every message to whole nanoseconds.
        most = int(np.count_nonzero(algorithm.steps.sends)) * 2
        assert abs(_time_ns(algorithm, text) - expected) <= most
