"""Building blocks for programs: rings within an in-place buffer."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_msccl.language import chunk
from collhub_msccl.language.chunks import Buffer
from collhub_msccl.language.references import Ref

# Names that `from msccl.language.routines import *` imports.
__all__ = ["allgather_ring_inplace", "allreduce_ring_inplace"]


def allgather_ring_inplace(
    gpus: Sequence[int] | int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """Pass chunk k of the k-th rank around the ring, in the same slot of `Buffer.input` on all
    ranks.

    `gpus`: number of ranks, starting at `gpu_offset`, or the ranks relative to it; the slots start
    at `index_offset`.
    """
    ranks = _list_ranks(gpus, gpu_offset)
    for start in range(len(ranks)):
        reference = _require_chunk(ranks[start], index_offset + start)
        _forward_around(reference, ranks, start, ch)


def allreduce_ring_inplace(
    gpus: Sequence[int] | int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """All-reduce one chunk per rank, from slot `index_offset` on, around the ring.

    Ranks and slots as in `allgather_ring_inplace`.
    """
    ranks = _list_ranks(gpus, gpu_offset)
    size = len(ranks)
    for start in range(size):
        reference = _require_chunk(ranks[start], index_offset + start)
        for step in range(1, size):
            target = _require_chunk(ranks[(start + step) % size], index_offset + start)
            reference = target.reduce(reference, ch=ch)
        # The last rank has the complete sum.
        _forward_around(reference, ranks, start + size - 1, ch)


def _forward_around(reference: Ref, ranks: Sequence[int], start: int, ch: int) -> None:
    """Forward the referenced chunk around the ring, from position `start` to all other ranks."""
    for step in range(1, len(ranks)):
        peer = ranks[(start + step) % len(ranks)]
        copy = reference.copy(peer, reference.buffer, reference.index, ch=ch)
        assert copy is not None
        reference = copy


def _list_ranks(gpus: Sequence[int] | int, gpu_offset: int) -> list[int]:
    """Ranks of a ring in ring order."""
    return [gpu_offset + gpu for gpu in (range(gpus) if isinstance(gpus, int) else gpus)]


def _require_chunk(rank: int, index: int) -> Ref:
    """Reference to an input slot that must not be empty. Raises `ValueError` if it is."""
    reference = chunk(rank, Buffer.input, index)
    if reference is None:
        raise ValueError(f"rank {rank}: Buffer.input[{index}] was never written")
    return reference
