"""Bytes on the wire: numbers, records and metadata as protobuf writes them, other bytes refused."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.chakra import (
    AttributeKind,
    MetadataEntry,
    NodeType,
    TraceError,
    WireError,
    decode_varints,
    decoded_records,
    encode_metadata,
    encode_varints,
    encoded_record,
    message_class,
    record_bounds,
    varint,
)
from hub_core.chakra.metadata import _decode_by_protobuf, _decode_usual

SIZE = {"name": "comm_size", "int64_val": 4096}
FILE = encoded_record("GlobalMetadata", version="0.0.4", attr=[{"name": "rank", "int32_val": 3}])
_VALUES = {
    AttributeKind.STRING: ("", "x", "ü"),
    AttributeKind.BYTES: (b"", b"\xff"),
    AttributeKind.BOOL: (False, True),
    AttributeKind.INT32: (0, 1, 300, -1, -(1 << 31), (1 << 31) - 1),
    AttributeKind.INT64: (0, -1, -(1 << 63), (1 << 63) - 1),
    AttributeKind.UINT32: (0, (1 << 32) - 1),
    AttributeKind.UINT64: (0, (1 << 64) - 1),
    AttributeKind.SINT64: (-5, 7),
    AttributeKind.DOUBLE: (1.5,),
}
_USUAL = {*_VALUES} - {AttributeKind.SINT64, AttributeKind.DOUBLE}


def test_the_metadata_record() -> None:
    assert encode_metadata("0.0.4", ()) == bytes.fromhex("07 0a05302e302e34")


@pytest.mark.parametrize(
    ("name", "kind", "value", "expected"),
    [
        ("is_cpu_op", AttributeKind.BOOL, False, "0a0969735f6370755f6f70 d80100"),
        ("x", AttributeKind.INT32, -1, "0a0178 38ffffffffffffffffff01"),
        ("chunks", AttributeKind.UINT64_LIST, [1, 300], "0a066368756e6b73 72050a0301ac02"),
    ],
)
def test_attributes(name: str, kind: AttributeKind, value: Any, expected: str) -> None:
    body = bytes.fromhex(expected)
    record = encode_metadata("", [MetadataEntry(name, kind, value)])
    assert record == varint(len(body) + 2) + b"\x12" + varint(len(body)) + body


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


FILE += encoded_record("Node", id=1, type=NodeType.COMM_SEND, data_deps=[0], attr=[SIZE])


def test_records_read_and_written_again_are_the_same_bytes() -> None:
    metadata, *nodes = _messages(FILE)
    fields = [{field.name: value for field, value in node.ListFields()} for node in nodes]
    records = [encoded_record("Node", **of_node) for of_node in fields]
    start = encoded_record("GlobalMetadata", version=metadata.version, attr=metadata.attr)
    assert start + b"".join(records) == FILE


def test_a_field_that_the_message_has_not_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing"):
        encoded_record("Node", nothing=1)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\x05abc", "truncated"), (b"\x02\xff\xff", "a record is not a message of the schema")],
)
def test_other_bytes_are_refused_with_the_file(content: bytes, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        _messages(content)
    assert caught.value.file == "x.0.et"


def _messages(content: bytes) -> list[Any]:
    return list(decoded_records(content, "x.0.et"))


def random_record(source: random.Random) -> bytes:
    """A metadata record by protobuf, in two of five cases with some bytes changed."""
    message = message_class("GlobalMetadata")()
    message.version = source.choice(["", "0.0.4"])
    for _ in range(source.randrange(4)):
        kind = source.choice(list(_VALUES))
        values = {"name": source.choice(["", "a", "ä"]), kind.field: source.choice(_VALUES[kind])}
        message.attr.add(**values)
    content = bytearray(message.SerializeToString(deterministic=True))
    for _ in range(source.choice((0, 0, 0, 1, 3)) if content else 0):
        content[source.randrange(len(content))] = source.randrange(256)
    return bytes(content)


def test_both_decoders_agree() -> None:
    source = random.Random(7)
    decoded = 0
    for _ in range(4000):
        record = random_record(source)
        found = _decode_usual(record)
        if found is None:
            continue
        decoded += 1
        assert repr(found) == repr(_decode_by_protobuf(record)), record
    assert decoded > 1000


def test_usual_records_need_no_protobuf() -> None:
    for kind in _USUAL:
        for value in _VALUES[kind]:
            message = message_class("GlobalMetadata")(version="1")
            message.attr.add(**{"name": "n", kind.field: value})
            found = _decode_usual(message.SerializeToString())
            assert found == ("1", [("n", kind, value)])
    script = (
        "import sys; from hub_core.chakra import open_rank_file; "
        "open_rank_file('x.0.et', 0, bytes([4, 10, 2, 48, 49, 2, 8, 1])); "
        "sys.exit('google.protobuf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_records_that_protobuf_refuses_are_refused() -> None:
    for record in (b"\x0a\x05ab", b"\x0a\x01\xff", b"\x13", b"\x08" + b"\xff" * 11):
        assert _decode_usual(record) is None
        with pytest.raises(WireError, match="not a GlobalMetadata record"):
            _decode_by_protobuf(record)
