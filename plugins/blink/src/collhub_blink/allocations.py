"""The sets of GPUs that a scheduler can give on a machine, one of each kind.

Connected sub-networks up to isomorphism, as Blink counts them (Wang et al., MLSys 2020): 46 on a
DGX-1V and 14 on a DGX-1P.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from collhub_columns import Arcs, Float64Array

from hub_core.network import Topology

_Npus = tuple[int, ...]
_Colour = tuple[tuple[float, ...], tuple[float, ...]]
_Signature = tuple[int, tuple[_Colour, ...]]
_Classes = dict[_Signature, list[list[_Npus]]]


@dataclass(frozen=True, slots=True)
class AllocationClass:
    """`npus`: the first set of its kind in lexicographic order.

    `count`: how many sets are of this kind.
    """

    npus: tuple[int, ...]
    count: int


def allocation_classes(topology: Topology, sizes: Iterable[int]) -> list[AllocationClass]:
    """Connected induced sub-networks of NPUs up to isomorphism that keeps bandwidths.

    Switches are left out. Tries every set of NPUs of these sizes: meant for one server.
    """
    bandwidth = _bandwidths(topology)
    classes: _Classes = {}
    for size in sizes:
        for npus in combinations(range(topology.num_npus), size):
            _sort_in(classes, bandwidth, npus)
    found = list(_kinds(classes))
    return sorted(found, key=lambda kind: (len(kind.npus), kind.npus))


def _kinds(classes: _Classes) -> Iterator[AllocationClass]:
    """Every class by its first member."""
    for alike in classes.values():
        for members in alike:
            yield AllocationClass(members[0], len(members))


def _bandwidths(topology: Topology) -> Float64Array:
    """Bandwidth from every NPU to every other in bytes/s, 0 without a link: float64[NPUs, NPUs]."""
    bandwidth = np.zeros((topology.num_npus, topology.num_npus))
    source, destination = topology.source, topology.destination
    is_direct = (source < topology.num_npus) & (destination < topology.num_npus)
    # Of parallel links the first in link order stands.
    rows = np.flatnonzero(is_direct)[::-1]
    for row in rows:
        bandwidth[source[row], destination[row]] = topology.bandwidth_bytes_per_s[row]
    return bandwidth


def _sort_in(classes: _Classes, bandwidth: Float64Array, npus: _Npus) -> None:
    """Add a set to the class that it belongs to, or open one."""
    own = _restricted(bandwidth, npus)
    if not _is_connected(own):
        return
    # Only sets of one signature can be isomorphic, which is much cheaper to tell.
    signature = (len(npus), tuple(sorted(_colours(own))))
    alike = classes.setdefault(signature, [])
    for members in alike:
        # One member stands for its class, since being isomorphic is transitive.
        if _isomorphism(own, _restricted(bandwidth, members[0])) is not None:
            members.append(npus)
            return
    alike.append([npus])


def _restricted(bandwidth: Float64Array, npus: Sequence[int]) -> Float64Array:
    """Bandwidths among some NPUs."""
    return bandwidth[np.ix_(npus, npus)]


def _is_connected(bandwidth: Float64Array) -> bool:
    """Whether all NPUs can be reached from the first one; true without NPUs."""
    if not len(bandwidth):
        return True
    hops = Arcs(len(bandwidth), *np.nonzero(bandwidth > 0)).hops(np.asarray([0]))
    return bool((hops >= 0).all())


def _colours(bandwidth: Float64Array) -> list[_Colour]:
    """Bandwidths out of and into every node: what an isomorphism cannot change."""
    colours = []
    for node in range(len(bandwidth)):
        outward, inward = sorted(bandwidth[node]), sorted(bandwidth[:, node])
        colours.append((tuple(outward), tuple(inward)))
    return colours


def _isomorphism(one: Float64Array, other: Float64Array) -> list[int] | None:
    """Nodes of `other` that take the places of the nodes of `one`, or None."""
    others = _colours(other)
    images = []
    for wanted in _colours(one):
        images.append([node for node, colour in enumerate(others) if colour == wanted])
    return next(_completions(one, other, images, []), None)


def _completions(
    one: Float64Array,
    other: Float64Array,
    images: list[list[int]],
    chosen: list[int],
) -> Iterator[list[int]]:
    """Isomorphisms that begin with the images that are chosen, node by node."""
    node = len(chosen)
    if node == len(one):
        yield chosen
        return
    # An image must have the same links to and from the images before it.
    for image in images[node]:
        fits = (
            image not in chosen
            and np.array_equal(one[node, :node], other[image, chosen])
            and np.array_equal(one[:node, node], other[chosen, image])
        )
        if fits:
            yield from _completions(one, other, images, [*chosen, image])
