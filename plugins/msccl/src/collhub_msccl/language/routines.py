"""Building blocks for programs: rings within an in-place buffer."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_msccl.language import chunk
from collhub_msccl.language.chunks import Buffer
from collhub_msccl.language.references import Ref

# What `from msccl.language.routines import *` gives a program.
__all__ = ["allgather_ring_inplace", "allreduce_ring_inplace"]


def allgather_ring_inplace(
    gpus: Sequence[int] | int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """Pass chunk k of the k-th rank around the ring, in the same slot of `Buffer.input` everywhere.

    `gpus`: number of ranks, which start at `gpu_offset`, or the ranks themselves; the slots start
    at `index_offset`.
    """
    ranks = _ranks(gpus, gpu_offset)
    for start in range(len(ranks)):
        held = _held(ranks[start], index_offset + start)
        _pass_on(held, ranks, start, ch)


def allreduce_ring_inplace(
    gpus: Sequence[int] | int, gpu_offset: int = 0, index_offset: int = 0, ch: int = 0
) -> None:
    """All-reduce as many chunks as there are ranks, from `index_offset` on, around the ring.

    Ranks and slots as in `allgather_ring_inplace`.
    """
    ranks = _ranks(gpus, gpu_offset)
    size = len(ranks)
    for start in range(size):
        held = _held(ranks[start], index_offset + start)
        for step in range(1, size):
            own = _held(ranks[(start + step) % size], index_offset + start)
            held = own.reduce(held, ch=ch)
        # The last rank holds the whole sum.
        _pass_on(held, ranks, start + size - 1, ch)


def _pass_on(held: Ref, ranks: Sequence[int], start: int, ch: int) -> None:
    """Copy what the rank at place `start` of the ring holds to all others, one after the other."""
    for step in range(1, len(ranks)):
        peer = ranks[(start + step) % len(ranks)]
        copied = held.copy(peer, held.buffer, held.index, ch=ch)
        assert copied is not None
        held = copied


def _ranks(gpus: Sequence[int] | int, gpu_offset: int) -> list[int]:
    """The ranks of a ring, in its order."""
    return [gpu_offset + gpu for gpu in (range(gpus) if isinstance(gpus, int) else gpus)]


def _held(rank: int, index: int) -> Ref:
    """A reference to a slot of the input that must hold something."""
    reference = chunk(rank, Buffer.input, index)
    if reference is None:
        raise ValueError(f"rank {rank}: Buffer.input[{index}] was never written")
    return reference
