"""What is read from traces of jobs is written back byte for byte."""

from __future__ import annotations

import csv
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collhub_job_traces.options import JobReadOptions
from collhub_job_traces.reading import EXTENSION, read
from collhub_job_traces.writing import write

from hub_core import InputError
from hub_core.model import JobCollective, NodeKind, Workload
from hub_core.plugin_api import NoOptions, Source, SourcePart
from hub_core.testing import sample_workloads, training_step

_KINDS = {
    "AR": JobCollective.ALL_REDUCE,
    "AG": JobCollective.ALL_GATHER,
    "RS": JobCollective.REDUCE_SCATTER,
    "A2A": JobCollective.ALL_TO_ALL,
}
_RANK = re.compile(r"(?P<prefix>.*)\.(?P<rank>\d+)\.et\Z")


def _source(name: str, contents: dict[int, bytes]) -> Source:
    parts = [
        SourcePart(f"{name}.{rank}.et", lambda content=content: content, rank)  # type: ignore[misc]
        for rank, content in contents.items()
    ]
    return Source(name, tuple(parts), lambda found: None)


def _written(workload: Workload) -> dict[int, bytes]:
    artifacts = write(workload, NoOptions()).artifacts
    return {rank: bytes(artifact.content()) for rank, artifact in enumerate(artifacts)}


def _sets(folder: Path) -> dict[str, dict[int, bytes]]:
    found: dict[str, dict[int, bytes]] = {}
    for file in sorted(folder.rglob("*.et")):
        if match := _RANK.match(str(file.relative_to(folder))):
            found.setdefault(match["prefix"], {})[int(match["rank"])] = file.read_bytes()
    return found


def test_every_chakra_set_of_the_corpus_is_byte_stable(corpus: Path) -> None:
    sets = _sets(corpus / "chakra")
    assert len(sets) > 20
    options = JobReadOptions(drop_dangling=True)
    for name, contents in sets.items():
        assert _written(read(_source(name, contents), options)) == contents, name


@pytest.mark.once
def test_llm_traces_are_byte_stable_and_have_the_counts_of_the_index(
    corpus: Path, tmp_path: Path
) -> None:
    text = (corpus / "workload" / "index.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 10
    for row in rows:
        with tarfile.open(corpus / "workload" / f"{row['name']}.tar.gz") as archive:
            archive.extractall(tmp_path / row["name"], filter="data")
        ((name, contents),) = _sets(tmp_path / row["name"]).items()
        workload = read(_source(name, contents), JobReadOptions())
        assert _written(workload) == contents, row["name"]
        nodes = workload.nodes
        sends = nodes.is_kind(NodeKind.SEND)
        counted = {
            "ranks": workload.num_ranks,
            "comp": int(nodes.is_kind(NodeKind.COMPUTE).sum()),
            "coll": int(nodes.is_kind(NodeKind.COLLECTIVE).sum()),
            "send": int(sends.sum()),
            "recv": int(nodes.is_kind(NodeKind.RECV).sum()),
            "bytes_SEND": int(nodes.bytes[sends].sum()),
            "groups_used": len(workload.groups),
            "data_deps": len(nodes.data_indices),
            "ctrl_deps": len(nodes.control_indices),
        }
        for short, kind in _KINDS.items():
            chosen = nodes.collective == kind
            counted |= {f"n_{short}": int(chosen.sum())}
            counted |= {f"bytes_{short}": int(nodes.bytes[chosen].sum())}
        assert {key: int(row[key]) for key in counted} == counted, row["name"]


@pytest.mark.parametrize("name", sample_workloads())
def test_jobs_from_elsewhere_come_back(name: str) -> None:
    workload = sample_workloads()[name]
    found = read(_source("job", _written(workload)), JobReadOptions())
    different = workload.differences(found)
    # How records are put together, and the files.
    assert set(different) <= {"extra", "extras", "provenance", "extensions"}
    assert _written(found) == _written(workload)


def test_a_missing_rank_is_named() -> None:
    contents = _written(sample_workloads()["pipeline"])
    del contents[2]
    with pytest.raises(InputError, match="the file of rank 3 is there, that of rank 2 not"):
        read(_source("job", contents), JobReadOptions())


@pytest.mark.once
def test_a_dangling_dependency_is_refused_with_its_place_or_dropped(corpus: Path) -> None:
    content = (corpus / "chakra" / "mlc-chakra-feeder-trace" / "chakra.0.et").read_bytes()
    source = _source("job", {0: content})
    with pytest.raises(InputError, match=r"waits for node 3, which is not there") as caught:
        read(source, JobReadOptions())
    assert caught.value.diagnostics[0].location.byte == 97
    found = read(source, JobReadOptions(drop_dangling=True))
    # The count of workload.md, section 13.
    assert found.extensions["chakra-workload"]["dangling dependencies dropped"] == 1277  # type: ignore[call-overload, index]


def test_groups_are_taken_from_the_option_in_their_order() -> None:
    contents = _written(sample_workloads()["pipeline"])
    options = JobReadOptions(groups='{"1": [1, 0], "2": [3, 2], "3": [0]}')
    groups = read(_source("job", contents), options).groups
    assert [(group.name, group.ranks) for group in groups] == [
        ("1", (1, 0)),
        ("2", (3, 2)),
        ("3", (0,)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the process groups are no JSON"),
        ('{"1": 3}', "no object of lists of ranks"),
        ('{"1": [0, 1]}', "process group '2', which is not stated"),
        ('{"1": [0, 0], "2": [2, 3]}', "names a rank twice"),
        ('{"1": [0, 9], "2": [2, 3]}', "a group names rank 9, the last file is that of rank 3"),
    ],
)
def test_wrong_groups_are_refused(text: str, message: str) -> None:
    contents = _written(sample_workloads()["pipeline"])
    with pytest.raises(InputError, match=message):
        read(_source("job", contents), JobReadOptions(groups=text))


@pytest.mark.parametrize(
    "extra",
    [
        "id =zz",
        "id =520",
        "id !5200",
        "id @comm_size:x",
        "id @comm_size:29",
        "id @size:9",
        "id @data:9",
        "id @pg_name:9",
        "id +",
        "+id",
    ],
)
def test_a_damaged_extra_is_a_loss(extra: str) -> None:
    """Texts of a document that look like tokens, which no record of a trace has."""
    workload = training_step()
    nodes = replace(workload.nodes, extra=np.zeros_like(workload.nodes.extra))
    result = write(replace(workload, nodes=nodes, extras=(extra,)), NoOptions())
    assert [loss.feature for loss in result.losses] == ["extras"]
    contents = [bytes(artifact.content()) for artifact in result.artifacts]
    assert contents == list(_written(workload).values())


@pytest.mark.parametrize("metadata", ["zz", "00ff", "0508", [], ["0a"], [7], {}, None])
def test_damaged_metadata_are_a_loss(metadata: Any) -> None:
    workload = training_step()
    damaged = replace(workload, extensions={EXTENSION: {"metadata": metadata}})
    result = write(damaged, NoOptions())
    assert f"extensions ({EXTENSION})" in [loss.feature for loss in result.losses]
    contents = [bytes(artifact.content()) for artifact in result.artifacts]
    assert contents == list(_written(workload).values())
