"""Automorphisms of a network that map one link to another one, each checked link by link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hub_core.columns import Int64Array, UInt64Array
from hub_core.network.topology import Topology

# Multipliers of the hash, from splitmix64 (Steele, Lea, Flood 2014).
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Nodes times links above which no symmetry is searched for: refinements would take seconds.
_MAX_WORK = 1 << 24


@dataclass(frozen=True, slots=True)
class ColouredNetwork:
    """A network whose nodes and links have colours: equal colours are equal properties.

    `node_colour`: uint64[nodes]; `link_colour`: uint64[links]; `source`, `destination`:
    int64[links]. Colours of several networks, and of refinements, can be compared.
    """

    num_nodes: int
    source: Int64Array
    destination: Int64Array
    node_colour: UInt64Array
    link_colour: UInt64Array

    @classmethod
    def of(cls, topology: Topology, weights: Iterable[Int64Array] = ()) -> ColouredNetwork:
        """Create the network with colours of nodes by kind, and of links by their properties.

        The kind of a node is one of 8: NPU or switch, with or without multicast, with or without
        reduction. The properties of a link are bandwidth, latency, plane and its entry in each
        array of `weights` (int64[links], in this order). Its ends are not included.

        A colour is a 64-bit hash: equal kinds or properties give equal colours, and different ones
        differ except for a hash collision. `source` and `destination` are shared with the topology.
        Raises `ValueError` for weights of another length.
        """
        kind = np.zeros(topology.num_nodes, np.int64)
        kind[topology.num_npus :] = 1
        kind[list(topology.multicast)] += 2
        kind[list(topology.reduction)] += 4
        rows = [
            topology.bandwidth_bytes_per_s.view(np.int64),
            topology.latency_s.view(np.int64),
            topology.plane,
            *weights,
        ]
        colour = np.zeros(topology.num_links, np.uint64)
        for row in rows:
            colour = _mix(colour + _mix(np.ascontiguousarray(row).view(np.uint64)))
        return cls(
            topology.num_nodes,
            topology.source,
            topology.destination,
            _mix(kind.view(np.uint64)),
            colour,
        )

    def classify_links(self) -> UInt64Array:
        """Return a colour of every link, uint64[links], which every automorphism preserves.

        It combines the link's own colour and the refined colours of its ends. Equal colours do not
        prove that there is an automorphism.
        """
        colour = self._refine(())
        ends = _mix(colour[self.source] + _FIRST) + _mix(colour[self.destination] + _SECOND)
        classes: UInt64Array = _mix(self.link_colour + ends)
        return classes

    def find_automorphism(self, link: int, other: int) -> Int64Array | None:
        """Find an automorphism that maps a link to another link or to the reverse of that link.

        Returns the image of every node, int64[nodes]; the mapping is checked. Returns None if none
        was found, which does not prove that there is none: the search does not backtrack. It is
        skipped if nodes times links exceed `_MAX_WORK`.
        """
        if self.num_nodes * len(self.source) > _MAX_WORK:
            return None
        nodes = (int(self.source[link]), int(self.destination[link]))
        images = (int(self.source[other]), int(self.destination[other]))
        image = self._complete(nodes, images)
        return self._complete(nodes, images[::-1]) if image is None else image

    def _complete(self, nodes: Sequence[int], images: Sequence[int]) -> Int64Array | None:
        """Complete the mapping of `nodes[i]` to `images[i]` to an automorphism, if possible.

        Returns the image of every node, int64[nodes], or None. Both lists have the same length.
        There is no backtracking, so None does not prove that no automorphism exists. The steps are:

        1. Refine the colours of all nodes twice: with the given nodes individualized, and with
           their images individualized (`_refine`).
        2. If the two sides have different numbers of nodes of any colour, the result is None.
        3. If all colours are different, each node is mapped to the node of its colour. The mapping
           is checked link by link; the result is None if it is no automorphism.
        4. Otherwise take the colour with the fewest nodes, but at least two, of equal ones the
           lowest. Map its lowest node to a node of this colour on the other side: to itself if
           possible, else to the lowest one. Continue with step 1.
        """
        mine, theirs = self._refine(nodes), self._refine(images)
        chosen, chosen_images = list(nodes), list(images)
        while np.array_equal(np.sort(mine), np.sort(theirs)):
            colours, first, counts = np.unique(mine, return_index=True, return_counts=True)
            repeated = np.flatnonzero(counts > 1)
            if not len(repeated):
                image = np.empty(self.num_nodes, np.int64)
                image[np.argsort(mine)] = np.argsort(theirs)
                return image if self._is_automorphism(image) else None
            cell = repeated[np.argmin(counts[repeated])]
            node = int(first[cell])
            candidates = np.flatnonzero(theirs == colours[cell])
            chosen.append(node)
            chosen_images.append(node if node in candidates else int(candidates[0]))
            mine, theirs = self._refine(chosen), self._refine(chosen_images)
        return None

    def _refine(self, individual: Sequence[int]) -> UInt64Array:
        """Return colours of the nodes, uint64[nodes], refined by the colours of neighbours.

        The start are the given colours of the nodes. `individual`: nodes that first each get a
        unique colour, which depends on the given colour and on the position in the list. Then each
        round combines a node's colour with the colours of its links and neighbours, separately for
        outgoing and incoming links. The rounds end when one does not change the number of different
        colours; there is at least one.

        Colours can be compared between calls with lists of equal length. Nodes of different colours
        cannot be mapped to each other by an automorphism that maps one list to the other; nodes of
        equal colours may be.
        """
        colour = self.node_colour.copy()
        for place, node in enumerate(individual, 1):
            colour[node] = _mix(colour[node : node + 1] + np.uint64(place))[0]
        count = len(np.unique(colour))
        while True:
            sums = np.zeros(self.num_nodes, np.uint64)
            # Sums do not depend on the order of the links.
            out = _mix(self.link_colour + _mix(colour[self.destination]))
            into = _mix(self.link_colour + _mix(colour[self.source] + _FIRST))
            np.add.at(sums, self.source, out)
            np.add.at(sums, self.destination, into)
            colour = _mix(colour + _mix(sums + _SECOND))
            refined = len(np.unique(colour))
            if refined == count:
                return colour
            count = refined

    def _is_automorphism(self, image: Int64Array) -> bool:
        """Return whether mapping node i to node `image[i]` leaves the network unchanged.

        Every node must be mapped to a node of the same colour. For every pair of nodes, the
        links between their images must have the same colours as the links between them, with
        parallel links counted. `image` must be a permutation; this is not checked.
        """
        if not np.array_equal(self.node_colour, self.node_colour[image]):
            return False
        before = (self.link_colour, self.destination, self.source)
        after = (self.link_colour, image[self.destination], image[self.source])
        one, other = np.lexsort(before), np.lexsort(after)
        return all(
            np.array_equal(column[one], mapped[other])
            for column, mapped in zip(before, after, strict=True)
        )


def _mix(values: UInt64Array) -> UInt64Array:
    """Return a 64-bit hash of each value, by the finalizer of splitmix64: uint64.

    Different values have different hashes. The argument is unchanged.
    """
    mixed = (values ^ (values >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    result: UInt64Array = mixed ^ (mixed >> np.uint64(31))
    return result
