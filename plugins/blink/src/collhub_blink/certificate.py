"""The certificate of a packing, as the core re-checks it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.planes import Share
from hub_core.algorithm import JsonValue
from hub_core.certificates import SCHEMA, network_object

# Parents and links that a certificate states; every rank's file holds a copy.
_MOST_NUMBERS = 1 << 15


def lower_bound_ns(task: PackingTask, bound: RateBound) -> int:
    """Time of the collective's bytes at the rate that nothing exceeds."""
    return floor(task.collective_bytes * 10**9 / bound.rate)


def certificate_of(task: PackingTask, packing: PlacedPacking) -> dict[str, JsonValue]:
    """The document `collhub/certificate-1`; trees and links are left out where they would be long."""
    document = _head(task, packing.bound, packing.rate)
    document["tree_count"] = {
        "trees": len(packing.trees),
        "at_least": packing.at_least,
        "unit": str(packing.unit),
        "status": packing.status,
        "reason": packing.reason,
    }
    if _is_whole(task, [packing]):
        document["trees"] = [*_tree_objects(task, packing)]
    return document


def certificate_of_planes(
    task: PackingTask, shares: Sequence[Share], bound: RateBound
) -> dict[str, JsonValue]:
    """The same for trees on several planes: `bound` is that of all links, and the rate the sum of the planes' rates."""
    packings = [share.packing for share in shares]
    document = _head(task, bound, sum((packing.rate for packing in packings), Fraction(0)))
    document["tree_count"] = {
        "trees": sum(len(packing.trees) for packing in packings),
        "at_least": 1,
        "status": "feasible",
        "reason": "a packing has a tree",
    }
    document["planes"] = [
        {
            "plane": share.plane.number,
            "share": str(share.part),
            "rate": str(share.packing.rate),
            "bound": _bound_object(share.packing.bound),
        }
        for share in shares
    ]
    if _is_whole(task, packings):
        document["trees"] = [
            {**tree, "plane": share.plane.number}
            for share in shares
            for tree in _tree_objects(task, share.packing)
        ]
    return document


def _head(task: PackingTask, bound: RateBound, rate: Fraction) -> dict[str, JsonValue]:
    topology = task.topology
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "collective": str(task.collective.kind),
        "ranks": list(task.npus),
        "network": network_object(topology, topology.num_links <= _MOST_NUMBERS // 4),
        "collective_bytes": task.collective_bytes,
        "rate": str(rate),
        "bound": _bound_object(bound),
        "is_optimal": rate == bound.rate,
        "lower_bound_ns": lower_bound_ns(task, bound),
    }
    if task.collective.root is not None:
        document["root"] = task.npus[task.root]
    return document


def _is_whole(task: PackingTask, packings: Sequence[PlacedPacking]) -> bool:
    return sum(len(packing.trees) for packing in packings) * task.topology.num_npus <= _MOST_NUMBERS


def _tree_objects(task: PackingTask, packing: PlacedPacking) -> list[dict[str, JsonValue]]:
    return [
        _tree_object(packing, number, tree, task.topology.num_npus)
        for number, tree in enumerate(packing.trees)
    ]


def _bound_object(bound: RateBound) -> dict[str, JsonValue]:
    side: dict[str, JsonValue] = {"nodes": list(bound.nodes)}
    if bound.blocks:
        side = {"blocks": [list(block) for block in bound.blocks]}
    return {"kind": bound.kind, "rate": str(bound.rate), **side}


def _tree_object(
    packing: PlacedPacking, number: int, placed: PlacedTree, num_npus: int
) -> dict[str, JsonValue]:
    tree = placed.tree
    stated: dict[str, JsonValue] = {
        "root": tree.root,
        "weight": str(packing.unit * tree.weight),
        "depth": placed.depth,
    }
    stated |= _ways(placed, num_npus)
    if placed.up is not None:
        stated["up"] = _ways(placed.up, num_npus)
    if packing.targets:
        stated["target"] = packing.targets[number]
    return stated


def _ways(placed: PlacedTree, num_npus: int) -> dict[str, JsonValue]:
    stated: dict[str, JsonValue] = {"parents": placed.tree.parent[:num_npus].tolist()}
    if placed.stops:
        stated["routes"] = {
            str(node): list(stops[1:-1]) for node, stops in sorted(placed.stops.items())
        }
    return stated
