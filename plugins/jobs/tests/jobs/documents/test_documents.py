"""Documents of whole jobs hold all of them, and what is wrong with one is named by its path."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from collhub_jobs.documents import read, write
from hypothesis import given
from hypothesis import strategies as st

from hub_core import InputError, Workload
from hub_core.model import NodeColumns, NodeKind, ProcessGroup, Provenance
from hub_core.plugin_api import NoOptions, Source
from hub_core.testing import ring_all_reduce, sample_workloads, training_step


def text_of(workload: Workload) -> bytes:
    (artifact,) = write(workload, NoOptions()).artifacts
    return artifact.content()


def read_text(content: bytes) -> Workload:
    return read(Source.of_bytes("job.json", content), NoOptions())


@pytest.mark.parametrize("name", sample_workloads())
def test_jobs_come_back_with_the_same_bytes(name: str) -> None:
    workload = sample_workloads()[name]
    again = read_text(text_of(workload))
    assert again.differences(workload) == []
    assert text_of(again) == text_of(workload)


def test_algorithms_come_back() -> None:
    workload = training_step()
    algorithm = np.full(len(workload.nodes), -1, np.int32)
    algorithm[workload.nodes.is_kind(NodeKind.COLLECTIVE)] = 1
    nodes = replace(workload.nodes, algorithm=algorithm)
    ring = ring_all_reduce(workload.num_ranks)
    named = replace(workload, nodes=nodes, algorithms=(replace(ring, extensions={"x": [1]}), ring))
    assert read_text(text_of(named)).differences(named) == []


@st.composite
def jobs(draw: st.DrawFn) -> Workload:
    """Any columns that the model takes, whatever they mean."""
    ranks, rows = draw(st.integers(1, 4)), draw(st.integers(0, 12))
    columns: dict[str, Any] = {
        "rank": draw(st.lists(st.integers(0, ranks - 1), min_size=rows, max_size=rows)),
        "kind": draw(st.lists(st.sampled_from(list(NodeKind)), min_size=rows, max_size=rows)),
    }
    for name, values in (
        ("identity", st.integers(0, 2**64 - 1)),
        ("duration_ns", st.integers(-1, 2**62)),
        ("name", st.integers(-1, 1)),
        ("collective", st.integers(-1, 9)),
        ("group", st.integers(-1, 0)),
        ("tag", st.integers(0, 2**31 - 1)),
        ("on_host", st.booleans()),
        ("extra", st.integers(-1, 0)),
    ):
        dtype = np.uint64 if name == "identity" else None
        drawn = draw(st.lists(values, min_size=rows, max_size=rows))
        columns[name] = np.asarray(drawn, dtype)
    same = [
        (parent, child)
        for parent in range(rows)
        for child in range(rows)
        if parent != child and columns["rank"][parent] == columns["rank"][child]
    ]
    pairs = draw(st.lists(st.sampled_from(same), max_size=6)) if same else []
    edges = tuple(zip(*pairs, strict=True)) if pairs else ((), ())
    return Workload(
        NodeColumns.from_columns(ranks, columns, edges, edges),
        ("a", "\u20ac\n"),
        (ProcessGroup("g", tuple(range(ranks))),),
        extras=("id",),
        provenance=Provenance("tool", "1"),
        extensions={"some": {"thing": [1, None]}},
    )


@given(jobs())
def test_any_columns_come_back(workload: Workload) -> None:
    assert read_text(text_of(workload)).differences(workload) == []


def changed(change: Callable[[Any], object]) -> bytes:
    document = json.loads(text_of(training_step()))
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda root: root.update(schema="collhub/workload-2"),
            r"\$\.schema: the schema is 'collhub/workload-2', this version reads",
        ),
        (lambda root: root.pop("groups"), "'groups' is a required property"),
        (lambda root: root.update(num_ranks=0), r"\$\.num_ranks"),
        (lambda root: root["nodes"].pop("kind"), r"\$\.nodes\.kind: is missing"),
        (lambda root: root["nodes"].update(colour=[]), r"\$\.nodes\.colour: is no column"),
        (lambda root: root["nodes"]["rank"].pop(), "entries were expected"),
        (lambda root: root["nodes"]["rank"].__setitem__(0, 99), "row 0 names rank 99"),
        (lambda root: root["nodes"]["rank"].__setitem__(0, 0.0), r"rank\[0\]: int was expected"),
        (
            lambda root: root["nodes"]["kind"].__setitem__(0, "dream"),
            r"kind\[0\]: 'dream' is not one",
        ),
        (
            lambda root: root["nodes"]["collective"].__setitem__(0, "unknown"),
            r"collective\[0\]: 'unknown' is not one",
        ),
        (lambda root: root["nodes"].update(kind=3), r"\$\.nodes\.kind: a list was expected, got 3"),
        (
            lambda root: root["nodes"].update(kind=dict.fromkeys(root["nodes"]["kind"], 1)),
            r"\$\.nodes\.kind: a list was expected, got \{",
        ),
        (
            lambda root: root["nodes"]["data"].__setitem__(1, [10**9]),
            r"data\[1\]: a parent is not in",
        ),
        (
            lambda root: root["nodes"]["data"].__setitem__(1, [0, "0"]),
            r"data\[1\]\[1\]: int was expected",
        ),
        (
            lambda root: root["nodes"].update(group=[7] * len(root["nodes"]["rank"])),
            "node 0 of rank 0 names group 7: there are ",
        ),
        (
            lambda root: root["nodes"]["data"].__setitem__(-1, [0]),
            r"row \d+ depends on row 0, a node of another rank",
        ),
        (lambda root: root["nodes"]["data"].__setitem__(0, "x"), "list was expected"),
        (lambda root: root["nodes"].update(tag=[-(2**70)] * len(root["nodes"]["rank"])), "tag"),
        (lambda root: root.update(algorithms=[["%"]]), "is not base64"),
        (lambda root: root.update(names=[3]), r"\$\.names\[0\]: str was expected"),
    ],
)
def test_a_wrong_document_is_refused_by_path(change: Callable[[Any], object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_text(changed(change))


def test_what_is_no_json_is_refused() -> None:
    for content in (b"{", b'{"schema": NaN}', b"[" * 100_000):
        with pytest.raises(InputError, match=r"JSON|schema"):
            read_text(content)


def test_a_key_that_stands_twice_is_refused() -> None:
    content = text_of(training_step()).replace(b'"names":', b'"groups": [], "names":')
    with pytest.raises(InputError, match="the key 'groups' occurs twice"):
        read_text(content)
