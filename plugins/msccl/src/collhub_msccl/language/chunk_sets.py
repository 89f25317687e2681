"""The collectives of the language's synthesis side (`msccl.collectives`).

Each chunk has the nodes that hold it before and those that must hold it after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# What `from msccl.collectives import *` gives a program.
__all__ = [
    "ChunkSets",
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "gather",
    "multiroot_broadcast",
    "multiroot_gather",
    "multiroot_scatter",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
]

Test = Callable[[int, int], bool]
"""Whether a node (first) holds a chunk (second)."""


@dataclass(frozen=True, slots=True)
class ChunkSets:
    """For each chunk the nodes that hold (a part of) it before and after, and its address.

    `preconditions`, `postconditions`: by chunk, the nodes that hold it before and those that must
    hold it after. `runtime_name`: what the runtimes call the collective; `custom` where they have
    no name for it.
    """

    name: str
    num_nodes: int
    preconditions: tuple[frozenset[int], ...]
    postconditions: tuple[frozenset[int], ...]
    addresses: tuple[int, ...]
    runtime_name: str = "custom"

    @property
    def num_chunks(self) -> int:
        """Number of chunks."""
        return len(self.preconditions)

    def precondition(self, rank: int, chunk: int) -> bool:
        """Whether a node holds a chunk before."""
        return rank in self.preconditions[chunk]

    def postcondition(self, rank: int, chunk: int) -> bool:
        """Whether a node must hold a chunk after."""
        return rank in self.postconditions[chunk]

    def address(self, chunk: int) -> int:
        """Where a chunk lies in its buffer; chunks that are reduced together share it."""
        return self.addresses[chunk]


def broadcast(num_nodes: int, root: int) -> ChunkSets:
    """One chunk from `root` to all."""
    return _build(
        f"Broadcast(n={num_nodes},root={root})",
        num_nodes,
        1,
        before=lambda r, c: r == root,
        after=_anywhere,
    )


def reduce(num_nodes: int, root: int) -> ChunkSets:
    """One chunk of every node, summed at `root`."""
    return _build(
        f"Reduce(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        before=_own,
        after=lambda r, c: r == root,
        address=_first,
    )


def scatter(num_nodes: int, root: int) -> ChunkSets:
    """One chunk from `root` to each."""
    return _build(
        f"Scatter(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        before=lambda r, c: r == root,
        after=_own,
    )


def gather(num_nodes: int, root: int) -> ChunkSets:
    """One chunk from each to `root`."""
    return _build(
        f"Gather(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        before=_own,
        after=lambda r, c: r == root,
    )


def allgather(num_nodes: int) -> ChunkSets:
    """One chunk from each to all."""
    return _build(
        f"Allgather(n={num_nodes})",
        num_nodes,
        num_nodes,
        before=_own,
        after=_anywhere,
        runtime_name="allgather",
    )


def alltoall(num_nodes: int) -> ChunkSets:
    """Chunk r * n + q from node r to node q."""
    return _build(
        f"Alltoall(n={num_nodes})",
        num_nodes,
        num_nodes**2,
        before=lambda r, c: r == c // num_nodes,
        after=lambda r, c: r == c % num_nodes,
        runtime_name="alltoall",
    )


def allreduce(num_nodes: int) -> ChunkSets:
    """One chunk of every node, summed at all."""
    return _build(
        f"Allreduce(n={num_nodes})",
        num_nodes,
        num_nodes,
        before=_own,
        after=_anywhere,
        address=_first,
        runtime_name="allreduce",
    )


def reduce_scatter(num_nodes: int) -> ChunkSets:
    """Chunk r * n + q: node r's part of the sum that node q gets."""
    return _build(
        f"ReduceScatter(n={num_nodes})",
        num_nodes,
        num_nodes**2,
        before=lambda r, c: r == c // num_nodes,
        after=lambda r, c: r == c % num_nodes,
        address=lambda c: c % num_nodes,
        runtime_name="reduce_scatter",
    )


def scan(num_nodes: int) -> ChunkSets:
    """One chunk of every node, summed at it and at all nodes after it."""
    return _build(
        f"Scan(n={num_nodes})",
        num_nodes,
        num_nodes,
        before=_own,
        after=lambda r, c: r >= c,
        address=_first,
    )


def multiroot_broadcast(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """One chunk from each of `roots` to all."""
    return _build(
        f"MultirootBroadcast(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots),
        before=lambda r, c: r == roots[c],
        after=_anywhere,
    )


def multiroot_scatter(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Chunk k * n + q from the k-th of `roots` to node q."""
    return _build(
        f"MultirootScatter(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots) * num_nodes,
        before=lambda r, c: r == roots[c // num_nodes],
        after=lambda r, c: r == c % num_nodes,
    )


def multiroot_gather(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Chunk k * n + q from node q to the k-th of `roots`."""
    return _build(
        f"MultirootGather(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots) * num_nodes,
        before=lambda r, c: r == c % num_nodes,
        after=lambda r, c: r == roots[c // num_nodes],
    )


def _own(rank: int, chunk: int) -> bool:
    return rank == chunk


def _anywhere(rank: int, chunk: int) -> bool:
    return True


def _itself(chunk: int) -> int:
    return chunk


def _first(chunk: int) -> int:
    return 0


def _build(
    name: str,
    nodes: int,
    chunks: int,
    before: Test,
    after: Test,
    address: Callable[[int], int] = _itself,
    runtime_name: str = "custom",
) -> ChunkSets:
    return ChunkSets(
        name,
        nodes,
        _holders(nodes, chunks, before),
        _holders(nodes, chunks, after),
        tuple(map(address, range(chunks))),
        runtime_name,
    )


def _holders(nodes: int, chunks: int, test: Test) -> tuple[frozenset[int], ...]:
    """For each chunk the nodes that hold it."""
    return tuple(
        frozenset(node for node in range(nodes) if test(node, chunk)) for chunk in range(chunks)
    )
