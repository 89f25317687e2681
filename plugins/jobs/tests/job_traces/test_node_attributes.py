"""Texts that nodes carry beyond the columns."""

from __future__ import annotations

from dataclasses import replace

from collhub_job_traces import (
    JobReadOptions,
    attributes_extra,
    attributes_of_extra,
    read,
    write,
)

from hub_core.model import NodeColumns, NodeKind, Workload
from hub_core.plugin_api import NoOptions, Source, SourcePart

TEXTS = {"one": "of this", "two": '{"json": ["é", 1]}'}


def test_texts_are_read_from_what_was_made_of_them() -> None:
    assert attributes_of_extra(attributes_extra(TEXTS)) == TEXTS
    assert attributes_of_extra("") == {}
    assert attributes_of_extra("=nohex {json}") == {}


def job() -> Workload:
    columns = {"rank": [0, 1], "kind": [NodeKind.COMPUTE] * 2, "operations": [5, 6]}
    columns |= {"bytes": [7, 8], "extra": [0, -1]}
    return Workload(NodeColumns.from_columns(2, columns), extras=(attributes_extra(TEXTS),))


def read_back(workload: Workload) -> Workload:
    files = [artifact.content() for artifact in write(workload, NoOptions()).artifacts]
    parts = [
        SourcePart(f"job.{rank}.et", lambda file=file: file, rank)  # type: ignore[misc]
        for rank, file in enumerate(files)
    ]
    return read(Source("job", tuple(parts)), JobReadOptions())


def test_traces_carry_texts_beside_the_columns() -> None:
    found = read_back(job())
    kept = [attributes_of_extra(found.extras[row]) for row in found.nodes.extra.tolist()]
    assert kept == [TEXTS, {}]
    assert found.nodes.operations.tolist() == [5, 6]
    assert found.nodes.bytes.tolist() == [7, 8]


def test_a_trace_with_texts_is_written_back_byte_for_byte() -> None:
    found = read_back(job())
    again = read_back(found)
    assert again.differences(replace(found, provenance=again.provenance)) == []
