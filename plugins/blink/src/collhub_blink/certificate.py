"""The certificate of a packing (`collhub/certificate-1`), and the statistics of a result.

The core verifies the certificate; the statistics are for the terminal and for `--json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree
from collhub_blink.packing.task import PackingTask
from collhub_blink.scheduling.dividing import Division
from collhub_blink.scheduling.planes import Share
from collhub_blink.scheduling.schedules import TimedSchedule, bandwidth_time_ns
from hub_core.model import JsonValue
from hub_core.schedules import CERTIFICATE_SCHEMA, network_object

Statistics = dict[str, JsonValue]

# Fraction of the rate of the trees below which the rate on the routes of messages is reported.
_MIN_ROUTED_FRACTION = 0.99


def summarize_packing(
    task: PackingTask,
    packings: Sequence[PlacedPacking],
    best: TimedSchedule,
) -> Statistics:
    """Collect the statistics of the chosen packing of trees and of its schedule, by name.

    `best`: the chosen schedule with its packing. `packings`: all candidates. GB/s are 10^9
    bytes per second. The names are, in this order:

    - "method": name of the packing; "trees": their number
    - "fewest trees": the proved minimum as a number if the packing has so many trees, else the
      text "at least N"
    - "depth" of the packing, and "chunks" of the schedule
    - "rate GB/s" of the packing and "best rate GB/s" of its bound, as numbers
    - "trees x depth": a text with one entry per candidate that is not `is_shallow`, such as "6
      x 2, 8 x 1"; empty without such candidates
    - "rate on routes GB/s": bytes of the collective by the time of the busiest link, if
      messages use the routes of simulators; rounded to 3 decimals. It exists only if it is
      below `_MIN_ROUTED_FRACTION` (0.99) of the rate of the trees.
    - "interrupted": true, only if Ctrl-C ended the choice of the schedule or the search for
      fewer trees
    """
    packing = best.packing
    is_proved = packing.status == "optimal"
    trees_and_depths = [f"{len(p.trees)} x {p.depth}" for p in packings if not p.is_shallow]
    statistics: Statistics = {
        "method": packing.method,
        "trees": len(packing.trees),
        "fewest trees": packing.at_least if is_proved else f"at least {packing.at_least}",
        "depth": packing.depth,
        "chunks": best.schedule.chunks,
        "rate GB/s": _to_gb_per_s(packing.rate),
        "best rate GB/s": _to_gb_per_s(packing.bound.rate),
        "trees x depth": ", ".join(trees_and_depths),
    }
    # Bytes per nanosecond are GB/s.
    routed_rate = task.collective_bytes / bandwidth_time_ns(task, packing)
    if routed_rate < _MIN_ROUTED_FRACTION * _to_gb_per_s(packing.rate):
        statistics["rate on routes GB/s"] = round(routed_rate, 3)
    return _add_interrupt(statistics, best.is_interrupted or task.budget.is_interrupted)


def summarize_planes(best: Division, bound: RateBound) -> Statistics:
    """Collect the statistics of a division of the data among planes (separate networks), by name.

    The first six are texts with one value per share of `best`, in the order of the shares:

    - `method`: such as "plane 0: name; plane 1: name"
    - `share %` with 4 significant digits, `trees` (their number), `depth`, `chunks`, and `rate
      GB/s` with 6 significant digits: values joined by ", "

    `best rate GB/s` is a number: the bound for the links of all planes together. `interrupted`
    (true) is added only if Ctrl-C ended the search for the division or the proof of a plane.
    """
    shares = best.shares
    packings = [share.packing for share in shares]
    methods = [f"plane {share.plane.number}: {share.packing.method}" for share in shares]
    statistics: Statistics = {
        "method": "; ".join(methods),
        "share %": ", ".join(f"{float(100 * share.part):.4g}" for share in shares),
        "trees": ", ".join(str(len(packing.trees)) for packing in packings),
        "depth": ", ".join(str(packing.depth) for packing in packings),
        "chunks": ", ".join(str(share.timed_schedule.schedule.chunks) for share in shares),
        "rate GB/s": ", ".join(f"{_to_gb_per_s(packing.rate):.6g}" for packing in packings),
        "best rate GB/s": _to_gb_per_s(bound.rate),
    }
    is_proof_interrupted = any(share.plane.task.budget.is_interrupted for share in shares)
    return _add_interrupt(statistics, best.is_interrupted or is_proof_interrupted)


def _to_gb_per_s(bytes_per_s: Fraction) -> float:
    """Convert bytes per second to GB/s."""
    return float(bytes_per_s) / 1e9


def _add_interrupt(statistics: Statistics, is_interrupted: bool) -> Statistics:
    """Add the field `interrupted` if the search was interrupted."""
    return {**statistics, "interrupted": True} if is_interrupted else statistics


# Maximum numbers (parents, or values of links) in a certificate: every rank's file has a copy.
_MAX_NUMBERS = 1 << 15
# Two ends, bandwidth and latency.
_NUMBERS_PER_LINK = 4

JsonObject = dict[str, JsonValue]


def lower_bound_ns(task: PackingTask, bound: RateBound) -> int:
    """Return the time in ns of the collective's bytes at the rate of the bound, rounded down."""
    # Rounded down, so that it remains a bound.
    return floor(task.collective_bytes * 10**9 / bound.rate)


def build_certificate(task: PackingTask, packing: PlacedPacking) -> JsonObject:
    """Build the certificate of one packing, a new JSON object for independent checks.

    - the problem: `schema`, `collective`, `ranks` (the NPU of each rank), `network`,
      `collective_bytes`; for a rooted collective also `root` (an NPU)
    - the rate: `rate` (exact fraction as text), `bound`, `is_optimal` (whether the rate equals that
      of the bound exactly) and `lower_bound_ns` (time at the rate of the bound, rounded down)
    - `tree_count`: an object with `trees` (their number), `at_least` (the proved minimum), `unit`
      (bytes/s of a weight of 1, an exact fraction as text), `status` and `reason`
    - `trees`: the trees in the packing's order; only if trees x NPUs of the topology is at most
      2^15

    `network` lists its links only if 4 x links is at most 2^15.
    """
    document = _build_head(task, packing.bound, packing.rate)
    document["tree_count"] = {
        "trees": len(packing.trees),
        "at_least": packing.at_least,
        "unit": str(packing.unit),
        "status": packing.status,
        "reason": packing.reason,
    }
    if _is_short(task, [packing]):
        document["trees"] = [*_describe_trees(task, packing)]
    return document


def build_planes_certificate(
    task: PackingTask,
    shares: Sequence[Share],
    bound: RateBound,
) -> JsonObject:
    """Build the certificate (a JSON object) of trees on several planes of links.

    `shares`: a part of the data with its trees, for each plane that carries data. `bound`:
    for the links of all planes. To the fields of every certificate, with the sum of the
    shares' rates, it adds:

    - `tree_count`: the number of trees in `trees`; `at_least` 1, `status` "feasible" and a
      `reason`, because the fewest trees are not searched
    - `planes`: for each share the number of its plane, its part, rate (bytes/s) and bound
    - `trees`: those of all shares in order, each with its `plane`; left out if trees times
      NPUs of the topology are above 2^15
    """
    packings = [share.packing for share in shares]
    rate = sum((packing.rate for packing in packings), Fraction(0))
    document = _build_head(task, bound, rate)
    document["tree_count"] = {
        "trees": sum(len(packing.trees) for packing in packings),
        # The fewest trees are not searched across planes.
        "at_least": 1,
        "status": "feasible",
        "reason": "a packing has a tree",
    }
    document["planes"] = [
        {
            "plane": share.plane.number,
            "share": str(share.part),
            "rate": str(share.packing.rate),
            "bound": _describe_bound(share.packing.bound),
        }
        for share in shares
    ]
    if _is_short(task, packings):
        trees: list[JsonValue] = []
        for share in shares:
            for tree in _describe_trees(task, share.packing):
                trees.append({**tree, "plane": share.plane.number})
        document["trees"] = trees
    return document


def _build_head(task: PackingTask, bound: RateBound, rate: Fraction) -> JsonObject:
    """Build the fields that all certificates have: problem, rate and bound.

    - `schema`, `collective`, `collective_bytes`; `ranks`: the NPU of each rank
    - `network`: with a list of its links only if links x `_NUMBERS_PER_LINK` (4) is at most
      `_MAX_NUMBERS` (32 768)
    - `rate`: exact fraction as text; `bound`: description of `bound`
    - `is_optimal`: whether `rate` exactly equals the rate of the bound
    - `lower_bound_ns`: time of `collective_bytes` at the rate of the bound, rounded down
    - `root`: the NPU of the root; only for a rooted collective
    """
    topology = task.topology
    has_links = topology.num_links * _NUMBERS_PER_LINK <= _MAX_NUMBERS
    document: JsonObject = {
        "schema": CERTIFICATE_SCHEMA,
        "collective": str(task.collective.kind),
        "ranks": list(task.npus),
        "network": network_object(topology, has_links),
        "collective_bytes": task.collective_bytes,
        "rate": str(rate),
        "bound": _describe_bound(bound),
        # Compared as fractions, which are exact.
        "is_optimal": rate == bound.rate,
        "lower_bound_ns": lower_bound_ns(task, bound),
    }
    if task.collective.root is not None:
        document["root"] = task.npus[task.root]
    return document


def _is_short(task: PackingTask, packings: Sequence[PlacedPacking]) -> bool:
    """Return whether the trees of the packings are few enough to be listed in a certificate.

    This holds if their number times the number of NPUs of the topology is at most
    `_MAX_NUMBERS`. NPUs that take no part count too.
    """
    trees = sum(len(packing.trees) for packing in packings)
    return trees * task.topology.num_npus <= _MAX_NUMBERS


def _describe_bound(bound: RateBound) -> JsonObject:
    """Return the JSON object of a bound: `kind`, `rate`, and the nodes that prove it.

    `rate` is in bytes per second, an exact fraction as text. The proof is `blocks` (lists
    of nodes) if the bound has blocks, otherwise `nodes`. A directed partition also has the
    number of `senders`, the first blocks, which count by the links that leave them.
    """
    side: JsonObject = {"nodes": list(bound.nodes)}
    if bound.blocks:
        side = {"blocks": [list(block) for block in bound.blocks]}
    if bound.kind == "directed-partition":
        side["senders"] = bound.senders
    return {"kind": bound.kind, "rate": str(bound.rate), **side}


def _describe_trees(task: PackingTask, packing: PlacedPacking) -> list[JsonObject]:
    """Return the JSON objects of the trees of a packing, in its order.

    Keys: `root`, `weight` (bytes per second, an exact fraction as text), `depth`, `parents` and
    `routes`. `up`, with its own parents and routes, exists only if an all-reduce uses another tree
    to reduce than to broadcast. In a packing with targets (scatter, gather), `target` is the only
    NPU whose data the tree carries.
    """
    num_npus = task.topology.num_npus
    trees: list[JsonObject] = []
    for number, placed in enumerate(packing.trees):
        tree: JsonObject = {
            "root": placed.tree.root,
            "weight": str(packing.unit * placed.tree.weight),
            "depth": placed.depth,
        }
        tree |= _describe_edges(placed, num_npus)
        if placed.up is not None:
            tree["up"] = _describe_edges(placed.up, num_npus)
        # Only packings of paths have targets.
        if packing.targets:
            tree["target"] = packing.targets[number]
        trees.append(tree)
    return trees


def _describe_edges(placed_tree: PlacedTree, num_npus: int) -> JsonObject:
    """Return the JSON object with the parents of all NPUs and the routes of a tree.

    `parents`: one entry per NPU of the topology, -1 at the root and for NPUs outside the
    tree. `routes`: by number of the child, as text, the nodes between its parent and the
    child, in this order; children with a direct link have no entry, and without entries
    there is no `routes`. Switches occur only in routes.
    """
    # Switches have no parent; they occur only in the routes.
    tree_object: JsonObject = {"parents": placed_tree.tree.parent[:num_npus].tolist()}
    if placed_tree.stops:
        between: JsonObject = {}
        for node, stops in sorted(placed_tree.stops.items()):
            between[str(node)] = list(stops[1:-1])
        tree_object["routes"] = between
    return tree_object
