"""A spanning tree of about least depth: shortest paths from the middle of a network."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from collhub_packing.trees import Tree

from collhub_tacos.networks.distances import ShortestPaths
from collhub_tacos.networks.link_network import LinkNetwork, LinkTimes

Int64Array = npt.NDArray[np.int64]

_LANDMARKS = 16


def central_tree(network: LinkNetwork, times: LinkTimes, members: Int64Array) -> Tree:
    """Shortest paths by `times.arrival` from the node whose farthest member is nearest; links are the arcs.

    The middle is found by distances to at most 16 members, each as far as can be from those before: exact on lines,
    meshes and trees, where these are ends and corners. For networks of NPUs with duplex links, in which all members are
    connected.
    """
    ways = ShortestPaths(network.num_nodes, network.source, network.destination, times.arrival)
    landmarks = members[:1]
    distance = ways.lengths(landmarks)
    while len(landmarks) < min(_LANDMARKS, len(members)):
        landmarks = np.append(landmarks, members[np.argmax(distance[:, members].min(axis=0))])
        distance = np.concatenate([distance, ways.lengths(landmarks[-1:])])
    root = int(np.lexsort((distance.sum(axis=0), distance.max(axis=0)))[0])
    return _shortest_paths(network, times.arrival, ways.lengths(np.asarray([root]))[0], root)


def _shortest_paths(
    network: LinkNetwork, weight: Int64Array, distance: Int64Array, root: int
) -> Tree:
    """Of several last links on shortest paths to a node the first one is taken."""
    tight = np.flatnonzero(distance[network.source] + weight == distance[network.destination])
    nodes, first = np.unique(network.destination[tight], return_index=True)
    arc, parent = np.full(network.num_nodes, -1, np.int64), np.full(network.num_nodes, -1, np.int64)
    arc[nodes] = tight[first]
    parent[nodes] = network.source[tight[first]]
    parent[root] = arc[root] = -1
    return Tree(root, 1, parent, arc)
