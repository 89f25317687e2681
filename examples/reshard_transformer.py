"""Move the weights of a small transformer from a (2,2) training mesh to inference meshes.

Four processes on this machine talk by torch.distributed (gloo). Every rank trains with a tile of
every weight, matrices as DTensors and vectors as plain tensors; afterwards rank r of the inference
mesh holds its own tile, equal bit by bit to that of the whole model. Run it with `python
examples/reshard_transformer.py`; it needs torch.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from collhub_reshard import move_state
from collhub_shardings import parse_side
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

TRAINING = "mesh(2,2)"
INFERENCE = ("mesh(1,4)", "mesh(4,1)")
RANKS = 4


def model() -> torch.nn.Module:
    """A transformer of two layers with the same random weights on every rank."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 96, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def sides(name: str, shape: tuple[int, ...], inference: str) -> tuple[str, str]:
    """Training splits both dimensions of a matrix; inference splits as Megatron does."""
    if len(shape) == 1:
        return f"{TRAINING}: S1", f"{inference}: R"
    # What reads the hidden state is split by row, what writes it by column.
    writes = "out_proj" in name or "linear2" in name
    spec = "R S01" if writes else "S01 R"
    return f"{TRAINING}: S0 S1", f"{inference}: {spec}"


def tile(weight: torch.Tensor, side_text: str, rank: int) -> torch.Tensor:
    """The tile of a rank, cut out of the whole weight."""
    side = parse_side(side_text, weight.dim())
    cuts = side.placement.boundaries(tuple(weight.shape), side.mesh)
    at = side.placement.tile_coordinates(side.mesh)[rank].tolist()
    return weight[tuple(slice(int(c[i]), int(c[i + 1])) for c, i in zip(cuts, at, strict=True))]


def run_rank(rank: int, meeting: str) -> None:
    """Reshard on one rank, and compare every tile with the whole model."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (2, 2))
    weights = {name: weight.detach() for name, weight in model().state_dict().items()}
    shapes = {name: (tuple(weight.shape), weight.dtype) for name, weight in weights.items()}
    for inference in INFERENCE:
        ends = {name: sides(name, shape, inference) for name, (shape, _) in shapes.items()}
        shards = {name: tile(weight, ends[name][0], rank) for name, weight in weights.items()}
        for name, weight in weights.items():
            if weight.dim() == 2:
                shards[name] = distribute_tensor(weight, mesh, [Shard(0), Shard(1)])
        moved = move_state(shards, shapes, ends, host_size=2)
        for name, weight in weights.items():
            expected = tile(weight, ends[name][1], rank)
            assert torch.equal(moved[name], expected), f"{name} differs on rank {rank}"
        if rank == 0:
            print(f"{TRAINING} -> {inference}: {len(moved)} weights equal bit by bit")
    dist.destroy_process_group()


def main() -> int:
    """Start the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        processes.spawn(run_rank, (meeting,), RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
