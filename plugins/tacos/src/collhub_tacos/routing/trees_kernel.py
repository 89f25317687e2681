"""Compiled choice of routes: for every chunk a tree from its origin to its targets, over links that are little loaded.

Import it late: importing numba takes a second.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collhub_tacos.compiling import kernel, part

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
Integer = int | np.int64


class ArcMap(NamedTuple):
    """The network. `out_indptr`, `out`: the arcs that leave every node; `head`, `tail`: ends of an arc.

    `path_indptr`, `path`: the links of every arc; `busy`, `arrival`: times of a message on every link. All int64.
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

    `origin`, `target`: int64 per chunk; target -1: all nodes of `needed` (bool). `bound`: float64[rows, nodes], distance
    to a target, and `bound_row`: int64 per node, its row or -1. `load`: int64 per link, picoseconds; `cost`: float64 per
    link. `old_*`, `new_*`: transfers of the round before and of this one: of chunk x those from `first[x]` on,
    `size[x]` many; `parent` counts from the start of the chunk, -1 at the origin.
    """

    origin: Int64Array
    target: Int64Array
    needed: npt.NDArray[np.bool_]
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
    """Room to work in. Per node: `cost` from the tree, `arc` by which it is reached, `entry`: its transfer, `stamp`: the last
    chunk that reached it, `in_tree`: the last that has it in its tree. `key`, `node`: a binary heap, `place`: where on it."""

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
def _lower(search: TreeWorkspace, size: Integer, key: float, node: Integer) -> Integer:
    """Put a node on the heap, or give one that is there a smaller key; return the size of the heap."""
    keys, nodes, places = search.key, search.node, search.place
    hole = places[node]
    if hole < 0:
        hole = size
        size += 1
    while hole > 0 and keys[(hole - 1) >> 1] > key:
        parent = (hole - 1) >> 1
        keys[hole], nodes[hole] = keys[parent], nodes[parent]
        places[nodes[hole]] = hole
        hole = parent
    keys[hole], nodes[hole], places[node] = key, node, hole
    return size


@part
def _pop(search: TreeWorkspace, size: Integer) -> Integer:
    """Take the node of the smallest key off a heap of `size`."""
    keys, nodes, places = search.key, search.node, search.place
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
        keys[hole], nodes[hole] = keys[child], nodes[child]
        places[nodes[hole]] = hole
        hole, child = child, 2 * child + 1
    if size:
        keys[hole], nodes[hole], places[node] = key, node, hole
    return top


@kernel
def distances(
    world: ArcMap, in_indptr: Int64Array, targets: Int64Array, search: TreeWorkspace
) -> Float64Array:
    """Time of the fastest way from every node to every target: float64[targets, nodes], infinite where there is none."""
    nodes = len(search.cost)
    result = np.full((len(targets), nodes), np.inf)
    for row in range(len(targets)):
        cost = result[row]
        cost[targets[row]] = 0.0
        size = _lower(search, 0, 0.0, targets[row])
        while size:
            node = _pop(search, size)
            size -= 1
            for arc in range(in_indptr[node], in_indptr[node + 1]):
                time = cost[node]
                for position in range(world.path_indptr[arc], world.path_indptr[arc + 1]):
                    time += world.arrival[world.path[position]]
                tail = world.tail[arc]
                if time < cost[tail]:
                    cost[tail] = time
                    size = _lower(search, size, time, tail)
    return result


@part
def _weigh(
    link: Integer, world: ArcMap, routing: RoutingState, scale: float, steepness: float
) -> None:
    """A link costs its time, and more the closer its load is to the one that others are compared to, `1 / scale`."""
    share = routing.load[link] * scale
    square = share * share
    fourth = square * square
    routing.cost[link] = world.arrival[link] + world.busy[link] * steepness * fourth * fourth


@part
def _load(
    arc: Integer,
    sign: Integer,
    world: ArcMap,
    routing: RoutingState,
    scale: float,
    steepness: float,
) -> None:
    for position in range(world.path_indptr[arc], world.path_indptr[arc + 1]):
        link = world.path[position]
        routing.load[link] += sign * world.busy[link]
        _weigh(link, world, routing, scale, steepness)


@part
def _attach(
    chunk: Integer,
    mark: Integer,
    node: Integer,
    used: Integer,
    world: ArcMap,
    routing: RoutingState,
    search: TreeWorkspace,
) -> Integer:
    """Add the way from the tree to a node that was reached; return the number of its transfers."""
    length: Integer = 0
    while search.in_tree[node] != mark:
        search.trail[length] = node
        length += 1
        node = world.tail[search.arc[node]]
    for place in range(length - 1, -1, -1):
        node = search.trail[place]
        arc = search.arc[node]
        search.in_tree[node] = mark
        search.entry[node] = used
        routing.new_arc[routing.new_first[chunk] + used] = arc
        routing.new_parent[routing.new_first[chunk] + used] = search.entry[world.tail[arc]]
        used += 1
    return length


@part
def _grow(
    chunk: Integer,
    mark: Integer,
    count: Integer,
    depth_weight: float,
    world: ArcMap,
    routing: RoutingState,
    search: TreeWorkspace,
) -> Integer:
    """Grow the tree of a chunk until it has `count` targets; return its number of transfers."""
    origin, target = routing.origin[chunk], routing.target[chunk]
    row = routing.bound_row[target] if target >= 0 else -1
    search.stamp[origin] = search.in_tree[origin] = mark
    search.cost[origin] = 0.0
    search.entry[origin] = -1
    size = _lower(search, 0, 0.0, origin)
    used: Integer = 0
    while size and count:
        node = _pop(search, size)
        size -= 1
        if search.in_tree[node] != mark and (
            node == target or (target < 0 and routing.needed[node])
        ):
            length = _attach(chunk, mark, node, used, world, routing, search)
            used += length
            count -= 1
            # A node of the tree is a better start than it was an end.
            for place in range(length):
                other = search.trail[place]
                search.cost[other] *= depth_weight
                if place:
                    size = _lower(search, size, search.cost[other], other)
        base = search.cost[node]
        for position in range(world.out_indptr[node], world.out_indptr[node + 1]):
            arc = world.out[position]
            head = world.head[arc]
            if search.in_tree[head] == mark:
                continue
            cost = base
            for place in range(world.path_indptr[arc], world.path_indptr[arc + 1]):
                cost += routing.cost[world.path[place]]
            if search.stamp[head] != mark or cost < search.cost[head]:
                search.stamp[head] = mark
                search.cost[head] = cost
                search.arc[head] = arc
                size = _lower(
                    search, size, cost + (routing.bound[row, head] if row >= 0 else 0.0), head
                )
    for slot in range(size):
        search.place[search.node[slot]] = -1
    return used


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
    world: ArcMap,
    routing: RoutingState,
    search: TreeWorkspace,
) -> tuple[Integer, Integer, Integer]:
    """Route the chunks `order[position:]` anew, each with the load of all others, until `budget` transfers or no room is left.

    `aim`: the load to which others are compared, 0: the largest so far. Returns the next position, the transfers in use
    and the largest load so far in this round.
    """
    nodes = len(search.cost)
    everyone = 0
    for node in range(nodes):
        everyone += routing.needed[node]
    stop = used + budget
    while position < len(order) and used < stop and used + nodes <= len(routing.new_arc):
        chunk = order[position]
        scale = 1.0 / max(aim if aim > 0 else fullest, 1)
        first = routing.old_first[chunk]
        for place in range(first, first + routing.old_size[chunk]):
            _load(routing.old_arc[place], -1, world, routing, scale, steepness)
        target = routing.target[chunk]
        count = (
            everyone - routing.needed[routing.origin[chunk]]
            if target < 0
            else int(target != routing.origin[chunk])
        )
        routing.new_first[chunk] = used
        size = _grow(
            chunk,
            round_number * len(order) + position + 1,
            count,
            depth_weight,
            world,
            routing,
            search,
        )
        routing.new_size[chunk] = size
        for place in range(used, used + size):
            arc = routing.new_arc[place]
            _load(arc, 1, world, routing, scale, steepness)
            for link_place in range(world.path_indptr[arc], world.path_indptr[arc + 1]):
                fullest = max(fullest, routing.load[world.path[link_place]])
        used += size
        position += 1
    return position, used, fullest
