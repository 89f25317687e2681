"""One rank of a pipeline of PyTorch: runs schedules of CSV files on gloo, and checks gradients.

    python pytorch_rank.py RANK RANKS STORE MICRO_BATCHES FILE:FORMAT...

Each schedule trains the same model of two linear layers per stage; outputs `equal` for every file
whose losses and gradients are those of the model without a pipeline.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

WIDTH = 8


def build_layers(count: int) -> list[nn.Module]:
    """Build the stages of the model with fixed random weights."""
    torch.manual_seed(0)
    return [
        nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        for _ in range(count)
    ]


def run(rank: int, ranks: int, micros: int, file: str, file_format: str) -> None:
    """Run one step of a schedule, and compare it with the model in one process."""
    rows = Path(file).read_text().splitlines()
    stage_of = [
        {int(cell.lstrip("(").split("F")[0]) for cell in row.split(",") if is_forward(cell)}
        for row in rows
    ]
    count = len(set().union(*stage_of))
    layers, reference = build_layers(count), nn.Sequential(*build_layers(count))
    inputs, target = torch.randn(micros * 2, WIDTH), torch.randn(micros * 2, WIDTH)
    loss_of = nn.MSELoss(reduction="sum")
    expected = loss_of(reference(inputs), target)
    expected.backward()
    stages = [
        PipelineStage(layers[stage], stage, count, torch.device("cpu"))
        for stage in sorted(stage_of[rank])
    ]
    schedule = _PipelineScheduleRuntime(stages, micros, loss_fn=loss_of, scale_grads=False)
    schedule._load_csv(file, file_format)
    losses: list[torch.Tensor] = []
    has_first, has_last = 0 in stage_of[rank], count - 1 in stage_of[rank]
    arguments = (inputs,) if has_first else ()
    if has_last:
        schedule.step(*arguments, target=target, losses=losses)
        torch.testing.assert_close(sum(losses), expected)
    else:
        schedule.step(*arguments)
    for stage in sorted(stage_of[rank]):
        for mine, right in zip(
            layers[stage].parameters(), reference[stage].parameters(), strict=True
        ):
            torch.testing.assert_close(mine.grad, right.grad)
    print(f"equal {file} {file_format}", flush=True)


def is_forward(cell: str) -> bool:
    """Whether a cell begins with a forward pass, also one that overlaps a backward pass."""
    stage, _, rest = cell.lstrip("(").partition("F")
    return stage.isdigit() and rest[:1].isdigit()


def main() -> None:
    """Join the group and run all files."""
    rank, ranks, store, micros, *files = sys.argv[1:]
    dist.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=int(ranks))
    for text in files:
        file, _, file_format = text.rpartition(":")
        # All ranks draw the same batch.
        torch.manual_seed(1)
        run(int(rank), int(ranks), int(micros), file, file_format)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
