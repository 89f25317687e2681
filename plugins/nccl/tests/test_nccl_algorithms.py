"""The synthesizer `nccl`: rings, trees and NVLS that NCCL runs on a machine."""

from __future__ import annotations

import pytest
from collhub_nccl.options import NcclSynthesisOptions
from collhub_nccl.synthesize import node_rings, node_trees, synthesize
from collhub_nccl_records import describe_tree_defect

import hub_core
from hub_core.model import Collective, CollectiveKind, HubError, UsageError
from hub_core.network import Topology
from hub_core.plugin_api import SynthesisRequest
from hub_core.schedules import find_switch_groups

KIB, MIB = 2**10, 2**20


def _nodes(count: int, gpus: int) -> list[list[int]]:
    return [list(range(node * gpus, (node + 1) * gpus)) for node in range(count)]


def _request(
    topology: str, size: int, kind: CollectiveKind = CollectiveKind.ALL_REDUCE
) -> SynthesisRequest:
    network: Topology = hub_core.parse_topology(topology)
    ranks = network.num_npus
    root = 0 if kind.traits.is_rooted else None
    collective = Collective(kind, ranks, kind.traits.parts(ranks), root, in_place=True)
    return SynthesisRequest(
        collective, network, size, tuple(range(ranks)), hub_core.network.Occupancy.SERIALIZATION
    )


def test_rings_of_one_node_are_equal() -> None:
    assert node_rings(_nodes(1, 4), 3) == [(0, 1, 2, 3)] * 3


def test_rings_between_nodes_use_every_network_card() -> None:
    rings = node_rings(_nodes(2, 4), 4)
    assert rings[1] == (1, 2, 3, 0, 5, 6, 7, 4)
    for position in (0, 3):
        assert {ring[position] for ring in rings} == {0, 1, 2, 3}


# The lines `Trees [0] 1/8/-1->0->-1` and `[1] 1/-1/-1->0->8` of NCCL on two nodes of eight GPUs:
# the first tree has its root in the first node, the second in the second node.
def test_trees_of_two_nodes_have_the_links_that_nccl_logs() -> None:
    first, second = node_trees(_nodes(2, 8), 2)
    assert (first[0].parent, set(first[0].children)) == (-1, {1, 8})
    assert (second[0].parent, set(second[0].children)) == (8, {1})
    assert second[8].parent == -1


@pytest.mark.parametrize("count", range(1, 18))
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_trees_span_all_ranks(count: int, gpus: int) -> None:
    for tree in node_trees(_nodes(count, gpus), 4):
        assert describe_tree_defect(tree, count * gpus) == ""
        assert max(len(node.children) for node in tree.values()) <= 3


@pytest.mark.parametrize("count", [4, 7, 8, 16])
def test_no_node_has_children_in_both_trees(count: int) -> None:
    first, second = node_trees(_nodes(count, 1), 2)
    inner = [{rank for rank, node in tree.items() if node.children} for tree in (first, second)]
    # With an odd number of nodes the root of one tree may have a child in the other one.
    assert len(inner[0] & inner[1]) <= 1


@pytest.mark.parametrize(
    ("topology", "size", "choice", "algorithm", "channels"),
    [
        ("dgx-h100", 64 * KIB, "ring ll", "ring", 2),
        ("dgx-h100", 64 * MIB, "nvls simple", "nvls", 16),
        ("dgx-b200", 256 * MIB, "nvls simple", "nvls", 24),
        ("dgx-a100", 64 * MIB, "ring simple", "ring", 24),
        ("dgx-h100:2", 64 * KIB, "tree ll", "tree", 16),
        ("dgx-a100:2", 256 * MIB, "ring simple", "ring", 16),
    ],
)
def test_algorithm_and_channels_are_those_that_nccl_chooses(
    topology: str, size: int, choice: str, algorithm: str, channels: int
) -> None:
    result = synthesize(_request(topology, size), NcclSynthesisOptions())
    assert result.statistics["nccl_choice"] == choice
    assert result.statistics["graph"] == algorithm
    assert result.statistics["channels"] == channels
    assert len(set(result.algorithm.steps.channel.tolist())) == channels


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CollectiveKind.ALL_REDUCE, NcclSynthesisOptions("ring", 4, 3)),
        (CollectiveKind.ALL_REDUCE, NcclSynthesisOptions("tree", 4, 3)),
        (CollectiveKind.ALL_GATHER, NcclSynthesisOptions("auto", 2, 2)),
        (CollectiveKind.REDUCE_SCATTER, NcclSynthesisOptions("auto", 2, 2)),
        (CollectiveKind.BROADCAST, NcclSynthesisOptions("auto", 2, 4)),
        (CollectiveKind.REDUCE, NcclSynthesisOptions("auto", 2, 4)),
    ],
)
@pytest.mark.parametrize("topology", ["dgx-h100:3", "ring:5", "dgx1v"])
def test_algorithms_are_correct(
    kind: CollectiveKind, options: NcclSynthesisOptions, topology: str
) -> None:
    result = synthesize(_request(topology, MIB, kind), options)
    report = hub_core.verify(result.algorithm)
    assert report.ok, report.diagnostics[:3]
    assert result.time_ns > 0


@pytest.mark.parametrize(
    "kind",
    [CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER],
)
def test_nvls_is_correct_and_its_messages_are_sums_and_multicasts(kind: CollectiveKind) -> None:
    request = _request("dgx-h100", MIB, kind)
    algorithm = synthesize(request, NcclSynthesisOptions("nvls", 2, 3)).algorithm
    report = hub_core.verify(algorithm)
    assert report.ok, report.diagnostics[:3]
    groups = find_switch_groups(algorithm, request.topology.with_measured_switches())
    assert groups is not None
    sums, multicasts = (len(rows) for rows, _ in (groups.sums, groups.multicasts))
    per_phase = 2 * 3 * 8 * 7
    assert sums == (0 if kind is CollectiveKind.ALL_GATHER else per_phase)
    assert multicasts == (0 if kind is CollectiveKind.REDUCE_SCATTER else per_phase)


@pytest.mark.parametrize("topology", ["dgx-a100", "dgx-h100:2", "ring:5"])
def test_nvls_needs_one_node_with_declared_switches(topology: str) -> None:
    with pytest.raises(UsageError, match="cannot use NVLS") as refused:
        synthesize(_request(topology, MIB), NcclSynthesisOptions("nvls"))
    assert refused.value.diagnostics[0].cure


@pytest.mark.parametrize("topology", ["dgx-h100", "dgx-b200"])
def test_the_time_of_nvls_on_a_machine_is_that_of_its_model(collhub, topology: str) -> None:
    pytest.importorskip("collhub_machine_timing")
    run = collhub("compare", "--collective", "all-reduce", "--topology", topology, "--size",
                  "256MiB", "--with", "nccl", "--no-cache", "--json")  # fmt: skip
    report = run.report()
    (row,) = report["results"]
    (baseline,) = report["baselines"]
    assert row["time_ns"] == pytest.approx(baseline["time_ns"], rel=0.1)


def test_more_chunks_of_a_tree_are_sent_in_a_pipeline() -> None:
    pytest.importorskip("collhub_astra_sim")
    request = _request("dgx-h100:2", 64 * MIB)
    times = []
    for chunks in (1, 8):
        result = synthesize(request, NcclSynthesisOptions("tree", 16, chunks))
        simulated = hub_core.simulate(result.algorithm, request.topology, 64 * MIB)
        times.append(simulated.time_ns)
    assert times[0] is not None
    assert times[1] is not None
    assert times[1] < 0.5 * times[0]


@pytest.mark.parametrize(
    ("kind", "options", "size", "words"),
    [
        (CollectiveKind.ALL_GATHER, NcclSynthesisOptions("tree"), MIB, "no all-gather over trees"),
        (CollectiveKind.ALL_REDUCE, NcclSynthesisOptions("ring", 8), 8, "cannot be cut in"),
        (
            CollectiveKind.ALL_REDUCE,
            NcclSynthesisOptions(version="2.40"),
            MIB,
            "no known cost model",
        ),
    ],
)
def test_unsuitable_requests_are_refused_with_a_cure(
    kind: CollectiveKind, options: NcclSynthesisOptions, size: int, words: str
) -> None:
    with pytest.raises(HubError, match=words) as refused:
        synthesize(_request("dgx-h100", size, kind), options)
    assert refused.value.diagnostics[0].cure


def test_other_collectives_are_refused_before_the_synthesizer_runs() -> None:
    request = _request("dgx-h100", MIB, CollectiveKind.ALL_TO_ALL)
    with pytest.raises(HubError, match="nccl does not support all-to-all") as refused:
        hub_core.run_synthesizer(request, "nccl")
    assert "all-reduce" in str(refused.value.diagnostics[0].cure)


def test_one_rank_is_refused() -> None:
    collective = Collective(CollectiveKind.ALL_REDUCE, 1, 1, None, in_place=True)
    network = hub_core.parse_topology("switch:2")
    occupancy = hub_core.network.Occupancy.SERIALIZATION
    request = SynthesisRequest(collective, network, MIB, (0,), occupancy)
    with pytest.raises(UsageError, match="one rank"):
        synthesize(request, NcclSynthesisOptions())


@pytest.mark.once
def test_the_synthesizer_is_tried_only_if_it_is_named(collhub) -> None:
    pytest.importorskip("collhub_tuning")
    run = collhub("compare", "--collective", "all-reduce", "--topology", "dgx-h100", "--size",
                  "1MiB", "--with", "nccl", "--with", "ring", "--no-cache", "--json")  # fmt: skip
    assert '"algorithm": "nccl"' in run.out
    from collhub_tuning.command_options import select_algorithms

    names = [one.name for one in select_algorithms((), hub_core.run_registry())]
    assert "ring" in names
    assert "nccl" not in names


@pytest.mark.parametrize("kind", ["reduce", "broadcast", "all-reduce", "all-gather"])
def test_ranks_on_other_npus_are_served(kind: str) -> None:
    root = 1 if kind in ("reduce", "broadcast") else None
    parts = 3 if kind == "all-gather" else 1
    collective = hub_core.Collective(hub_core.CollectiveKind(kind), 3, parts, root)
    result = hub_core.synthesize(collective, "mesh:2x2", 1 << 20, name="nccl", npus=(0, 3, 1))
    assert hub_core.verify(result.algorithm).ok
