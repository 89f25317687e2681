"""The certificate of a packing, as the core re-checks it."""

from __future__ import annotations

from math import floor

from collhub_blink.packing import Bound, Packing
from collhub_blink.placing import PlacedTree
from collhub_blink.task import Task
from hub_core.algorithm import JsonValue
from hub_core.certificates import SCHEMA, network_object

__all__ = ["certificate_of", "lower_bound_ns"]

# Parents and links that a certificate states; every rank's file holds a copy.
_MOST_NUMBERS = 1 << 15


def lower_bound_ns(task: Task, bound: Bound) -> int:
    """Time of the collective's bytes at the rate that nothing exceeds."""
    return floor(task.collective_bytes * 10**9 / bound.rate)


def certificate_of(task: Task, packing: Packing) -> dict[str, JsonValue]:
    """The document `collhub/certificate-1`; trees and links are left out where they would be long."""
    topology, bound = task.topology, packing.bound
    is_whole = len(packing.trees) * topology.num_npus <= _MOST_NUMBERS
    document: dict[str, JsonValue] = {
        "schema": SCHEMA,
        "collective": str(task.collective.kind),
        "ranks": list(task.npus),
        "network": network_object(topology, topology.num_links <= _MOST_NUMBERS // 4),
        "collective_bytes": task.collective_bytes,
        "rate": str(packing.rate),
        "bound": _bound_object(bound),
        "is_optimal": packing.is_optimal,
        "lower_bound_ns": lower_bound_ns(task, bound),
        "tree_count": {
            "trees": len(packing.trees),
            "at_least": packing.at_least,
            "unit": str(packing.unit),
            "status": packing.status,
            "reason": packing.reason,
        },
    }
    if task.collective.root is not None:
        document["root"] = task.npus[task.root]
    if is_whole:
        document["trees"] = [_tree_object(packing, number, tree, topology.num_npus) for number, tree in enumerate(packing.trees)]
    return document


def _bound_object(bound: Bound) -> dict[str, JsonValue]:
    side: dict[str, JsonValue] = {"nodes": list(bound.nodes)}
    if bound.blocks:
        side = {"blocks": [list(block) for block in bound.blocks]}
    return {"kind": bound.kind, "rate": str(bound.rate), **side}


def _tree_object(packing: Packing, number: int, placed: PlacedTree, num_npus: int) -> dict[str, JsonValue]:
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
        stated["routes"] = {str(node): list(stops[1:-1]) for node, stops in sorted(placed.stops.items())}
    return stated
