"""Every real trace: surveyed, read as an algorithm where it is one, refused by name where it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hub_core.cli.jobs.workload_survey import survey
from hub_core.model.algorithm import Algorithm
from hub_core.model.diagnostics import InputError
from hub_core.plugin_api import Source, SourcePart
from hub_core.trace_profile.formats import ChakraReadOptions
from hub_core.trace_profile.lowering import message_tags
from hub_core.trace_profile.read import chakra_algorithm

ALGORITHMS = {
    "astra-sim-custom-ring-8/custom_allreduce": "absolute",
    "paper-converter-allgather_allpairs_8_1/allgather_allpairs_8_1": "symbolic",
    "paper-converter-allgather_recdbl_8_1/allgather_recdbl_8_1": "symbolic",
    "paper-converter-allreduce_a100_ring_8_1_1_nofusion/allreduce_a100_ring_8_1_1": "symbolic",
    "paper-converter-allreduce_rdh_8_1/allreduce_rdh_8_1": "symbolic",
}
COMPUTATIONS = {
    f"mlc-chakra-generator/{name}"
    for name in ("one_comp_node", "two_comp_nodes_dependent", "two_comp_nodes_independent")
}
TEMPLATES = {"mlc-chakra-generator/one_comm_send_node", "mlc-chakra-generator/one_comm_recv_node"}


def rank_sets(corpus: Path) -> dict[str, Source]:
    """The sets of rank files by prefix."""
    folder = corpus / "chakra"
    parts: dict[str, list[SourcePart]] = {}
    for path in sorted(folder.rglob("*.et")):
        prefix, rank, _ = str(path.relative_to(folder)).rsplit(".", 2)
        parts.setdefault(prefix, []).append(SourcePart(path.name, path.read_bytes, int(rank)))
    return {prefix: Source(prefix, tuple(files)) for prefix, files in parts.items()}


def unmatched(algorithm: Algorithm) -> int:
    """Messages that have one end only, or ends of different size."""
    steps, tags = algorithm.steps, message_tags(algorithm.steps)
    columns = (steps.rank, steps.peer, tags, steps.count)
    sent = set(zip(*(column[steps.sends].tolist() for column in columns), strict=True))
    received = {
        (peer, rank, tag, count)
        for rank, peer, tag, count in zip(
            *(c[steps.receives].tolist() for c in columns), strict=True
        )
    }
    return len(sent ^ received)


def test_every_file_is_surveyed(corpus: Path) -> None:
    for prefix, source in rank_sets(corpus).items():
        found = survey(source)
        assert found.num_ranks == len(source.parts)
        assert sum(found.nodes_by_type.values()) == sum(found.nodes_by_rank) > 0
        expected = (
            "no messages"
            if prefix in COMPUTATIONS
            else "messages without peer or size"
            if prefix in TEMPLATES
            else "workload"
        )
        assert found.dialect == ALGORITHMS.get(prefix, expected)


def test_numbers_of_the_feeder_trace(corpus: Path) -> None:
    found = survey(rank_sets(corpus)["mlc-chakra-feeder-trace/chakra"])
    assert found.nodes_by_rank == (3664,)
    assert (found.data_dependencies, found.control_dependencies, found.dangling_references) == (
        181_878,
        3_664,
        1_277,
    )


def test_all_kinds_of_attributes_are_seen(corpus: Path) -> None:
    found = survey(rank_sets(corpus)["mlc-chakra-generator/one_metadata_node_all_types"])
    assert len({use.kind for use in found.attributes}) == 30


def test_algorithms_are_read_and_every_message_is_matched(corpus: Path) -> None:
    sets = rank_sets(corpus)
    for prefix in ALGORITHMS:
        algorithm = chakra_algorithm(sets[prefix], ChakraReadOptions())
        assert unmatched(algorithm) == 0
        assert not algorithm.has_contents


def test_the_shipped_ring_keeps_sizes_durations_and_channels(corpus: Path) -> None:
    steps = chakra_algorithm(
        rank_sets(corpus)["astra-sim-custom-ring-8/custom_allreduce"], ChakraReadOptions()
    ).steps
    assert len(steps) == 280
    messages = steps.sends | steps.receives
    assert set(steps.count[messages].tolist()) == {131072}
    assert set(steps.duration_ns[~messages].tolist()) == {7000}
    np.testing.assert_array_equal(np.diff(steps.rank_indptr), 35)


def test_a_known_all_reduce_comes_with_its_chunks(corpus: Path) -> None:
    algorithm = chakra_algorithm(
        rank_sets(corpus)["paper-converter-allreduce_rdh_8_1/allreduce_rdh_8_1"],
        ChakraReadOptions(),
    )
    assert (str(algorithm.collective.kind), algorithm.collective.unit_count) == ("all-reduce", 8)


def test_workloads_and_templates_are_refused_as_such(corpus: Path) -> None:
    for prefix, source in rank_sets(corpus).items():
        if prefix not in ALGORITHMS and prefix not in COMPUTATIONS:
            with pytest.raises(InputError, match="a workload trace, not an algorithm: rank 0 has "):
                chakra_algorithm(source, ChakraReadOptions())


@pytest.mark.parametrize(
    "look", [survey, lambda source: chakra_algorithm(source, ChakraReadOptions())]
)
def test_the_legacy_file_is_refused_by_name(corpus: Path, look: object) -> None:
    path = corpus / "chakra" / "legacy-eg" / "twoCompNodesDependent.0.eg"
    with pytest.raises(InputError, match=r"execution graph \(.eg\) of before June 2023"):
        look(Source(path.name, (SourcePart(path.name, path.read_bytes, 0),)))  # type: ignore[operator]
