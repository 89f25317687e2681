"""Compiled search for routes and trees on loaded links, and sums over trees of transfers.

Algorithm: every chunk in turn is removed from the loads and routed again. Its tree grows from the
origin by Dijkstra's algorithm over links whose cost increases with their load. When the search
reaches a target, the path to it becomes part of the tree and the search continues from it. With one
target the search is guided by a lower bound of the remaining cost (A*).

Invariant: a parent is an earlier row than its children. Cost: a search over all arcs per chunk.

Import this module inside functions: numba takes a second to import.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_packing.compiling import inlined, kernel, part

from hub_core.columns import BoolArray, Float64Array, Int64Array


@kernel
def compute_remaining_times(parent: Int64Array, arrival: Int64Array) -> Int64Array:
    """Return the time in ps from each transfer's start to the last arrival that depends on it.

    The result is int64[transfers]. `parent`: an earlier transfer, -1 for none. `arrival`: the time
    in ps from the start to the arrival of each transfer.
    """
    remaining = arrival.copy()
    for transfer in range(len(parent) - 1, -1, -1):
        cause = parent[transfer]
        if cause >= 0:
            remaining[cause] = max(remaining[cause], arrival[cause] + remaining[transfer])
    return remaining


Integer = int | np.int64


class ArcMap(NamedTuple):
    """Network of arcs; all columns are int64.

    `out_indptr`, `out`: arcs that leave every node. `tail`, `head`: ends of an arc. `path_indptr`,
    `path`: links of every arc. `busy`, `arrival`: times of a message on every link, in picoseconds.
    """

    out_indptr: Int64Array
    out: Int64Array
    tail: Int64Array
    head: Int64Array
    path_indptr: Int64Array
    path: Int64Array
    busy: Int64Array
    arrival: Int64Array


class RoutingState(NamedTuple):
    """Chunks to route and the routes so far.

    `origin`, `target`: int64 per chunk; target -1 means all nodes of `needed` (bool). `bound`:
    float64[rows, nodes], distance to a target. `bound_row`: int64 per node, its row or -1. `load`:
    int64 per link, picoseconds. `cost`: float64 per link. `old_*`, `new_*`: transfers of the
    previous and of the current round; chunk x has `size[x]` rows from `first[x]` on. `parent` is
    relative to the first row of the chunk, -1 at the origin.
    """

    origin: Int64Array
    target: Int64Array
    needed: BoolArray
    bound: Float64Array
    bound_row: Int64Array
    load: Int64Array
    cost: Float64Array
    old_first: Int64Array
    old_size: Int64Array
    old_arc: Int64Array
    new_first: Int64Array
    new_size: Int64Array
    new_arc: Int64Array
    new_parent: Int64Array


class TreeWorkspace(NamedTuple):
    """Working memory with an entry per node.

    `cost`: distance from the tree. `arc`: arc by which it was reached. `entry`: transfer that
    brings the chunk. `stamp`: mark of the last search that reached it. `in_tree`: mark of the last
    tree that contains it. `key`, `node`: a binary heap. `slot`: position in the heap, -1 if
    absent. `trail`: a path back to the tree.
    """

    cost: Float64Array
    arc: Int64Array
    entry: Int64Array
    stamp: Int64Array
    in_tree: Int64Array
    key: Float64Array
    node: Int64Array
    slot: Int64Array
    trail: Int64Array


@part
def _push_or_decrease(space: TreeWorkspace, size: Integer, key: float, node: Integer) -> Integer:
    """Insert a node into the heap of `space` with `key`, or decrease its key; return the size.

    `size`: number of entries before. A node is in the heap if its `slot` (heap position) is not
    negative; then `key` must not exceed its present key. The slots of moved nodes are updated.
    """
    keys, nodes, places = space.key, space.node, space.slot
    # A node in the heap moves up from its position.
    hole = places[node]
    if hole < 0:
        hole = size
        size += 1
    while hole > 0 and keys[(hole - 1) >> 1] > key:
        parent = (hole - 1) >> 1
        keys[hole] = keys[parent]
        nodes[hole] = nodes[parent]
        places[nodes[hole]] = hole
        hole = parent
    keys[hole] = key
    nodes[hole] = node
    places[node] = hole
    return size


@part
def _pop(space: TreeWorkspace, size: Integer) -> Integer:
    """Remove and return the node with the smallest key of the heap in `space`.

    `size`: number of entries, at least one; the caller must decrease it. The `slot` (heap position)
    of the node becomes -1, and those of moved nodes are updated. Of equal keys, any node may be
    returned.
    """
    keys, nodes, places = space.key, space.node, space.slot
    top: Integer = nodes[0]
    places[top] = -1
    size -= 1
    key, node = keys[size], nodes[size]
    hole, child = 0, 1
    while child < size:
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[hole] = keys[child]
        nodes[hole] = nodes[child]
        places[nodes[hole]] = hole
        hole, child = child, 2 * child + 1
    if size:
        keys[hole] = key
        nodes[hole] = node
        places[node] = hole
    return top


@kernel
def compute_distances(
    arcs: ArcMap, in_indptr: Int64Array, targets: Int64Array, space: TreeWorkspace
) -> Float64Array:
    """Return the time (ps) of the fastest path from every node to every target.

    float64[targets, nodes], 0 at the target and infinite if there is no path. The time of an arc is
    the sum of the arrival times of its links. Arcs are sorted by head: the arcs into node v are
    `in_indptr[v]..in_indptr[v + 1] - 1`. `space` is working memory, whose heap must be empty.
    """
    nodes = len(space.cost)
    result = np.full((len(targets), nodes), np.inf)
    for row in range(len(targets)):
        # Search backwards from the target, along the arcs into each node.
        cost = result[row]
        cost[targets[row]] = 0.0
        size = _push_or_decrease(space, 0, 0.0, targets[row])
        while size:
            node = _pop(space, size)
            size -= 1
            for arc in range(in_indptr[node], in_indptr[node + 1]):
                time = cost[node]
                for position in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
                    time += arcs.arrival[arcs.path[position]]
                tail = arcs.tail[arc]
                if time < cost[tail]:
                    cost[tail] = time
                    size = _push_or_decrease(space, size, time, tail)
    return result


@part
def _update_cost(
    link: Integer, arcs: ArcMap, state: RoutingState, scale: float, steepness: float
) -> None:
    """Update the cost of a link: its arrival time in ps plus a penalty for its load.

    The penalty is busy time * `steepness` * (load * `scale`)^8. `state.cost` is changed.
    """
    # With the eighth power, links far below the reference cost almost only their time.
    share = state.load[link] * scale
    square = share * share
    fourth = square * square
    # The order of the multiplications determines the rounding; keep it so that a seed gives the
    # same bytes.
    weight = arcs.busy[link] * steepness * fourth * fourth
    state.cost[link] = arcs.arrival[link] + weight


@part
def _change_load(
    arc: Integer,
    sign: Integer,
    arcs: ArcMap,
    state: RoutingState,
    scale: float,
    steepness: float,
) -> None:
    """Add a message to the links of an arc (sign 1) or remove it (sign -1)."""
    for position in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
        link = arcs.path[position]
        state.load[link] += sign * arcs.busy[link]
        _update_cost(link, arcs, state, scale, steepness)


@part
def _trace_path(mark: Integer, node: Integer, arcs: ArcMap, space: TreeWorkspace) -> Integer:
    """Write the path from `node` back to the tree of the chunk to `space.trail`; return its length.

    The path follows the arcs by which the search reached the nodes, and begins with `node`. A node
    is in the tree if its `in_tree` is `mark`, the number of this search. The node of the tree at
    the end is not written, so the result is 0 if `node` itself is in the tree.
    """
    length: Integer = 0
    while space.in_tree[node] != mark:
        space.trail[length] = node
        length += 1
        node = arcs.tail[space.arc[node]]
    return length


@part
def _attach(
    chunk: Integer,
    mark: Integer,
    node: Integer,
    used: Integer,
    arcs: ArcMap,
    state: RoutingState,
    space: TreeWorkspace,
) -> Integer:
    """Add the path from the tree of a chunk to the reached `node`; return its number of transfers.

    The transfers are written from the tree outwards, after the first `used` rows of the chunk, as
    arc and parent. The parent is the row, within the chunk, that brings it to the arc's source, -1
    at the origin. The nodes of the path are marked as in the tree with `mark`, the number of this
    search.
    """
    length = _trace_path(mark, node, arcs, space)
    # From the tree outwards, so that parents are earlier rows than children.
    first = state.new_first[chunk]
    for slot in range(length - 1, -1, -1):
        node = space.trail[slot]
        arc = space.arc[node]
        space.in_tree[node] = mark
        space.entry[node] = used
        state.new_arc[first + used] = arc
        state.new_parent[first + used] = space.entry[arcs.tail[arc]]
        used += 1
    return length


@inlined
def _add_new_starts(
    length: Integer, depth_weight: float, size: Integer, space: TreeWorkspace
) -> Integer:
    """Insert the nodes of a path that joined the tree into the heap; return the heap's size.

    The path is in the first `length` entries of `space.trail`. The cost of each node is multiplied
    by `depth_weight`. The end of the path is not inserted, because the search continues from it at
    once.
    """
    for slot in range(length):
        node = space.trail[slot]
        space.cost[node] *= depth_weight
        # The search continues from the end of the path immediately.
        if slot:
            size = _push_or_decrease(space, size, space.cost[node], node)
    return size


@inlined
def _relax_arcs(
    node: Integer,
    mark: Integer,
    row: Integer,
    size: Integer,
    arcs: ArcMap,
    state: RoutingState,
    space: TreeWorkspace,
) -> Integer:
    """Update the costs of the heads of all arcs that leave a node; return the size of the heap.

    Heads in the tree are skipped. A head is updated if it has no cost in this search (its `stamp`
    is not `mark`) or a greater one. It gets the cost of `node` plus the cost of all links of the
    arc. Its key in the heap also has the lower bound of the remaining cost to the target of `row`,
    0 if `row` is negative.
    """
    base = space.cost[node]
    for position in range(arcs.out_indptr[node], arcs.out_indptr[node + 1]):
        arc = arcs.out[position]
        head = arcs.head[arc]
        # Nodes in the tree have the chunk.
        if space.in_tree[head] == mark:
            continue
        # The cost of an arc is the sum over its links.
        cost = base
        for slot in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
            cost += state.cost[arcs.path[slot]]
        if space.stamp[head] != mark or cost < space.cost[head]:
            space.stamp[head] = mark
            space.cost[head] = cost
            space.arc[head] = arc
            # A lower bound of the remaining cost, so the first path found is the best.
            remaining = state.bound[row, head] if row >= 0 else 0.0
            size = _push_or_decrease(space, size, cost + remaining, head)
    return size


@part
def _grow(
    chunk: Integer,
    mark: Integer,
    count: Integer,
    depth_weight: float,
    arcs: ArcMap,
    state: RoutingState,
    space: TreeWorkspace,
) -> Integer:
    """Grow the tree of a chunk until it has `count` targets; return its number of transfers.

    In each step the cheapest path from the tree to a target is added. Targets are the chunk's own
    target or, if that is negative, all needed nodes. If no further node can be reached, fewer
    targets are added. `mark`: a number that no earlier search used. `depth_weight`: factor for the
    cost of the nodes in the tree from which the search continues.
    """
    origin, target = state.origin[chunk], state.target[chunk]
    row = state.bound_row[target] if target >= 0 else -1
    space.stamp[origin] = space.in_tree[origin] = mark
    space.cost[origin] = 0.0
    space.entry[origin] = -1
    size = _push_or_decrease(space, 0, 0.0, origin)
    used: Integer = 0
    while size and count:
        node = _pop(space, size)
        size -= 1
        is_new = space.in_tree[node] != mark
        if is_new and (node == target or (target < 0 and state.needed[node])):
            length = _attach(chunk, mark, node, used, arcs, state, space)
            used += length
            count -= 1
            size = _add_new_starts(length, depth_weight, size, space)
        size = _relax_arcs(node, mark, row, size, arcs, state, space)
    # Clear the positions of the remaining heap entries for the next search.
    for slot in range(size):
        space.slot[space.node[slot]] = -1
    return used


@inlined
def _count_targets(chunk: Integer, num_needed: Integer, state: RoutingState) -> Integer:
    """Return the number of nodes to which a chunk must be routed.

    For a chunk with a single target it is 1, or 0 if the chunk starts there. Otherwise it is
    `num_needed`, minus 1 if the origin is itself a needed node.
    """
    origin, target = state.origin[chunk], state.target[chunk]
    if target < 0:
        return num_needed - int(state.needed[origin])
    return int(target != origin)


@kernel
def reroute(
    order: Int64Array,
    position: Integer,
    round_number: Integer,
    used: Integer,
    max_load: Integer,
    budget: Integer,
    reference_load: Integer,
    steepness: float,
    depth_weight: float,
    arcs: ArcMap,
    state: RoutingState,
    space: TreeWorkspace,
) -> tuple[Integer, Integer, Integer]:
    """Route the chunks `order[position:]` again, each considering the load of all other chunks.

    Each chunk's old route is removed from the loads before, and its new route is added. Stops after
    about `budget` transfers, or if the arrays of new routes may become too short. `round_number`:
    number of the round from 0. `used`: rows of new routes so far. `reference_load`: load in
    messages relative to which loads are penalized; 0 for the largest one so far (`max_load`).
    Returns (next position, used rows, largest number of messages on a link so far); changes `state`
    and `space`.
    """
    nodes = len(space.cost)
    num_needed = 0
    for node in range(nodes):
        num_needed += state.needed[node]
    stop = used + budget
    # A tree has fewer transfers than nodes, so this capacity is sufficient.
    while position < len(order) and used < stop and used + nodes <= len(state.new_arc):
        chunk = order[position]
        scale = 1.0 / max(reference_load if reference_load > 0 else max_load, 1)
        # Remove the chunk's own load of the previous round.
        first = state.old_first[chunk]
        for slot in range(first, first + state.old_size[chunk]):
            _change_load(state.old_arc[slot], -1, arcs, state, scale, steepness)
        state.new_first[chunk] = used
        mark = round_number * len(order) + position + 1
        count = _count_targets(chunk, num_needed, state)
        size = _grow(chunk, mark, count, depth_weight, arcs, state, space)
        state.new_size[chunk] = size
        for slot in range(used, used + size):
            arc = state.new_arc[slot]
            _change_load(arc, 1, arcs, state, scale, steepness)
            for link_place in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
                max_load = max(max_load, state.load[arcs.path[link_place]])
        used += size
        position += 1
    return position, used, max_load
