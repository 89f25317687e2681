"""The collectives of the language's synthesis side (`msccl.collectives`).

For each chunk: the nodes that have it before, and those that must have it after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Names that `from msccl.collectives import *` imports.
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
"""Whether a node (first argument) has a chunk (second argument)."""


@dataclass(frozen=True, slots=True)
class ChunkSets:
    """Nodes that have (a part of) each chunk before and after a collective, and its address.

    `preconditions`, `postconditions`: by chunk, the nodes that have it before, and those that must
    have it after; `runtime_name`: name of the collective in the runtimes, `custom` if they have
    none.
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
        """Whether node `rank` has a chunk before the collective."""
        return rank in self.preconditions[chunk]

    def postcondition(self, rank: int, chunk: int) -> bool:
        """Whether node `rank` must have a chunk after the collective."""
        return rank in self.postconditions[chunk]

    def address(self, chunk: int) -> int:
        """Position of a chunk in its buffer; chunks that are reduced together share it."""
        return self.addresses[chunk]


def broadcast(num_nodes: int, root: int) -> ChunkSets:
    """Build the sets of a broadcast: one chunk from `root` to all nodes.

    Only `root` has chunk 0 before; all nodes, `root` included, must have it after. The runtime name
    is `custom`.
    """
    return _build(
        f"Broadcast(n={num_nodes},root={root})",
        num_nodes,
        1,
        before=lambda r, c: r == root,
        after=_is_anywhere,
    )


def reduce(num_nodes: int, root: int) -> ChunkSets:
    """Build the sets of a reduction: one chunk of every node, summed at `root`.

    Node n has chunk n before; `root` must have all chunks after, at the same address 0, i.e. their
    sum. The runtime name is `custom`.
    """
    return _build(
        f"Reduce(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        before=_is_same_number,
        after=lambda r, c: r == root,
        address=_get_first_address,
    )


def scatter(num_nodes: int, root: int) -> ChunkSets:
    """Build the sets of a scatter: one chunk from `root` to each node.

    `root` has all chunks before; node n must have chunk n after. The runtime name is `custom`.
    """
    return _build(
        f"Scatter(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        before=lambda r, c: r == root,
        after=_is_same_number,
    )


def gather(num_nodes: int, root: int) -> ChunkSets:
    """Build the sets of a gather: one chunk from each node to `root`.

    Node n has chunk n before; `root` must have all chunks after. The runtime name is `custom`.
    """
    return _build(
        f"Gather(n={num_nodes},root={root})",
        num_nodes,
        num_nodes,
        before=_is_same_number,
        after=lambda r, c: r == root,
    )


def allgather(num_nodes: int) -> ChunkSets:
    """Build the sets of an all-gather: one chunk from each node to all nodes.

    Node n has chunk n before; every node must have all chunks after.
    """
    return _build(
        f"Allgather(n={num_nodes})",
        num_nodes,
        num_nodes,
        before=_is_same_number,
        after=_is_anywhere,
        runtime_name="allgather",
    )


def alltoall(num_nodes: int) -> ChunkSets:
    """Build the sets of an all-to-all: chunk r * n + q from node r to node q, for n nodes.

    This includes the chunks that a node keeps (r = q).
    """
    return _build(
        f"Alltoall(n={num_nodes})",
        num_nodes,
        num_nodes**2,
        before=lambda r, c: r == c // num_nodes,
        after=lambda r, c: r == c % num_nodes,
        runtime_name="alltoall",
    )


def allreduce(num_nodes: int) -> ChunkSets:
    """Build the sets of an all-reduce: one chunk of every node, summed at all nodes.

    Node n has chunk n before; every node must have all chunks after, at the same address 0, i.e.
    their sum.
    """
    return _build(
        f"Allreduce(n={num_nodes})",
        num_nodes,
        num_nodes,
        before=_is_same_number,
        after=_is_anywhere,
        address=_get_first_address,
        runtime_name="allreduce",
    )


def reduce_scatter(num_nodes: int) -> ChunkSets:
    """Build the sets of a reduce-scatter: chunk r * n + q is the contribution of node r to node q.

    Node q must have the chunks of all nodes for it, which share the address q, i.e. their sum. n is
    the number of nodes.
    """
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
    """Build the sets of a scan: one chunk of every node, summed at that node and all later ones.

    Node n has chunk n before, and must have the chunks 0 to n after, at the same address 0, i.e.
    their sum. The runtime name is `custom`.
    """
    return _build(
        f"Scan(n={num_nodes})",
        num_nodes,
        num_nodes,
        before=_is_same_number,
        after=lambda r, c: r >= c,
        address=_get_first_address,
    )


def multiroot_broadcast(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Build the sets of broadcasts of several roots: one chunk from each of `roots` to all nodes.

    Chunk k belongs to roots[k] before, and all nodes must have it after. A node listed twice has
    two chunks. The runtime name is `custom`.
    """
    return _build(
        f"MultirootBroadcast(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots),
        before=lambda r, c: r == roots[c],
        after=_is_anywhere,
    )


def multiroot_scatter(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Build the sets of several scatters: chunk k * n + q from the k-th of `roots` to node q.

    n is the number of nodes. Root k has its n chunks before, also the one that it keeps. The
    runtime name is `custom`.
    """
    return _build(
        f"MultirootScatter(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots) * num_nodes,
        before=lambda r, c: r == roots[c // num_nodes],
        after=lambda r, c: r == c % num_nodes,
    )


def multiroot_gather(num_nodes: int, roots: Sequence[int]) -> ChunkSets:
    """Build the sets of several gathers: chunk k * n + q from node q to the k-th of `roots`.

    n is the number of nodes. Root k must have its n chunks after, one per node. The runtime name is
    `custom`.
    """
    return _build(
        f"MultirootGather(n={num_nodes},roots={list(roots)})",
        num_nodes,
        len(roots) * num_nodes,
        before=lambda r, c: r == c % num_nodes,
        after=lambda r, c: r == roots[c // num_nodes],
    )


def _is_same_number(rank: int, chunk: int) -> bool:
    """Whether the node has the chunk's number."""
    return rank == chunk


def _is_anywhere(rank: int, chunk: int) -> bool:
    """True for all nodes and chunks."""
    return True


def _get_same_address(chunk: int) -> int:
    """Address equal to the chunk's number."""
    return chunk


def _get_first_address(chunk: int) -> int:
    """Address 0 for all chunks."""
    return 0


def _build(
    name: str,
    nodes: int,
    chunks: int,
    before: Test,
    after: Test,
    address: Callable[[int], int] = _get_same_address,
    runtime_name: str = "custom",
) -> ChunkSets:
    """Build the chunk sets of a collective of `nodes` nodes and `chunks` chunks.

    `before`, `after`: tests (node, chunk) whether the node has, or must get, the chunk.
    """
    return ChunkSets(
        name,
        nodes,
        _find_holders(nodes, chunks, before),
        _find_holders(nodes, chunks, after),
        tuple(map(address, range(chunks))),
        runtime_name,
    )


def _find_holders(nodes: int, chunks: int, test: Test) -> tuple[frozenset[int], ...]:
    """For each chunk the nodes for which the test is true."""
    return tuple(
        frozenset(node for node in range(nodes) if test(node, chunk)) for chunk in range(chunks)
    )
