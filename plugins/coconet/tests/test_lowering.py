"""Documents of programs as workloads of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest
from collhub_coconet import Binding, movable, program_to_json, reorder, split
from collhub_coconet.lowering.workload import lower, samples
from lamb import lamb
from transformer_blocks import pipeline_boundary

import hub_core
from hub_core.model import InputError, JobCollective, NodeKind, UsageError


def test_pipeline_boundary_becomes_messages_between_groups() -> None:
    after = split(pipeline_boundary(), "z").program
    after = reorder(after, "z", movable(after, "z")).program
    nodes = lower(after, Binding(4, {"B": 8, "S": 3, "H": 6})).nodes
    assert nodes.num_ranks == 8
    sends = nodes.is_kind(NodeKind.SEND)
    pairs = list(zip(nodes.rank[sends].tolist(), nodes.peer[sends].tolist(), strict=True))
    assert pairs == [(0, 4), (1, 5), (2, 6), (3, 7)]
    # Half floats of a quarter of the tensor.
    assert set(nodes.bytes[sends].tolist()) == {2 * 8 * 3 * 6 // 4}


def test_norm_of_slices_becomes_an_all_reduce_of_one_scalar() -> None:
    after = split(lamb(), "g1").program
    after = reorder(after, "g1", movable(after, "g1")).program
    nodes = lower(after, Binding(2, {"N": 64})).nodes
    first = nodes.rank == 0
    is_all_reduce = nodes.collective == JobCollective.ALL_REDUCE
    assert nodes.bytes[first & is_all_reduce].tolist() == [4]
    gathers = first & (nodes.collective == JobCollective.ALL_GATHER)
    assert nodes.bytes[gathers].tolist() == [4 * 32] * 3


def test_document_is_read_as_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "lamb.program.json"
    file.write_text(program_to_json(lamb()))
    with pytest.raises(InputError, match="symbol N is not bound"):
        hub_core.read_workload(file)
    job = hub_core.read_workload(file, options={"num_ranks": "2", "sizes": "N=64"})
    assert job.num_ranks == 2
    assert job.provenance.producer == "coconet"


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [("N=0", InputError, "size N is 0, the program has 16..16"), ("N", UsageError, "'N'")],
)
def test_size_out_of_bounds_is_refused(
    tmp_path: Path, sizes: str, error: type[Exception], message: str
) -> None:
    file = tmp_path / "step.program.json"
    file.write_bytes(samples()[0].content())
    with pytest.raises(error, match=message):
        hub_core.read_workload(file, options={"sizes": sizes})
