"""Which part of the data is sent over which tree, by which messages and over which routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from collhub_packing.pipelining.operations import (
    Operations,
    PrunedTree,
    broadcast,
    paths,
    pruned,
    reduce_and_broadcast,
    reduction,
    turned_round,
)
from collhub_packing.trees import SpanningTree
from hub_core.columns import Int64Array, row_pointer
from hub_core.model import Collective, CollectiveKind, InputError
from hub_core.network import Routes, Topology


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A part of the data that is divided into chunks, all sent by the same operations.

    The fraction `part` of share `share` (as in `Chunks.cut`), from the fraction `begin` on. `tree`:
    number of the tree that carries it.
    """

    tree: int
    share: int
    begin: Fraction
    part: Fraction
    operations: Operations


# Every rank sends, or receives, its own share over its own trees.
_ROOTED_AT_RANKS = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})


def _build_reduce_and_broadcast(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Reduce to the root and broadcast back."""
    return [reduce_and_broadcast(tree)]


def _build_broadcast(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Broadcast from the root to all nodes."""
    return [broadcast(tree)]


def _build_reduction(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Reduce from all nodes to the root."""
    return [reduction(tree)]


def _build_gather_paths(tree: PrunedTree, members: Int64Array) -> list[Operations]:
    """Send from every member to the root on separate paths."""
    return [turned_round(path) for path in paths(tree, members)]


_OPERATION_BUILDERS: Mapping[
    CollectiveKind, Callable[[PrunedTree, Int64Array], list[Operations]]
] = {
    CollectiveKind.ALL_REDUCE: _build_reduce_and_broadcast,
    CollectiveKind.BROADCAST: _build_broadcast,
    CollectiveKind.ALL_GATHER: _build_broadcast,
    CollectiveKind.REDUCE: _build_reduction,
    CollectiveKind.REDUCE_SCATTER: _build_reduction,
    CollectiveKind.SCATTER: paths,
    CollectiveKind.GATHER: _build_gather_paths,
}


def generate_streams(
    trees: Sequence[SpanningTree],
    collective: Collective,
    members: Int64Array,
) -> Iterator[Stream]:
    """Generate the streams of a collective whose rank r runs on NPU `members[r]`, tree by tree.

    Every share of the data is divided by the weights of the trees that carry it. Raises
    `InputError` for a collective that does not run on trees and for trees with wrong roots.
    """
    if collective.kind not in _OPERATION_BUILDERS:
        message = f"{collective.kind} does not run on spanning trees"
        raise InputError(message, code="trees-unsuitable")
    build_operations = _OPERATION_BUILDERS[collective.kind]
    shares = _find_first_shares(trees, collective, members)
    _check_roots(trees, shares, collective, members)
    weight = _sum_weights(trees, shares)
    begin = dict.fromkeys(weight, Fraction(0))
    for tree_number, (tree, first) in enumerate(zip(trees, shares, strict=True)):
        part = Fraction(tree.weight, weight[first])
        # A scatter's tree has a path, and so a stream, for the share of every rank.
        for offset, operations in enumerate(build_operations(pruned(tree, members), members)):
            yield Stream(tree_number, first + offset, begin[first], part, operations)
        begin[first] += part


def _find_first_shares(
    trees: Sequence[SpanningTree],
    collective: Collective,
    members: Int64Array,
) -> list[int]:
    """Find the first share that each tree carries: the rank at its root (-1 for none), or 0.

    The root decides for all-gather and reduce-scatter only.
    """
    if collective.kind not in _ROOTED_AT_RANKS:
        return [0] * len(trees)
    rank_of = {int(npu): rank for rank, npu in enumerate(members)}
    return [rank_of.get(tree.root, -1) for tree in trees]


def _sum_weights(trees: Sequence[SpanningTree], shares: Sequence[int]) -> dict[int, int]:
    """Sum the weights of the trees that carry each share."""
    weight: dict[int, int] = {}
    for tree, share in zip(trees, shares, strict=True):
        weight[share] = weight.get(share, 0) + tree.weight
    return weight


def _check_roots(
    trees: Sequence[SpanningTree],
    shares: Sequence[int],
    collective: Collective,
    members: Int64Array,
) -> None:
    """Raise `InputError` for shares without a tree and for trees with a wrong root."""
    share_count = collective.num_ranks if collective.kind in _ROOTED_AT_RANKS else 1
    uncovered = set(range(share_count)) - set(shares)
    context = f"{collective.kind} on {len(trees)} trees"
    if uncovered:
        raise _root_error(f"{context}: no tree is rooted at rank {min(uncovered)}")
    if -1 in shares:
        raise _root_error(f"{context}: a tree is rooted at an NPU that is no member")
    if collective.root is None:
        return
    root = int(members[collective.root])
    if any(tree.root != root for tree in trees):
        raise _root_error(f"{collective.kind}: a tree is not rooted at NPU {root}")


def _root_error(message: str) -> InputError:
    """Build the error for a tree with a wrong root."""
    return InputError(message, code="tree-root")


TreePaths = Sequence[Mapping[int, Sequence[int]]]
"""For every tree, a map from nodes to the links (rows of the topology) from their parent to them.

Nodes without an entry use the topology's own routes.
"""


def apply_tree_paths(
    tree_paths: TreePaths,
    trees: Sequence[SpanningTree],
    streams: Sequence[Stream],
    topology: Topology,
    routes: Routes,
) -> Routes:
    """Replace the routes of operations for which `tree_paths` has a path; return all routes.

    `routes`: routes of all operations of all streams. A message from a child to its parent takes
    the reverse links of the path.
    """
    bounds = zip(routes.indptr[:-1], routes.indptr[1:], strict=True)
    rows = [routes.links[first:last] for first, last in bounds]
    row_between = _map_ends_to_rows(topology)
    operation = 0
    for stream in streams:
        paths = tree_paths[stream.tree]
        for child, is_down in _generate_hops(stream, trees[stream.tree]):
            links = list(paths.get(child, ()))
            if not is_down:
                links = _reverse_links(links, topology, row_between)
            if links:
                rows[operation] = np.asarray(links, np.int64)
            operation += 1
    indptr = row_pointer([len(row) for row in rows])
    return Routes(indptr, np.concatenate(rows))


def _generate_hops(stream: Stream, tree: SpanningTree) -> Iterator[tuple[int, bool]]:
    """Yield for every operation of a stream the child of its two nodes, and whether it receives."""
    sources = stream.operations.source.tolist()
    destinations = stream.operations.destination.tolist()
    for source, destination in zip(sources, destinations, strict=True):
        is_down = bool(tree.parent[destination] == source)
        yield destination if is_down else source, is_down


def _map_ends_to_rows(topology: Topology) -> dict[tuple[int, int], int]:
    """Map (source, destination) to the last link between these nodes."""
    endpoints = zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
    return {pair: row for row, pair in enumerate(endpoints)}


def _reverse_links(
    links: Sequence[int],
    topology: Topology,
    row_between: Mapping[tuple[int, int], int],
) -> list[int]:
    """Find the rows of the reverse links, from the last link to the first."""
    reverse_links = []
    for row in reversed(links):
        endpoints = int(topology.destination[row]), int(topology.source[row])
        reverse_links.append(row_between[endpoints])
    return reverse_links
