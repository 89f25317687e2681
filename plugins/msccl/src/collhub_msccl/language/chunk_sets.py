"""The collectives of the language's synthesis side: chunks with the nodes that have them before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class ChunkSets:
    """For each chunk the nodes that hold (a part of) it before, those that must hold it after, and its address.

    `runtime_name`: what the runtimes call the collective; `custom` where they have no name for it.
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
        lambda r, c: r == root,
        _anywhere,
        _itself,
    )


def reduce(num_nodes: int, root: int) -> ChunkSets:
    """One chunk of every node, summed at `root`."""
    return _build(
        f"Reduce(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        _own,
        lambda r, c: r == root,
        _first,
    )


def scatter(num_nodes: int, root: int) -> ChunkSets:
    """One chunk from `root` to each."""
    return _build(
        f"Scatter(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        lambda r, c: r == root,
        _own,
        _itself,
    )


def gather(num_nodes: int, root: int) -> ChunkSets:
    """One chunk from each to `root`."""
    return _build(
        f"Gather(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        _own,
        lambda r, c: r == root,
        _itself,
    )


def allgather(num_nodes: int) -> ChunkSets:
    """One chunk from each to all."""
    return _build(
        f"Allgather(n={num_nodes})", num_nodes, num_nodes, _own, _anywhere, _itself, "allgather"
    )


def alltoall(num_nodes: int) -> ChunkSets:
    """Chunk r * n + q from node r to node q."""
    before, after = (lambda r, c: r == c // num_nodes), (lambda r, c: r == c % num_nodes)
    return _build(
        f"Alltoall(n={num_nodes})", num_nodes, num_nodes**2, before, after, _itself, "alltoall"
    )


def allreduce(num_nodes: int) -> ChunkSets:
    """One chunk of every node, summed at all."""
    return _build(
        f"Allreduce(n={num_nodes})", num_nodes, num_nodes, _own, _anywhere, _first, "allreduce"
    )


def reduce_scatter(num_nodes: int) -> ChunkSets:
    """Chunk r * n + q: node r's part of the sum that node q gets."""
    before, after = (lambda r, c: r == c // num_nodes), (lambda r, c: r == c % num_nodes)
    name = f"ReduceScatter(n={num_nodes})"
    return _build(
        name, num_nodes, num_nodes**2, before, after, lambda c: c % num_nodes, "reduce_scatter"
    )


def scan(num_nodes: int) -> ChunkSets:
    """One chunk of every node, summed at it and at all nodes after it."""
    return _build(f"Scan(n={num_nodes})", num_nodes, num_nodes, _own, lambda r, c: r >= c, _first)


def multiroot_broadcast(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """One chunk from each of `roots` to all."""
    name = f"MultirootBroadcast(n={num_nodes},roots={list(roots)})"
    return _build(name, num_nodes, len(roots), lambda r, c: r == roots[c], _anywhere, _itself)


def multiroot_scatter(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Chunk k * n + q from the k-th of `roots` to node q."""
    before, after = (lambda r, c: r == roots[c // num_nodes]), (lambda r, c: r == c % num_nodes)
    return _build(
        f"MultirootScatter(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots) * num_nodes,
        before,
        after,
        _itself,
    )


def multiroot_gather(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Chunk k * n + q from node q to the k-th of `roots`."""
    before, after = (lambda r, c: r == c % num_nodes), (lambda r, c: r == roots[c // num_nodes])
    return _build(
        f"MultirootGather(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots) * num_nodes,
        before,
        after,
        _itself,
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
    address: Callable[[int], int],
    runtime_name: str = "custom",
) -> ChunkSets:
    sets = [
        tuple(frozenset(r for r in range(nodes) if test(r, c)) for c in range(chunks))
        for test in (before, after)
    ]
    return ChunkSets(
        name, nodes, sets[0], sets[1], tuple(map(address, range(chunks))), runtime_name
    )
