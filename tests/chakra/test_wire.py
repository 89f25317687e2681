"""Bytes on the wire: numbers, records and metadata as protobuf writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub_core.chakra import (
    Kind,
    MetadataEntry,
    WireError,
    decode_varints,
    encode_metadata,
    encode_varints,
    record_bounds,
    varint,
)


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
