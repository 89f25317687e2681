"""Compiled loops of flows: distances, multiplicative weights, widest paths.

Import this module inside functions, because the import of numba takes a second.
"""

from __future__ import annotations

import heapq

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import BoolArray, Float64Array, Int64Array


@part
def _search_shortest(
    start: int,
    indptr: Int64Array,
    arcs: Int64Array,
    destination: Int64Array,
    length: Float64Array,
    distance: Float64Array,
    entering: Int64Array,
    order: Int64Array,
) -> int:
    """Find the shortest paths from `start` by Dijkstra; return the number of reached nodes.

    `arcs[indptr[n]:indptr[n + 1]]` are the arcs that leave node n. Lengths must not be negative.
    Fills `distance` (infinite if unreachable), `entering` (last arc of the path to each node, -1
    without one), and `order` (reached nodes by ascending distance, `start` first). Of equally long
    paths the first one found is kept.
    """
    distance[:] = np.inf
    entering[:] = -1
    distance[start] = 0.0
    queue = [(0.0, start)]
    reached = 0
    while len(queue) > 0:
        node_distance, node = heapq.heappop(queue)
        # A shorter path to this node has been processed already.
        if node_distance > distance[node]:
            continue
        order[reached] = node
        reached += 1
        for entry in range(indptr[node], indptr[node + 1]):
            arc = arcs[entry]
            head = destination[arc]
            arc_distance = node_distance + length[arc]
            if arc_distance < distance[head]:
                distance[head] = arc_distance
                entering[head] = arc
                heapq.heappush(queue, (arc_distance, head))
    return reached


@kernel
def find_distances(
    sources: Int64Array,
    indptr: Int64Array,
    arcs: Int64Array,
    destination: Int64Array,
    length: Float64Array,
) -> Float64Array:
    """Find the shortest distances from every source to all nodes, float64[sources, nodes].

    `arcs[indptr[n]:indptr[n + 1]]` are the arcs that leave node n; `length`: by arc, at least 0.
    The distance of an unreachable node is infinite.
    """
    nodes = len(indptr) - 1
    distances = np.empty((len(sources), nodes), np.float64)
    entering = np.empty(nodes, np.int64)
    order = np.empty(nodes, np.int64)
    for row in range(len(sources)):
        _search_shortest(
            sources[row], indptr, arcs, destination, length, distances[row], entering, order
        )
    return distances


@kernel
def sum_distances(
    sources: Int64Array,
    wants: BoolArray | Float64Array,
    indptr: Int64Array,
    arcs: Int64Array,
    destination: Int64Array,
    length: Float64Array,
) -> float:
    """Add up the shortest distances from source to target of all shares, times their amounts.

    `wants[i, t]`: amount from `sources[i]` to node t (True counts 1). `arcs[indptr[n]:indptr[n +
    1]]` are the arcs that leave node n; `length`: by arc. The sum is infinite if a target with an
    amount is unreachable, and 0 without shares.
    """
    nodes = len(indptr) - 1
    distance = np.empty(nodes, np.float64)
    entering = np.empty(nodes, np.int64)
    order = np.empty(nodes, np.int64)
    total = 0.0
    for row in range(len(sources)):
        start = sources[row]
        _search_shortest(start, indptr, arcs, destination, length, distance, entering, order)
        for node in range(wants.shape[1]):
            if wants[row, node]:
                total += wants[row, node] * distance[node]
    return total


@kernel
def run_weighted_phases(
    sources: Int64Array,
    wants: BoolArray | Float64Array,
    indptr: Int64Array,
    arcs: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    path_indptr: Int64Array,
    path_links: Int64Array,
    cost: Float64Array,
    amounts: Float64Array,
    load: Float64Array,
    steepness: float,
    phases: int,
) -> None:
    """Add an approximate flow of `phases` times the demand to `amounts` and `load`, in place.

    `amounts` is by (source, arc), `load` by link. In a phase, the full demand of each source
    (`wants`, by target) is sent along its tree of shortest paths. The length of a link is
    exp(steepness * (load - maximum load)) times its `cost`, the time of one share; it is computed
    anew for each source (multiplicative weights; Garg and Koenemann, SIAM J. Comput. 37, 2007).
    `load` must be the load that `amounts` causes. Unreachable targets get no flow. Cost: one search
    per source and phase.
    """
    nodes = len(indptr) - 1
    distance = np.empty(nodes, np.float64)
    entering = np.empty(nodes, np.int64)
    order = np.empty(nodes, np.int64)
    below = np.empty(nodes, np.float64)
    length = np.empty(len(source), np.float64)
    for _ in range(phases):
        for row in range(len(sources)):
            fullest = load.max()
            for arc in range(len(source)):
                length[arc] = 0.0
                for entry in range(path_indptr[arc], path_indptr[arc + 1]):
                    link = path_links[entry]
                    weight = np.exp(steepness * (load[link] - fullest))
                    length[arc] += weight * cost[link]
            reached = _search_shortest(
                sources[row], indptr, arcs, destination, length, distance, entering, order
            )
            below[:] = 0.0
            # By descending distance, so that the sum below a node is complete when it is used.
            for entry in range(reached - 1, 0, -1):
                node = order[entry]
                if node < wants.shape[1] and wants[row, node]:
                    below[node] += wants[row, node]
                if below[node] == 0.0:
                    continue
                arc = entering[node]
                amounts[row, arc] += below[node]
                below[source[arc]] += below[node]
                for step in range(path_indptr[arc], path_indptr[arc + 1]):
                    link = path_links[step]
                    load[link] += below[node] * cost[link]


@part
def _search_widest(
    start: int,
    target: int,
    max_width: float,
    in_indptr: Int64Array,
    in_arcs: Int64Array,
    source: Int64Array,
    available: Float64Array,
    min_width: float,
    width: Float64Array,
    leaving: Int64Array,
) -> None:
    """Find the widest path from `start` to `target` by a search backwards from `target`.

    The width of a path is the least of `available` of its arcs; only arcs with more than
    `min_width` are used. Fills `leaving` by node (next arc towards the target, -1 without one) and
    `width` (at most `max_width`; 0 if not reached). Without a path, `leaving[start]` is -1. The
    search stops at `start`, so only nodes on its path have final values.
    """
    width[:] = 0.0
    leaving[:] = -1
    width[target] = max_width
    queue = [(-max_width, target)]
    while len(queue) > 0:
        negative, node = heapq.heappop(queue)
        if node == start:
            return
        # A wider path from this node has been processed already.
        if -negative < width[node]:
            continue
        for entry in range(in_indptr[node], in_indptr[node + 1]):
            arc = in_arcs[entry]
            tail = source[arc]
            through = min(-negative, available[arc])
            if through > width[tail] and through > min_width:
                width[tail] = through
                leaving[tail] = arc
                heapq.heappush(queue, (-through, tail))


@part
def _remove_path(
    start: int,
    target: int,
    width: float,
    leaving: Int64Array,
    destination: Int64Array,
    amounts: Float64Array,
    path: list[int],
) -> None:
    """Subtract a flow of `width` from `amounts` along a path, and append its arcs to `path`.

    The path follows `leaving`, the next arc of each node, from `start` to `target`.
    """
    node = start
    while node != target:
        arc = leaving[node]
        amounts[arc] -= width
        path.append(arc)
        node = destination[arc]


@kernel
def strip_paths(
    sources: Int64Array,
    wants: BoolArray | Float64Array,
    in_indptr: Int64Array,
    in_arcs: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    amounts: Float64Array,
    min_fraction: float,
    most_paths: int,
) -> tuple[Int64Array, Float64Array, Int64Array, Int64Array]:
    """Divide the flow of every share into paths, widest first.

    Returns (share, width, row pointer, arcs of paths). Shares are numbered by source row, then by
    target. For each share, the widest path over arcs with remaining flow of its source is taken,
    and its flow subtracted from `amounts` in place. This ends after `most_paths` paths, when at
    most `min_fraction` of the share remains, or when no path is wider than that; the rest is
    omitted. Widths have the unit of `wants`.
    """
    nodes = len(in_indptr) - 1
    share_of = [0]
    part_of = [0.0]
    pointer = [0]
    path = [0]
    share_of.clear()
    part_of.clear()
    path.clear()
    width = np.empty(nodes, np.float64)
    leaving = np.empty(nodes, np.int64)
    share = 0
    for row in range(len(sources)):
        start = sources[row]
        for target in range(wants.shape[1]):
            if not wants[row, target]:
                continue
            remaining = 1.0 * wants[row, target]
            min_width = min_fraction * remaining
            for _ in range(most_paths):
                _search_widest(
                    start,
                    target,
                    remaining,
                    in_indptr,
                    in_arcs,
                    source,
                    amounts[row],
                    min_width,
                    width,
                    leaving,
                )
                if leaving[start] < 0:
                    break
                path_width = width[start]
                _remove_path(start, target, path_width, leaving, destination, amounts[row], path)
                share_of.append(share)
                part_of.append(path_width)
                pointer.append(len(path))
                remaining -= path_width
                if remaining <= min_width:
                    break
            share += 1
    return np.array(share_of), np.array(part_of), np.array(pointer), np.array(path)
