"""The sets of GPUs that a job scheduler can allocate on a host, one representative per class.

Connected sub-networks up to isomorphism, as Blink counts them (Wang et al., MLSys 2020): 46 on a
DGX-1V and 14 on a DGX-1P.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hub_core.columns import Arcs, Float64Array
from hub_core.network import Topology

_Npus = tuple[int, ...]
_Color = tuple[tuple[float, ...], tuple[float, ...]]
_Signature = tuple[int, tuple[_Color, ...]]
_Classes = dict[_Signature, list[list[_Npus]]]


@dataclass(frozen=True, slots=True)
class AllocationClass:
    """A class of isomorphic sets of NPUs.

    `npus`: the lexicographically first set. `count`: number of sets.
    """

    npus: tuple[int, ...]
    count: int


def find_allocation_classes(topology: Topology, sizes: Iterable[int]) -> list[AllocationClass]:
    """Group the connected sets of NPUs of the given `sizes` into isomorphism classes.

    A set is connected if links between its NPUs lead, in link direction, from its lowest NPU to all
    others. Two sets are in one class if an isomorphism preserves all bandwidths between their NPUs,
    which must be exactly equal. Links to switches are ignored, and of parallel links only the first
    counts. A class has its lexicographically first set, as ascending NPUs, and the number of its
    sets. Classes are sorted by size, then by the first set.

    A size that occurs twice in `sizes` doubles the `count` of each of its classes. Size 0 gives one
    class with the empty set and the count 1. Sizes above the number of NPUs give no class. A
    negative size raises `ValueError`. All sets of each size are tested, so use it for one host
    only.
    """
    # The bandwidth between NPUs in bytes/s, 0 without a link: float64[NPUs, NPUs].
    bandwidth = np.zeros((topology.num_npus, topology.num_npus))
    source, destination = topology.source, topology.destination
    is_direct = (source < topology.num_npus) & (destination < topology.num_npus)
    # Reversed order, so that the first of parallel links counts.
    rows = np.flatnonzero(is_direct)[::-1]
    for row in rows:
        bandwidth[source[row], destination[row]] = topology.bandwidth_bytes_per_s[row]
    classes: _Classes = {}
    for size in sizes:
        for npus in combinations(range(topology.num_npus), size):
            _add_to_class(classes, bandwidth, npus)
    allocation_classes = [
        AllocationClass(members[0], len(members))
        for candidates in classes.values()
        for members in candidates
    ]
    return sorted(allocation_classes, key=lambda kind: (len(kind.npus), kind.npus))


def _add_to_class(classes: _Classes, bandwidth: Float64Array, npus: _Npus) -> None:
    """Add a set of NPUs to its isomorphism class, or to a new class; skip unconnected sets.

    `bandwidth`: bytes/s, float64[from, to] of all NPUs, 0 without a link. A set is connected if all
    of its NPUs can be reached from its first one by links within the set. For an unconnected set
    nothing changes. The empty set is connected.

    Two sets are of one class if an isomorphism preserves all bandwidths between their NPUs.
    `classes` is changed: a class is the list of its sets in the order in which they were added, and
    a new class is appended to the classes of its signature. Sets with different signatures are not
    isomorphic. The signature is the number of NPUs, and the sorted colours of the NPUs. The colour
    of an NPU is the pair of its ascending bandwidths to the NPUs of the set, and from them.
    """
    restricted = _restrict(bandwidth, npus)
    if npus:
        hops = Arcs(len(npus), *np.nonzero(restricted > 0)).hops(np.asarray([0]))
        if (hops < 0).any():
            return
    # Isomorphic sets have equal signatures, which are much faster to compare.
    signature = (len(npus), tuple(sorted(_compute_colors(restricted))))
    candidates = classes.setdefault(signature, [])
    for members in candidates:
        # One member represents its class, since isomorphism is transitive.
        target = _restrict(bandwidth, members[0])
        target_colors = _compute_colors(target)
        images = []
        for source_color in _compute_colors(restricted):
            images.append(
                [node for node, color in enumerate(target_colors) if color == source_color]
            )
        if next(_generate_isomorphisms(restricted, target, images, []), None) is not None:
            members.append(npus)
            return
    candidates.append([npus])


def _restrict(bandwidth: Float64Array, npus: Sequence[int]) -> Float64Array:
    """Return the bandwidths among the given NPUs."""
    return bandwidth[np.ix_(npus, npus)]


def _compute_colors(bandwidth: Float64Array) -> list[_Color]:
    """Compute a colour for every node, in the order of the nodes.

    A colour is the pair of the sorted bandwidths from the node to all nodes, and to the
    node from all nodes. An isomorphism maps a node only to a node of equal colour, but
    nodes of equal colour need not correspond. `bandwidth`: bytes/s, float64[from, to], 0
    without a link.
    """
    colours = []
    for node in range(len(bandwidth)):
        outward, inward = sorted(bandwidth[node]), sorted(bandwidth[:, node])
        colours.append((tuple(outward), tuple(inward)))
    return colours


def _generate_isomorphisms(
    source: Float64Array,
    target: Float64Array,
    images: list[list[int]],
    chosen: list[int],
) -> Iterator[list[int]]:
    """Yield all isomorphisms of two networks that begin with the images `chosen`, by backtracking.

    An isomorphism is a new list with the image in `target` of nodes 0, 1 and so on of `source`.
    Images are different. The bandwidth from one node to another equals the one between their
    images, in both directions. `images[v]`: candidates for the image of node v, in the order in
    which they are tried, so the isomorphisms are in the lexicographic order of these candidates.

    `chosen`: images of the first nodes, which are not checked; [] for none. If it has an image of
    every node, only `chosen` itself is yielded; two empty networks yield []. Both networks should
    have equal sizes: a larger `target` has nodes that are no images.
    """
    node = len(chosen)
    if node == len(source):
        yield chosen
        return
    # An image must have the same links to and from the previous images.
    for image in images[node]:
        fits = (
            image not in chosen
            and np.array_equal(source[node, :node], target[image, chosen])
            and np.array_equal(source[:node, node], target[chosen, image])
        )
        if fits:
            yield from _generate_isomorphisms(source, target, images, [*chosen, image])
