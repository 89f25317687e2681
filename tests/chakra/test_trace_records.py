"""Single records: the messages of the schema there and back, other bytes refused."""

from __future__ import annotations

from typing import Any

import pytest

from hub_core.chakra import NodeType, TraceError, decoded_records, encoded_record

SIZE = {"name": "comm_size", "int64_val": 4096}
FILE = encoded_record("GlobalMetadata", version="0.0.4", attr=[{"name": "rank", "int32_val": 3}])
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
