"""Profile training with DistributedDataParallel on gloo: python profile_training.py FOLDER [RANKS].

The backward pass of `DistributedDataParallel` adds the gradients of all ranks, bucket by bucket,
while it computes the next ones.
"""

from __future__ import annotations

import os
import sys
import tempfile

import collhub_pytorch
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

# DistributedDataParallel arranges its buckets in the first steps, which are not profiled.
WARM_UP_STEPS = 2
PROFILED_STEPS = 3


def train(rank: int, num_ranks: int, folder: str, meeting_place: str) -> None:
    """Train a small model; every step also gathers the losses and shares the learning rate."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    init = f"file://{meeting_place}"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=num_ranks)
    torch.manual_seed(rank)
    layers = (torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        with torch.profiler.record_function("## forward and backward ##"):
            loss = model(torch.randn(32, 64)).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses = [torch.empty(1) for _ in range(num_ranks)]
        dist.all_gather(losses, loss.detach().reshape(1))
        learning_rate = torch.tensor([0.99 * optimizer.param_groups[0]["lr"]])
        dist.broadcast(learning_rate, src=0)
        optimizer.param_groups[0]["lr"] = float(learning_rate)

    for _ in range(WARM_UP_STEPS):
        step()
    # No collective of the profile is issued before it begins.
    dist.barrier()
    with collhub_pytorch.profile(folder, "training") as profiler:
        for _ in range(PROFILED_STEPS):
            step()
            profiler.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory() as scratch:
        place = os.path.join(scratch, "meeting")
        mp.spawn(train, (count, sys.argv[1], place), count)
