"""A job and the algorithms that its collectives name are one set of traces, and come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from collhub_job_traces import JobReadOptions, read, write

from hub_core import InputError, Workload
from hub_core.chakra import encoded_record
from hub_core.model import NodeKind
from hub_core.plugin_api import NoOptions, Source, SourcePart
from hub_core.testing import ring_all_reduce, training_step


def again(workload: Workload) -> Workload:
    result = write(workload, NoOptions())
    assert not result.losses
    parts = [
        SourcePart(f"job{artifact.name}", artifact.content, rank)
        for rank, artifact in enumerate(result.artifacts)
    ]
    return read(Source("job", tuple(parts)), JobReadOptions())


def named(workload: Workload) -> Workload:
    """Every second collective names the second of two algorithms."""
    nodes = workload.nodes
    rows = np.flatnonzero(nodes.is_kind(NodeKind.COLLECTIVE))[::2]
    algorithm = np.full(len(nodes), -1, np.int32)
    algorithm[rows] = 1
    ring = ring_all_reduce(workload.num_ranks)
    algorithms = (ring_all_reduce(2), replace(ring, extensions={"mine": {"key": [1, "two"]}}))
    return replace(workload, nodes=replace(nodes, algorithm=algorithm), algorithms=algorithms)


def test_a_job_comes_back_with_its_algorithms() -> None:
    workload = named(training_step())
    found = again(workload)
    kept = replace(found, extras=(), nodes=replace(found.nodes, extra=workload.nodes.extra))
    assert kept.differences(replace(workload, extensions=found.extensions)) == ["provenance"]
    # What was read once is equal from then on.
    assert again(found).differences(found) == []


def test_algorithms_may_be_given_to_and_taken_from_what_was_read() -> None:
    plain = again(training_step())
    given = again(named(plain))
    assert (given.nodes.algorithm >= 0).any()
    assert len(given.algorithms) == 2
    bare = np.full_like(given.nodes.algorithm, -1)
    taken = again(replace(given, nodes=replace(given.nodes, algorithm=bare)))
    assert not (taken.nodes.algorithm >= 0).any()


@pytest.mark.parametrize(
    ("name", "text", "rule", "says"),
    [
        ("algorithm.0", "%", "algorithm", "the metadata 'algorithm.0' is not base64"),
        ("algorithm.3", "AAAA", "algorithm", "of its 1 algorithms the highest is 3"),
        ("counts.0", "%", "invalid-counts", "the metadata 'counts.0' is no JSON list of integers"),
        ("counts.3", "[1]", "invalid-counts", "of its 1 tables of counts the highest is 3"),
    ],
)
def test_what_is_no_algorithm_or_table_is_refused(
    name: str, text: str, rule: str, says: str
) -> None:
    attribute = {"name": name, "string_val": text}
    content = encoded_record("GlobalMetadata", version="0.0.4", attr=[attribute])
    content += encoded_record("Node", id=0, type=4, duration_micros=7)
    with pytest.raises(InputError, match=says) as caught:
        read(Source.of_bytes("job.0.et", content), JobReadOptions())
    assert caught.value.diagnostics[0].code == rule


@pytest.mark.parametrize(
    ("rows", "file", "says"),
    [
        (("[1, 2]", "%"), "job.1.et", "no JSON list of integers"),
        (("[1, 2]", "[1, 2, 3]"), "job.1.et", "has 3 counts, expected 2"),
        (("[1, 2]", "7"), "job.1.et", "has no list, expected 2"),
        (("[1, 2]", ""), "job.1.et", "the file has no metadata 'counts.0'"),
        (("1", "", "3"), "job.1.et", "the file has no metadata 'counts.0'"),
    ],
)
def test_errors_in_rows_of_counts_name_the_file_of_their_rank(
    rows: tuple[str, ...], file: str, says: str
) -> None:
    parts = []
    for rank, row in enumerate(rows):
        attributes = [{"name": "counts.0", "string_val": row}] if row else []
        content = encoded_record("GlobalMetadata", version="0.0.4", attr=attributes)
        content += encoded_record("Node", id=0, type=4, duration_micros=7)
        parts.append(SourcePart(f"job.{rank}.et", content.__bytes__, rank, len(content)))
    with pytest.raises(InputError, match=says) as caught:
        read(Source("job", tuple(parts)), JobReadOptions())
    location = caught.value.diagnostics[0].location
    assert (location.file, location.rank) == (file, 1)


def test_errors_in_groups_name_the_file_that_states_them() -> None:
    parts = []
    for rank in range(2):
        attribute = {"name": "process_groups", "string_val": "no JSON"}
        content = encoded_record("GlobalMetadata", version="0.0.4", attr=[attribute])
        content += encoded_record("Node", id=0, type=4, duration_micros=7)
        parts.append(SourcePart(f"job.{rank}.et", content.__bytes__, rank, len(content)))
    with pytest.raises(InputError, match=r"^job\.0\.et: the process groups are no JSON"):
        read(Source("job", tuple(parts)), JobReadOptions())
