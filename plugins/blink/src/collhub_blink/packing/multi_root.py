"""All-gather and reduce-scatter: trees from every rank at the optimal rate."""

from __future__ import annotations

from collhub_packing import SwitchSpread, all_gather_trees

from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import placed
from collhub_blink.packing.shallow import shallow_packing, three_phase_packing
from collhub_blink.packing.task import PackingTask


def spread_packings(task: PackingTask) -> list[PlacedPacking]:
    """Packings for an all-gather, or with all links turned round a reduce-scatter; and shallow trees."""
    network = task.oriented_network
    ranks = network.graph.num_compute
    packings = []
    for spread in (
        (SwitchSpread.NOWHERE,)
        if network.is_direct
        else (SwitchSpread.NOWHERE, SwitchSpread.EVERYWHERE)
    ):
        found = all_gather_trees(
            network.graph, spread=spread, seeds=task.seeds, first_seed=task.seed
        )
        bound = RateBound(
            "ingress-cut",
            found.rate.value * network.graph.unit * ranks,
            network.named(found.rate.cut),
        )
        trees = placed(network, found.trees, found.network, network.graph)
        unit = found.network.graph.unit
        packings.append(
            PlacedPacking(
                "trees of every rank", trees, unit, bound, ranks, "every rank has a tree of its own"
            )
        )
    if not network.is_direct and (plan := three_phase_packing(task, packings[0].bound)):
        packings.append(plan)
    return [
        *packings,
        shallow_packing(task, "a shallow tree a rank", range(ranks), packings[0].bound),
    ]
