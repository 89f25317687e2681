"""All-reduce in one phase: right in and out of place, merged where trees agree, and fast."""

from __future__ import annotations

import numpy as np
import pytest
from collhub_tacos.link_network import contract_switches
from collhub_tacos.phases.one_shot import build_steps
from collhub_tacos.phases.partial_sums import PartialSums, build_in_trees, build_partial_sums
from hypothesis import given, settings
from hypothesis import strategies as st

import hub_core
from hub_core import (
    Algorithm,
    Collective,
    CollectiveKind,
    InputError,
    Topology,
    parse_topology,
    verify,
)
from hub_core.network import Links, Occupancy

KIB = 1 << 10


def sums_of(topology: Topology, size: int = KIB) -> PartialSums:
    network = contract_switches(topology)
    return build_partial_sums(
        build_in_trees(network, network.link_times(size, Occupancy.SERIALIZATION))
    )


def all_reduce(topology: Topology, pieces: int) -> Algorithm:
    network = contract_switches(topology)
    times = network.link_times(KIB // pieces, Occupancy.SERIALIZATION)
    trees = build_in_trees(network, times)
    steps, scratch_units = build_steps(trees, build_partial_sums(trees), times, pieces)
    collective = Collective(
        CollectiveKind.ALL_REDUCE, topology.num_npus, pieces, in_place=True, out_of_place=True
    )
    return Algorithm(collective, steps, scratch_units)


@st.composite
def connected_networks(draw: st.DrawFn) -> Topology:
    """A ring one way, and other links, of several rates: there is a way, and seldom one alone."""
    n = draw(st.integers(2, 9))
    pairs = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=20))
    around = {(i, (i + 1) % n) for i in range(n)}
    ends = np.asarray(sorted({(a, b) for a, b in pairs if a != b} | around), np.int64)
    rates = draw(
        st.lists(
            st.sampled_from([10e9, 50e9]),
            min_size=len(ends),
            max_size=len(ends),
        )
    )
    latencies = np.full(len(ends), 1e-6)
    return Links(
        ends[:, 0],
        ends[:, 1],
        np.asarray(rates),
        latencies,
    ).topology("random", n, n)


def test_a_result_waits_until_nothing_reads_the_input():
    # Found by the test below: rank 4 got its result while a sum was still to begin with INPUT.
    ends = np.array([[0, 1], [0, 4], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [5, 3]]).T
    rates, latencies = np.full(8, 10e9), np.full(8, 1e-6)
    report = verify(all_reduce(Links(*ends, rates, latencies).topology("ring", 6, 6), 1))
    assert report.ok, report.diagnostics[:1]


@settings(max_examples=60, deadline=None)
@given(connected_networks(), st.integers(1, 3))
def test_every_rank_gets_every_contribution_once(topology: Topology, pieces: int) -> None:
    report = verify(all_reduce(topology, pieces))
    assert report.ok, report.diagnostics[:3]


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize(
    "text",
    [
        "ring:2",
        "ring:5",
        "ring:8",
        "line:7",
        "mesh:3x4",
        "torus:4x4",
        "hypercube:3",
        "fc:6",
        "dgx1v",
        "switch:8",
        "switch:17",
        "fat-tree:4",
        "dgx-a100:2",
        "dragonfly:2,1,1",
    ],
)
def test_topologies_of_all_sorts_are_right(text: str, pieces: int) -> None:
    report = verify(all_reduce(parse_topology(text), pieces))
    assert report.ok, report.diagnostics[:3]


@pytest.mark.parametrize(("dimensions", "npus"), [(1, 2), (3, 8), (5, 32)])
def test_trees_of_a_hypercube_merge_to_recursive_doubling(dimensions: int, npus: int) -> None:
    # Every NPU exchanges one vector in every dimension.
    assert len(sums_of(parse_topology(f"hypercube:{dimensions}"))) == dimensions * npus


@pytest.mark.parametrize("npus", [2, 7, 16])
def test_full_graphs_need_one_message_a_pair(npus: int) -> None:
    assert len(sums_of(parse_topology(f"fc:{npus}"))) == npus * (npus - 1)


@pytest.mark.parametrize("text", ["line:6", "mesh:4x3", "mesh:3x3x3"])
def test_meshes_send_one_sum_over_every_link(text: str) -> None:
    # Prefix sums in one dimension, then sums of whole rows in the next one.
    topology = parse_topology(text)
    assert len(sums_of(topology)) == topology.num_links


def test_result_is_not_sent() -> None:
    sums = sums_of(parse_topology("torus:4x4"))
    results = sums.indptr[len(sums) :]
    # Every result has parts of its own.
    assert np.all(np.diff(results) > 0)


def test_groups_are_refused_by_name() -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 3, 1, in_place=True)
    with pytest.raises(InputError, match="no all-reduce in one phase: some NPUs take no part"):
        hub_core.synthesize(
            collective,
            parse_topology("ring:6"),
            KIB,
            name="tacos",
            options={"method": "one-shot"},
            npus=(4, 1, 3),
        )


def test_large_vectors_are_not_collected_in_one_phase() -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 8, 1, in_place=True)
    result = hub_core.synthesize(collective, parse_topology("switch:8"), 1 << 26, name="tacos")
    assert result.statistics["form"] == "two-phase"


def test_messages_of_several_trees_are_planned_after_their_summands() -> None:
    # Found by random questions: a sum was sent before its summand had arrived, which was then
    # replaced by the local contribution.
    slow, fast = 1e9 / 3, 16.6e9
    rates = {
        (0, 1): fast, (0, 2): slow, (1, 0): slow, (1, 3): slow, (1, 4): fast, (2, 0): fast,
        (2, 7): slow, (3, 1): fast, (4, 1): slow, (4, 5): slow, (4, 7): fast, (5, 4): fast,
        (5, 6): fast, (6, 5): slow, (6, 7): fast, (7, 2): slow, (7, 6): slow,
    }  # fmt: skip
    ends = np.asarray(list(rates), np.int64)
    latency = np.where(np.isin(np.arange(len(ends)), [1, 3, 6, 10]), 5e-7, 0.0)
    links = Links(ends[:, 0].copy(), ends[:, 1].copy(), np.asarray(list(rates.values())), latency)
    topology = links.topology("graph with two switches", 6, 8)
    sums = sums_of(topology, 8)
    for message in range(len(sums)):
        parts = sums.parts_of(message)
        assert all(sums.remaining[part] > sums.remaining[message] for part in parts)
    assert verify(all_reduce(topology, 1)).ok


def test_arcs_that_take_no_time_keep_all_contributions() -> None:
    # NPU 3 is as far from NPU 0 as its parent 1; the order of NPUs by distance then decided.
    ends = np.asarray([(3, 1), (1, 0), (0, 2), (2, 3)], np.int64)
    rates = np.asarray([1e18, 1e9, 1e18, 1e18])
    links = Links(ends[:, 0].copy(), ends[:, 1].copy(), rates, np.zeros(4))
    assert verify(all_reduce(links.topology("ring one way", 4, 4), 1)).ok


def test_oversubscribed_all_to_all_is_as_fast_as_direct() -> None:
    topology = parse_topology("leaf-spine:4,4,2")
    collective = Collective(CollectiveKind.ALL_TO_ALL, topology.num_npus, topology.num_npus)
    times = {}
    for name in ("tacos", "direct"):
        result = hub_core.synthesize(collective, topology, 1 << 20, name=name)
        assert verify(result.algorithm).ok
        times[name] = result.time_ns
    assert times["tacos"] <= 1.01 * times["direct"]
