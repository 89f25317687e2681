"""The program of the executor: imports torch once, then forks one process per rank.

The processes find each other through a file in the folder of the job.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import torch
import torch.distributed as dist
from collhub_execution import FAILED, JobFolder, RankPart, run_task, serve_rank

from collhub_torch.engine import Array, RankPlace, join, torch_engine
from collhub_torch.plugin import DEVICES, TorchOptions


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--device", type=click.Choice(DEVICES), default="cpu")
@click.option("--batch", is_flag=True)
def main(folder: Path, device: str, batch: bool) -> None:
    """Fork all ranks, and exit as soon as one has failed: the launcher ends the remaining ranks."""
    sys.exit(fork_ranks(JobFolder(folder), TorchOptions(device, batch)))


def fork_ranks(job: JobFolder, options: TorchOptions) -> int:
    """Fork one process per rank and wait for all.

    Return 0, or `FAILED` as soon as a rank fails; the reason is stored in the folder.
    """
    # One thread per rank: there may already be more ranks than cores.
    torch.set_num_threads(1)
    # torch has not run yet, so there are no threads that a fork would lose.
    ranks = {_fork_rank(job, rank, options): rank for rank in range(job.num_tasks())}
    while ranks:
        process, status = os.wait()
        rank, code = ranks.pop(process), os.waitstatus_to_exitcode(status)
        if code:
            description = (
                f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
            )
            job.write_failure(rank, ChildProcessError(description))
            return FAILED
    return 0


def _fork_rank(job: JobFolder, rank: int, options: TorchOptions) -> int:
    """Return the ID of the new process, in which this function does not return."""
    process = os.fork()
    if process:
        return process
    status = FAILED
    try:
        serve_rank(job, rank, lambda part: _run(job, part, options))
        status = 0
    finally:
        # The failure is in the folder; threads of gloo need no clean-up.
        os._exit(status)


def _run(job: JobFolder, part: RankPart, options: TorchOptions) -> Array:
    """Join the group, run the task, leave the group."""
    if sys.platform == "linux":
        # All ranks run on this host: use the loopback interface, regardless of the host name's
        # address.
        os.environ.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    task = part.task
    # All ranks are on one host, so global and local ranks are equal.
    rank, ranks = task.plan.rank, task.plan.num_ranks
    position = RankPlace(rank, ranks, local_rank=rank, local_ranks=ranks)
    device = join(options.device, position, f"file://{job.folder / 'rendezvous'}")
    output = run_task(task, torch_engine(task, device, options.batch, part.memory), part.log)
    dist.destroy_process_group()
    return output


if __name__ == "__main__":
    main()
