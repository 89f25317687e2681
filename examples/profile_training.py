"""Profile three steps of a small model on gloo: python profile_training.py FOLDER [RANKS]."""

from __future__ import annotations

import os
import sys
import tempfile

import collhub_pytorch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank: int, num_ranks: int, folder: str, meeting_place: str) -> None:
    """Compute, add the gradients of all ranks, and compute on."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    init = f"file://{meeting_place}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=num_ranks)
    weights = torch.ones(64, 64)
    # Whoever comes first to a step waits for the others.
    dist.barrier()
    with collhub_pytorch.profile(folder, "training") as profiler:
        for _ in range(3):
            gradient = weights @ weights
            dist.all_reduce(gradient)
            weights = weights - 0.001 * gradient
            shards = [torch.empty_like(weights) for _ in range(num_ranks)]
            dist.all_gather(shards, weights)
            dist.broadcast(weights, src=0)
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as scratch:
        place = os.path.join(scratch, "meeting")
        mp.spawn(train, (count, sys.argv[1], place), count)
