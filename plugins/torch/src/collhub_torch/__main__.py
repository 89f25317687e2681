"""The script for clusters: `torchrun --nproc-per-node 4 -m collhub_torch ring.xml --size 64MiB`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

import hub_core
from collhub_torch.engine import TorchEngine
from collhub_torch.rank import BACKENDS, join
from hub_core.execution.rank_tasks import Array
from hub_core.execution.started_ranks import Report, Trial, add_arguments, run_rank
from hub_core.model import Diagnostic, HubError, UsageError

_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class _Wire:
    """The group that torchrun has started."""

    rank: int
    num_ranks: int
    device: torch.device

    def send(self, array: Array, peer: int) -> None:
        """Send bytes."""
        dist.send(torch.from_numpy(array.copy()).to(self.device), peer)

    def receive(self, array: Array, peer: int) -> None:
        """Receive bytes."""
        tensor = torch.empty(len(array), dtype=torch.uint8, device=self.device)
        dist.recv(tensor, peer)
        array[:] = tensor.cpu().numpy()


def main() -> int:
    """Run one rank. The exit status is that of `collhub run`."""
    parser = argparse.ArgumentParser(
        prog="torchrun ... -m collhub_torch", description="Run an algorithm, a process per rank."
    )
    add_arguments(parser)
    parser.add_argument(
        "--device",
        choices=list(BACKENDS),
        default="cpu",
        help="cpu: gloo; cuda: NCCL, a GPU per rank",
    )
    parser.add_argument(
        "--batch", action="store_true", help="one batch_isend_irecv a level; on cuda always so"
    )
    wish = parser.parse_args()
    try:
        report = _run(wish)
    except HubError as error:
        if os.environ.get("RANK", "0") == "0":
            _complain(error.diagnostics)
        return error.exit_code
    if report is None:
        return 0
    print(json.dumps(report.fields) if wish.json else report.text())
    _complain(report.diagnostics)
    return 0 if report.ok else 1


def _run(wish: argparse.Namespace) -> Report | None:
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        message = (
            f"the environment variable {missing[0]} is not set: this script is one rank of several"
        )
        raise UsageError(
            message,
            cure="start it by torchrun, or use collhub run --executor torch",
            code="no-torchrun",
        )
    rank, ranks, local_rank, local_ranks = (int(os.environ[name]) for name in _VARIABLES)
    trial = Trial.of(hub_core.read(wish.algorithm), wish, ranks)
    torch.set_num_threads(1)
    wire = _Wire(rank, ranks, join(wish.device, rank, ranks, local_rank, local_ranks, "env://"))
    report = run_rank(
        trial, wire, lambda task: TorchEngine(task, wire.device, wish.batch), wish.timeout, _end
    )
    dist.barrier()
    dist.destroy_process_group()
    return report


def _end(found: Sequence[Diagnostic]) -> None:
    """Say where this rank stands; torchrun then ends the others."""
    _complain(found)
    os._exit(1)


def _complain(found: Sequence[Diagnostic]) -> None:
    for diagnostic in found:
        print(diagnostic, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
