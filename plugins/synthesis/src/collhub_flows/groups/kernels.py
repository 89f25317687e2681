"""Compiled loops of groups: trees that avoid loaded links, and longest remaining paths.

Import this module inside functions, because the import of numba takes a second.
"""

from __future__ import annotations

import heapq

import numpy as np
from collhub_packing.compiling import kernel, part

from hub_core.columns import BoolArray, Float64Array, Int64Array


@kernel
def compute_longest_tails(
    indptr: Int64Array, following: Int64Array, arrival: Int64Array
) -> Int64Array:
    """Compute for each job the longest path that starts with it: int64[jobs].

    A path leads from a job to one that waits for it, and so on. Its length is the sum of `arrival`
    of its jobs, including the first one. `following[indptr[j]:indptr[j + 1]]` are the jobs that
    wait for j; there must be no cycles.
    """
    count = len(arrival)
    waits = np.zeros(count, np.int64)
    for job in following:
        waits[job] += 1
    order = np.empty(count, np.int64)
    count_ready = 0
    for job in range(count):
        if waits[job] == 0:
            order[count_ready] = job
            count_ready += 1
    done = 0
    while done < count_ready:
        job = order[done]
        done += 1
        for entry in range(indptr[job], indptr[job + 1]):
            after = following[entry]
            waits[after] -= 1
            if waits[after] == 0:
                order[count_ready] = after
                count_ready += 1
    # In reversed order, so that all dependent jobs are complete.
    tail = arrival.copy()
    for entry in range(count - 1, -1, -1):
        job = order[entry]
        for edge in range(indptr[job], indptr[job + 1]):
            tail[job] = max(tail[job], arrival[job] + tail[following[edge]])
    return tail


@part
def _build_tree(
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
    """Build a tree from `root` to all targets, with short arcs; return its number of arcs.

    -1 if a target is unreachable. The method repeatedly adds the path to the nearest target (of
    equal ones that with the lowest number) and continues the search from the entire tree (Takahashi
    and Matsuyama, Math. Japonica 24, 1980). `missing` is the number of targets; `is_target` is
    cleared for those that are reached. `arcs[indptr[n]:indptr[n + 1]]` leave node n, `length` is by
    arc. Fills `tree_arcs` (arcs of the tree, parents first) and `tree_parent` (index in `tree_arcs`
    of each arc's parent, -1 at the root). `distance`, `entering` and `entry_at` are work arrays by
    node, which are overwritten.
    """
    distance[:] = np.inf
    entering[:] = -1
    entry_at[:] = -1
    distance[root] = 0.0
    queue = [(0.0, root)]
    used = 0
    while len(queue) > 0:
        node_distance, node = heapq.heappop(queue)
        if node_distance > distance[node]:
            continue
        if is_target[node]:
            is_target[node] = False
            missing -= 1
            # Collected backwards to the tree and then reversed, so that parents come first.
            steps = 0
            at = node
            while at != root and entry_at[at] < 0:
                tree_arcs[used + steps] = entering[at]
                steps += 1
                at = tail[entering[at]]
            tree_arcs[used : used + steps] = tree_arcs[used : used + steps][::-1].copy()
            for entry in range(used, used + steps):
                arc = tree_arcs[entry]
                tree_parent[entry] = entry_at[tail[arc]]
                next_distance = head[arc]
                entry_at[next_distance] = entry
                distance[next_distance] = 0.0
                heapq.heappush(queue, (0.0, next_distance))
            used += steps
            if missing == 0:
                return used
            continue
        for entry in range(indptr[node], indptr[node + 1]):
            arc = arcs[entry]
            next_distance = node_distance + length[arc]
            if next_distance < distance[head[arc]]:
                distance[head[arc]] = next_distance
                entering[head[arc]] = arc
                heapq.heappush(queue, (next_distance, head[arc]))
    return -1


@part
def _add_load(
    load: Float64Array,
    used: Int64Array,
    path_indptr: Int64Array,
    path_links: Int64Array,
    cost: Float64Array,
    weight: float,
) -> None:
    """Add `weight` bytes to the load of every link on the paths of the arcs `used`, in place.

    `load[l]` grows by `weight * cost[l]`, the time of the link; a link on two of the paths, or an
    arc listed twice, counts twice. `path_links[path_indptr[a]:path_indptr[a + 1]]` are the links of
    arc a.
    """
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
    """Compute how unwelcome each arc is for the next tree: longer if its links are more loaded.

    Fills `price` by link and `length` by arc. The price of a link is cost * exp(steep * (load /
    maximum load - 1)). The length of an arc is the sum of the prices of its links,
    `path_links[path_indptr[a]:path_indptr[a + 1]]` for arc a.
    """
    fullest = max(load.max(), 1e-300)
    for link in range(len(cost)):
        filled = load[link] / fullest
        price[link] = cost[link] * np.exp(steep * (filled - 1.0))
    for arc in range(len(length)):
        total = 0.0
        for step in range(path_indptr[arc], path_indptr[arc + 1]):
            total += price[path_links[step]]
        length[arc] = total


@part
def _mark_targets(targets: Int64Array, is_target: BoolArray) -> None:
    """Set the mask `is_target` in place: True for the nodes `targets`, False for all other nodes.

    `targets`: numbers of nodes.
    """
    is_target[:] = False
    for target in targets:
        is_target[target] = True


@kernel
def pack(
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
    """Pack trees so that the maximum load of a link is small; return the trees of the best round.

    Tree t spans `root[t]` and its targets, `targets[target_indptr[t]:target_indptr[t + 1]]`, with
    `weight[t]` bytes. `inward`: data flow to the root. Every round removes each tree and builds it
    again, with link lengths that depend on the load of all other trees: cost * exp(steepness *
    (round + 1) / rounds * (load / maximum load - 1)). Of equally good rounds the first is returned.

    Returns the number of arcs per tree, and the arcs and parents as int64[trees, NPUs], of which
    only the first entries of a row are used. If a target is unreachable, it returns at once with -1
    arcs for this tree. Cost: a search per tree and round.
    """
    trees, nodes = len(root), len(out_indptr) - 1
    # Rows have the maximum size of a tree, so that no memory is allocated in the loop.
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
    best_load = np.inf
    for round_index in range(rounds):
        # The steepness grows, because the loads are not known in the first rounds.
        steep = steepness * (round_index + 1) / rounds
        for tree in range(trees):
            # The load of the tree itself must not count.
            used = tree_arcs[tree, : size[tree]]
            _add_load(load, used, path_indptr, path_links, cost, -weight[tree])
            _measure_arcs(load, cost, steep, path_indptr, path_links, price, length)
            first, end = target_indptr[tree], target_indptr[tree + 1]
            _mark_targets(targets[first:end], is_target)
            if inward[tree]:
                size[tree] = _build_tree(
                    root[tree], is_target, end - first, in_indptr, in_arcs, source, destination,
                    length, distance, entering, entry_at, tree_arcs[tree], tree_parent[tree],
                )  # fmt: skip
            else:
                size[tree] = _build_tree(
                    root[tree], is_target, end - first, out_indptr, out_arcs, destination, source,
                    length, distance, entering, entry_at, tree_arcs[tree], tree_parent[tree],
                )  # fmt: skip
            # The caller reports the unreachable target.
            if size[tree] < 0:
                return size, tree_arcs, tree_parent
            used = tree_arcs[tree, : size[tree]]
            _add_load(load, used, path_indptr, path_links, cost, weight[tree])
        if load.max() < best_load:
            best_load = load.max()
            best_size[:] = size
            best_arcs[:] = tree_arcs
            best_parent[:] = tree_parent
    return best_size, best_arcs, best_parent
