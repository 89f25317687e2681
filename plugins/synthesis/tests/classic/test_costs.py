"""Every algorithm is right, and takes the time of its closed form on the ideal network."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from collhub_classic.catalogue import ALGORITHMS
from collhub_classic.message_plan import compute_mean_link
from collhub_classic.nested import NESTED_KINDS
from collhub_classic.plugin import collhub_producers
from collhub_classic.synthesize import build_task, plan_algorithm, synthesize

import hub_core
from hub_core import (
    Collective,
    CollectiveKind,
    InputError,
    SimulationResult,
    Topology,
    UsageError,
    verify,
)
from hub_core.model import UNEVEN_KINDS
from hub_core.network import Occupancy
from hub_core.plugin_api import Simulator, SynthesisRequest

ALPHA_S, BYTES_PER_S = 1e-6, 1e9
OPTIONS = {offer.name: offer.options for offer in collhub_producers()}
CASES = [(name, kind) for name, classic in ALGORITHMS.items() for kind in classic.planners]
FEW_RANKS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16)
MANY_RANKS = (*range(10, 34), 64, 100)


def star(ranks: int) -> Topology:
    """Every rank has one port, which alone takes time: behind it all ways are free."""
    rank, switch = np.arange(ranks), np.full(ranks, ranks)
    return Topology(
        "star",
        ranks,
        ranks + 1,
        np.concatenate([rank, switch]),
        np.concatenate([switch, rank]),
        np.repeat([BYTES_PER_S, 1e15], ranks),
        np.repeat([ALPHA_S, 0.0], ranks),
    )


def ideal_network(name: str, ranks: int) -> Topology:
    if ALGORITHMS[name].has_many_ports:
        return hub_core.parse_topology(f"fc:{ranks}?bandwidth=1GB/s&latency=1us")
    return star(ranks)


def request_for(name: str, kind: CollectiveKind, ranks: int) -> SynthesisRequest:
    # A root in the middle, so that nothing holds for rank 0 alone.
    root = ranks // 2 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, ranks, root=root, in_place=True)
    return SynthesisRequest(
        collective,
        ideal_network(name, ranks),
        ranks * 960 * 64,
        tuple(range(ranks)),
        Occupancy.SERIALIZATION,
    )


def simulated(request: SynthesisRequest, algorithm: hub_core.Algorithm) -> SimulationResult:
    registry = hub_core.discover()
    if not any(found.name == "analytical" for found in registry.all(Simulator)):
        pytest.skip("the simulator analytical (collhub-astra-sim) is not installed")
    return hub_core.simulate(
        algorithm, request.topology, request.collective_bytes, registry=registry
    )


def made(name: str, kind: CollectiveKind, numbers: tuple[int, ...]) -> Iterator[tuple[int, bool]]:
    """(ranks, whether all is as stated) for numbers of ranks that the algorithm takes."""
    given = {"order": "given", "rounds": "blocking"}
    if name == "ring":
        given["chunks"] = 3
    if name == "double-binary-tree":
        # Its two trees go on as soon as they can, each on its own links.
        given |= {"chunks": 1, "rounds": "data"}
    options = OPTIONS[name](**given)
    for ranks in numbers:
        request = request_for(name, kind, ranks)
        try:
            algorithm = synthesize(name, request, options).algorithm
        except UsageError:
            continue
        assert verify(algorithm).ok, f"{ranks} ranks"
        cost = plan_algorithm(name, build_task(name, request, options)).cost
        stated_ns = cost.time_s(ALPHA_S, 1 / BYTES_PER_S, request.collective_bytes) * 1e9
        found_ns = simulated(request, algorithm).time_ns
        # Every reduction is a nanosecond, and so is every rounded message.
        assert abs(found_ns - stated_ns) < 50 + 8 * ranks, f"{ranks} ranks: {cost}"
        yield ranks, True


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_time_on_the_ideal_network_is_the_closed_form(name: str, kind: CollectiveKind) -> None:
    assert len(list(made(name, kind, FEW_RANKS))) >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_closed_forms_hold_for_up_to_100_ranks(name: str, kind: CollectiveKind) -> None:
    assert list(made(name, kind, MANY_RANKS))


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_without_barriers_no_time_is_lost(name: str, kind: CollectiveKind) -> None:
    request = request_for(name, kind, 8)
    times = {}
    for rounds in ("data", "blocking"):
        options = OPTIONS[name](order="given", rounds=rounds)
        result = synthesize(name, request, options)
        assert verify(result.algorithm).ok
        times[rounds] = simulated(request, result.algorithm).time_ns
    assert times["data"] <= times["blocking"]


@pytest.mark.parametrize("chunks", [1, 2, 7, 64])
@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE])
def test_chains_are_right_with_any_number_of_chunks(kind: CollectiveKind, chunks: int) -> None:
    options = OPTIONS["ring"](chunks=chunks)
    assert verify(synthesize("ring", request_for("ring", kind, 5), options).algorithm).ok


@pytest.mark.parametrize("radix", [2, 3, 4, 8, 50])
def test_trees_are_right_with_any_radix(radix: int) -> None:
    options = OPTIONS["k-nomial"](radix=radix)
    request = request_for("k-nomial", CollectiveKind.REDUCE, 23)
    assert verify(synthesize("k-nomial", request, options).algorithm).ok


@pytest.mark.parametrize("aggregation", [1, 2, 4, 8])
def test_aggregated_trees_take_the_stated_rounds(aggregation: int) -> None:
    options = OPTIONS["pat"](aggregation=aggregation)
    request = request_for("pat", CollectiveKind.ALL_GATHER, 13)
    result = synthesize("pat", request, options)
    assert verify(result.algorithm).ok
    # log2 A + 16 / A - 1, and no rounds for trees of ranks beyond the 13th.
    assert result.statistics["rounds"] == {1: 12, 2: 8, 4: 5, 8: 4}[aggregation]


def test_the_chunk_count_of_a_chain_is_the_best_by_its_cost() -> None:
    request = request_for("ring", CollectiveKind.BROADCAST, 9)
    chosen = plan_algorithm("ring", build_task("ring", request, OPTIONS["ring"]()))
    times = [
        plan_algorithm(
            "ring", build_task("ring", request, OPTIONS["ring"](chunks=chunks))
        ).cost.time_s(ALPHA_S, 1 / BYTES_PER_S, request.collective_bytes)
        for chunks in range(1, 65)
    ]
    best = min(times)
    assert chosen.cost.time_s(ALPHA_S, 1 / BYTES_PER_S, request.collective_bytes) == pytest.approx(
        best, rel=0.01
    )


def test_unsupported_collectives_are_refused() -> None:
    request = request_for("pairwise", CollectiveKind.BROADCAST, 4)
    with pytest.raises(
        InputError, match=r"pairwise does not support broadcast; it supports all-to"
    ):
        synthesize("pairwise", request, OPTIONS["pairwise"]())


def test_offers_declare_the_collectives_of_the_planners() -> None:
    # Uneven collectives have no planner with a cost.
    declared = {
        offer.name: set(offer.collectives) - set(UNEVEN_KINDS) for offer in collhub_producers()
    }
    # Built from columns, without a plan of blocks.
    assert declared.pop("nested") == set(NESTED_KINDS)
    assert declared == {name: set(found.planners) for name, found in ALGORITHMS.items()}


def test_the_mean_link_of_thousands_of_ranks_is_that_of_all_routes() -> None:
    topology = hub_core.parse_topology("rail:160x8")
    latency_s, beta_s_per_byte = compute_mean_link(topology, range(topology.num_npus))
    routes = topology.routes(np.zeros(1279, np.int64), np.arange(1, 1280))
    exact_s = topology.latency_s[routes.links].sum() / 1279
    assert latency_s == pytest.approx(exact_s, rel=0.01)
    assert beta_s_per_byte > 0


def test_the_mean_link_of_a_large_ring_does_not_need_all_of_its_routes():
    # All routes together have 400 million links, which need more than 3 GB.
    topology = hub_core.parse_topology("ring:40000?bandwidth=50GB/s&latency=1us")
    latency_s, beta_s_per_byte = compute_mean_link(topology, range(topology.num_npus))
    assert latency_s == pytest.approx(10_000e-6, rel=0.01)
    assert beta_s_per_byte == pytest.approx(1 / 50e9)
