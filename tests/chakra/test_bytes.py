"""Bytes on the wire: what we write is what protobuf would write, and the published example records are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub_core.chakra.algorithms.write import write
from hub_core.chakra.codec.attributes import Kind
from hub_core.chakra.codec.metadata import MetadataEntry, encode_metadata
from hub_core.chakra.codec.schema import message_class
from hub_core.chakra.codec.wire import (
    WireError,
    decode_varints,
    encode_varints,
    record_bounds,
    varint,
)
from hub_core.chakra.formats import ChakraReadOptions, ChakraWriteOptions
from hub_core.chakra.read import read
from hub_core.model.algorithm import Algorithm
from hub_core.plugin_api import Source
from hub_core.testing.strategies import algorithms

# The byte-exact records of the format notes: SEND and RECV of 131072 bytes, a COMP of 7 us, and single attributes.
SEND = bytes.fromhex(
    "12025330180552 0f0a09636f6d6d5f73697a6548808008 520c0a08636f6d6d5f6473743801 520c0a08636f6d6d5f7461673800"
)
RECV = bytes.fromhex(
    "080112025231 1806 2a0100 520f0a09636f6d6d5f73697a6548808008 520c0a08636f6d6d5f7372633807 520c0a08636f6d6d5f7461673800"
)
COMP = bytes.fromhex("08021202433218042201002a01013807")


def nodes_of(content: bytes) -> list[Any]:
    starts, stops = record_bounds(content)
    return [
        message_class("Node").FromString(content[a:b])
        for a, b in zip(starts[1:].tolist(), stops[1:].tolist(), strict=True)
    ]


def test_the_metadata_record() -> None:
    assert encode_metadata("0.0.4", ()) == bytes.fromhex("07 0a05302e302e34")


@pytest.mark.parametrize(
    ("name", "kind", "value", "expected"),
    [
        ("is_cpu_op", Kind.BOOL, False, "0a0969735f6370755f6f70 d80100"),
        ("x", Kind.INT32, -1, "0a0178 38ffffffffffffffffff01"),
        ("chunks", Kind.UINT64_LIST, [1, 300], "0a066368756e6b73 72050a0301ac02"),
    ],
)
def test_attributes(name: str, kind: Kind, value: Any, expected: str) -> None:
    body = bytes.fromhex(expected)
    record = encode_metadata("", [MetadataEntry(name, kind, value)])
    assert record == varint(len(body) + 2) + b"\x12" + varint(len(body)) + body


def test_the_example_records_are_read() -> None:
    assert (len(SEND), len(RECV), len(COMP)) == (0x33, 0x38, 0x10)
    records = b"".join(
        varint(len(body)) + body
        for body in (
            SEND.replace(b"\x38\x01", b"\x38\x00"),
            RECV.replace(b"\x38\x07", b"\x38\x00"),
            COMP,
        )
    )
    steps = read(
        Source.of_bytes("x.0.et", encode_metadata("0.0.4", ()) + records), ChakraReadOptions()
    ).steps
    assert steps.count.tolist() == [131072, 131072, 0]
    assert steps.duration_ns.tolist() == [-1, -1, 7000]
    assert (steps.data_indices.tolist(), steps.control_indices.tolist()) == ([0, 1], [0])


@given(algorithms())
@settings(max_examples=100)
def test_every_record_is_what_protobuf_would_write(algorithm: Algorithm) -> None:
    for artifact in write(algorithm, ChakraWriteOptions()).artifacts:
        content = artifact.content()
        starts, stops = record_bounds(content)
        for number, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
            message = message_class("Node" if number else "GlobalMetadata").FromString(
                content[start:stop]
            )
            assert message.SerializeToString() == content[start:stop]


@given(algorithms())
@settings(max_examples=50)
def test_ids_count_from_0_and_parents_stand_before_children(algorithm: Algorithm) -> None:
    for artifact in write(algorithm, ChakraWriteOptions()).artifacts:
        nodes = nodes_of(artifact.content())
        assert [node.id for node in nodes] == list(range(len(nodes)))
        for node in nodes:
            parents = [*node.data_deps, *node.ctrl_deps]
            assert all(parent < node.id for parent in parents)
            assert len(set(node.data_deps)) == len(node.data_deps)


@given(algorithms())
@settings(max_examples=50)
def test_flattened_traces_have_no_control_dependencies_and_no_double_ones(
    algorithm: Algorithm,
) -> None:
    for artifact in write(algorithm, ChakraWriteOptions(flatten=True)).artifacts:
        for node in nodes_of(artifact.content()):
            assert not node.ctrl_deps
            assert len(set(node.data_deps)) == len(node.data_deps)


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_varints_of_a_column(values: list[int]) -> None:
    column = np.asarray(values, np.uint64)
    encoded, widths = encode_varints(column)
    assert encoded.tobytes() == b"".join(varint(value) for value in values)
    decoded, starts = decode_varints(encoded)
    np.testing.assert_array_equal(decoded, column)
    np.testing.assert_array_equal(starts, np.cumsum(widths) - widths)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80", "truncated inside a number"),
        (b"\x05abc", "truncated: 2 bytes"),
        (b"\x01a\x00", "length 0"),
        (b"\x80\x80\x80\x80\x80\x01", "more than 5 bytes"),
    ],
)
def test_broken_framing_is_named(content: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        record_bounds(content)
