"""Ranks without a file do what others do, in their own groups; what cannot be assumed is refused."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from collhub_job_traces.groups import choose_stand_ins, translate_groups
from collhub_job_traces.options import JobReadOptions
from collhub_job_traces.reading import read
from collhub_job_traces.writing import write

from hub_core import Diagnostic, InputError
from hub_core.model import ProcessGroup, Workload
from hub_core.plugin_api import NoOptions, Source, SourcePart
from hub_core.testing import pipeline, training_step

ASSUME = JobReadOptions(ranks_missing="assume-same")


def source_of(job: Workload, ranks: tuple[int, ...], said: list[Diagnostic]) -> Source:
    """The files of some ranks of a job."""
    contents = {
        rank: bytes(one.content()) for rank, one in enumerate(write(job, NoOptions()).artifacts)
    }
    parts = [
        SourcePart(f"job.{rank}.et", lambda content=contents[rank]: content, rank)  # type: ignore[misc]
        for rank in ranks
    ]
    return Source("job", tuple(parts), said.append)


def differences(one: Workload, other: Workload) -> list[str]:
    return [part for part in one.differences(other) if part not in ("provenance", "extensions")]


def test_a_rank_of_a_stage_without_files_is_refused() -> None:
    # Rank 2 would do what rank 1 does, which is of another stage, and send to rank 4.
    with pytest.raises(InputError, match="rank 2 would exchange messages with rank 4"):
        read(source_of(pipeline(), (1, 3), []), ASSUME)


@pytest.mark.parametrize(
    ("given", "message"),
    [((0, 2), "rank 2 is there, that of rank 1 not"), ((0, 1), "a group names rank 3")],
)
def test_missing_ranks_are_refused_unless_they_are_assumed(given, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read(source_of(pipeline(), given, []), JobReadOptions())
    assert "ranks_missing=assume-same" in caught.value.diagnostics[0].cure


@pytest.mark.parametrize("given", [(0, 2), (1, 2)])
def test_stages_of_which_one_rank_is_there_are_whole_again(given: tuple[int, ...]) -> None:
    said: list[Diagnostic] = []
    whole = read(source_of(pipeline(), (0, 1, 2, 3), said), JobReadOptions())
    found = read(source_of(pipeline(), given, said), ASSUME)
    assert differences(found, whole) == []
    missing = ",".join(str(rank) for rank in range(4) if rank not in given)
    assert [one.message.split(" have")[0] for one in said] == [f"ranks {missing} of 4"]


def test_one_file_of_a_symbolic_trace_stands_for_all_of_its_ranks(
    corpus: Path, tmp_path: Path
) -> None:
    name = "llama_dp8_tp8"
    with tarfile.open(corpus / "workload" / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = next(tmp_path.rglob("w.0.et")).parent
    contents = {rank: (folder / f"w.{rank}.et").read_bytes() for rank in range(64)}
    parts = [
        SourcePart(f"w.{rank}.et", lambda content=content: content, rank)  # type: ignore[misc]
        for rank, content in contents.items()
    ]
    groups = (folder / "groups.json").read_text("utf-8")
    whole = read(Source("w", tuple(parts), lambda found: None), JobReadOptions(groups=groups))
    one = Source("w", tuple(parts[:1]), lambda found: None)
    found = read(one, JobReadOptions(ranks_missing="assume-same", groups=groups))
    # Names of ranks are part of the names of nodes, and of the texts of the records.
    assert found.nodes.kind.tolist() == whole.nodes.kind.tolist()
    assert found.nodes.bytes.tolist() == whole.nodes.bytes.tolist()
    for own, other in zip(found.nodes.group.tolist(), whole.nodes.group.tolist(), strict=True):
        assert found.members(own) == whole.members(other)


def test_the_number_of_ranks_can_be_stated() -> None:
    said: list[Diagnostic] = []
    options = JobReadOptions(ranks_missing="assume-same", ranks=6)
    found = read(source_of(training_step(4), (0,), said), options)
    assert (
        differences(
            found, read(source_of(training_step(6), tuple(range(6)), said), JobReadOptions())
        )
        == []
    )


def test_missing_ranks_are_refused_unless_asked_for() -> None:
    with pytest.raises(
        InputError, match="the file of rank 2 is there, that of rank 1 not"
    ) as refused:
        read(source_of(pipeline(), (0, 2), []), JobReadOptions())
    assert "assume-same" in refused.value.diagnostics[0].cure


def test_fewer_ranks_than_there_are_files_are_refused() -> None:
    options = JobReadOptions(ranks_missing="assume-same", ranks=2)
    with pytest.raises(InputError, match="rank 3 is named, but the job is to have 2 ranks"):
        read(source_of(pipeline(), (0, 2), []), options)


def test_the_next_lower_rank_stands_for_one_without_file() -> None:
    assert choose_stand_ins([1, 4], 6).of == (1, 1, 1, 1, 4, 4)


def test_groups_of_the_same_shape_are_those_of_the_rank() -> None:
    # Rank = 4 x stage + 2 x data index + tensor index; the last group spans both.
    groups = [(0, 1), (0, 2), (2, 3), (1, 3), (4, 6), (0, 1, 2, 3)]
    listed = [ProcessGroup(str(index), ranks) for index, ranks in enumerate(groups)]
    rank, used = np.repeat(np.arange(4), 3), np.array([0, 1, 5] * 4)
    found = translate_groups(choose_stand_ins([0], 7), rank, used, listed, "job")
    assert found.reshape(4, 3).tolist() == [[0, 1, 5], [0, 3, 5], [2, 1, 5], [2, 3, 5]]


def test_a_rank_without_a_group_of_the_shape_is_refused() -> None:
    listed = [ProcessGroup("tensor", (0, 1)), ProcessGroup("data", (0, 2))]
    with pytest.raises(InputError, match="rank 1 has no group like 'data' of rank 0"):
        translate_groups(
            choose_stand_ins([0], 3), np.array([0, 1]), np.array([1, 1]), listed, "job"
        )
