"""Compiled loops of groups: trees that avoid loaded links, and how long is left to go.

Import it late: numba takes a second.
"""

from __future__ import annotations

import heapq

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import BoolArray, Float64Array, Int64Array


@kernel
def longest_tails(indptr: Int64Array, following: Int64Array, arrival: Int64Array) -> Int64Array:
    """Longest sum of `arrival` from each job on, over the jobs that wait for it; int64.

    Jobs that wait for none are last. Cost: linear (a topological order).
    """
    count = len(arrival)
    waits = np.zeros(count, np.int64)
    for job in following:
        waits[job] += 1
    order = np.empty(count, np.int64)
    found = 0
    for job in range(count):
        if waits[job] == 0:
            order[found] = job
            found += 1
    done = 0
    while done < found:
        job = order[done]
        done += 1
        for place in range(indptr[job], indptr[job + 1]):
            after = following[place]
            waits[after] -= 1
            if waits[after] == 0:
                order[found] = after
                found += 1
    # Backwards, so that all that waits for a job is known.
    tail = arrival.copy()
    for place in range(count - 1, -1, -1):
        job = order[place]
        for edge in range(indptr[job], indptr[job + 1]):
            tail[job] = max(tail[job], arrival[job] + tail[following[edge]])
    return tail


@part
def _grown(
    root: int,
    is_target: BoolArray,
    missing: int,
    indptr: Int64Array,
    arcs: Int64Array,
    head: Int64Array,
    tail: Int64Array,
    length: Float64Array,
    distance: Float64Array,
    entering: Int64Array,
    entry_at: Int64Array,
    tree_arcs: Int64Array,
    tree_parent: Int64Array,
) -> int:
    """Tree from `root` to all targets, the nearest next; returns its arcs, -1 if one is cut off.

    After Takahashi and Matsuyama (Math. Japonica 24, 1980): a path to the nearest target joins the
    tree, from all of which the search goes on. Invariant: what is in the tree has distance 0.
    """
    distance[:] = np.inf
    entering[:] = -1
    entry_at[:] = -1
    distance[root] = 0.0
    queue = [(0.0, root)]
    used = 0
    while len(queue) > 0:
        far, node = heapq.heappop(queue)
        if far > distance[node]:
            continue
        if is_target[node]:
            is_target[node] = False
            missing -= 1
            # Back to the tree, then outwards again, so that parents stand first.
            steps = 0
            at = node
            while at != root and entry_at[at] < 0:
                tree_arcs[used + steps] = entering[at]
                steps += 1
                at = tail[entering[at]]
            tree_arcs[used : used + steps] = tree_arcs[used : used + steps][::-1].copy()
            for place in range(used, used + steps):
                arc = tree_arcs[place]
                tree_parent[place] = entry_at[tail[arc]]
                there = head[arc]
                entry_at[there] = place
                distance[there] = 0.0
                heapq.heappush(queue, (0.0, there))
            used += steps
            if missing == 0:
                return used
            continue
        for place in range(indptr[node], indptr[node + 1]):
            arc = arcs[place]
            there = far + length[arc]
            if there < distance[head[arc]]:
                distance[head[arc]] = there
                entering[head[arc]] = arc
                heapq.heappush(queue, (there, head[arc]))
    return -1


@part
def _add(
    load: Float64Array,
    used: Int64Array,
    path_indptr: Int64Array,
    path_links: Int64Array,
    cost: Float64Array,
    weight: float,
) -> None:
    """Put `weight` bytes on all links of the arcs `used`."""
    for arc in used:
        for step in range(path_indptr[arc], path_indptr[arc + 1]):
            link = path_links[step]
            load[link] += weight * cost[link]


@part
def _measure_arcs(
    load: Float64Array,
    cost: Float64Array,
    steep: float,
    path_indptr: Int64Array,
    path_links: Int64Array,
    price: Float64Array,
    length: Float64Array,
) -> None:
    """Make arcs as long as the links of their paths are dear, and these as dear as loaded."""
    fullest = max(load.max(), 1e-300)
    for link in range(len(cost)):
        filled = load[link] / fullest
        price[link] = cost[link] * np.exp(steep * (filled - 1.0))
    for arc in range(len(length)):
        far = 0.0
        for step in range(path_indptr[arc], path_indptr[arc + 1]):
            far += price[path_links[step]]
        length[arc] = far


@part
def _mark_targets(targets: Int64Array, is_target: BoolArray) -> None:
    """Mark the targets of a tree, and no others."""
    is_target[:] = False
    for target in targets:
        is_target[target] = True


@kernel
def packed(
    root: Int64Array,
    inward: BoolArray,
    weight: Float64Array,
    target_indptr: Int64Array,
    targets: Int64Array,
    out_indptr: Int64Array,
    out_arcs: Int64Array,
    in_indptr: Int64Array,
    in_arcs: Int64Array,
    source: Int64Array,
    destination: Int64Array,
    path_indptr: Int64Array,
    path_links: Int64Array,
    cost: Float64Array,
    rounds: int,
    steepness: float,
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Trees of least load of the fullest link: (arcs in each, arcs, parents), of the best round.

    Tree t spans `root[t]` and its targets with `weight[t]` bytes; `inward`: data flow to the root.
    Every round takes each tree out and grows it anew, on links that are as long as they are loaded:
    cost * exp(steepness * round / rounds * (load / fullest - 1)). The arrays are [trees, NPUs];
    a tree without a way has -1 arcs. Cost: a search per tree and round.
    """
    trees, nodes = len(root), len(out_indptr) - 1
    # Rows as wide as the largest tree can be: a tree grows without new memory.
    size = np.zeros(trees, np.int64)
    tree_arcs = np.zeros((trees, nodes), np.int64)
    tree_parent = np.zeros((trees, nodes), np.int64)
    best_size, best_arcs, best_parent = size.copy(), tree_arcs.copy(), tree_parent.copy()
    load = np.zeros(len(cost), np.float64)
    length = np.empty(len(source), np.float64)
    price = np.empty(len(cost), np.float64)
    is_target = np.zeros(nodes, np.bool_)
    distance = np.empty(nodes, np.float64)
    entering = np.empty(nodes, np.int64)
    entry_at = np.empty(nodes, np.int64)
    least = np.inf
    for turn in range(rounds):
        # Gentle at first, while the loads are not known yet.
        steep = steepness * (turn + 1) / rounds
        for tree in range(trees):
            # The tree must not fear its own load.
            used = tree_arcs[tree, : size[tree]]
            _add(load, used, path_indptr, path_links, cost, -weight[tree])
            _measure_arcs(load, cost, steep, path_indptr, path_links, price, length)
            first, end = target_indptr[tree], target_indptr[tree + 1]
            _mark_targets(targets[first:end], is_target)
            if inward[tree]:
                size[tree] = _grown(
                    root[tree], is_target, end - first, in_indptr, in_arcs, source, destination,
                    length, distance, entering, entry_at, tree_arcs[tree], tree_parent[tree],
                )  # fmt: skip
            else:
                size[tree] = _grown(
                    root[tree], is_target, end - first, out_indptr, out_arcs, destination, source,
                    length, distance, entering, entry_at, tree_arcs[tree], tree_parent[tree],
                )  # fmt: skip
            # Somebody is out of reach: the caller says so.
            if size[tree] < 0:
                return size, tree_arcs, tree_parent
            used = tree_arcs[tree, : size[tree]]
            _add(load, used, path_indptr, path_links, cost, weight[tree])
        if load.max() < least:
            least = load.max()
            best_size[:] = size
            best_arcs[:] = tree_arcs
            best_parent[:] = tree_parent
    return best_size, best_arcs, best_parent
