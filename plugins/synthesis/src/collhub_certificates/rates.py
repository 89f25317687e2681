"""Recompute the rate of the trees within the links' capacities, and compare the traffic.

Every tree must be a tree, every rank must get an equal part, and the algorithm must send between
its ranks the data that the trees describe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np

from collhub_certificates.claim import Claim, FlawError, format_gb
from hub_core.model import ROOTED, Algorithm, CollectiveKind, StepKind
from hub_core.schedules import CertifiedPlane, CertifiedTree, CertifiedWay, LinkCapacities

# Numbers of two nodes; nodes of a certificate have no other names.
NodePair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DirectedTree:
    """A tree in one or both directions, with the weight that it puts on every link.

    `parents`: parent of every NPU except the root; `routes`: the switches between both, if any.
    `is_down`, `is_up`: messages are sent from parents, and to parents. `served`: the rank whose
    part it carries. `npus`: number of nodes that are no switches.
    """

    weight: Fraction
    parents: Mapping[int, int]
    routes: Mapping[int, Sequence[int]]
    is_down: bool
    is_up: bool
    served: int
    npus: int

    def hops(self) -> Iterator[NodePair]:
        """Yield the messages between NPUs as (sender, receiver), without the switches between.

        An NPU on the route from a parent to a child receives and sends on.
        """
        for stops in self._stops():
            # Switches have higher numbers than NPUs.
            npus = [node for node in stops if node < self.npus]
            yield from pairwise(npus)

    def links(self) -> Iterator[NodePair]:
        """Yield every link (from, to) on the routes of the messages; repeated ones are repeated."""
        for stops in self._stops():
            yield from pairwise(stops)

    def _stops(self) -> Iterator[list[int]]:
        """Yield the nodes from every parent to its child, and from child to parent, as lists.

        The first are yielded if data flow down, the second if data flow up, so both for a tree of
        both directions. A list has both ends and the nodes of the route between them.
        """
        for node, parent in self.parents.items():
            between = self.routes.get(node, ())
            stops = [parent, *between, node]
            if self.is_down:
                yield stops
            if self.is_up:
                yield stops[::-1]


def direct_tree(tree: CertifiedTree, claim: Claim) -> list[DirectedTree]:
    """Check a tree of a certificate; return one directed tree per direction in which data use it.

    - An all-reduce has one that is used in both directions. If the certificate lists a separate
      tree for the reduction (`up`), it has two: first the tree down, then `up`.
    - Reduce, gather and reduce-scatter have one, up to the root.
    - All other collectives have one, down from the root.

    Targets are all ranks, or the only `target` of a tree of a scatter or gather. Raises `FlawError`
    (`tree`) in the first of these cases:

    - the root of the tree is not the root of a rooted collective
    - the root or a target is not a rank
    - a directed tree is invalid (`_build_directed_tree`): for example a target is not connected to
      the root
    """
    only = _get_only_target(tree, claim)
    targets = claim.ranks if only is None else [only]
    # Refuse a tree with a wrong root or wrong targets.
    root = tree["root"]
    if claim.kind in ROOTED and root != claim.root:
        message = f"a tree is rooted at {root}, not at the root {claim.root}"
        raise FlawError("tree", message)
    are_ranks = set(targets) <= set(claim.ranks)
    if root not in claim.ranks or not are_ranks:
        message = f"the tree of root {root} starts at no rank, or leads to none"
        raise FlawError("tree", message)
    if claim.kind is not CollectiveKind.ALL_REDUCE:
        is_up = claim.is_collecting
        return [_build_directed_tree(tree, tree, targets, claim, is_down=not is_up, is_up=is_up)]
    if "up" not in tree:
        # Data are collected and distributed on the same tree.
        return [_build_directed_tree(tree, tree, targets, claim, is_down=True, is_up=True)]
    return [
        _build_directed_tree(tree, tree, targets, claim, is_down=True, is_up=False),
        _build_directed_tree(tree["up"], tree, targets, claim, is_down=False, is_up=True),
    ]


def _get_only_target(tree: CertifiedTree, claim: Claim) -> int | None:
    """Return the only rank that a tree of a scatter or gather serves.

    None if the tree reaches all ranks, and for all other collectives.
    """
    if claim.may_serve_one:
        return tree.get("target")
    return None


def _build_directed_tree(
    direction: CertifiedWay,
    tree: CertifiedTree,
    targets: Sequence[int],
    claim: Claim,
    *,
    is_down: bool,
    is_up: bool,
) -> DirectedTree:
    """Build a directed tree from the parents and routes of `direction`, and check its form.

    `direction` has a list of parents by NPU (negative: no parent), and routes by node. A route
    lists the nodes between a node and its parent; without `routes` there are none. Root and weight
    are those of `tree`. `is_down` and `is_up` say whether data flow away from the root and to it;
    both can be true. `served` is the only target of a scatter or gather tree, otherwise the root.

    Raises `FlawError` (`tree`) in the first of these cases:

    - The root has a parent.
    - Following the parents from a target, or from a node with a parent, does not end at the root.
    - The list does not have one parent per NPU of the network.
    - A node without a parent has a route.

    The nodes on routes are not checked.
    """
    root = tree["root"]
    npus = claim.document["network"]["npus"]
    parents = {node: parent for node, parent in enumerate(direction["parents"]) if parent >= 0}
    if root in parents:
        raise FlawError("tree", f"the root {root} of a tree hangs on another node")
    for start in (*targets, *parents):
        node, steps = start, 0
        while node != root:
            steps += 1
            # More steps than nodes with a parent indicate a cycle.
            if node not in parents or steps > len(parents):
                raise FlawError("tree", f"NPU {start} does not hang on the tree of root {root}")
            node = parents[node]
    routes = {int(node): route for node, route in direction.get("routes", {}).items()}
    if len(direction["parents"]) != npus or not set(routes) <= set(parents):
        message = f"the tree of root {root} names nodes that are none of its NPUs"
        raise FlawError("tree", message)
    only = _get_only_target(tree, claim)
    return DirectedTree(
        Fraction(tree["weight"]),
        parents,
        routes,
        is_down=is_down,
        is_up=is_up,
        # A tree that reaches all ranks carries the part of its root.
        served=root if only is None else only,
        npus=npus,
    )


def check_traffic(
    directed_trees: Sequence[DirectedTree],
    data_per_rate: Fraction,
    algorithm: Algorithm,
    plane: int,
    num_planes: int,
) -> None:
    """Check that an algorithm sends on a plane exactly the data that the plane's trees carry.

    For each pair (sender, receiver), the units of all its messages divided by the units of
    the collective are compared exactly with the sum of `data_per_rate` times the weight of
    each tree that uses the pair. Messages on channel c use plane c modulo `num_planes`.
    Raises `FlawError` (`certificate-traffic`) with the lowest pair that differs. A pair that only
    sends messages of 0 units differs if no tree uses it.
    """
    planned: dict[NodePair, Fraction] = {}
    for tree in directed_trees:
        for hop in tree.hops():
            planned[hop] = planned.get(hop, Fraction(0)) + tree.weight * data_per_rate
    steps = algorithm.steps
    # A message on channel c takes links of plane c modulo the number of planes.
    is_on_plane = steps.channel % num_planes == plane
    sends = np.flatnonzero(is_on_plane & (steps.kind == StepKind.SEND))
    # The algorithm may be wrong: an invalid peer must not be mistaken for another pair.
    source = steps.rank[sends].astype(np.int64)
    pairs, row = np.unique(source << 32 | steps.peer[sends], return_inverse=True)
    # Integers throughout: the sums of `bincount` with weights would be rounded.
    units = np.zeros(len(pairs), np.int64)
    np.add.at(units, row, steps.count[sends])
    moved: dict[NodePair, Fraction] = {}
    for code, count in zip(pairs.tolist(), units.tolist(), strict=True):
        moved[code >> 32, code & 0xFFFFFFFF] = Fraction(count, algorithm.collective.unit_count)
    for pair in sorted(moved.keys() | planned.keys()):
        if moved.get(pair) != planned.get(pair):
            direction = f"from rank {pair[0]} to rank {pair[1]}"
            message = f"the algorithm does not send what the trees say {direction}"
            raise FlawError("traffic", message)


def compute_carried_rate(claim: Claim, algorithm: Algorithm | None) -> Fraction:
    """Check the trees of all planes, and return the sum of their rates in bytes/s.

    The bytes are those of the complete collective. A plane is an independent network; a tree
    without `plane` is on plane 0. `_compute_plane_rate` checks the planes in ascending order. If
    the network has several, those without trees and without an entry in the certificate are
    skipped. `algorithm`: its traffic must be that of the trees; None skips this check.

    Raises `FlawError`, in this order:

    1. `planes`: there are several planes, and the shares of the entries do not add up to 1, or an
       entry is of an unknown plane.
    2. `tree`, `load`, `rate`, `parts`, `planes` or `traffic`: a plane is wrong
       (`_compute_plane_rate`). The only plane of a network needs at least one tree.
    3. `planes`: a tree is on a plane that the network does not have.
    """
    carrying = claim.carrying_planes()
    trees = claim.document["trees"]
    total = Fraction(0)
    for plane in range(len(claim.planes)):
        entries = [tree for tree in trees if tree.get("plane", 0) == plane]
        # If there are several planes, some may be idle.
        is_idle = len(claim.planes) > 1 and plane not in carrying
        if entries or not is_idle:
            total += _compute_plane_rate(claim, plane, entries, carrying, algorithm)
    if any(tree.get("plane", 0) >= len(claim.planes) for tree in trees):
        raise FlawError("planes", "a tree is on a plane that the network does not have")
    return total


def _compute_plane_rate(
    claim: Claim,
    plane: int,
    entries: Sequence[CertifiedTree],
    carrying: Mapping[int, CertifiedPlane],
    algorithm: Algorithm | None,
) -> Fraction:
    """Recompute and check the rate of a plane's trees, in bytes of the collective per second.

    A plane is an independent network. `entries`: the certificate's trees on it. `carrying`: the
    certificate's planes by number; {} for a network of one plane. The first flaw raises
    `FlawError`:

    1. Every entry is a valid tree (`direct_tree`).
    2. The trees fit into the links and serve all ranks equally (`_compute_packed_rate`).
    3. Unless `carrying` is empty, it has this plane with the recomputed rate (`planes`).
    4. Unless `algorithm` is None, it sends on the plane exactly the data of the trees (`traffic`).
       The trees carry the share of the plane in `carrying`, or all data if `carrying` is empty.
    """
    directed_trees: list[DirectedTree] = []
    for tree in entries:
        directed_trees += direct_tree(tree, claim)
    rate = _compute_packed_rate(claim, entries, directed_trees, claim.planes[plane])
    claimed, share = rate, Fraction(1)
    if plane in carrying:
        claimed = Fraction(carrying[plane]["rate"])
        share = Fraction(carrying[plane]["share"])
    is_unclaimed = bool(carrying) and plane not in carrying
    if claimed != rate or is_unclaimed:
        message = f"the trees of plane {plane} carry {format_gb(rate)}, not what is claimed"
        raise FlawError("planes", message)
    if algorithm is not None:
        check_traffic(directed_trees, share / rate, algorithm, plane, len(claim.planes))
    return rate


def _compute_packed_rate(
    claim: Claim,
    entries: Sequence[CertifiedTree],
    directed_trees: Sequence[DirectedTree],
    capacities: LinkCapacities,
) -> Fraction:
    """Check that the trees of a plane fit into its links; return their rate in bytes/s.

    The rate is the sum of the weights of `entries`. For a scatter or gather of n ranks it is
    multiplied by n / (n - 1), because the root's part is not sent.

    `directed_trees`: the same trees by direction; each adds its weight to the load of its links.
    `capacities`: bytes/s by (source, destination); a missing link has 0. Raises `FlawError` for the
    first flaw:

    1. `load`: the load of a link exceeds its capacity. Links are in ascending order.
    2. `rate`: the weights add up to 0.
    3. `parts`: in a collective with a part per rank, the trees with the part of a rank do not have
       exactly 1/n of the rate. The root of a scatter or gather is not checked.
    """
    # Every route between a parent and its child counts, so two routes of a tree over one link add
    # the weight twice.
    loads: dict[NodePair, Fraction] = {}
    for tree in directed_trees:
        for link in tree.links():
            loads[link] = loads.get(link, Fraction(0)) + tree.weight
    for link, load in sorted(loads.items()):
        # Links that the network does not have get capacity 0.
        capacity = capacities.get(link, Fraction(0))
        if load <= capacity:
            continue
        source, destination = link
        name = f"{source} -> {destination} of {format_gb(capacity)}"
        message = f"the trees put {format_gb(load)} on the link {name}"
        raise FlawError("load", message)
    rate = sum((Fraction(tree["weight"]) for tree in entries), Fraction(0))
    if not rate:
        raise FlawError("rate", "the trees carry nothing")
    count = len(claim.ranks)
    if claim.may_serve_one:
        # The part of the root is not sent.
        rate *= Fraction(count, count - 1)
    if claim.has_parts:
        # Raise `FlawError` unless the trees that serve each rank carry 1/n of the rate.
        count = len(claim.ranks)
        part: dict[int, Fraction] = dict.fromkeys(claim.ranks, Fraction(0))
        for tree in directed_trees:
            part[tree.served] += tree.weight
        if claim.root is not None:
            # The root already has its part.
            part[claim.root] = rate / count
        for rank, carried in part.items():
            if carried * count == rate:
                continue
            equal = f"a {count}th of {format_gb(rate)}"
            message = f"the trees carry {format_gb(carried)} for NPU {rank}, not {equal}"
            raise FlawError("parts", message)
    return rate
