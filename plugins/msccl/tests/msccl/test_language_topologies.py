"""Topologies, and the collectives of the synthesis side."""

from __future__ import annotations

import pytest
from collhub_msccl.language import chunk_sets
from collhub_msccl.language.topologies import (
    Topology,
    amd4,
    amd8,
    binarize_topology,
    dgx1,
    dgx_a100,
    distributed_fully_connected,
    distributed_hub_and_spoke,
    fully_connected,
    hub_and_spoke,
    line,
    nvlink_only,
    reverse_topology,
    ring,
    star,
)


def rows(topology: Topology) -> str:
    """Links as digits, one word a destination."""
    return " ".join("".join(map(str, row)) for row in topology.links)


REGULAR = {
    "011 101 110": fully_connected(3),
    "0101 1010 0101 1010": ring(4),
    "01 10": ring(2),
    "010 101 010": line(3),
    "0111 1000 1000 1000": star(4),
    "0110 1001 1001 0110": amd4(),
    "02112000 20120100 11020020 12200001 20000211 01002012 00201102 00011220": dgx1(),
    "0155 1055 5501 5510": distributed_fully_connected(fully_connected(2), 2, 5),
    "01 00": Topology("one way", [[0, 1], [0, 0]]),
    "00 10": reverse_topology(Topology("one way", [[0, 1], [0, 0]])),
    "01111 10000 10000 10000 10000": binarize_topology(star(5, non_blocking=False)),
}


@pytest.mark.parametrize("expected", REGULAR)
def test_links(expected: str) -> None:
    assert rows(REGULAR[expected]) == expected


def test_link_is_from_source_to_destination() -> None:
    topology = Topology("one way", [[0, 3], [0, 0]])
    assert (topology.link(1, 0), topology.link(0, 1)) == (3, 0)
    assert (list(topology.sources(0)), list(topology.destinations(1)), list(topology.nodes())) == (
        [1],
        [0],
        [0, 1],
    )
    assert list(topology.bandwidth_constraints()) == [([1], [0], 3, "1->0")]


def test_switches() -> None:
    assert len(hub_and_spoke(3).switches) == 6
    assert [names for *_, names in star(3, non_blocking=False).switches] == ["hub_in", "hub_out"]
    assert len(distributed_hub_and_spoke(hub_and_spoke(2), 2, 7).switches) == 2 * 4 + 4
    assert reverse_topology(star(3, non_blocking=False)).switches[0][:2] == ([0], [1, 2])
    assert len(list(hub_and_spoke(3).bandwidth_constraints())) == 6 + 6


def test_machines_have_links_between_all() -> None:
    assert all(dgx_a100().link(a, b) == 12 for a in range(8) for b in range(8) if a != b)
    assert {amd8().link(a, b) for a in range(8) for b in range(8) if a != b} == {5, 6}


def test_nvlinks_are_read_from_the_table_of_nvidia_smi() -> None:
    table = (
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\n"
        "GPU0\t X \tNV2\tSYS\t0-15\nGPU1\tNV2\t X \tNV1\t0-15\nGPU2\tSYS\tNV1\t X \t0-15\n"
    )
    assert rows(nvlink_only(table)) == "020 201 010"
    with pytest.raises(ValueError, match="not the table"):
        nvlink_only("no such command")


def test_bad_topologies_are_refused() -> None:
    with pytest.raises(ValueError, match="square"):
        Topology("bad", [[0, 1]])
    with pytest.raises(ValueError, match="switch without bandwidth"):
        Topology("bad", [[0]], [([0], [0], 0, "s")])


CHUNK_SETS = {
    "allgather": (chunk_sets.allgather(2), [{0}, {1}], [{0, 1}, {0, 1}], [0, 1], "allgather"),
    "alltoall": (
        chunk_sets.alltoall(2),
        [{0}, {0}, {1}, {1}],
        [{0}, {1}, {0}, {1}],
        [0, 1, 2, 3],
        "alltoall",
    ),
    "allreduce": (chunk_sets.allreduce(2), [{0}, {1}], [{0, 1}, {0, 1}], [0, 0], "allreduce"),
    "reduce_scatter": (
        chunk_sets.reduce_scatter(2),
        [{0}, {0}, {1}, {1}],
        [{0}, {1}, {0}, {1}],
        [0, 1, 0, 1],
        "reduce_scatter",
    ),
    "broadcast": (chunk_sets.broadcast(2, 1), [{1}], [{0, 1}], [0], "custom"),
    "reduce": (chunk_sets.reduce(2, 1), [{0}, {1}], [{1}, {1}], [0, 0], "custom"),
    "scatter": (chunk_sets.scatter(2, 1), [{1}, {1}], [{0}, {1}], [0, 1], "custom"),
    "gather": (chunk_sets.gather(2, 1), [{0}, {1}], [{1}, {1}], [0, 1], "custom"),
    "scan": (chunk_sets.scan(2), [{0}, {1}], [{0, 1}, {1}], [0, 0], "custom"),
    "multiroot_broadcast": (chunk_sets.multiroot_broadcast(2, [1]), [{1}], [{0, 1}], [0], "custom"),
    "multiroot_scatter": (
        chunk_sets.multiroot_scatter(2, [1]),
        [{1}, {1}],
        [{0}, {1}],
        [0, 1],
        "custom",
    ),
    "multiroot_gather": (
        chunk_sets.multiroot_gather(2, [1]),
        [{0}, {1}],
        [{1}, {1}],
        [0, 1],
        "custom",
    ),
}


@pytest.mark.parametrize("name", CHUNK_SETS)
def test_chunk_sets(name: str) -> None:
    sets, before, after, addresses, runtime_name = CHUNK_SETS[name]
    chunks = range(sets.num_chunks)
    assert [{r for r in range(2) if sets.precondition(r, c)} for c in chunks] == before
    assert [{r for r in range(2) if sets.postcondition(r, c)} for c in chunks] == after
    assert [sets.address(c) for c in chunks] == addresses
    assert sets.runtime_name == runtime_name
