"""The certificate of a packing, as the core re-checks it: `collhub/certificate-1`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from collhub_schedules import CERTIFICATE_SCHEMA, network_object

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.shares import Share
from hub_core.model import JsonValue

# Parents and links that a certificate states; every rank's file holds a copy.
_MOST_NUMBERS = 1 << 15
# Ends, bandwidth and latency.
_NUMBERS_A_LINK = 4

JsonObject = dict[str, JsonValue]


def lower_bound_ns(task: PackingTask, bound: RateBound) -> int:
    """Time of the collective's bytes at the rate that nothing exceeds."""
    # Rounded down, so that it stays a bound.
    return floor(task.collective_bytes * 10**9 / bound.rate)


def certificate_of(task: PackingTask, packing: PlacedPacking) -> JsonObject:
    """The document for one packing; trees and links are left out where they would be long."""
    document = _head(task, packing.bound, packing.rate)
    document["tree_count"] = {
        "trees": len(packing.trees),
        "at_least": packing.at_least,
        "unit": str(packing.unit),
        "status": packing.status,
        "reason": packing.reason,
    }
    if _is_short(task, [packing]):
        document["trees"] = [*_tree_objects(task, packing)]
    return document


def certificate_of_planes(
    task: PackingTask,
    shares: Sequence[Share],
    bound: RateBound,
) -> JsonObject:
    """The document for trees on several planes.

    `bound` is that of all links, and the rate the sum of the planes' rates.
    """
    packings = [share.packing for share in shares]
    rate = sum((packing.rate for packing in packings), Fraction(0))
    document = _head(task, bound, rate)
    document["tree_count"] = {
        "trees": sum(len(packing.trees) for packing in packings),
        # Fewest trees are not searched over planes together.
        "at_least": 1,
        "status": "feasible",
        "reason": "a packing has a tree",
    }
    document["planes"] = [_plane_object(share) for share in shares]
    if _is_short(task, packings):
        document["trees"] = _planes_trees(task, shares)
    return document


def _planes_trees(task: PackingTask, shares: Sequence[Share]) -> list[JsonValue]:
    """The trees of all planes, each with its plane."""
    trees: list[JsonValue] = []
    for share in shares:
        for tree in _tree_objects(task, share.packing):
            trees.append({**tree, "plane": share.plane.number})
    return trees


def _head(task: PackingTask, bound: RateBound, rate: Fraction) -> JsonObject:
    """What every certificate states: the problem, the rate and its bound."""
    topology = task.topology
    has_links = topology.num_links * _NUMBERS_A_LINK <= _MOST_NUMBERS
    document: JsonObject = {
        "schema": CERTIFICATE_SCHEMA,
        "collective": str(task.collective.kind),
        "ranks": list(task.npus),
        "network": network_object(topology, has_links),
        "collective_bytes": task.collective_bytes,
        "rate": str(rate),
        "bound": _bound_object(bound),
        # Fractions, so that equal means equal.
        "is_optimal": rate == bound.rate,
        "lower_bound_ns": lower_bound_ns(task, bound),
    }
    if task.collective.root is not None:
        document["root"] = task.npus[task.root]
    return document


def _is_short(task: PackingTask, packings: Sequence[PlacedPacking]) -> bool:
    """Whether the trees are few enough to be stated."""
    trees = sum(len(packing.trees) for packing in packings)
    return trees * task.topology.num_npus <= _MOST_NUMBERS


def _plane_object(share: Share) -> JsonObject:
    return {
        "plane": share.plane.number,
        "share": str(share.part),
        "rate": str(share.packing.rate),
        "bound": _bound_object(share.packing.bound),
    }


def _bound_object(bound: RateBound) -> JsonObject:
    side: JsonObject = {"nodes": list(bound.nodes)}
    if bound.blocks:
        side = {"blocks": [list(block) for block in bound.blocks]}
    return {"kind": bound.kind, "rate": str(bound.rate), **side}


def _tree_objects(task: PackingTask, packing: PlacedPacking) -> list[JsonObject]:
    num_npus = task.topology.num_npus
    trees = [_tree_object(packing, tree, num_npus) for tree in packing.trees]
    # Packings of paths have a target for every tree, others have none.
    for tree, target in zip(trees, packing.targets, strict=False):
        tree["target"] = target
    return trees


def _tree_object(packing: PlacedPacking, placed: PlacedTree, num_npus: int) -> JsonObject:
    stated: JsonObject = {
        "root": placed.tree.root,
        "weight": str(packing.unit * placed.tree.weight),
        "depth": placed.depth,
    }
    stated |= _ways(placed, num_npus)
    if placed.up is not None:
        stated["up"] = _ways(placed.up, num_npus)
    return stated


def _ways(placed: PlacedTree, num_npus: int) -> JsonObject:
    """Parent of every NPU, and the nodes between where there are any."""
    # Switches take no part: they stand in the routes.
    stated: JsonObject = {"parents": placed.tree.parent[:num_npus].tolist()}
    if placed.stops:
        between: JsonObject = {}
        for node, stops in sorted(placed.stops.items()):
            # Both ends are known from the parents.
            between[str(node)] = list(stops[1:-1])
        stated["routes"] = between
    return stated
