"""Algorithms of SCCL and TACCL: real files as the index says, small ones by hand, defects named."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from collhub_sccl.algorithms import EXTENSION, build_document, read, samples

import hub_core
from hub_core import Algorithm, CollectiveKind, InputError
from hub_core.model import StepKind
from hub_core.plugin_api import NoOptions, Source

CORPUS = Path(__file__).parents[5] / "shared" / "corpus" / "taccl"


def _rows() -> list[Any]:
    index = CORPUS / "index.csv"
    if not index.exists():
        return []
    with index.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["file"].endswith(".json")]
    return [pytest.param(row, id=row["file"]) for row in rows]


@pytest.mark.skipif(not CORPUS.exists(), reason=f"no corpus at {CORPUS}")
@pytest.mark.parametrize("row", _rows())
def test_a_real_file_is_as_the_index_says(row):
    algorithm = hub_core.read(str(CORPUS / row["file"]))
    stated = algorithm.extensions[EXTENSION]
    assert stated["name"] == row["algorithm"]
    assert (stated["dialect"] == "taccl") is row["file"].startswith("taccl")
    assert algorithm.num_ranks == int(row["ranks"])
    assert len(stated["rounds"]) == int(row["steps"])
    assert algorithm.steps.is_kind(StepKind.SEND).sum() == int(row["sends"])
    assert hub_core.verify(algorithm).ok is (row["postcondition_exact_model"] == "1")


def _chunks(ranks: int) -> list[dict[str, object]]:
    everyone = list(range(ranks))
    return [{"pre": [rank], "post": everyone, "addr": rank} for rank in everyone]


def _read(tag: str, chunks: list[object], steps: list[object], **more: object) -> Algorithm:
    source = build_document("made.json", tag, "made", 2, chunks, steps, **more)
    return read(source, NoOptions())


@pytest.mark.parametrize("source", samples(), ids=lambda source: source.name)
def test_samples_are_right(source):
    assert hub_core.verify(read(source, NoOptions())).ok


def test_an_undivided_collective_is_divided_as_its_steps_are():
    halves = [[[0, 0, 1], [1, 0, 1]], [[2, 1, 0], [3, 1, 0]]]
    algorithm = _read("msccl_type", _chunks(2), halves, divisions=2)
    assert algorithm.collective.kind is CollectiveKind.ALL_GATHER
    assert algorithm.collective.unit_count == 4
    assert hub_core.verify(algorithm).ok


def test_a_divided_collective_stays_as_it_is():
    chunks = [
        {"pre": [rank], "post": [0, 1], "addr": 2 * rank + part}
        for rank in range(2)
        for part in range(2)
    ]
    halves = [[[0, 0, 1, 0.0], [1, 0, 1, 1.0], [2, 1, 0, 0.0], [3, 1, 0, 1.0]]]
    algorithm = _read("sccl_type", chunks, halves, divisions=2)
    assert algorithm.collective.unit_count == 4
    assert hub_core.verify(algorithm).ok


def test_a_contribution_that_arrives_twice_is_wrong():
    chunks = [{"pre": [giver], "post": [0], "addr": 0} for giver in range(2)]
    once = _read("msccl_type", chunks, [[[0, 1, 0]]])
    twice = _read("msccl_type", chunks, [[[0, 1, 0]], [[0, 1, 0]]])
    assert once.collective.kind is CollectiveKind.REDUCE
    assert hub_core.verify(once).ok
    assert not hub_core.verify(twice).ok


def test_a_receive_of_taccl_replaces_unless_it_says_rrc():
    chunks = [{"pre": [giver], "post": [0, 1], "addr": 0} for giver in range(2)]
    summed = [[0, 1, 0, 0.0, 1.0, "rrc"]]
    replaced = [[0, 0, 1, 0.0, 1.0, None]]
    assert hub_core.verify(_read("sccl_type", chunks, [summed, replaced])).ok
    assert not hub_core.verify(_read("sccl_type", chunks, [replaced, summed])).ok


GATHER = [[[0, 0, 1], [1, 1, 0]]]
SUM = [{"pre": [giver], "post": [0, 1], "addr": 0} for giver in range(2)]


@pytest.mark.parametrize(
    ("chunks", "steps", "message"),
    [
        pytest.param([], GATHER, "match none of the hub's collectives", id="no chunks"),
        pytest.param([{"pre": [0]}], GATHER, r"chunks\[0\]: expected an object", id="no post"),
        pytest.param([{"pre": [5]}], GATHER, r"pre\[0\]: expected a whole number", id="rank"),
        pytest.param(_chunks(2), [[[0, 0]]], "expected \\[address", id="fields"),
        pytest.param(_chunks(2), [[[0, 1, 1]]], "two different ranks", id="same rank"),
        pytest.param(_chunks(2), [[[7, 0, 1]]], "moves address 7, the collective has 2", id="far"),
        pytest.param(_chunks(2), [[["a", 0, 1]]], "whole number in 0..", id="text"),
        pytest.param(_chunks(2), [[[0, 0, 1, "x"]]], "expected a number", id="time"),
        pytest.param(_chunks(2), [[[0, 0, 1, 10**400]]], "expected a number", id="huge time"),
        pytest.param(_chunks(2), [[[0, 0, 1, 0, 0, "r"]]], "expected 'rrc' or null", id="redop"),
        pytest.param(SUM, [[[0, 0, 1], [0, 1, 0]]], "sends address 0 and reduces", id="one step"),
    ],
)
def test_what_is_wrong_is_named(chunks, steps, message):
    with pytest.raises(InputError, match=message):
        _read("msccl_type", chunks, steps)


def _changed(**change: object) -> Source:
    content = json.loads(samples()[0].content())
    for path, value in change.items():
        holder = content
        *way, last = path.split("__")
        for name in way:
            holder = holder[name]
        holder[last] = value
    return Source.of_bytes("made.json", json.dumps(content).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"instance__pipeline": 2}, "no meaning for a single call"),
        ({"msccl_type": "instance"}, "'algorithm'"),
        ({"collective__nodes": 10**9}, "match none of the hub's collectives"),
        ({"collective__nodes": 1}, "expected a whole number in 2.."),
        ({"steps": {}}, r"\$.steps: expected a list"),
    ],
)
def test_what_a_header_claims_is_checked(change, message):
    with pytest.raises(InputError, match=message):
        read(_changed(**change), NoOptions())


@pytest.mark.parametrize("topology", [None, 3, "node_links"])
def test_topology_that_is_no_object_is_refused(topology):
    content = json.loads(samples()[0].content())
    content["sccl_type"] = content.pop("msccl_type")
    content["topology"] = topology
    with pytest.raises(InputError, match=r"\$.topology: expected an object"):
        read(Source.of_bytes("made.json", json.dumps(content).encode()), NoOptions())


def test_what_is_no_json_is_refused():
    with pytest.raises(InputError, match="expected JSON"):
        read(Source.of_bytes("made.json", b"{"), NoOptions())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        (b'{"a": ' + b"[" * 100_000, "values are nested too deeply; nest at most 64 levels"),
        (b'{"a": ' + b"1" * 5000 + b"}", "too many digits"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
    ],
)
def test_what_strict_json_refuses_is_a_defect_of_the_root(content, message):
    with pytest.raises(InputError, match=rf"\$: expected JSON: .*{message}") as caught:
        read(Source.of_bytes("made.json", content), NoOptions())
    assert [found.code for found in caught.value.diagnostics] == ["sccl-schema"]
