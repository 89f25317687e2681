"""Every kind of unusable trace is refused by the name of its problem, with file, byte and node."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pytest

from hub_core.chakra import encode_metadata, message_class, record_bounds, varint
from hub_core.model.diagnostics import InputError
from hub_core.plugin_api import Source, SourcePart
from hub_core.testing.samples import ring_all_reduce
from hub_core.trace_profile.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.trace_profile.read import chakra_algorithm
from hub_core.trace_profile.write import write

START = encode_metadata("0.0.4", ())
RING = [
    artifact.content() for artifact in write(ring_all_reduce(3), ChakraWriteOptions()).artifacts
]


def source(*files: bytes) -> Source:
    return Source(
        "x", tuple(SourcePart(f"x.{rank}.et", lambda c=c: c, rank) for rank, c in enumerate(files))
    )


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


def node(number: int, node_type: int = 4, **fields: Any) -> bytes:
    """A node record; other keywords are attributes as (kind, value)."""
    lists = {name: fields.pop(name, ()) for name in ("data_deps", "ctrl_deps")}
    message: Any = message_class("Node")(id=number, type=node_type, **lists)
    for name, (kind, value) in fields.items():
        attribute = message.attr.add(name=name)
        if isinstance(value, list):
            getattr(attribute, kind).values.extend(value)
        else:
            setattr(attribute, kind, value)
    return framed(message.SerializeToString())


def send(number: int = 0, **changes: Any) -> bytes:
    fields = {
        "comm_size": ("int64_val", 8),
        "comm_dst": ("int32_val", 0),
        "comm_tag": ("int32_val", 0),
    } | changes
    return node(number, 5, **{name: value for name, value in fields.items() if value is not None})


def refusal(files: Source, options: ChakraReadOptions | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        chakra_algorithm(files, options or ChakraReadOptions())
    return caught.value


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty-file"),
        (gzip.compress(RING[0], mtime=0), "gzip"),
        (b"<algo name='x'>", "not-a-trace"),
        (START, "no-nodes"),
        (b"\0", "no-nodes"),
        (bytes(1000), "empty-record"),
        (START + b"\0" + node(1), "empty-record"),
        (RING[0][:-1], "truncated"),
        (START + b"\x80", "truncated"),
        (b"\xff\xff\xff\xff\xff\xff", "malformed-record"),
        (node(1), "missing-metadata"),
        (b"\x07\x08\x00\x12\x09\x4e", "truncated"),
        (
            framed(b"\x08\x00\x12\x01N\x18\x03\x38\x05") + framed(b"\x08\x01\x18\x03\x20\x00"),
            "legacy-eg",
        ),
        (framed(b"\x08\x01\x12\x01N\x18\x04\x5a\x02\x0a\x00"), "old-schema"),
        (START + framed(b"\x12\x01N\x18\x04\x5a\x02\x0a\x00"), "old-schema"),
        (START + framed(b"\x12\x01N\x18\x04\x90\x01\x00"), "legacy-eg"),
        (framed(b"\x0a\x05\x0a\x03abc") + node(0), "old-schema"),
        (framed(b"\x0a\x02\xff\xff") + node(0), "malformed-metadata"),
        (START + framed(b"\x18\x04\x07"), "malformed-record"),
        (START + framed(b"\x18\x04\x2a\x09\x00"), "malformed-record"),
        (START + framed(b"\x18\x04\x2a\x01\x80"), "malformed-record"),
        (START + node(5) + node(5), "duplicate-id"),
        (START + node(1) + node(2, data_deps=[9]), "dangling-dependency"),
        (START + node(1, data_deps=[2]) + node(2, ctrl_deps=[1]), "cyclic-dependencies"),
        (START + node(1) + node(2, data_deps=[2]), "cyclic-dependencies"),
        (START + node(1, 7), "workload-trace"),
        (START + node(1, 2), "workload-trace"),
        (START + node(1, 5), "workload-trace"),
        (START + node(1, 0), "node-type"),
        (START + node(1, 9), "node-type"),
        (START + send(comm_size=("int64_val", -1)), "attribute-range"),
        (START + send(comm_size=("int64_val", 0)), "attribute-range"),
        (START + send(comm_size=("uint64_val", 2**64 - 1)), "attribute-range"),
        (START + send(comm_size=("int64_val", 2**60)), "attribute-range"),
        (START + send(comm_size=("double_val", 8.0)), "attribute-kind"),
        (START + send(comm_size=("string_val", "8")), "attribute-kind"),
        (START + send(comm_size=None), "missing-attribute"),
        (START + send(comm_tag=("int32_val", -1)), "attribute-range"),
        (START + send(comm_dst=("int32_val", 7)), "attribute-range"),
    ],
)
def test_a_broken_file_is_refused_by_name(content: bytes, code: str) -> None:
    error = refusal(source(content))
    assert error.diagnostics[0].code == code
    assert error.diagnostics[0].location.file in ("x.0.et", "x")


@pytest.mark.parametrize("content", [RING[0][:-1], b"hello"])
def test_a_file_that_is_cut_or_no_trace_has_a_cure(content: bytes) -> None:
    cure = refusal(source(content)).diagnostics[0].cure
    assert cure == "copy the file again; it must be a Chakra trace"


def test_a_message_about_a_node_names_file_byte_and_id() -> None:
    content = START + node(3) + node(7, data_deps=[9])
    assert str(refusal(source(content))).startswith(
        f"x.0.et: byte {len(START) + len(node(3)) + 1}: rank 0: node 7 depends on node 9"
    )


def test_the_position_is_that_in_the_own_file() -> None:
    error = refusal(source(START + node(1), START + node(1) + node(2, data_deps=[3])))
    assert error.diagnostics[0].location.file == "x.1.et"
    assert error.diagnostics[0].location.byte == len(START) + len(node(1)) + 1


def test_a_cycle_names_a_node() -> None:
    error = refusal(source(START + node(70, data_deps=[80]) + node(80, data_deps=[70])))
    assert "node 70 can never run" in str(error)
    assert error.diagnostics[0].location.byte == len(START) + 1


def test_a_workload_names_its_node_and_the_cure() -> None:
    error = refusal(source(START + node(4, 7)))
    assert "a workload trace, not an algorithm: rank 0 has COMM_COLL_NODE 4" in str(error)
    assert "collhub inspect" in error.diagnostics[0].cure


def test_a_doubled_attribute_is_refused() -> None:
    body: Any = message_class("Node").FromString(send()[1:])
    body.attr.add(name="comm_size").int64_val = 9
    assert (
        refusal(source(START + framed(body.SerializeToString()))).diagnostics[0].code
        == "duplicate-attribute"
    )


def test_dangling_dependencies_are_dropped_on_request_and_counted() -> None:
    algorithm = chakra_algorithm(
        source(START + node(1) + node(2, data_deps=[9, 1], ctrl_deps=[8])),
        ChakraReadOptions(drop_dangling=True),
    )
    assert algorithm.steps.data_indices.tolist() == [0]
    assert algorithm.extensions["chakra-source"] == {
        "dangling dependencies dropped": 2,
        "metadata": {"version": "0.0.4"},
    }


# The same set of files, changed in one way.


def without(rank: int) -> Source:
    parts = tuple(
        SourcePart(f"x.{number}.et", lambda n=number: RING[n], number)
        for number in range(3)
        if number != rank
    )
    return Source("x", parts)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank_file_is_named(rank: int) -> None:
    assert f"the file of rank {rank} is missing" in str(refusal(without(rank)))


def test_a_missing_last_rank_file_is_seen_in_the_metadata() -> None:
    assert "the metadata claims 3 ranks, 2 files are there" in str(refusal(without(2)))


def test_a_rank_file_of_another_algorithm_is_refused() -> None:
    other = next(iter(write(ring_all_reduce(4), ChakraWriteOptions()).artifacts)).content()
    assert refusal(source(*RING[:2], other)).diagnostics[0].code == "rank-files"


def test_swapped_rank_files_are_refused() -> None:
    assert "the metadata says rank 2, the file name rank 1" in str(
        refusal(source(RING[0], RING[2], RING[1]))
    )


def test_two_files_of_one_rank_are_refused() -> None:
    parts = (SourcePart("a.0.et", lambda: RING[0]), SourcePart("b.0.et", lambda: RING[0]))
    error = refusal(Source("x", parts))
    assert "a.0.et is of rank 0 too" in str(error)
    assert error.diagnostics[0].cure == "keep the files of one set in the folder"


def changed_metadata(change: Callable[[Any], None]) -> Source:
    files = []
    for content in RING:
        starts, stops = record_bounds(content)
        message: Any = message_class("GlobalMetadata").FromString(content[starts[0] : stops[0]])
        change({attribute.name: attribute for attribute in message.attr})
        files.append(framed(message.SerializeToString()) + content[stops[0] :])
    return source(*files)


@pytest.mark.parametrize(
    ("attribute", "field", "value", "code"),
    [
        ("num_ranks", "int32_val", 10**9, "rank-files"),
        ("num_ranks", "int32_val", -1, "invalid-metadata"),
        ("unit_count", "int64_val", 2**61, "size-mismatch"),
        ("unit_count", "int64_val", 6, "size-mismatch"),
        ("unit_count", "string_val", "3", "attribute-kind"),
        ("collective_bytes", "int64_val", 5, "size-mismatch"),
        ("collective_bytes", "int64_val", 2**62, "size-mismatch"),
        ("step_count", "int64_val", 3, "step-count"),
        ("step_count", "int64_val", 0, "step-count"),
        ("scratch_units", "int64_val", -1, "invalid-metadata"),
        ("collective", "string_val", "all", "invalid-metadata"),
        ("collective", "string_val", "broadcast", "invalid-metadata"),
        ("reduce_op", "string_val", "xor", "invalid-metadata"),
        ("profile", "string_val", "collective-algorithm/2", "unknown-profile"),
        ("in_place", "bool_val", False, "invalid-metadata"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(
    attribute: str, field: str, value: Any, code: str
) -> None:
    error = refusal(
        changed_metadata(lambda attributes: setattr(attributes[attribute], field, value))
    )
    assert error.diagnostics[0].code == code


def changed_nodes(change: Callable[[list[Any]], None]) -> Source:
    content = RING[0]
    starts, stops = record_bounds(content)
    nodes = [
        message_class("Node").FromString(content[a:b])
        for a, b in zip(starts[1:].tolist(), stops[1:].tolist(), strict=True)
    ]
    change(nodes)
    return source(
        content[: stops[0]] + b"".join(framed(node.SerializeToString()) for node in nodes),
        *RING[1:],
    )


def attribute(message: Any, name: str) -> Any:
    return next(item for item in message.attr if item.name == name)


CHANGES: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "a node less": (lambda nodes: nodes.pop(), "step-count"),
    "another size in bytes": (
        lambda nodes: setattr(attribute(nodes[0], "comm_size"), "int64_val", 5),
        "size-mismatch",
    ),
    "another chunk count": (
        lambda nodes: setattr(attribute(nodes[0], "msg_chunk_cnt"), "int32_val", 2),
        "size-mismatch",
    ),
    "no region": (
        lambda nodes: nodes[0].attr.remove(attribute(nodes[0], "region")),
        "missing-attribute",
    ),
    "a region of two numbers": (
        lambda nodes: attribute(nodes[0], "region").int64_list.values.pop(),
        "attribute-kind",
    ),
    "an unknown buffer": (
        lambda nodes: attribute(nodes[0], "region").int64_list.values.__setitem__(0, 4),
        "attribute-range",
    ),
    "another sender": (
        lambda nodes: setattr(attribute(nodes[0], "comm_src"), "int32_val", 1),
        "rank-files",
    ),
    "a tag that pairs otherwise": (
        lambda nodes: setattr(attribute(nodes[0], "comm_tag"), "int32_val", 1),
        "tag-mismatch",
    ),
    "a receive-reduce without its reduction": (
        lambda nodes: setattr(attribute(nodes[2], "comp_kind"), "int32_val", 1),
        "receive-reduce",
    ),
    "a reduction with another dependency": (
        lambda nodes: nodes[2].data_deps.append(0),
        "receive-reduce",
    ),
    "a dependency on the receiving half": (
        lambda nodes: nodes[3].data_deps.append(1),
        "receive-reduce",
    ),
    "an unknown comp_kind": (
        lambda nodes: setattr(attribute(nodes[2], "comp_kind"), "int32_val", 3),
        "attribute-range",
    ),
    "a node of another kind": (lambda nodes: setattr(nodes[2], "type", 7), "node-type"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_profile_trace_is_refused(name: str) -> None:
    change, code = CHANGES[name]
    assert refusal(changed_nodes(change)).diagnostics[0].code == code
