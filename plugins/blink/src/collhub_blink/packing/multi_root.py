"""All-gather and reduce-scatter: trees from every rank at the optimal rate."""

from __future__ import annotations

from collhub_packing import SwitchSpread, all_gather_trees

from collhub_blink.packing.bounds import ingress_bound
from collhub_blink.packing.machines import machine_packings
from collhub_blink.packing.packings import PlacedPacking
from collhub_blink.packing.placing import placed
from collhub_blink.packing.rank_network import RankNetwork
from collhub_blink.packing.shallow import shallow_packing
from collhub_blink.packing.task import PackingTask


def spread_packings(task: PackingTask) -> list[PlacedPacking]:
    """Packings for an all-gather, or with all links turned round a reduce-scatter.

    Also Blink's three-phase plan, and shallow trees.
    """
    network = task.oriented_network
    packings = [every_rank_packing(task, network, SwitchSpread.NOWHERE)]
    bound = packings[0].bound
    # Without switches there is nothing to spread, and there is but one machine.
    if not network.is_direct:
        packings.append(every_rank_packing(task, network, SwitchSpread.EVERYWHERE))
        packings.extend(machine_packings(task, bound))
    every_rank = range(network.graph.num_compute)
    packings.append(shallow_packing(task, "a shallow tree a rank", every_rank, bound))
    return packings


def every_rank_packing(
    task: PackingTask, network: RankNetwork, spread: SwitchSpread
) -> PlacedPacking:
    """Trees of every rank, with the traffic at switches spread in one way."""
    is_flat = spread is SwitchSpread.EVERYWHERE
    found = all_gather_trees(
        network.graph,
        spread=spread,
        seeds=task.orders_of_flat_trees if is_flat else task.seeds,
        first_seed=task.seed,
    )
    return PlacedPacking(
        method="trees of every rank",
        trees=placed(network, found.trees, found.network, network.graph),
        unit=found.network.graph.unit,
        bound=ingress_bound(network, found.rate),
        at_least=network.graph.num_compute,
        reason="every rank has a tree of its own",
    )
