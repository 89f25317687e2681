"""All collectives behind switches that multicast and reduce: right, and as fast as these allow."""

from __future__ import annotations

import pytest

from hub_core import Collective, CollectiveKind, parse_topology, simulate, synthesize, verify
from hub_core.plugin_api import SynthesisResult

ABLE = "multicast=true&reduce=true"
KINDS = (
    CollectiveKind.ALL_GATHER,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.BROADCAST,
    CollectiveKind.REDUCE,
)
MIB = 1 << 20


def made(kind: CollectiveKind, text: str, size: int) -> SynthesisResult:
    topology = parse_topology(text)
    ranks = topology.num_npus
    root = 1 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, kind.traits.parts(ranks), root)
    result = synthesize(collective, topology, size, name="tacos")
    assert verify(result.algorithm).ok
    simulated = simulate(result.algorithm, topology, size).time_ns
    assert simulated is not None
    assert result.bound_ns is not None
    # Told in picoseconds where a simulator that drops fractions of nanoseconds is below a bound.
    assert result.time_ns >= result.bound_ns
    assert simulated <= result.time_ns
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", ["switch:5", "dgx-h100:2", "leaf-spine:2,3,2"])
def test_able_switches_make_nothing_slower(kind: CollectiveKind, text: str) -> None:
    able = made(kind, f"{text}?{ABLE}", 4 * MIB)
    plain = made(kind, text, 4 * MIB)
    # Numbers of chunks are compared by what simulators drop of each message, too.
    assert able.time_ns <= 1.03 * plain.time_ns


@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE])
def test_what_goes_out_once_takes_the_time_of_one_link(kind: CollectiveKind) -> None:
    result = made(kind, f"switch:8?{ABLE}", 64 * MIB)
    assert result.time_ns <= 1.01 * 64 * MIB / 50


def test_an_all_reduce_takes_little_more_than_one_vector_a_link() -> None:
    able = made(CollectiveKind.ALL_REDUCE, f"switch:8?{ABLE}", 64 * MIB)
    assert able.time_ns <= 1.08 * 64 * MIB / 50
    # Without such switches 2 (n - 1) / n of the vector go over every link.
    plain = made(CollectiveKind.ALL_REDUCE, "switch:8", 64 * MIB)
    assert plain.time_ns >= 1.75 * 64 * MIB / 50


@pytest.mark.parametrize("ability", ["multicast", "reduce"])
def test_one_ability_alone_shortens_no_large_all_reduce_below_its_bound(ability: str) -> None:
    result = made(CollectiveKind.ALL_REDUCE, f"switch:6?{ability}=true", 4 * MIB)
    assert result.time_ns >= 2 * 5 / 6 * 4 * MIB / 50
