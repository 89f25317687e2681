"""Routes of messages that are stated tree by tree, in place of the topology's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from collhub_columns import row_pointer

from collhub_packing.pipelining.streams import Stream
from collhub_packing.trees import SpanningTree
from hub_core.network import Routes, Topology

TreePaths = Sequence[Mapping[int, Sequence[int]]]
"""Per tree, for some of its nodes, the rows of the topology's links that lead there.

They lead from the node's parent.
"""


def routed_along(
    stated: TreePaths,
    trees: Sequence[SpanningTree],
    streams: Sequence[Stream],
    topology: Topology,
    routes: Routes,
) -> Routes:
    """Routes of all operations of all streams, the stated ones in place of the given ones.

    A message from a child to its parent takes the opposite of the links that are stated.
    """
    bounds = zip(routes.indptr[:-1], routes.indptr[1:], strict=True)
    rows = [routes.links[first:last] for first, last in bounds]
    row_between = _row_between(topology)
    operation = 0
    for stream in streams:
        named = stated[stream.tree]
        for child, is_down in _hops(stream, trees[stream.tree]):
            links = list(named.get(child, ()))
            if not is_down:
                links = _turned(links, topology, row_between)
            if links:
                rows[operation] = np.asarray(links, np.int64)
            operation += 1
    indptr = row_pointer([len(row) for row in rows])
    return Routes(indptr, np.concatenate(rows))


def _hops(stream: Stream, tree: SpanningTree) -> Iterator[tuple[int, bool]]:
    """For every operation of a stream, the lower of its two nodes, and whether it leads there."""
    sources = stream.operations.source.tolist()
    destinations = stream.operations.destination.tolist()
    for source, destination in zip(sources, destinations, strict=True):
        is_down = bool(tree.parent[destination] == source)
        yield destination if is_down else source, is_down


def _row_between(topology: Topology) -> dict[tuple[int, int], int]:
    """The last row of the links from a node to another."""
    ends = zip(topology.source.tolist(), topology.destination.tolist(), strict=True)
    return {pair: row for row, pair in enumerate(ends)}


def _turned(
    links: Sequence[int],
    topology: Topology,
    row_between: Mapping[tuple[int, int], int],
) -> list[int]:
    """The rows of the opposite links, from the last to the first."""
    turned = []
    for row in reversed(links):
        # The way up takes the same links backwards, which a packing needs to fit.
        opposite = int(topology.destination[row]), int(topology.source[row])
        turned.append(row_between[opposite])
    return turned
