"""Ranks of a gloo job that reshard summands; prints what was compared. Run by a test."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from collhub_reshard import reshard
from collhub_shardings import parse_side
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard

RANKS = 4
SHAPE = (6, 10)
# Source and destination: summands to shards, to replicas, along both axes, and on the same tiles.
CASES = (
    ("mesh(2,2): Shard(0), Partial()", "mesh(1,4): R S1"),
    ("mesh(2,2): Shard(0), Partial()", "mesh(4,1): R R"),
    ("mesh(2,2): Partial(), Partial()", "mesh(2,2): S0 S1"),
    ("mesh(2,2): S0 R P1", "mesh(2,2): S0 R"),
)


def tile(whole: torch.Tensor, text: str, rank: int) -> torch.Tensor:
    """The tile of a rank."""
    side = parse_side(text, whole.dim())
    at = side.placement.tile_coordinates(side.mesh)[rank].tolist()
    cuts = side.placement.boundaries(SHAPE, side.mesh)
    return whole[tuple(slice(int(c[i]), int(c[i + 1])) for c, i in zip(cuts, at, strict=True))]


def summands() -> list[torch.Tensor]:
    """A whole tensor for every rank, of which it holds its tile."""
    random = torch.Generator().manual_seed(7)
    return [torch.rand(SHAPE, generator=random) for _ in range(RANKS)]


def total(text: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum along the partial axes, in their order, tile by tile of the other axes."""
    side = parse_side(text, len(SHAPE))
    whole = torch.zeros(SHAPE)
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank, at in enumerate(side.placement.tile_coordinates(side.mesh).tolist()):
        groups.setdefault(tuple(at), []).append(rank)
    for ranks in groups.values():
        place = tile(whole, text, ranks[0])
        place.copy_(tile(parts[ranks[0]], text, ranks[0]))
        for rank in ranks[1:]:
            place.add_(tile(parts[rank], text, rank))
    return whole


def run_rank(rank: int, meeting: str) -> None:
    """Reshard every case on one rank, and compare its tile with that of the sum."""
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (2, 2))
    for source, destination in CASES:
        parts = summands()
        shard = tile(parts[rank], source, rank).contiguous()
        if source == CASES[0][0]:
            shard = DTensor.from_local(shard, mesh, [Shard(0), Partial()], run_check=False)
        moved = reshard(shard, source, destination, shape=SHAPE, host_size=2)
        expected = tile(total(source, parts), destination, rank)
        assert moved is not None
        assert torch.equal(moved, expected), f"{source} -> {destination} differs on rank {rank}"
        if rank == 0:
            print(f"{source} -> {destination}: the sum, bit by bit")
    dist.destroy_process_group()


def main() -> int:
    """Start the ranks."""
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(run_rank, ((Path(folder) / "meeting").as_uri(),), RANKS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
