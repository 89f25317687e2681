"""Trees of a certificate as messages between neighbours, each checked to be a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from collhub_certificates.claim import Claim
from collhub_certificates.flaws import FlawError
from hub_core.model import ROOTED, CollectiveKind
from hub_core.schedules import CertifiedTree, CertifiedWay

# Of nodes by number: the network of a certificate has no other names.
NodePair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TreeWay:
    """A tree that is taken one way or both, with the weight that it puts on every link.

    `parents`: of every NPU but the root; `routes`: the switches between, where there are any.
    `is_down`, `is_up`: whether messages go from parents, and to them. `served`: the rank whose part
    it carries alone. `npus`: how many of the nodes are no switches.
    """

    weight: Fraction
    parents: Mapping[int, int]
    routes: Mapping[int, Sequence[int]]
    is_down: bool
    is_up: bool
    served: int
    npus: int

    def hops(self) -> Iterator[NodePair]:
        """Messages between NPUs: switches do not count as stops."""
        for stops in self._stops():
            # Switches are numbered behind the NPUs.
            npus = [node for node in stops if node < self.npus]
            yield from pairwise(npus)

    def links(self) -> Iterator[NodePair]:
        """Links that the messages take."""
        for stops in self._stops():
            yield from pairwise(stops)

    def _stops(self) -> Iterator[list[int]]:
        """Nodes from every parent to its child, or back."""
        for node, parent in self.parents.items():
            between = self.routes.get(node, ())
            stops = [parent, *between, node]
            if self.is_down:
                yield stops
            if self.is_up:
                yield stops[::-1]


def ways_of(stated: CertifiedTree, claim: Claim) -> list[TreeWay]:
    """One way, or where an all-reduce collects by another tree, two.

    Raises `FlawError` for what is no tree from its root to all whom it must reach.
    """
    only = _only_target(stated, claim)
    targets = claim.ranks if only is None else [only]
    _check_ends(stated, targets, claim)
    if claim.kind is not CollectiveKind.ALL_REDUCE:
        is_up = claim.is_collecting
        return [_way(stated, stated, targets, claim, is_down=not is_up, is_up=is_up)]
    if "up" not in stated:
        # What is collected on a tree comes back on it.
        return [_way(stated, stated, targets, claim, is_down=True, is_up=True)]
    return [
        _way(stated, stated, targets, claim, is_down=True, is_up=False),
        _way(stated["up"], stated, targets, claim, is_down=False, is_up=True),
    ]


def _only_target(stated: CertifiedTree, claim: Claim) -> int | None:
    """The rank that a path of a scatter or gather serves alone."""
    if claim.may_serve_one:
        return stated.get("target")
    return None


def _check_ends(stated: CertifiedTree, targets: Sequence[int], claim: Claim) -> None:
    """Raise `FlawError` for a tree that starts or ends at the wrong nodes."""
    root = stated["root"]
    if claim.kind in ROOTED and root != claim.root:
        message = f"a tree is rooted at {root}, not at the root {claim.root}"
        raise FlawError("tree", message)
    are_ranks = set(targets) <= set(claim.ranks)
    if root not in claim.ranks or not are_ranks:
        message = f"the tree of root {root} starts at no rank, or leads to none"
        raise FlawError("tree", message)


def _way(
    way: CertifiedWay,
    stated: CertifiedTree,
    targets: Sequence[int],
    claim: Claim,
    *,
    is_down: bool,
    is_up: bool,
) -> TreeWay:
    """The tree by `way`; root, weight and target are those of `stated`."""
    root = stated["root"]
    npus = claim.document["network"]["npus"]
    parents = {node: parent for node, parent in enumerate(way["parents"]) if parent >= 0}
    if root in parents:
        raise FlawError("tree", f"the root {root} of a tree hangs on another node")
    for node in (*targets, *parents):
        _check_path(node, root, parents)
    routes = {int(node): route for node, route in way.get("routes", {}).items()}
    if len(way["parents"]) != npus or not set(routes) <= set(parents):
        message = f"the tree of root {root} names nodes that are none of its NPUs"
        raise FlawError("tree", message)
    only = _only_target(stated, claim)
    return TreeWay(
        Fraction(stated["weight"]),
        parents,
        routes,
        is_down=is_down,
        is_up=is_up,
        # Where a tree serves all, it carries the part of its root.
        served=root if only is None else only,
        npus=npus,
    )


def _check_path(node: int, root: int, parents: Mapping[int, int]) -> None:
    """Raise `FlawError` unless the parents of a node lead to the root."""
    start, steps = node, 0
    while node != root:
        steps += 1
        # More steps than nodes with a parent: the way has closed to a cycle.
        if node not in parents or steps > len(parents):
            raise FlawError("tree", f"NPU {start} does not hang on the tree of root {root}")
        node = parents[node]
