"""Nodes that are composed of known parts equal those of records that are decoded as a whole."""

from __future__ import annotations

import random

import pytest
from collhub_job_traces.node import DecodedNode, DecodedParts, NodeDecoder, _RecordBuilder
from collhub_job_traces.records import ATTRIBUTE, attribute, encode_record, fields, varint

from hub_core.chakra import RankFile, message_class
from hub_core.model import NodeKind

_ATTRIBUTES = (
    {"name": "is_cpu_op", "bool_val": False},
    {"name": "is_cpu_op", "bool_val": True},
    {"name": "comm_size", "int64_val": 1 << 20},
    {"name": "comm_size", "uint64_val": 4096},
    {"name": "comm_type", "int64_val": 2},
    {"name": "comm_src", "int32_val": 3},
    {"name": "comm_dst", "int32_val": 0},
    {"name": "comm_tag", "int32_val": 9},
    {"name": "num_ops", "int64_val": 1 << 40},
    {"name": "tensor_size", "uint64_val": 77},
    {"name": "pg_name", "string_val": "12"},
    {"name": "pg_name", "string_val": "0"},
    {"name": "duration_ns", "int64_val": 0},
    {"name": "duration_ns", "int64_val": 123},
    {"name": "with spaces", "string_val": "a b"},
    {"name": "num_ops", "int64_val": -1},
    {"name": "involved_dim", "bool_list": {"values": [True, False, True]}},
)


def random_record(source: random.Random) -> bytes:
    """A node by protobuf, one in four with bytes changed or with its attributes in front."""
    node = message_class("Node")(
        id=source.choice((0, 1, 127, 128, 70000)),
        name=source.choice(("", "COMP", "é" * 100)),
        type=source.choice((0, 1, 2, 3, 4, 5, 6, 7, 7, 7)),
        data_deps=source.sample((0, 5, 127, 128, 70000), source.randrange(3)),
        ctrl_deps=source.sample((0, 200), source.randrange(2)),
        start_time_micros=source.choice((0, 0, 5)),
        duration_micros=source.choice((0, 0, 7, 1 << 40)),
    )
    if source.random() < 0.2:
        node.inputs.values = "[1]"
    for each in source.sample(_ATTRIBUTES, source.randrange(6)):
        node.attr.add(**each)
    content = bytearray(node.SerializeToString(deterministic=True))
    form = source.randrange(8)
    if form == 0 and content:
        content[source.randrange(len(content))] = source.randrange(256)
    if form == 1:
        raws = [(number == ATTRIBUTE, raw) for number, _, raw in fields(bytes(content))]
        source.shuffle(raws)
        content = bytearray(b"".join(raw for _, raw in raws))
    return bytes(content)


def decode_whole(record: bytes) -> DecodedNode:
    """The node of a record, without known parts."""
    found = list(fields(record))
    values = [value for number, value, _ in found if number == ATTRIBUTE]
    attributes = [attribute(value) for value in values if isinstance(value, bytes)]
    return _RecordBuilder(found, attributes, frozenset()).node(record)


@pytest.mark.once
def test_nodes_of_parts_equal_nodes_of_records() -> None:
    source = random.Random(3)
    parts = DecodedParts()
    composed = refused = 0
    for _ in range(20_000):
        record = random_record(source)
        try:
            expected = decode_whole(record)
        except ValueError:
            refused += 1
            try:
                found = parts.node(record)
            except ValueError:
                found = None
            assert found is None, record
            continue
        node = parts.node(record)
        if node is not None:
            composed += 1
            assert node == expected, record
    assert composed > 5000
    assert refused > 500


def test_the_last_of_several_types_counts() -> None:
    node = message_class("Node")
    record = node(id=3, type=4).SerializeToString() + node(type=1).SerializeToString()
    assert node.FromString(record).type == 1
    decoded = decode_whole(record)
    assert NodeKind(decoded.kind) is NodeKind.MARKER
    assert encode_record(decoded.extra, {"id": 3}) == record


def test_a_broken_record_is_named() -> None:
    record = message_class("Node")(id=3, type=7).SerializeToString()
    content = varint(len(record)) + record
    file = RankFile("job.0.et", 0, content, [1], [len(content)])  # type: ignore[arg-type]
    with pytest.raises(Exception, match="a collective without comm_type") as caught:
        NodeDecoder(file, DecodedParts()).node(0)
    assert getattr(caught.value, "rank", None) == 0


def test_parts_are_shared_between_nodes() -> None:
    parts = DecodedParts()
    build = message_class("Node")
    for identity in (1, 2):
        for size in (10, 20):
            node = build(id=identity, type=7)
            node.attr.add(name="comm_type", int64_val=0)
            node.attr.add(name="comm_size", int64_val=size)
            decoded = parts.node(node.SerializeToString())
            assert decoded is not None
            assert (decoded.identity, decoded.bytes) == (identity, size)
            assert decoded.kind == NodeKind.COLLECTIVE
