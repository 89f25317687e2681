"""The JSON form of chakra_jsonizer: protobuf's own mapping of the records is the oracle."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import MessageToJson

from hub_core.chakra import TraceError, decoded_records, encoded_record, open_rank_file, varint
from hub_core.chakra.rank_file import is_json_form

SIZE = {"name": "comm_size", "int64_val": 1 << 40}
KINDS = [
    {"name": "a", "double_val": 0.5}, {"name": "b", "bool_val": False},
    {"name": "c", "string_val": "text"}, {"name": "d", "bytes_val": b"\0\xff"},
    {"name": "e", "uint64_list": {"values": [1, 1 << 60]}}, {"name": "f", "sint32_val": -3},
]  # fmt: skip
RECORDS = (
    encoded_record("GlobalMetadata", version="0.0.4", attr=[{"name": "x", "string_val": "{}"}])
    + encoded_record("Node", id=0, name='quote " and } brace', type=4, duration_micros=7)
    + encoded_record("Node", id=1, type=7, data_deps=[0], ctrl_deps=[0], attr=[SIZE, *KINDS])
)


def as_json(records: bytes, separator: str = "", indent: int | None = 2) -> bytes:
    """What chakra_jsonizer writes: every message by itself."""
    messages = [MessageToJson(one, indent=indent) for one in decoded_records(records, "x")]
    return separator.join(messages).encode()


@pytest.mark.parametrize("separator", ["", "\n", "\r\n\r\n "])
@pytest.mark.parametrize("indent", [2, None])
def test_json_gives_the_same_records(separator: str, indent: int | None) -> None:
    content = as_json(RECORDS, separator, indent)
    assert is_json_form(content)
    file, metadata = open_rank_file("x.0.json", 0, content)
    same, expected = open_rank_file("x.0.et", 0, RECORDS)
    assert file.content == same.content
    assert metadata == expected


def test_empty_metadata_is_an_empty_object() -> None:
    records = encoded_record("GlobalMetadata") + encoded_record("Node", id=0, type=4)
    assert as_json(records).startswith(b"{}{")
    file, _ = open_rank_file("x.0.json", 0, as_json(records))
    assert file.content == records


def test_other_json_is_no_trace() -> None:
    for text in (b'{"schema": "x"}', b"[1]", b'{"version": "1", "nodes": []}', b"{", b""):
        assert not is_json_form(text)
    with pytest.raises(TraceError, match="a text file"):
        open_rank_file("x", 0, b'{"schema": "x"}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "no complete JSON message"),
        (lambda text: text + b" x", "no complete JSON message"),
        (lambda text: text + b"3", "a message is no JSON object"),
        (lambda text: text.replace(b"COMP_NODE", b"NO_NODE"), "a node is not of the Chakra schema"),
        (lambda text: text.replace(b"dataDeps", b"dataDep"), "a node is not of the Chakra schema"),
        (lambda text: text.replace(b'"7"', b'"-7"'), "a node is not of the Chakra schema"),
        (lambda text: text.replace(b"quote", b"\xff"), "not UTF-8"),
    ],
)
def test_damage_is_named_with_its_byte(change, message: str) -> None:
    content = change(as_json(RECORDS))
    with pytest.raises(TraceError, match=message) as caught:
        open_rank_file("x.0.json", 0, content)
    assert 0 < caught.value.byte <= len(content)
    assert "\n" not in str(caught.value)


def test_deep_nesting_is_refused() -> None:
    content = as_json(RECORDS) + b'{"attr": ' + b"[" * 100_000
    with pytest.raises(TraceError):
        open_rank_file("x.0.json", 0, content)


def test_numbers_may_be_text_or_numbers() -> None:
    messages = [{"version": "0.0.4"}, {"id": 1, "type": 4, "durationMicros": 7}]
    content = "".join(map(json.dumps, messages)).encode()
    file, _ = open_rank_file("x.0.json", 0, content)
    start, stop = int(file.starts[0]), int(file.stops[0])
    assert file.content[start:stop] == bytes.fromhex("08011804 3807".replace(" ", ""))


def test_the_form_of_the_feeder_gives_records() -> None:
    graph = {
        "workload_graph": [
            {"Id": 1, "Name": "gemm", "NodeType": 4, "ctrlDeps": [], "data_deps": [], "runtime": 40,
             "is_cpu_op": False},
            {"Id": 2, "Name": "ar", "NodeType": 7, "data_deps": [1], "ctrlDeps": [1],
             "comm_type": 0, "comm_size": 4096},
        ]
    }  # fmt: skip
    content = json.dumps(graph).encode()
    assert is_json_form(content)
    file, _ = open_rank_file("x.0.json", 0, content)
    (_, gemm, reduce) = decoded_records(varint(0) + file.content[1:], "x")
    assert (gemm.id, gemm.name, gemm.type, gemm.duration_micros) == (1, "gemm", 4, 40)
    assert (list(reduce.data_deps), list(reduce.ctrl_deps)) == ([1], [1])
    assert {one.name: one.int64_val for one in reduce.attr} == {"comm_type": 0, "comm_size": 4096}


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"Id": 1}, "node 0 of workload_graph cannot be read: 'NodeType'"),
        ({"Id": "x", "NodeType": 4}, "a node is not of the Chakra schema"),
        (3, "node 0 of workload_graph cannot be read"),
        ({"Id": 1, "NodeType": 4, "runtime": "soon"}, "node 0 of workload_graph cannot be read"),
    ],
)
def test_nodes_of_the_feeder_that_lack_something_are_refused(node: object, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        open_rank_file("x.0.json", 0, json.dumps({"workload_graph": [node]}).encode())
