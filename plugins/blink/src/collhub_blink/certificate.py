"""The certificate of a packing, as the core re-checks it."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor

from collhub_packing.trees import Tree

from collhub_blink.packing import Bound, Packing
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
        document["trees"] = [_tree_object(task, packing, number, tree) for number, tree in enumerate(packing.trees)]
    return document


def _bound_object(bound: Bound) -> dict[str, JsonValue]:
    side: dict[str, JsonValue] = {"nodes": list(bound.nodes)}
    if bound.blocks:
        side = {"blocks": [list(block) for block in bound.blocks]}
    return {"kind": bound.kind, "rate": str(bound.rate), **side}


def _tree_object(task: Task, packing: Packing, number: int, tree: Tree) -> dict[str, JsonValue]:
    """A tree by NPUs."""
    node_of = task.network.nodes
    parents = [-1] * task.topology.num_npus
    for rank, parent in enumerate(tree.parent[: task.network.graph.num_compute].tolist()):
        if parent >= 0:
            parents[int(node_of[rank])] = int(node_of[parent])
    routes: Mapping[int, tuple[int, ...]] = packing.routes[number] if packing.routes else {}
    stated: dict[str, JsonValue] = {
        "root": int(node_of[tree.root]),
        "weight": str(packing.unit * tree.weight),
        "depth": tree.depth,
        "parents": list(parents),
    }
    if routes:
        stated["routes"] = {str(int(node_of[node])): [int(node_of[stop]) for stop in stops] for node, stops in routes.items()}
    if packing.targets:
        stated["target"] = int(node_of[packing.targets[number]])
    return stated
