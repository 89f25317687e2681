"""Types of nodes: those that are no part of jobs are named in the error that refuses them."""

from __future__ import annotations

import pytest
from collhub_job_traces import JobReadOptions, bridge_markers, read, stated_fields

from hub_core import InputError
from hub_core.chakra import encoded_record
from hub_core.model import NodeKind
from hub_core.plugin_api import Source, SourcePart


def source(*nodes: dict[str, object]) -> Source:
    content = encoded_record("GlobalMetadata", version="0.0.4")
    content += b"".join(encoded_record("Node", **node) for node in nodes)
    return Source("job", (SourcePart("job.0.et", lambda: content, 0),))


@pytest.mark.parametrize(
    ("number", "name"), [(8, "STORAGE_NODE"), (9, "BATCH_NODE"), (10, "CHECKPOINT_NODE")]
)
def test_proposed_types_are_named(number: int, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} .type {number}, so far only proposed"):
        read(source({"id": 0, "type": number}), JobReadOptions())


def test_unknown_types_are_told_by_number() -> None:
    with pytest.raises(InputError, match="unknown type 11") as caught:
        read(source({"id": 0, "type": 11}), JobReadOptions())
    assert caught.value.diagnostics[0].code == "node"


def test_records_tell_the_types_of_markers() -> None:
    workload = read(source({"id": 1, "type": 1}, {"id": 2, "type": 0}), JobReadOptions())
    assert (workload.nodes.kind == NodeKind.MARKER).all()
    types = [stated_fields(workload.extras[extra]).node_type for extra in workload.nodes.extra]
    assert types[0] == 1
    assert types[1] in (None, 0)


def test_parents_of_a_chain_of_markers_pass_to_its_children() -> None:
    comp = {"type": 4, "duration_micros": 1}
    nodes = [
        {"id": 0, **comp},
        {"id": 1, "type": 0, "data_deps": [0]},
        {"id": 2, "type": 0, "ctrl_deps": [1]},
        {"id": 3, **comp, "data_deps": [2]},
    ]
    bridged, kept = bridge_markers(read(source(*nodes), JobReadOptions()))
    assert kept.tolist() == [0, 3]
    parents, children = bridged.nodes.edges()
    assert (parents.tolist(), children.tolist()) == ([0], [1])
