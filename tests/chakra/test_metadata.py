"""Metadata records: the decoder without protobuf and protobuf's own agree on all bytes."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from hub_core.chakra import Kind, message_class
from hub_core.chakra.metadata import WireError, _decode_by_protobuf, _decode_usual

_VALUES = {
    Kind.STRING: ("", "x", "ü"),
    Kind.BYTES: (b"", b"\xff"),
    Kind.BOOL: (False, True),
    Kind.INT32: (0, 1, 300, -1, -(1 << 31), (1 << 31) - 1),
    Kind.INT64: (0, -1, -(1 << 63), (1 << 63) - 1),
    Kind.UINT32: (0, (1 << 32) - 1),
    Kind.UINT64: (0, (1 << 64) - 1),
    Kind.SINT64: (-5, 7),
    Kind.DOUBLE: (1.5,),
}
_USUAL = {*_VALUES} - {Kind.SINT64, Kind.DOUBLE}


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
