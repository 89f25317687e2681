"""CSV of PyTorch: refusals with rows and actions, and real files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from collhub_pipeline.passes import PassTimes
from collhub_pipeline.schedule_csv import read_schedule, read_schedule_file, write_schedule
from collhub_pipeline.search import schedule_of
from collhub_pipeline.shapes import PipelineShape

from hub_core import InputError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.csv:1: the file has no rows"),
        ("0F0x,0B0\n1F0,1B0", "x.csv:1: cell 1: '0F0x' is no action"),
        ("0F0,0W0,0I0\n1F0,1I0,1W0", "x.csv:1: cell 2: 0W0 runs without 0I0 before it"),
        ("0F0,0B0\n1B0,1F0", "x.csv:2: cell 1: 1B0 runs without 1F0 before it"),
        ("0F0,0F0,0B0", "x.csv:1: cell 2: 0F0 runs twice"),
        ("0F0,0I0", "x.csv:1: stage 0 runs FI of micro-batch 0"),
        ("0F0,0B0\n0F1,0B1", "x.csv:2: 0F1: stage 0 is on ranks 0 and 1"),
        ("0F0,0B0\n2F0,2B0", "x.csv:1: no rank has stage 1, but there is stage 2"),
        ("0F0,(0B0;0F1)OVERLAP_F_B", r"cell 2: '\(0B0;0F1\)OVERLAP_F_B' is no action"),
        ("0F99999999,0B0", "cell 1: '0F99999999' is no action"),
        ("0F0,0B0,0REDUCE_GRAD0", "cell 3: '0REDUCE_GRAD0' is no action"),
        (
            "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            r"x.csv:1: the schedule deadlocks: rank 0 waits in 0B0 \(stage 0\) for 1B0, "
            r"rank 1 waits in 1F1 \(stage 1\) for 0F1",
        ),
        ("0F0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", "cell 3: 0B0 has no 0RECV_B0 before it"),
        (
            "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1RECV_F1,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1",
            "rank 0 sends F1 of stage 0, but rank 1 receives F0 of stage 0 next from it",
        ),
        (
            "0F0,0RECV_B0,0B0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0",
            r"deadlocks: rank 0 waits in 0B0 \(stage 0\) for 1SEND_B0, rank 1 waits in 1F0",
        ),
        ("0F0,0SEND_F0,0B0", "cell 2: 0SEND_F0 has no other rank"),
    ],
)
def test_invalid_files_are_refused_with_row_and_action(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_schedule(text, "x.csv")


def test_a_schedule_that_deadlocks_is_not_written_with_messages() -> None:
    text = "0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n"
    schedule = read_schedule(text, "x.csv")
    first, second = schedule.orders
    deadlocked = replace(schedule, orders=(first, (second[0], second[2], *second[1::2])))
    assert write_schedule(deadlocked, has_messages=False).splitlines()[1] == "1F0,1F1,1B0,1B1"
    line = "the schedule deadlocks: rank 0 waits in 0B0, rank 1 waits in 1F1; put every action"
    with pytest.raises(InputError, match=line):
        write_schedule(deadlocked, has_messages=True)


def test_files_of_pytorch_are_read_alike_in_both_formats(corpus: Path) -> None:
    folder = corpus / "evidence" / "pipeline"
    if not folder.is_dir():
        pytest.skip("the corpus has no schedules of PyTorch")
    files = sorted(folder.glob("*.compute_only.csv"))
    assert len(files) == 5
    for file in files:
        schedule = read_schedule_file(str(file))
        other = read_schedule_file(str(file).replace("compute_only", "compute_comms"))
        assert schedule.orders == other.orders
        assert schedule.overlapped == other.overlapped
    with pytest.raises(InputError, match="1B0 runs without 1F0"):
        read_schedule_file(str(folder / "1F1B_P2m4_torch2.14_offbyone.csv"))


def test_schedules_that_the_format_cannot_express_are_refused() -> None:
    two = schedule_of("two-directions", PipelineShape(2, 4, PassTimes(1, 1, 1)))
    sliced = schedule_of("1f1b", PipelineShape(2, 2, PassTimes(1, 1, 1), slices=2))
    for schedule, kind in ((two, "two directions"), (sliced, "token slices")):
        with pytest.raises(InputError, match=f"cannot express {kind}"):
            write_schedule(schedule, has_messages=False)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="the file is no UTF-8 text"):
        read_schedule_file(str(tmp_path / "binary.csv"))
    with pytest.raises(InputError, match="cannot read"):
        read_schedule_file(str(tmp_path / "missing.csv"))
