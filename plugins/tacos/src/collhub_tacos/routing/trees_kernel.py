"""Compiled sums over trees of transfers: how far each has to go.

One pass from the last transfer to the first, linear; every transfer stands behind its parent, so
that what is behind it is known when it is reached. Import it late: numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from collhub_packing.compiling import inlined, kernel, part

from hub_core.columns import BoolArray, Float64Array, Int64Array


@kernel
def remaining_times(parent: Int64Array, arrival: Int64Array) -> Int64Array:
    """Time from the start of every transfer to the arrival of the last one behind it: int64.

    `parent`: -1 for none, else a transfer before it; `arrival`: the time of each one.
    """
    remaining = arrival.copy()
    for transfer in range(len(parent) - 1, -1, -1):
        before = parent[transfer]
        if before >= 0:
            # Of several branches the longest counts.
            behind = arrival[before] + remaining[transfer]
            remaining[before] = max(remaining[before], behind)
    return remaining


Integer = int | np.int64


class ArcMap(NamedTuple):
    """Network of arcs, all int64.

    `out_indptr`, `out`: the arcs that leave every node; `head`, `tail`: ends of an arc;
    `path_indptr`, `path`: the links of every arc; `busy`, `arrival`: times of a message on every
    link, in picoseconds.
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
    """What is to be routed, and the routes so far.

    `origin`, `target`: int64 per chunk; target -1: all nodes of `needed` (bool). `bound`:
    float64[rows, nodes], distance to a target, and `bound_row`: int64 per node, its row or -1.
    `load`: int64 per link, picoseconds; `cost`: float64 per link. `old_*`, `new_*`: transfers of
    the round before and of this one: of chunk x those from `first[x]` on, `size[x]` many; `parent`
    counts from the start of the chunk, -1 at the origin.
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
    """Room to work in, a number per node.

    `cost` from the tree, `arc` by which it is reached, `entry`: its transfer, `stamp`: the last
    chunk that reached it, `in_tree`: the last that has it in its tree. `key`, `node`: a binary
    heap, `place`: where on it, -1 for nowhere. `trail`: a way back to the tree.
    """

    cost: Float64Array
    arc: Int64Array
    entry: Int64Array
    stamp: Int64Array
    in_tree: Int64Array
    key: Float64Array
    node: Int64Array
    place: Int64Array
    trail: Int64Array


@part
def _lower(space: TreeWorkspace, size: Integer, key: float, node: Integer) -> Integer:
    """Put a node on the heap, or give one that is there a smaller key; return the heap's size."""
    keys, nodes, places = space.key, space.node, space.place
    # A node that is on the heap moves up from where it is.
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
    """Take the node of the smallest key off a heap of `size`."""
    keys, nodes, places = space.key, space.node, space.place
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
def distances(
    arcs: ArcMap, in_indptr: Int64Array, targets: Int64Array, space: TreeWorkspace
) -> Float64Array:
    """Time of the fastest way from every node to every target: float64[targets, nodes].

    Infinite where there is none. Arcs stand by their head: those into node v are
    `in_indptr[v]..in_indptr[v + 1] - 1`.
    """
    nodes = len(space.cost)
    result = np.full((len(targets), nodes), np.inf)
    for row in range(len(targets)):
        # Backwards from the target, along arcs into each node.
        cost = result[row]
        cost[targets[row]] = 0.0
        size = _lower(space, 0, 0.0, targets[row])
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
                    size = _lower(space, size, time, tail)
    return result


@part
def _weigh(
    link: Integer, arcs: ArcMap, state: RoutingState, scale: float, steepness: float
) -> None:
    """Let a link cost its time, and more the closer its load is to the reference, `1 / scale`."""
    # The eighth power: links far below the reference cost next to nothing more.
    share = state.load[link] * scale
    square = share * share
    fourth = square * square
    # Multiplied in this order, by which a seed gives the same bytes.
    weight = arcs.busy[link] * steepness * fourth * fourth
    state.cost[link] = arcs.arrival[link] + weight


@part
def _load(
    arc: Integer,
    sign: Integer,
    arcs: ArcMap,
    state: RoutingState,
    scale: float,
    steepness: float,
) -> None:
    """Add a message to the links of an arc, or take it away."""
    for position in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
        link = arcs.path[position]
        state.load[link] += sign * arcs.busy[link]
        _weigh(link, arcs, state, scale, steepness)


@part
def _way_back(mark: Integer, node: Integer, arcs: ArcMap, space: TreeWorkspace) -> Integer:
    """Put the nodes from one that was reached back to the tree on the trail; return how many."""
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
    """Add the way from the tree to a node that was reached; return the number of its transfers."""
    length = _way_back(mark, node, arcs, space)
    # From the tree outwards: parents stand before children.
    first = state.new_first[chunk]
    for place in range(length - 1, -1, -1):
        node = space.trail[place]
        arc = space.arc[node]
        space.in_tree[node] = mark
        space.entry[node] = used
        state.new_arc[first + used] = arc
        state.new_parent[first + used] = space.entry[arcs.tail[arc]]
        used += 1
    return length


@inlined
def _regrow(length: Integer, depth_weight: float, size: Integer, space: TreeWorkspace) -> Integer:
    """Search on from the way that was just attached; return the size of the heap.

    A node of the tree is a better start than it was an end.
    """
    for place in range(length):
        node = space.trail[place]
        space.cost[node] *= depth_weight
        # The end of the way is the node from which the search goes on at once.
        if place:
            size = _lower(space, size, space.cost[node], node)
    return size


@inlined
def _reach_on(
    node: Integer,
    mark: Integer,
    row: Integer,
    size: Integer,
    arcs: ArcMap,
    state: RoutingState,
    space: TreeWorkspace,
) -> Integer:
    """Reach the nodes behind the arcs that leave a node; return the size of the heap."""
    base = space.cost[node]
    for position in range(arcs.out_indptr[node], arcs.out_indptr[node + 1]):
        arc = arcs.out[position]
        head = arcs.head[arc]
        # Whoever is in the tree has the chunk.
        if space.in_tree[head] == mark:
            continue
        # An arc costs what its links cost together.
        cost = base
        for place in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
            cost += state.cost[arcs.path[place]]
        if space.stamp[head] != mark or cost < space.cost[head]:
            space.stamp[head] = mark
            space.cost[head] = cost
            space.arc[head] = arc
            # Never more than the rest of the way costs: so the first way found is the best.
            left = state.bound[row, head] if row >= 0 else 0.0
            size = _lower(space, size, cost + left, head)
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

    `mark`: a number that no chunk had before, by which the marks of others are void.
    """
    origin, target = state.origin[chunk], state.target[chunk]
    row = state.bound_row[target] if target >= 0 else -1
    space.stamp[origin] = space.in_tree[origin] = mark
    space.cost[origin] = 0.0
    space.entry[origin] = -1
    size = _lower(space, 0, 0.0, origin)
    used: Integer = 0
    while size and count:
        node = _pop(space, size)
        size -= 1
        is_new = space.in_tree[node] != mark
        if is_new and (node == target or (target < 0 and state.needed[node])):
            length = _attach(chunk, mark, node, used, arcs, state, space)
            used += length
            count -= 1
            size = _regrow(length, depth_weight, size, space)
        size = _reach_on(node, mark, row, size, arcs, state, space)
    # What is left on the heap is not on it any more for the next chunk.
    for slot in range(size):
        space.place[space.node[slot]] = -1
    return used


@inlined
def _num_targets(chunk: Integer, everyone: Integer, state: RoutingState) -> Integer:
    """Number of nodes that lack a chunk; `everyone`: number of needed nodes."""
    origin, target = state.origin[chunk], state.target[chunk]
    if target < 0:
        return everyone - int(state.needed[origin])
    return int(target != origin)


@kernel
def reroute(
    order: Int64Array,
    position: Integer,
    round_number: Integer,
    used: Integer,
    fullest: Integer,
    budget: Integer,
    aim: Integer,
    steepness: float,
    depth_weight: float,
    arcs: ArcMap,
    state: RoutingState,
    space: TreeWorkspace,
) -> tuple[Integer, Integer, Integer]:
    """Route the chunks `order[position:]` anew, each with the load of all others.

    Until `budget` transfers or no room is left. `aim`: the load to which others are compared, 0:
    the largest so far. Returns the next position, the transfers in use and the largest load so far
    in this round.
    """
    nodes = len(space.cost)
    everyone = 0
    for node in range(nodes):
        everyone += state.needed[node]
    stop = used + budget
    # A tree has less transfers than there are nodes: that much room is always enough.
    while position < len(order) and used < stop and used + nodes <= len(state.new_arc):
        chunk = order[position]
        scale = 1.0 / max(aim if aim > 0 else fullest, 1)
        # The chunk sees the load of all others, not its own of the round before.
        first = state.old_first[chunk]
        for place in range(first, first + state.old_size[chunk]):
            _load(state.old_arc[place], -1, arcs, state, scale, steepness)
        state.new_first[chunk] = used
        mark = round_number * len(order) + position + 1
        count = _num_targets(chunk, everyone, state)
        size = _grow(chunk, mark, count, depth_weight, arcs, state, space)
        state.new_size[chunk] = size
        for place in range(used, used + size):
            arc = state.new_arc[place]
            _load(arc, 1, arcs, state, scale, steepness)
            for link_place in range(arcs.path_indptr[arc], arcs.path_indptr[arc + 1]):
                fullest = max(fullest, state.load[arcs.path[link_place]])
        used += size
        position += 1
    return position, used, fullest
