"""Written schedules run in PyTorch: a model of four stages on gloo, with exact gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from collhub_pipeline.passes import PassTimes
from collhub_pipeline.schedule_csv import write_schedule
from collhub_pipeline.search import schedule_of
from collhub_pipeline.shapes import PipelineShape

RANK = Path(__file__).with_name("pytorch_rank.py")
MICROS = 4


def test_written_schedules_train_a_model_of_four_stages(tmp_path: Path) -> None:
    reason = "PyTorch is not installed: its runtime is the reference"
    pytest.importorskip("torch.distributed.pipelining", reason=reason)
    files = []
    for name in ("zbv", "dualpipe-v", "interleaved-zb", "search"):
        shape = PipelineShape(2, MICROS, PassTimes(3, 4, 2), chunks=2, memory=3)
        schedule = schedule_of(name, shape)
        assert len(schedule.device_of[0]) == 4
        for has_messages, form in ((False, "compute_only"), (True, "compute_comms")):
            file = tmp_path / f"{name}.{form}.csv"
            file.write_text(write_schedule(schedule, has_messages=has_messages), newline="")
            files.append(f"{file}:{form}")
    ranks = [
        subprocess.Popen(
            [sys.executable, RANK, str(rank), "2", tmp_path / "store", str(MICROS), *files],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in ranks:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-3000:]
        assert output.count("equal") == len(files)
