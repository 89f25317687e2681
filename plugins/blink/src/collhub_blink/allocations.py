"""The sets of GPUs that a scheduler can give on a machine, one of each kind: connected sub-networks up to isomorphism."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from hub_core.network import Topology

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AllocationClass:
    """`npus`: the first set of its kind in lexicographic order; `count`: how many sets are of this kind."""

    npus: tuple[int, ...]
    count: int


def allocation_classes(topology: Topology, sizes: Iterable[int]) -> list[AllocationClass]:
    """Connected induced sub-networks of NPUs up to isomorphism that keeps bandwidths; switches are left out.

    Tries every set of NPUs of these sizes: meant for one server.
    """
    bandwidth = np.zeros((topology.num_npus, topology.num_npus))
    direct = np.flatnonzero(
        (topology.source < topology.num_npus) & (topology.destination < topology.num_npus)
    )
    # Of parallel links the first in link order stands.
    for row in direct[::-1]:
        bandwidth[topology.source[row], topology.destination[row]] = topology.bandwidth_bytes_per_s[
            row
        ]
    classes: dict[tuple[object, ...], list[list[tuple[int, ...]]]] = {}
    for size in sizes:
        for npus in combinations(range(topology.num_npus), size):
            _sort_in(classes, bandwidth, npus)
    found = [
        AllocationClass(members[0], len(members)) for alike in classes.values() for members in alike
    ]
    return sorted(found, key=lambda found: (len(found.npus), found.npus))


def _sort_in(
    classes: dict[tuple[object, ...], list[list[tuple[int, ...]]]],
    bandwidth: Float64Array,
    npus: tuple[int, ...],
) -> None:
    """Add a set to the class that it belongs to, or open one."""
    own = _restricted(bandwidth, npus)
    if not _is_connected(own):
        return
    signature = (len(npus), tuple(sorted(_colours(own))))
    alike = classes.setdefault(signature, [])
    for members in alike:
        if _isomorphism(own, _restricted(bandwidth, members[0])) is not None:
            members.append(npus)
            return
    alike.append([npus])


def _restricted(bandwidth: Float64Array, npus: Sequence[int]) -> Float64Array:
    return bandwidth[np.ix_(npus, npus)]


def _is_connected(bandwidth: Float64Array) -> bool:
    reached = np.zeros(len(bandwidth), np.bool_)
    reached[:1] = True
    for _ in range(len(bandwidth)):
        reached |= (bandwidth[reached] > 0).any(axis=0)
    return bool(reached.all())


def _colours(bandwidth: Float64Array) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Bandwidths out of and into every node: what an isomorphism cannot change."""
    return [
        (tuple(sorted(bandwidth[node])), tuple(sorted(bandwidth[:, node])))
        for node in range(len(bandwidth))
    ]


def _isomorphism(one: Float64Array, other: Float64Array) -> list[int] | None:
    """Nodes of `other` that take the places of the nodes of `one`, or None."""
    colours, others = _colours(one), _colours(other)
    images = [
        [node for node, colour in enumerate(others) if colour == wanted] for wanted in colours
    ]
    return next(_completions(one, other, images, []), None)


def _completions(
    one: Float64Array, other: Float64Array, images: list[list[int]], chosen: list[int]
) -> Iterator[list[int]]:
    node = len(chosen)
    if node == len(one):
        yield chosen
        return
    for image in images[node]:
        fits = (
            image not in chosen
            and np.array_equal(one[node, :node], other[image, chosen])
            and np.array_equal(one[:node, node], other[chosen, image])
        )
        if fits:
            yield from _completions(one, other, images, [*chosen, image])
