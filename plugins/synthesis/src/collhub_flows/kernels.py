"""Compiled loops of flows: distances, multiplicative weights, widest paths.

Import it late: numba takes a second.
"""

from __future__ import annotations

import heapq

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import BoolArray, Float64Array, Int64Array


@part
def _shortest_tree(
    start: int,
    indptr: Int64Array,
    arcs: Int64Array,
    destination: Int64Array,
    length: Float64Array,
    distance: Float64Array,
    entering: Int64Array,
    order: Int64Array,
) -> int:
    """Dijkstra's search from `start`; returns how many nodes were reached, in `order`."""
    distance[:] = np.inf
    entering[:] = -1
    distance[start] = 0.0
    queue = [(0.0, start)]
    reached = 0
    while len(queue) > 0:
        far, node = heapq.heappop(queue)
        # An entry that a shorter way has overtaken.
        if far > distance[node]:
            continue
        order[reached] = node
        reached += 1
        for place in range(indptr[node], indptr[node + 1]):
            arc = arcs[place]
            head = destination[arc]
            there = far + length[arc]
            if there < distance[head]:
                distance[head] = there
                entering[head] = arc
                heapq.heappush(queue, (there, head))
    return reached


@kernel
def total_distance(
    sources: Int64Array,
    wants: BoolArray | Float64Array,
    indptr: Int64Array,
    arcs: Int64Array,
    destination: Int64Array,
    length: Float64Array,
) -> float:
    """Sum over all shares of the shortest distance from source to target."""
    nodes = len(indptr) - 1
    distance = np.empty(nodes, np.float64)
    entering = np.empty(nodes, np.int64)
    order = np.empty(nodes, np.int64)
    total = 0.0
    for row in range(len(sources)):
        start = sources[row]
        _shortest_tree(start, indptr, arcs, destination, length, distance, entering, order)
        for node in range(wants.shape[1]):
            if wants[row, node]:
                total += wants[row, node] * distance[node]
    return total


@kernel
def weighted_phases(
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
    """Phases of multiplicative weights; adds to `amounts[source, arc]` and `load[link]`.

    In a phase the whole demand of each source goes along its shortest-path tree; a link costs
    exp(steepness * (load - fullest load)) times its time (Garg and Koenemann, SIAM J. Comput. 37,
    2007). Invariant: load is what `amounts` put on the links. Cost: a search per source and phase.
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
                for place in range(path_indptr[arc], path_indptr[arc + 1]):
                    link = path_links[place]
                    weight = np.exp(steepness * (load[link] - fullest))
                    length[arc] += weight * cost[link]
            reached = _shortest_tree(
                sources[row], indptr, arcs, destination, length, distance, entering, order
            )
            below[:] = 0.0
            # Backwards, so that a node hears of all behind it before it passes the sum on.
            for place in range(reached - 1, 0, -1):
                node = order[place]
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
def _widest_path(
    start: int,
    target: int,
    most: float,
    in_indptr: Int64Array,
    in_arcs: Int64Array,
    source: Int64Array,
    left: Float64Array,
    least: float,
    width: Float64Array,
    leaving: Int64Array,
) -> None:
    """Search back from `target` over arcs with more than `least` left of the flow from `start`.

    Fills `width` by node, at most `most`, and `leaving`: the arc towards the target, -1 for none.
    """
    width[:] = 0.0
    leaving[:] = -1
    width[target] = most
    queue = [(-most, target)]
    while len(queue) > 0:
        negative, node = heapq.heappop(queue)
        if node == start:
            return
        # An entry that a wider way has overtaken.
        if -negative < width[node]:
            continue
        for place in range(in_indptr[node], in_indptr[node + 1]):
            arc = in_arcs[place]
            tail = source[arc]
            through = min(-negative, left[arc])
            if through > width[tail] and through > least:
                width[tail] = through
                leaving[tail] = arc
                heapq.heappush(queue, (-through, tail))


@part
def _take_out(
    start: int,
    target: int,
    found: float,
    leaving: Int64Array,
    destination: Int64Array,
    amounts: Float64Array,
    path: list[int],
) -> None:
    """Take what a path carries out of the flow, and put its arcs at the end of `path`."""
    node = start
    while node != target:
        arc = leaving[node]
        amounts[arc] -= found
        path.append(arc)
        node = destination[arc]


@kernel
def stripped(
    sources: Int64Array,
    wants: BoolArray | Float64Array,
    in_indptr: Int64Array,
    in_arcs: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    amounts: Float64Array,
    least: float,
    most_paths: int,
) -> tuple[Int64Array, Float64Array, Int64Array, Int64Array]:
    """Paths of every share: (share number, part, row pointer, arcs of the path in order).

    From the target back over arcs that still have flow of the source, by the widest path first
    (Dijkstra's search with widths). `least`: part of a share below which nothing is stripped.
    `amounts` is used up. Invariant: what is left is a flow for what is still to be stripped.
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
            narrow = least * remaining
            for _ in range(most_paths):
                _widest_path(
                    start,
                    target,
                    remaining,
                    in_indptr,
                    in_arcs,
                    source,
                    amounts[row],
                    narrow,
                    width,
                    leaving,
                )
                if leaving[start] < 0:
                    break
                found = width[start]
                _take_out(start, target, found, leaving, destination, amounts[row], path)
                share_of.append(share)
                part_of.append(found)
                pointer.append(len(path))
                remaining -= found
                if remaining <= narrow:
                    break
            share += 1
    return np.array(share_of), np.array(part_of), np.array(pointer), np.array(path)
