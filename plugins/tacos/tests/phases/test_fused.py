"""All-reduce on trees: at the network's strength for large sizes, in few hops for small ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_packing.pipelining import Pipelining
from collhub_tacos.link_network import LinkNetwork
from collhub_tacos.phases.fused import (
    build_central_tree,
    build_fused,
    find_unsuitability,
    is_promising,
    latency,
)
from collhub_tacos.plugin import TacosOptions
from collhub_tacos.search.candidates import SynthesisCandidate
from collhub_tacos.search.setting import Setting

import hub_core
from hub_core import Collective, CollectiveKind, InputError, parse_topology, verify
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import algorithm_of

pytestmark = pytest.mark.once

CONSTANTS = "?bandwidth=50GB/s&latency=200ns"


def setting_of(
    text: str, size: int, occupancy: Occupancy = Occupancy.ALPHA_BETA, **given: object
) -> Setting:
    topology = parse_topology(text + CONSTANTS)
    npus = tuple(range(topology.num_npus))
    collective = Collective(CollectiveKind.ALL_REDUCE, len(npus), 1, in_place=True)
    options = replace(TacosOptions(seeds=2), **given)
    return Setting.of(SynthesisRequest(collective, topology, size, npus, occupancy), options)


def ignore_progress(fraction: float, what: str) -> None:
    """Nobody looks at the progress."""


def bandwidth(candidate: SynthesisCandidate, setting: Setting) -> float:
    """GB/s of the vector."""
    return setting.collective_bytes / candidate.time_ps * 1e3


# Links of 50 GB/s and 0.2 us; bars of the project, above the published 73.4, 73.1, 73.0 GB/s of
# PipeComm's solver.
@pytest.mark.parametrize(
    ("mesh", "bar"), [("mesh:4x4", 77.0), ("mesh:5x5", 79.0), ("mesh:6x6", 79.5)]
)
def test_large_all_reduces_on_meshes_beat_two_phases(mesh: str, bar: float) -> None:
    setting = setting_of(mesh, 10**9)
    assert bandwidth(build_fused(setting, ignore_progress), setting) >= bar


# Steps from "tacos.md" 7.1: chunks, and the makespan computed there; at most a tenth more.
@pytest.mark.parametrize(
    ("mesh", "chunks", "steps"),
    [("mesh:4x4", 128, 93), ("mesh:5x5", 160, 112), ("mesh:6x6", 384, 251)],
)
def test_pipelines_fill_as_fast_as_computed(mesh: str, chunks: int, steps: int) -> None:
    ranks = parse_topology(mesh).num_npus
    pieces = -(-chunks // ranks)
    setting = setting_of(mesh, 10**9, chunks=str(pieces))
    candidate = build_fused(setting, ignore_progress)
    step_ps = 200_000 + 1e9 / candidate.pieces * 20
    expected = steps * candidate.pieces / chunks + 0.1 * steps
    assert candidate.time_ps / step_ps <= expected


@pytest.mark.parametrize("occupancy", Occupancy)
@pytest.mark.parametrize("form", [build_fused, latency])
def test_schedules_are_right_and_simulated_as_planned(form: object, occupancy: Occupancy) -> None:
    setting = setting_of("mesh:3x3", 1 << 20, occupancy)
    candidate = form(setting, ignore_progress)  # type: ignore[operator]
    algorithm = algorithm_of(candidate.collective, candidate.chunks, candidate.transfers(None))
    assert verify(algorithm).ok
    simulated = hub_core.simulate(
        algorithm, setting.network.topology, 1 << 20, options={"occupancy": str(occupancy)}
    ).time_ns
    assert simulated is not None
    # Serialization: simulators may swap messages whose data comes at one instant.
    tolerance = 0.005 if occupancy is Occupancy.ALPHA_BETA else 0.03
    assert abs(simulated * 1000 / candidate.time_ps - 1) <= tolerance


def test_small_sizes_go_up_and_down_the_central_tree_once() -> None:
    setting = setting_of("mesh:5x5", 100)
    candidate = latency(setting, ignore_progress)
    assert candidate.pieces == 1
    assert candidate.time_ps == 2 * 4 * (200_000 + 100 * 20)


def test_small_sizes_are_faster_on_one_tree_and_large_ones_on_many() -> None:
    small, large = setting_of("mesh:4x4", 1000), setting_of("mesh:4x4", 10**7)
    assert latency(small, ignore_progress).time_ps < build_fused(small, ignore_progress).time_ps
    assert latency(large, ignore_progress).time_ps > build_fused(large, ignore_progress).time_ps


@pytest.mark.parametrize(
    ("text", "promising"),
    [("mesh:3x3", True), ("torus:3x3", False), ("ring:5", False), ("fc:4", False)],
)
def test_trees_promise_more_only_where_npus_differ(text: str, promising: bool) -> None:
    assert is_promising(setting_of(text, 1 << 20)) is promising


def test_sizes_below_a_byte_per_chunk_are_not_promising() -> None:
    assert not is_promising(setting_of("mesh:4x4", 7))
    with pytest.raises(InputError, match="too few bytes for 8 chunks: 7"):
        build_fused(setting_of("mesh:4x4", 7), ignore_progress)


def test_strength_and_its_partition_are_stated() -> None:
    details = build_fused(setting_of("mesh:4x4", 1 << 20), ignore_progress).details
    assert (details["strength"], details["rate_bytes_per_s"], details["partition"]) == (
        "8/5",
        80e9,
        "every NPU alone",
    )


@pytest.mark.parametrize("text", ["switch:4", "rail:2x2"])
def test_switches_are_refused(text: str) -> None:
    topology = parse_topology(text)
    assert find_unsuitability(LinkNetwork.of(topology)) == "the network has switches"


def test_links_that_differ_by_direction_are_refused() -> None:
    topology = parse_topology(f"ring:4{CONSTANTS}")
    rates = topology.bandwidth_bytes_per_s.copy()
    rates[0] *= 2
    reason = find_unsuitability(LinkNetwork.of(replace(topology, bandwidth_bytes_per_s=rates)))
    assert reason == "the network has links that are one-way or differ by direction"


@pytest.mark.parametrize(
    ("text", "depth"),
    [("mesh:5x5", 4), ("mesh:8x8", 8), ("torus:4x4", 4), ("mesh:3x3x3", 3), ("ring:7", 3)],
)
def test_central_trees_are_as_deep_as_the_radius(text: str, depth: int) -> None:
    network = LinkNetwork.of(parse_topology(text + CONSTANTS))
    times = network.link_times(1000, Occupancy.ALPHA_BETA)
    assert build_central_tree(network, times, np.arange(network.num_npus)).depth == depth


def test_same_seed_gives_the_same_schedule() -> None:
    one, other = (
        build_fused(setting_of("mesh:3x3", 1 << 20, seed=5), ignore_progress).transfers(None)
        for _ in range(2)
    )
    assert one.start.tobytes() == other.start.tobytes()
    assert one.link.tobytes() == other.link.tobytes()


def test_transfers_of_some_nodes_are_those_that_touch_them() -> None:
    candidate = build_fused(setting_of("mesh:3x3", 1 << 20), ignore_progress)
    some = candidate.transfers([4])
    assert np.all((some.source == 4) | (some.destination == 4))
    everything = candidate.transfers(None)
    assert len(some) == np.count_nonzero((everything.source == 4) | (everything.destination == 4))
    candidate.replay(ignore_progress)


def test_interrupted_search_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, calls = Pipelining.schedule, [0]

    def interrupted(self: Pipelining, counts: list[int]) -> object:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt
        return schedule(self, counts)

    monkeypatch.setattr(Pipelining, "schedule", interrupted)
    candidate = build_fused(setting_of("mesh:3x3", 1 << 20), ignore_progress)
    assert candidate.is_interrupted
    assert candidate.time_ps > 0
