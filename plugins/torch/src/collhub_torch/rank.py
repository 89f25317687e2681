"""The program behind the executor: imports torch once, then forks a process per rank, which meet through a file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from collhub_torch.engine import TorchEngine
from hub_core.execution.job_folder import FAILED, Job, serve_rank
from hub_core.execution.rank_engine import RankLog, run_task
from hub_core.execution.rank_tasks import Array, RankTask
from hub_core.model import PluginError

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


def main() -> int:
    """Fork all ranks, and end as soon as one has failed: the launcher ends the others."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=list(BACKENDS), default="cpu")
    parser.add_argument("--batch", action="store_true")
    wish = parser.parse_args()
    torch.set_num_threads(1)
    job = Job(wish.folder)
    ranks = sum(1 for _ in wish.folder.glob("task.*"))
    # Nothing of torch has run yet, so that there are no threads that a fork would lose.
    ranks_of = {_forked(job, rank, wish.device, wish.batch): rank for rank in range(ranks)}
    while ranks_of:
        process, status = os.wait()
        rank, code = ranks_of.pop(process), os.waitstatus_to_exitcode(status)
        if code:
            how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            job.write_failure(rank, ChildProcessError(how))
            return FAILED
    return 0


def _forked(job: Job, rank: int, device: str, is_batched: bool) -> int:
    process = os.fork()
    if process:
        return process
    status = FAILED
    try:
        serve_rank(job, rank, lambda task, log: _run(job, task, log, device, is_batched))
        status = 0
    finally:
        # The failure is in the folder; threads of gloo need no farewell.
        os._exit(status)


def _run(job: Job, task: RankTask, log: RankLog, device: str, is_batched: bool) -> Array:
    # All ranks are on this machine, whatever its name resolves to.
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    plan = task.plan
    place = join(
        device,
        plan.rank,
        plan.num_ranks,
        plan.rank,
        plan.num_ranks,
        f"file://{job.folder / 'rendezvous'}",
    )
    output = run_task(task, TorchEngine(task, place, is_batched), log)
    dist.destroy_process_group()
    return output


def join(
    device: str, rank: int, num_ranks: int, local_rank: int, local_ranks: int, init_method: str
) -> torch.device:
    """Join the group of all ranks and return the own device. Raises `PluginError` without a GPU for every rank."""
    if device == "cpu":
        dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=num_ranks)
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if gpus < local_ranks or not dist.is_nccl_available():
        message = f"NCCL needs a GPU for each of the {local_ranks} ranks on this machine, torch {torch.__version__} finds {gpus}"
        raise PluginError(
            message,
            cure="use -O device=cpu, or a torch with CUDA on a machine with GPUs",
            code="no-gpu",
        )
    place = torch.device("cuda", local_rank)
    torch.cuda.set_device(place)
    dist.init_process_group(
        "nccl", init_method=init_method, rank=rank, world_size=num_ranks, device_id=place
    )
    return place


if __name__ == "__main__":
    sys.exit(main())
