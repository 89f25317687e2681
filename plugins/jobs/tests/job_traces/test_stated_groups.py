"""Process groups that METADATA nodes state are those of the job, and files stay as they were."""

from __future__ import annotations

import json

import pytest
from collhub_job_traces.options import JobReadOptions
from collhub_job_traces.reading import read
from collhub_job_traces.records import attribute_field
from collhub_job_traces.writing import write

from hub_core import Diagnostic, Workload
from hub_core.chakra import AttributeKind, varint
from hub_core.plugin_api import NoOptions, Source, SourcePart

STATED = [
    {"pg_name": "0", "pg_desc": "default_pg", "ranks": []},
    {"pg_name": "1", "ranks": [0, 2]},
    {"pg_name": "2", "ranks": []},
]


def _text(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _trace(values: str, group: str) -> bytes:
    """Metadata, a METADATA node with inputs, and an all-reduce of a group."""
    stating = varint(1 << 3) + varint(1) + _text(2, b"process_group:init")
    stating += varint(3 << 3) + varint(1) + _text(8, _text(1, values.encode()))
    reducing = varint(1 << 3) + varint(2) + varint(3 << 3) + varint(7)
    reducing += attribute_field("comm_type", AttributeKind.INT64, 0)
    reducing += attribute_field("comm_size", AttributeKind.INT64, 64)
    reducing += attribute_field("pg_name", AttributeKind.STRING, group.encode())
    head = _text(1, b"0.0.4")
    return b"".join(varint(len(one)) + one for one in (head, stating, reducing))


def _read(values: str, group: str = "1") -> tuple[Workload, dict[int, bytes], list[Diagnostic]]:
    # Rank 1 is no member of group 1: its own collective is of all.
    contents = {rank: _trace(values, group if rank != 1 else "0") for rank in range(3)}
    parts = [
        SourcePart(f"job.{rank}.et", lambda content=content: content, rank)  # type: ignore[misc]
        for rank, content in contents.items()
    ]
    said: list[Diagnostic] = []
    workload = read(Source("job", tuple(parts), said.append), JobReadOptions())
    return workload, contents, said


@pytest.mark.parametrize("form", ["{}", "['{}']", '["{}"]', "  {} "])
def test_ranks_are_those_that_the_node_states(form: str) -> None:
    workload, contents, said = _read(form.format("~").replace("~", json.dumps(STATED)))
    assert [(group.name, group.ranks) for group in workload.groups] == [("1", (0, 2))]
    assert said == []
    written = write(workload, NoOptions()).artifacts
    assert {rank: one.content() for rank, one in enumerate(written)} == contents


def test_a_group_without_ranks_has_all() -> None:
    workload, _, _ = _read(json.dumps(STATED), "2")
    assert workload.groups[0].ranks == (0, 1, 2)


@pytest.mark.parametrize(
    "values",
    [
        "", "[]", "[{]", "[{}]", '[{"pg_name": 1, "ranks": [0]}]', '[{"pg_name": "1"}]',
        '[{"pg_name": "1", "ranks": [0, 0]}]', '[{"pg_name": "1", "ranks": [0, 9]}]',
        '[{"pg_name": "1", "ranks": [0, "2"]}]', '[{"pg_name": "other", "ranks": [0, 2]}]',
    ],
)  # fmt: skip
def test_what_states_no_group_leaves_the_ranks_that_name_it(values: str) -> None:
    workload, contents, said = _read(values)
    assert [(group.name, group.ranks) for group in workload.groups] == [("1", (0, 2))]
    assert [one.code for one in said] == ["groups-assumed"]
    written = write(workload, NoOptions()).artifacts
    assert {rank: one.content() for rank, one in enumerate(written)} == contents


def test_inputs_that_cannot_be_decoded_state_no_groups() -> None:
    damaged = _trace("x", "1").replace(_text(1, b"x"), b"\x0a\x09x")
    said: list[Diagnostic] = []
    source = Source("job", (SourcePart("job.0.et", lambda: damaged, 0),), said.append)
    workload = read(source, JobReadOptions())
    assert [(group.name, group.ranks) for group in workload.groups] == [("1", (0,))]
    assert [finding.code for finding in said] == ["groups-assumed"]
