"""Requests: options, roots, subsets of NPUs, and what cannot be made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_classic.catalogue import ALGORITHMS
from collhub_classic.plugin import collhub_producers
from collhub_classic.synthesize import (
    build_task,
    compute_least_blocks,
    pairwise_ns,
    plan_algorithm,
    synthesize,
)

import hub_core
from hub_core import Algorithm, Collective, CollectiveKind, HubError, verify
from hub_core.network import Occupancy
from hub_core.plugin_api import SynthesisRequest, SynthesisResult

OPTIONS = {offer.name: offer.options for offer in collhub_producers()}


def make(
    name: str,
    kind: CollectiveKind,
    topology: str,
    *,
    npus: tuple[int, ...] | None = None,
    size: int = 1 << 20,
    root: int | None = None,
    **options: object,
) -> SynthesisResult:
    network = hub_core.parse_topology(topology)
    chosen = tuple(range(network.num_npus)) if npus is None else npus
    collective = Collective(kind, len(chosen), len(chosen), root=root, in_place=True)
    request = SynthesisRequest(collective, network, size, chosen, Occupancy.SERIALIZATION)
    return synthesize(name, request, OPTIONS[name](**options))


@pytest.mark.parametrize("root", range(5))
@pytest.mark.parametrize("name", ["ring", "binomial", "direct"])
@pytest.mark.parametrize("kind", [CollectiveKind.BROADCAST, CollectiveKind.REDUCE])
def test_any_rank_can_be_the_root(name: str, kind: CollectiveKind, root: int) -> None:
    result = make(name, kind, "ring:5", root=root)
    assert result.algorithm.collective.root == root
    assert verify(result.algorithm).ok


@pytest.mark.parametrize("root", range(5))
@pytest.mark.parametrize("name", ["binomial", "direct"])
@pytest.mark.parametrize("kind", [CollectiveKind.GATHER, CollectiveKind.SCATTER])
def test_shares_come_from_and_go_to_any_root(name: str, kind: CollectiveKind, root: int) -> None:
    assert verify(make(name, kind, "ring:5", root=root).algorithm).ok


@pytest.mark.parametrize("name", ["ring", "bruck", "pat", "direct"])
def test_some_npus_among_others_make_a_custom_collective(name: str) -> None:
    result = make(name, CollectiveKind.ALL_GATHER, "ring:8", npus=(6, 1, 4))
    algorithm = result.algorithm
    assert (algorithm.collective.kind, algorithm.num_ranks) == (CollectiveKind.CUSTOM, 8)
    assert set(algorithm.steps.rank.tolist()) == {1, 4, 6}
    assert verify(algorithm).ok


def test_a_stated_order_is_the_order_of_the_ring() -> None:
    steps = make("ring", CollectiveKind.ALL_GATHER, "fc:4", order="0,2,1,3").algorithm.steps
    sends = steps.sends
    pairs = set(zip(steps.rank[sends].tolist(), steps.peer[sends].tolist(), strict=True))
    assert pairs == {(0, 2), (2, 1), (1, 3), (3, 0)}


def _pairs_by_channel(
    name: str, kind: CollectiveKind, topology: str, **options: object
) -> set[tuple[int, int, int]]:
    """(channel, source, destination) of all messages."""
    steps = make(name, kind, topology, **options).algorithm.steps
    sends = steps.sends
    columns = (steps.channel[sends], steps.rank[sends], steps.peer[sends])
    return set(zip(*(column.tolist() for column in columns), strict=True))


def test_both_halves_of_a_ring_all_reduce_send_to_the_next_rank() -> None:
    # As in NCCL, MSCCL's programs and Patarasuk and Yuan: reduce-scatter and all-gather, r to r+1.
    forward = {(0, rank, (rank + 1) % 5) for rank in range(5)}
    for kind in (
        CollectiveKind.ALL_REDUCE,
        CollectiveKind.REDUCE_SCATTER,
        CollectiveKind.ALL_GATHER,
    ):
        assert _pairs_by_channel("ring", kind, "fc:5") == forward


@pytest.mark.parametrize(
    ("name", "topology", "options"),
    [
        ("ring", "dgx1v", {}),
        ("bidirectional-ring", "ring:6", {}),
        ("rings", "dgx1v", {}),
        ("rings", "leaf-spine:4,4,4", {}),
        ("torus-rings", "torus:3x4", {}),
        ("torus-rings", "torus:3x3", {"ports": "all"}),
        ("torus-rings", "torus:3x4", {"ports": "one"}),
        ("hierarchical", "leaf-spine:4,4,4", {}),
        ("hierarchical", "fc:12", {"sizes": "3x4"}),
    ],
)
def test_reduce_scatter_uses_the_directed_links_of_the_all_gather(
    name: str, topology: str, options: dict[str, object]
) -> None:
    gather = _pairs_by_channel(name, CollectiveKind.ALL_GATHER, topology, **options)
    scatter = _pairs_by_channel(name, CollectiveKind.REDUCE_SCATTER, topology, **options)
    both = _pairs_by_channel(name, CollectiveKind.ALL_REDUCE, topology, **options)
    assert gather == scatter == both


def test_the_order_of_a_ring_follows_the_links_of_the_topology() -> None:
    result = make("ring", CollectiveKind.ALL_REDUCE, "dgx1v")
    network = hub_core.parse_topology("dgx1v")
    links = set(zip(network.source.tolist(), network.destination.tolist(), strict=True))
    steps = result.algorithm.steps
    sends = steps.sends
    assert set(zip(steps.rank[sends].tolist(), steps.peer[sends].tolist(), strict=True)) <= links


@pytest.mark.parametrize("name", ["halving-doubling", "bruck", "pat"])
def test_members_of_groups_take_turns_where_that_is_faster(name: str) -> None:
    kind, size = CollectiveKind.ALL_GATHER, 1 << 14
    if name == "halving-doubling":
        kind = CollectiveKind.REDUCE_SCATTER
    given = make(name, kind, "leaf-spine:4,4,4", size=size, order="given")
    auto = make(name, kind, "leaf-spine:4,4,4", size=size)
    assert auto.time_ns < given.time_ns
    assert auto.statistics["order"] == "0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15"
    assert verify(auto.algorithm).ok


def test_rings_of_a_dgx1v_use_every_link_of_every_gpu() -> None:
    result = make("rings", CollectiveKind.ALL_REDUCE, "dgx1v", size=1 << 26)
    # Six NVLinks a GPU.
    assert result.statistics["rings"] == 6
    assert verify(result.algorithm).ok


def test_rings_of_a_cluster_leave_every_node_by_every_network_card() -> None:
    result = make("rings", CollectiveKind.ALL_GATHER, "dgx-a100:2")
    assert result.statistics["rings"] == 8
    steps = result.algorithm.steps
    crosses = steps.sends & (steps.rank // 8 != steps.peer // 8)
    assert set(steps.rank[crosses].tolist()) == set(range(16))


def test_groups_of_the_topology_are_the_levels() -> None:
    result = make("hierarchical", CollectiveKind.ALL_REDUCE, "dgx-a100:2")
    assert result.statistics["sizes"] == "8x2"
    assert verify(result.algorithm).ok


def test_three_levels_can_be_stated() -> None:
    result = make("hierarchical", CollectiveKind.REDUCE_SCATTER, "fc:24", sizes="4x3x2")
    assert verify(result.algorithm).ok


def test_dimensions_of_a_torus_are_used_all_at_once() -> None:
    result = make("torus-rings", CollectiveKind.ALL_REDUCE, "torus:3x3x3")
    steps = result.algorithm.steps
    assert sorted(set(steps.channel.tolist())) == list(range(6))
    assert verify(result.algorithm).ok


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("ring", {"order": "0,1"}, "does not name each of 0..7 once"),
        ("ring", {"order": "zero"}, "is not a list of ranks"),
        ("pat", {"aggregation": 3}, "3 is not a power of two up to 4"),
        ("hierarchical", {"sizes": "3x3"}, "3x3 is not 8 ranks"),
        ("hierarchical", {"sizes": "4by2"}, "'4by2' is not a list of sizes"),
        # Python converts at most 4300 digits.
        ("hierarchical", {"sizes": "4x" + "2" * 5000}, "is not a list of sizes"),
        ("rings", {"rings": 5}, "4 rings without a common link were found, not 5"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    name: str, options: dict[str, object], says: str
) -> None:
    with pytest.raises(HubError, match=says):
        make(name, CollectiveKind.ALL_GATHER, "fc:8", **options)


def test_odd_ranks_have_no_neighbours_to_exchange_with() -> None:
    with pytest.raises(HubError, match="exchange in pairs, but there are 5 ranks"):
        make("neighbour-exchange", CollectiveKind.ALL_GATHER, "ring:5")


def test_more_parts_than_bytes_are_refused() -> None:
    with pytest.raises(HubError, match="7 bytes cannot be cut in 8 parts"):
        make("ring", CollectiveKind.ALL_GATHER, "ring:8", size=7)


def test_one_rank_alone_is_refused() -> None:
    with pytest.raises(HubError, match="one rank has nothing to send"):
        make("ring", CollectiveKind.ALL_GATHER, "ring:2", npus=(1,))


def test_the_same_request_gives_the_same_algorithm() -> None:
    one, other = (make("rings", CollectiveKind.ALL_GATHER, "torus:4x4") for _ in range(2))
    assert not one.algorithm.differences(other.algorithm)


@pytest.mark.parametrize("text", ["torus:4x4", "switch:9", "ring:2"])
def test_plans_are_refused_by_size_only_if_they_are_as_large(text: str) -> None:
    """The bound that is checked before planning is valid for every algorithm and collective."""
    network = hub_core.parse_topology(text)
    ranks, npus = network.num_npus, tuple(range(network.num_npus))
    for name, algorithm in ALGORITHMS.items():
        for kind in algorithm.planners:
            root = 0 if kind.traits.is_rooted else None
            collective = Collective(kind, ranks, kind.traits.parts(ranks), root)
            request = SynthesisRequest(collective, network, 1 << 20, npus, Occupancy.SERIALIZATION)
            task = build_task(name, request, OPTIONS[name]())
            try:
                blocks = len(plan_algorithm(name, task).plan.blocks)
            except HubError:
                continue
            assert compute_least_blocks(name, task) <= blocks


def test_all_to_alls_of_thousands_of_ranks_are_refused_before_planning() -> None:
    # 25 million blocks would take gigabytes.
    with pytest.raises(HubError, match=r"24995000 blocks in messages are too many"):
        make("pairwise", CollectiveKind.ALL_TO_ALL, "switch:5000")


@pytest.mark.parametrize("name", ["pairwise", "direct"])
def test_messages_across_a_thousand_links_are_refused_before_planning(name: str) -> None:
    # Simulating them takes gigabytes and minutes.
    with pytest.raises(HubError, match=r"messages between all ranks pass 268\d{6} links"):
        make(name, CollectiveKind.ALL_TO_ALL, "ring:1024")


def test_messages_across_hundreds_of_links_are_estimated() -> None:
    """On `torus:512x2` they pass 134 million links, and take 1.003 times the bound."""
    topology = hub_core.parse_topology("torus:512x2")
    collective = Collective(CollectiveKind.ALL_TO_ALL, 1024, 1024)
    request = SynthesisRequest(
        collective, topology, 1 << 26, tuple(range(1024)), Occupancy.SERIALIZATION
    )
    assert pairwise_ns(request, OPTIONS["pairwise"]()) > 80_000_000


def test_a_single_order_is_not_simulated_if_the_request_needs_no_time() -> None:
    def refuse(algorithm: Algorithm) -> int:
        raise AssertionError("simulated")

    collective = Collective(CollectiveKind.ALL_REDUCE, 4, 4)
    network = hub_core.parse_topology("switch:4")
    timed = SynthesisRequest(collective, network, 1 << 20, (0, 1, 2, 3), Occupancy.SERIALIZATION)
    request = replace(timed, simulate=refuse, needs_time=False)
    result = synthesize("ring", request, OPTIONS["ring"]())
    assert verify(result.algorithm).ok
    # The time would be wrong in a written file.
    assert "time_ns" not in result.algorithm.extensions["collhub-classic"]  # type: ignore[operator]


def test_ranks_without_a_path_are_refused_if_no_simulator_can_time_the_links() -> None:
    """Found by `fuzz.py`: a latency of 10^6 s does not fit into 64 bits of picoseconds."""
    network = hub_core.parse_topology("leaf-spine:5,2,2?latency=1000000s")
    kept = np.flatnonzero(network.source != 4)
    broken = replace(
        network,
        name="broken",
        source=network.source[kept],
        destination=network.destination[kept],
        bandwidth_bytes_per_s=network.bandwidth_bytes_per_s[kept],
        latency_s=network.latency_s[kept],
        plane=network.plane[kept],
        dimensions=(),
    )
    collective = Collective(CollectiveKind.REDUCE_SCATTER, 10, 10)
    with pytest.raises(HubError, match=r"topology broken: NPU \d cannot reach NPU \d: no link"):
        hub_core.synthesize(collective, broken, 64, name="bruck")


@pytest.mark.parametrize("name", ["direct", "binomial", "k-nomial"])
def test_data_of_a_root_need_paths_in_one_direction_only(name: str) -> None:
    """Rank 0 reaches only the root: a reduce is possible, although it cannot reach rank 1."""
    links = np.asarray([(0, 2), (1, 2), (1, 0), (2, 3), (3, 2)], np.int64)
    rate, latency_s = np.full(len(links), 25e9), np.full(len(links), 1e-6)
    topology = hub_core.Topology("one-way", 4, 4, *links.T, rate, latency_s)
    collective = Collective(CollectiveKind.REDUCE, 4, 1, 2, in_place=True)
    result = hub_core.synthesize(collective, topology, 1 << 20, name=name)
    assert hub_core.verify(result.algorithm).ok
    assert hub_core.simulate(result.algorithm, topology, 1 << 20).time_ns == result.time_ns
