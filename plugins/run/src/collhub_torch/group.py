"""Join the torch.distributed group of all ranks, on the device of a rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from hub_core.model import PluginError


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Number of a rank among all ranks, and among those of its host."""

    rank: int
    num_ranks: int
    local_rank: int
    local_ranks: int


def join(device: str, position: RankPlace, init_method: str) -> torch.device:
    """Join the group of all ranks and return the rank's device.

    `init_method`: how ranks find each other, see `torch.distributed.init_process_group`. Raises
    `PluginError` without a GPU per rank.
    """
    if device == "cpu":
        dist.init_process_group(
            "gloo", init_method=init_method, rank=position.rank, world_size=position.num_ranks
        )
        return torch.device("cpu")
    _require_gpus(position)
    gpu = torch.device("cuda", position.local_rank)
    torch.cuda.set_device(gpu)
    # With the device NCCL connects immediately, so the first message is not slow.
    dist.init_process_group(
        "nccl",
        init_method=init_method,
        rank=position.rank,
        world_size=position.num_ranks,
        device_id=gpu,
    )
    return gpu


def _require_gpus(position: RankPlace) -> None:
    """Raise `PluginError` unless this host has NCCL and a GPU per rank."""
    gpus = torch.cuda.device_count()
    if gpus < position.local_ranks or not dist.is_nccl_available():
        message = (
            f"NCCL needs a GPU for each of the {position.local_ranks} ranks on this host, "
            f"torch {torch.__version__} finds {gpus}"
        )
        cure = "use -O device=cpu, or a torch with CUDA on a machine with GPUs"
        raise PluginError(message, cure=cure, code="no-gpu")
