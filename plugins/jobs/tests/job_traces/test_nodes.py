"""Nodes of Chakra traces: types, texts beyond the columns, and tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
from collhub_job_traces import (
    OUTPUTS,
    JobReadOptions,
    StatedInput,
    attributes_extra,
    attributes_of_extra,
    bridge_markers,
    read,
    stated_fields,
    tensors_of_extra,
    write,
)

from hub_core import InputError
from hub_core.chakra import encoded_record, varint
from hub_core.model import NodeColumns, NodeKind, Workload
from hub_core.plugin_api import NoOptions, Source, SourcePart

TEXTS = {"one": "of this", "two": '{"json": ["é", 1]}'}


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


def test_texts_are_read_from_what_was_made_of_them() -> None:
    assert attributes_of_extra(attributes_extra(TEXTS)) == TEXTS
    assert attributes_of_extra("") == {}
    assert attributes_of_extra("=nohex {json}") == {}


def job() -> Workload:
    columns = {"rank": [0, 1], "kind": [NodeKind.COMPUTE] * 2, "operations": [5, 6]}
    columns |= {"bytes": [7, 8], "extra": [0, -1]}
    return Workload(NodeColumns.from_columns(2, columns), extras=(attributes_extra(TEXTS),))


def read_back(workload: Workload) -> Workload:
    files = [artifact.content() for artifact in write(workload, NoOptions()).artifacts]
    parts = [
        SourcePart(f"job.{rank}.et", lambda file=file: file, rank)  # type: ignore[misc]
        for rank, file in enumerate(files)
    ]
    return read(Source("job", tuple(parts)), JobReadOptions())


def test_traces_carry_texts_beside_the_columns() -> None:
    found = read_back(job())
    kept = [attributes_of_extra(found.extras[row]) for row in found.nodes.extra.tolist()]
    assert kept == [TEXTS, {}]
    assert found.nodes.operations.tolist() == [5, 6]
    assert found.nodes.bytes.tolist() == [7, 8]


def test_a_trace_with_texts_is_written_back_byte_for_byte() -> None:
    found = read_back(job())
    again = read_back(found)
    assert again.differences(replace(found, provenance=again.provenance)) == []


def field(number: int, body: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(body)) + body


def stated(values: str, shapes: str, types: str, number: int = 8) -> str:
    texts = enumerate((values, shapes, types), 1)
    info = b"".join(field(place, text.encode()) for place, text in texts)
    return f"+ ={field(number, info).hex()}"


def test_shapes_types_and_numbers_are_those_of_the_arguments() -> None:
    extra = stated(
        "[[1, 2], [3, 4], 0.5]", "[[16, 8], [8], []]", "['Tensor(float)', 'Tensor(c10::Half)', 'Scalar']"
    )  # fmt: skip
    assert tensors_of_extra(extra) == (
        StatedInput((16, 8), "float32"),
        StatedInput((8,), "float16"),
        StatedInput(None, number=0.5),
    )
    assert tensors_of_extra(extra, OUTPUTS) == ()


def test_outputs_stand_in_a_field_of_their_own() -> None:
    extra = stated("[[1]]", "[[3]]", "['Tensor(long int)']", 9)
    assert tensors_of_extra(extra, OUTPUTS) == (StatedInput((3,), "int64"),)
    assert tensors_of_extra(extra) == ()


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "+",
        "=zz",
        "=ff",
        stated("", "", ""),
        stated("[", "{1: 2}", "['Tensor(float)']"),
        stated("{[]: 1}", "[{[]}]", "['Int']"),
        stated(f"[1{'0' * 310}]", "[[]]", "['Int']"),
    ],
)
def test_other_texts_state_nothing(extra: str) -> None:
    assert tensors_of_extra(extra) == ()


def test_lists_of_tensors_and_unknown_types_are_told_apart() -> None:
    extra = stated("[[], []]", "[[[2], [3]], [4]]", "['Tensor(float)', 'Tensor(c10::BFloat16)']")
    assert tensors_of_extra(extra) == (StatedInput((4,), ""),)


def test_damaged_attributes_and_shapes_of_an_extra_are_ignored() -> None:
    # Field 10, an attribute of 3 bytes, whose name claims 5 bytes.
    truncated = "=" + b"\x52\x03\x0a\x05a".hex()
    assert stated_fields(truncated).attributes == frozenset()
    assert attributes_of_extra(truncated) == {}
    texts = (b"[1]", b"[3]", b"['Tensor(float)']")
    # The fields 1 to 3 of an IOInfo in field 8; the shape of the tensor is a number, not a list.
    info = b"".join(
        bytes([number << 3 | 2, len(text)]) + text for number, text in enumerate(texts, 1)
    )
    assert tensors_of_extra("=" + (bytes([8 << 3 | 2, len(info)]) + info).hex()) == ()
