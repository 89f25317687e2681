"""ASTRA-sim's own algorithms as algorithms of the hub: contents, and times of the original."""

from __future__ import annotations

import pytest

import hub_core
from hub_core.model import Collective, CollectiveKind, InputError
from hub_core.plugin_api import SynthesisResult

REDUCE, GATHER = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER
SCATTER, EXCHANGE = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL
GATHERING = (REDUCE, GATHER, SCATTER)
LINKS = "?bandwidth=50GiB/s&latency=500ns"
OFFERED = [
    *(("astra-ring", kind) for kind in (*GATHERING, EXCHANGE)),
    *(("astra-direct", kind) for kind in (*GATHERING, EXCHANGE)),
    *(("astra-halving-doubling", kind) for kind in GATHERING),
    ("astra-double-binary-tree", REDUCE),
]


def made(
    name: str, kind: CollectiveKind, network: str, size: int = 1 << 20, **options: str
) -> SynthesisResult:
    topology = hub_core.parse_topology(network + LINKS)
    ranks = topology.num_npus
    collective = Collective(kind, ranks, kind.traits.parts(ranks), in_place=True)
    given = {"memory_bandwidth": "1600GB/s", **options}
    return hub_core.synthesize(collective, topology, size, name=name, options=given)


@pytest.mark.parametrize(("name", "kind"), OFFERED)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_contents_are_right(name: str, kind: CollectiveKind, ranks: int) -> None:
    algorithm = made(name, kind, f"switch:{ranks}").algorithm
    assert hub_core.verify(algorithm).ok
    assert algorithm.has_contents


@pytest.mark.parametrize("kind", [*GATHERING, EXCHANGE])
@pytest.mark.parametrize("options", [{}, {"width": "2"}, {"small_group": "true"}])
def test_direct_of_any_width_and_number_of_ranks_is_right(
    kind: CollectiveKind, options: dict[str, str]
) -> None:
    algorithm = made("astra-direct", kind, "switch:5", **options).algorithm
    assert hub_core.verify(algorithm).ok


# Measured with ASTRA-sim 518bd51: 8 ranks, endpoint delay 10, local memory 1600 GB/s.
@pytest.mark.parametrize(
    ("name", "kind", "on_ring", "on_pairs", "on_switch"),
    [
        ("astra-ring", REDUCE, 43025, 43025, 84199),
        ("astra-ring", GATHER, 20667, 20667, 41254),
        ("astra-ring", SCATTER, 22368, 22368, 42955),
        ("astra-ring", EXCHANGE, 82638, 82638, 164986),
        ("astra-direct", EXCHANGE, 25430, 2961, 20548),
        ("astra-halving-doubling", REDUCE, 66388, 37978, 75154),
    ],
)
def test_times_are_those_of_the_original(
    name: str, kind: CollectiveKind, on_ring: int, on_pairs: int, on_switch: int
) -> None:
    networks = ("ring:8", "fully-connected:8", "switch:8")
    times = [made(name, kind, network).time_ns for network in networks]
    assert times == [on_ring, on_pairs, on_switch]


def test_either_tree_has_its_root() -> None:
    for root, rank in (("highest", 7), ("lowest", 0)):
        algorithm = made("astra-double-binary-tree", REDUCE, "switch:8", root=root).algorithm
        steps = algorithm.steps
        receives = steps.receives & (steps.rank == rank)
        sends = steps.sends & (steps.rank == rank)
        assert (int(receives.sum()), int(sends.sum())) == (1, 1)


@pytest.mark.parametrize("name", ["astra-halving-doubling", "astra-double-binary-tree"])
def test_ranks_that_are_no_power_of_two_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="of 6 ranks"):
        made(name, REDUCE, "switch:6")


def test_other_collectives_are_refused() -> None:
    with pytest.raises(InputError, match="astra-halving-doubling does not support all-to-all"):
        made("astra-halving-doubling", EXCHANGE, "switch:8")


def test_ranks_run_on_the_npus_that_are_named() -> None:
    topology = hub_core.parse_topology("switch:4")
    collective = Collective(REDUCE, 2, 1, in_place=True)
    found = hub_core.synthesize(collective, topology, 64, name="astra-ring", npus=(3, 1))
    assert hub_core.verify(found.algorithm).ok
    assert set(found.algorithm.steps.rank.tolist()) == {1, 3}


@pytest.mark.parametrize(
    ("name", "kind", "steps"),
    [
        # 3 steps for each of n (n - 1) / 2 messages of 256 ranks.
        ("astra-ring", EXCHANGE, 3 * 256 * 256 * 255 // 2),
        # 3 steps for each of 2 (n - 1) messages of 2048 ranks.
        ("astra-direct", REDUCE, 3 * 2048 * 2 * 2047),
    ],
)
def test_programs_of_too_many_steps_are_refused(
    name: str, kind: CollectiveKind, steps: int
) -> None:
    ranks = 256 if kind is EXCHANGE else 2048
    message = rf"{steps} steps are too many \(limit 20000000\)"
    with pytest.raises(InputError, match=message):
        made(name, kind, f"switch:{ranks}")


@pytest.mark.parametrize("kind", [GATHER, SCATTER])
def test_copies_of_too_many_units_are_refused(kind: CollectiveKind) -> None:
    # Each rank orders one unit per rank by its reversed bits.
    message = rf"{8192 * 8192} steps are too many \(limit 20000000\)"
    with pytest.raises(InputError, match=message):
        made("astra-halving-doubling", kind, "switch:8192")
