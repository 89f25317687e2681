"""The canonical JSON document: lossless, byte-stable, strict, each defect named by its line or its path."""

from __future__ import annotations

import dataclasses
import importlib.resources
import json
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given

from hub_core.documents import algorithms as document
from hub_core.model import Buffer, CollectiveKind, ReduceOp
from hub_core.model.algorithm import Algorithm, Provenance
from hub_core.model.collectives import Collective, Contributions, CustomContract
from hub_core.model.diagnostics import InputError
from hub_core.model.kinds import StepKind
from hub_core.model.steps import StepTableBuilder
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing.samples import ring_all_reduce
from hub_core.testing.strategies import algorithms


def written(algorithm: Algorithm) -> bytes:
    (artifact,) = document.write(algorithm, NoOptions()).artifacts
    return artifact.content()


def read(content: bytes) -> Algorithm:
    return document.read(Source.of_bytes("x.json", content), NoOptions())


def custom() -> Algorithm:
    """Every column, every part of a contract, and provenance and extensions differ from their defaults."""
    builder = StepTableBuilder(2)
    sent = builder.add(
        0,
        StepKind.SEND,
        peer=1,
        channel=3,
        src_buffer=Buffer.INPUT,
        src_offset=1,
        count=2,
        lane=4,
        source_line=7,
    )
    builder.add(0, StepKind.COMPUTE, duration_ns=1500, control=[sent])
    got = builder.add(
        1,
        StepKind.RECV_REDUCE,
        peer=0,
        channel=3,
        src_buffer=Buffer.SCRATCH,
        dst_buffer=Buffer.OUTPUT,
        count=2,
    )
    builder.add(
        1,
        StepKind.COPY,
        src_buffer=Buffer.OUTPUT,
        dst_buffer=Buffer.SCRATCH,
        dst_offset=5,
        count=1,
        data=[got],
    )
    ints = [np.asarray(values, np.int64) for values in ([1], [0], [-1], [1])]
    contract = CustomContract(
        np.asarray([3, 3]), np.asarray([0, 2]), np.asarray([True, False]), Contributions(*ints)
    )
    collective = Collective(CollectiveKind.CUSTOM, 2, 3, None, True, True, ReduceOp.MAX, contract)
    provenance = Provenance("p", "1.2", "a b.xml", "00ff", {"root": "1"})
    extensions = {"vendor": {"list": [1, 2.5, None, True, "\u00fc"], "huge": 10**30}}
    return Algorithm(collective, builder.build(), np.asarray([0, 6]), provenance, 96, extensions)


def without_contents(algorithm: Algorithm) -> Algorithm:
    contract = dataclasses.replace(algorithm.collective.contract, expected=None)
    return dataclasses.replace(
        algorithm, collective=dataclasses.replace(algorithm.collective, contract=contract)
    )


def empty() -> Algorithm:
    collective = Collective(CollectiveKind.BROADCAST, 1, 1, root=0)
    return Algorithm(collective, StepTableBuilder(1).build(), np.asarray([0]))


SAMPLES = {
    "ring": ring_all_reduce(4),
    "custom": custom(),
    "custom without expectation": without_contents(custom()),
    "no steps": empty(),
}
TEXT = written(ring_all_reduce(4))


@pytest.mark.parametrize("name", SAMPLES)
def test_model_to_document_to_model_is_equal_in_every_part(name: str) -> None:
    assert read(written(SAMPLES[name])).differences(SAMPLES[name]) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_document_to_model_to_document_is_equal_byte_for_byte(name: str) -> None:
    text = written(SAMPLES[name])
    assert written(read(text)) == text


@pytest.mark.parametrize("name", SAMPLES)
def test_documents_satisfy_the_published_schema_arrays_included(name: str) -> None:
    schema = json.loads(
        importlib.resources.files("hub_core.schemas").joinpath("algorithm-1.json").read_bytes()
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(written(SAMPLES[name])), schema)


def test_each_column_is_one_line() -> None:
    lines = [line for line in TEXT.decode().splitlines() if re.match(r'    "\w+": \[', line)]
    assert [line.split('"')[1] for line in lines] == [
        "rank", "kind", "peer", "src_buffer", "src_offset", "dst_buffer", "dst_offset", "count", "lane", "data",
    ]  # fmt: skip


@given(algorithms(kinds=tuple(CollectiveKind)))
def test_any_valid_algorithm_comes_back_in_every_part_and_byte(algorithm: Algorithm) -> None:
    text = written(algorithm)
    again = read(text)
    assert again.differences(algorithm) == []
    assert written(again) == text


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object(), {"a": b"bytes"}])
def test_vendor_data_that_is_not_json_is_refused(value: object) -> None:
    algorithm = dataclasses.replace(ring_all_reduce(2), extensions={"vendor": value})
    with pytest.raises(InputError, match="extensions cannot be written as JSON"):
        written(algorithm)


def test_offsets_outside_the_buffers_can_be_written_down() -> None:
    builder = StepTableBuilder(1)
    builder.add(
        0,
        StepKind.COPY,
        src_buffer=Buffer.INPUT,
        src_offset=-5,
        dst_buffer=Buffer.OUTPUT,
        dst_offset=2**62,
        count=1,
    )
    algorithm = Algorithm(
        Collective(CollectiveKind.ALL_REDUCE, 1, 1), builder.build(), np.asarray([0])
    )
    assert read(written(algorithm)).differences(algorithm) == []


def test_rows_in_any_order_are_grouped_and_ordered() -> None:
    steps = {
        "rank": [1, 0, 0],
        "kind": ["compute", "compute", "copy"],
        "count": [0, 0, 1],
        "data": [[], [2], []],
    }
    root = {**json.loads(written(ring_all_reduce(2))), "steps": steps}
    table = read(json.dumps(root).encode()).steps
    assert (table.rank.tolist(), table.kind.tolist()) == (
        [0, 0, 1],
        [StepKind.COPY, StepKind.COMPUTE, StepKind.COMPUTE],
    )
    assert table.edges()[0].tolist() == [0]


def refusal(content: bytes) -> str:
    with pytest.raises(InputError) as caught:
        read(content)
    assert len(caught.value.diagnostics) == 1
    assert caught.value.diagnostics[0].location.file == "x.json"
    return str(caught.value)


def replaced(old: str, new: str) -> bytes:
    assert old.encode() in TEXT
    return TEXT.replace(old.encode(), new.encode(), 1)


DEFECTS = {
    "empty": (b" \n", "x.json: the file is empty"),
    "binary": (b"\0" * 64, "x.json: this is not a JSON object"),
    "byte order mark": (
        b"\xef\xbb\xbf{}",
        "x.json: the file begins with a byte order mark; save it as UTF-8 without one",
    ),
    "array": (b"[1]", "x.json: this is not a JSON object; give a file that begins with {"),
    "not UTF-8": (b'{"a": "\xff"}', "x.json: byte 7 is not UTF-8"),
    "truncated": (TEXT[:700], r"x.json:\d+: this is not JSON: .* at column \d+"),
    "trailing": (TEXT + b"{}", r"x.json:\d+: this is not JSON: Extra data"),
    "NaN": (replaced('"extensions": {}', '"extensions": {"a": NaN}'), "NaN is not JSON"),
    "twice": (replaced('"root": null', '"root": null, "root": null'), "the key 'root' occurs twice"),
    "deep": (replaced('"extensions": {}', f'"extensions": {{"a": {"[" * 10**5}{"]" * 10**5}}}'), "too deeply; nest at most 64 levels"),
    "rather deep": (replaced('"extensions": {}', f'"extensions": {{"a": {"[" * 70}{"]" * 70}}}'), r"\$.extensions: .* deeper"),
    "digits": (replaced('"extensions": {}', f'"extensions": {{"a": {"9" * 5000}}}'), "an integer has too many digits"),
    "surrogate": (replaced('"extensions": {}', '"extensions": {"a": "\\ud800"}'), "half of a surrogate pair"),
    "no schema": (b'{"a": 1}', r"\$.schema: expected 'collhub/algorithm-1', there is none"),
    "other schema": (replaced("algorithm-1", "topology-1"), r"\$.schema: expected .*, got 'collhub/topology-1'"),
    "newer schema": (replaced("algorithm-1", "algorithm-2"), r"\$.schema: .*'collhub/algorithm-2'.*; upgrade collhub"),
    "missing": (replaced('"scratch_units": [0, 0, 0, 0],', ""), r"\$: 'scratch_units' is a required property"),
    "unknown key": (replaced('"steps": {', '"steps": {"foo": [],'), r"\$\.steps: unknown member 'foo'"),
    "wrong type": (replaced('"extensions": {}', '"extensions": []'), r"\$.extensions: expected object, got an array"),
    "fraction": (replaced('"num_ranks": 4', '"num_ranks": 4.0'), r"\$.collective.num_ranks: expected integer, got a number"),
    "1e9 ranks": (replaced('"num_ranks": 4', '"num_ranks": 1000000000'), r"\$.collective.num_ranks: .* maximum of 1048576"),
    "1e6 ranks": (replaced('"num_ranks": 4', '"num_ranks": 1000000'), r"\$.scratch_units: 1000000 entries were expected"),
    "no kind": (replaced("all-reduce", "all-reduec"), r"\$.collective.kind: 'all-reduec' is not one of"),
    "root": (replaced('"root": null', '"root": 3'), r"a root \(3\) has no meaning"),
    "no mode": (replaced('"in_place": true', '"in_place": false'), "neither in place nor out of place"),
    "no contract": (replaced('"all-reduce"', '"custom"'), "a contract belongs to custom collectives"),
    "step kind": (replaced('"send","recv-reduce"', '"send","rrc"'), r"\$.steps.kind\[1\]: 'rrc' is not one of send, recv,"),
    "buffer": (replaced('"src_buffer": ["output"', '"src_buffer": [1'), r"\$.steps.src_buffer\[0\]: expected a string"),
    "entry type": (replaced('"rank": [0,0', '"rank": [0,0.0'), r"\$.steps.rank\[1\]: expected an integer, got a number"),
    "boolean": (replaced('"count": [1', '"count": [true'), r"\$.steps.count\[0\]: expected an integer, got a boolean"),
    "huge": (replaced('"peer": [1', '"peer": [99999999999999999999999'), r"\$.steps.peer\[0\]: 9+ is not in -1..2147483647"),
    "negative": (replaced('"count": [1', '"count": [-1'), r"\$.steps.count\[0\]: -1 is not in 0.."),
    "rank": (replaced('"rank": [0', '"rank": [4'), r"\$.steps.rank\[0\]: 4 is not in 0..3"),
    "length": (replaced('"lane": [0,', '"lane": [0,0,'), r"\$.steps.lane: 48 entries were expected, there are 49"),
    "dangling": (replaced('"data": [[]', '"data": [[48]'), r"\$.steps.data\[0\]\[0\]: 48 is not in 0..47"),
    "dependency type": (replaced('"data": [[],[]', '"data": [[],["1"]'), r"\$.steps.data\[1\]\[0\]: expected an integer"),
    "crossing": (replaced('"data": [[]', '"data": [[13]'), "rank 0: a dependency names a step of another rank"),
    "itself": (replaced('"data": [[]', '"data": [[0]'), "rank 0, step 0: the dependencies form a cycle"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_refused_where_it_stands(name: str) -> None:
    content, message = DEFECTS[name]
    text = refusal(content)
    assert re.search(message, text), text
    assert len(text) < 400


def test_a_document_written_by_hand_gets_all_its_faults_in_one_answer() -> None:
    fields = json.loads(written(ring_all_reduce(2)))
    del fields["collective_bytes"], fields["scratch_units"]
    del fields["collective"]["reduce_op"]
    steps = fields["steps"]
    steps["src_index"], steps["dst_index"] = steps.pop("src_offset"), steps.pop("dst_offset")
    with pytest.raises(InputError) as caught:
        read(json.dumps(fields).encode())
    assert [str(found) for found in caught.value.diagnostics] == [
        "x.json: $: 'collective_bytes' is a required property",
        "x.json: $: 'scratch_units' is a required property",
        "x.json: $.collective: 'reduce_op' is a required property",
        "x.json: $.steps: unknown member 'dst_index'; did you mean 'dst_offset'?",
        "x.json: $.steps: unknown member 'src_index'; did you mean 'src_offset'?",
    ]


def test_every_wrong_array_is_reported() -> None:
    fields = json.loads(written(ring_all_reduce(2)))
    fields["steps"]["kind"][2] = "sned"
    fields["steps"]["count"] = [1]
    fields["scratch_units"][0] = -1
    with pytest.raises(InputError) as caught:
        read(json.dumps(fields).encode())
    paths = [str(found).split(": ")[1] for found in caught.value.diagnostics]
    assert paths == ["$.scratch_units[0]", "$.steps.kind[2]", "$.steps.count"]


def test_a_defect_of_a_contract_is_refused_by_its_path() -> None:
    text = written(custom()).replace(b'"source_rank": [-1]', b'"source_rank": [2]')
    assert r"$.collective.contract.expected.source_rank[0]: 2 is not in -1..1" in refusal(text)
