"""All-to-alls on tori: contents, counts of messages, times by arithmetic, limits."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from collhub_classic.line_exchange import build_line_exchange
from collhub_classic.nested import estimate
from collhub_classic.plugin import NestedOptions
from collhub_classic.torus_exchange import _choose_units, build_torus_exchange

import hub_core
from hub_core import Algorithm, Collective, CollectiveKind, HubError, verify
from hub_core.model import Provenance, StepKind
from hub_core.network import lower_bound_ns
from hub_core.pipeline.synthesis import create_synthesis_request
from hub_core.plugin_api import Simulator, SynthesisResult

_SIZE = 1 << 26


def make(text: str, size: int = _SIZE, **options: str) -> SynthesisResult:
    topology = hub_core.parse_topology(text)
    ranks = topology.num_npus
    collective = Collective(CollectiveKind.ALL_TO_ALL, ranks, ranks)
    return hub_core.synthesize(collective, topology, size, name="nested", options=options)


def skip_without_simulator() -> None:
    if "analytical" not in {found.name for found in hub_core.discover().all(Simulator)}:
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")


_SMALL_TORI = (
    *[(2,), (3,), (4,), (5,), (6,), (2, 2), (2, 3), (3, 3), (4, 2), (4, 4), (5, 4), (6, 4)],
    *[(2, 2, 2), (3, 2, 4), (3, 3, 3), (3, 6, 3), (2, 2, 3, 2)],
)


@pytest.mark.parametrize("sizes", _SMALL_TORI)
def test_data_reach_their_ranks(sizes: tuple[int, ...]) -> None:
    exchange = build_torus_exchange(sizes)
    ranks = prod(sizes)
    collective = Collective(
        CollectiveKind.ALL_TO_ALL, ranks, ranks * exchange.units_per_pair, out_of_place=True
    )
    scratch = np.full(ranks, exchange.scratch_units)
    assert verify(Algorithm(collective, exchange.steps, scratch, Provenance("test"))).ok


@pytest.mark.parametrize("is_ring", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 9, 10, 16, 17, 31])
def test_data_reach_their_ranks_in_two_phases(ranks: int, is_ring: bool) -> None:
    exchange = build_line_exchange(ranks, is_ring=is_ring)
    collective = Collective(CollectiveKind.ALL_TO_ALL, ranks, ranks, out_of_place=True)
    scratch = np.full(ranks, exchange.scratch_units)
    assert verify(Algorithm(collective, exchange.steps, scratch, Provenance("test"))).ok


@pytest.mark.parametrize(("name", "ratio"), [("ring", 1.01), ("mesh", 1.3)])
def test_two_phases_use_the_links_of_a_line_nearly_all_of_the_time(name: str, ratio: float) -> None:
    """On a line, links in the middle also wait for data from its ends: 1.25 times the bound."""
    skip_without_simulator()
    topology = hub_core.parse_topology(f"{name}:128")
    exchange = build_line_exchange(128, is_ring=name == "ring")
    collective = Collective(CollectiveKind.ALL_TO_ALL, 128, 128, out_of_place=True)
    scratch = np.full(128, exchange.scratch_units)
    algorithm = Algorithm(collective, exchange.steps, scratch, Provenance("test"))
    time_ns = hub_core.simulate(algorithm, topology, _SIZE).time_ns
    bound_ns = lower_bound_ns(collective, topology, _SIZE)
    assert time_ns is not None
    assert bound_ns is not None
    assert time_ns < ratio * bound_ns


def test_long_rings_have_two_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hop by hop, 1 024 ranks have 275 million units in messages."""
    rounds = int(make("ring:12").algorithm.steps.sends.sum()) // 12
    monkeypatch.setattr("collhub_classic.line_exchange.MAX_CELLS", 1 << 10)
    result = make("ring:12")
    assert verify(result.algorithm).ok
    # 6 rounds in both directions, or distances 3 and 6 (only in one), then 1 and 2.
    assert rounds == 12
    assert int(result.algorithm.steps.sends.sum()) == 12 * (2 * (1 + 2) + 1)


def test_lines_have_two_phases() -> None:
    result = make("mesh:9")
    assert verify(result.algorithm).ok
    assert result.time_ns >= result.bound_ns


def test_uneven_classes_of_displacements_get_units_of_their_own() -> None:
    """By displacement, 2 of the 8 classes of a hypercube would have all data."""
    assert _choose_units((2,) * 8) == (8, True)


def test_pairs_keep_one_unit_where_halves_are_too_many() -> None:
    """900 ranks have 37 million units in buffers and messages with halves, 18.6 without."""
    assert _choose_units((30, 30)) == (1, False)
    assert _choose_units((10, 10)) == (2, False)


def test_a_rank_sends_a_message_per_round_direction_and_class() -> None:
    """Two classes and two phases; on a ring of 6, 3 rounds forwards and 3 backwards."""
    steps = build_torus_exchange((6, 6)).steps
    assert steps.num_messages == 36 * 2 * 2 * 6


def test_messages_carry_every_unit_as_many_hops_as_its_distance() -> None:
    """On a ring of 4 the distances are 1, 2, 1, on one of 6 they are 1, 2, 3, 2, 1."""
    exchange = build_torus_exchange((4, 6))
    sent = int(exchange.steps.count[exchange.steps.sends].sum())
    assert sent == 24 * 24 * exchange.units_per_pair * (4 / 4 + 9 / 6)


@pytest.mark.parametrize("text", ["ring:8", "torus:4x4", "torus:4x6", "torus:5x5", "torus:4x4x4"])
def test_all_links_of_the_longest_dimension_are_busy(text: str) -> None:
    """The bound counts bytes on links; the difference is the latency of the hops."""
    skip_without_simulator()
    result = make(text)
    topology = hub_core.parse_topology(text)
    bound = lower_bound_ns(result.algorithm.collective, topology, _SIZE)
    assert bound is not None
    assert result.time_ns <= 1.004 * bound


def test_the_time_is_that_of_the_bytes_and_hops() -> None:
    """Two phases of two hops; a link carries 4 / 8 of each half of 64 MiB per phase."""
    skip_without_simulator()
    bytes_ns = 2 * (_SIZE / 2) * (4 / 8) / 50
    assert make("torus:4x4").time_ns == pytest.approx(bytes_ns + 4 * 500, abs=3)


def test_the_estimate_is_near_the_time() -> None:
    skip_without_simulator()
    topology = hub_core.parse_topology("torus:4x6")
    collective = Collective(CollectiveKind.ALL_TO_ALL, 24, 24)
    request = create_synthesis_request(collective, topology, _SIZE)
    expected_ns = estimate(request, NestedOptions())
    assert make("torus:4x6").time_ns == pytest.approx(expected_ns, rel=0.01)


def test_ranges_keep_the_copies_of_large_tori_few() -> None:
    """Without ranges, each of three copies of 256 units would be a step."""
    steps = build_torus_exchange((16, 16)).steps
    copies = int(np.count_nonzero(steps.is_kind(StepKind.COPY)))
    assert copies < 256 * 256 * 2.5


def test_more_units_than_verification_holds_are_refused() -> None:
    """4096 ranks of four dimensions with buffers of 14 units and 8 hops of each unit."""
    with pytest.raises(HubError, match=rf"{4096 * 4096 * 22} units .* \(limit 33554432\)"):
        build_torus_exchange((8, 8, 8, 8))


def test_other_networks_are_refused_with_an_alternative() -> None:
    with pytest.raises(HubError, match="only for tori and lines, not for switch:8; use pairwise"):
        make("switch:8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": "16"}, "option sizes: the all-to-all of nested uses the dimensions 4x4"),
        ({"chunks": "2"}, "option chunks: the all-to-all of nested uses the dimensions 4x4"),
        ({"sizes": "3x3"}, "option sizes: 3x3 is not 16 ranks"),
    ],
)
def test_other_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(HubError, match=message):
        make("torus:4x4", **options)


def test_sizes_below_a_byte_per_unit_are_refused() -> None:
    with pytest.raises(HubError, match="15 bytes cannot be cut in 16 parts"):
        make("torus:4x4", 15)
