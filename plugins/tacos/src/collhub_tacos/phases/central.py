"""Spanning tree of about least depth: shortest paths from the middle of a network."""

from __future__ import annotations

import numpy as np
from collhub_packing import SpanningTree

from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes
from hub_core.columns import Int64Array

_LANDMARKS = 16


def central_tree(network: LinkNetwork, times: LinkTimes, members: Int64Array) -> SpanningTree:
    """Shortest paths by `times.arrival` from the node whose farthest member is nearest.

    Links are the arcs of the tree. The middle is found by distances to at most 16 members, each as
    far as can be from those before: exact on lines, meshes and trees, where these are ends and
    corners. For networks of NPUs with duplex links, in which all members are connected.
    """
    nodes = network.num_nodes
    paths = ShortestPaths(nodes, network.source, network.destination, times.arrival)
    distance = _distances_of_landmarks(paths, members)
    farthest, total = distance.max(axis=0), distance.sum(axis=0)
    # Of several middles the one that is nearest to all landmarks.
    root = int(np.lexsort((total, farthest))[0])
    from_root = paths.lengths(np.asarray([root]))[0]
    return _tree_of_paths(network, times.arrival, from_root, root)


def _distances_of_landmarks(paths: ShortestPaths, members: Int64Array) -> Int64Array:
    """Distances int64[landmarks, nodes] from members that are far from one another."""
    distance = paths.lengths(members[:1])
    while len(distance) < min(_LANDMARKS, len(members)):
        nearest = distance[:, members].min(axis=0)
        farthest = members[[int(np.argmax(nearest))]]
        distance = np.concatenate([distance, paths.lengths(farthest)])
    return distance


def _tree_of_paths(
    network: LinkNetwork, weight: Int64Array, distance: Int64Array, root: int
) -> SpanningTree:
    """SpanningTree of shortest paths; of several last links to a node the first one is taken."""
    source, destination = network.source, network.destination
    # Links that lie on a shortest path.
    is_tight = distance[source] + weight == distance[destination]
    tight = np.flatnonzero(is_tight)
    nodes, first = np.unique(destination[tight], return_index=True)
    arc = np.full(network.num_nodes, -1, np.int64)
    parent = np.full(network.num_nodes, -1, np.int64)
    arc[nodes] = tight[first]
    parent[nodes] = source[tight[first]]
    parent[root] = arc[root] = -1
    return SpanningTree(root, 1, parent, arc)
