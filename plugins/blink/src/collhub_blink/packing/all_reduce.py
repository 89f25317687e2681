"""All-reduce: trees that reduce upwards and broadcast downwards at once, without a barrier."""

from __future__ import annotations

from dataclasses import replace

from collhub_packing import SwitchSpread, all_reduce_packing, direct

from collhub_blink.fewest.all_reduce import fewest_all_reduce_trees
from collhub_blink.packing.bounds import partition_bound
from collhub_blink.packing.directed_all_reduce import directed_packing
from collhub_blink.packing.machines import machine_packings
from collhub_blink.packing.multi_root import every_rank_packing
from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import PlacedTree, placed
from collhub_blink.packing.shallow import shallow_packing
from collhub_blink.packing.task import PackingTask


def all_reduce_packings(task: PackingTask) -> list[PlacedPacking]:
    """Packings at the optimal rate; for small sizes one tree, and one tree a rank."""
    # Up and down one tree at once needs links that carry as much back.
    if not task.network.is_duplex:
        return [directed_packing(task)]
    optimal = [_fewest(task)] if task.network.is_direct else _switched(task)
    bound = optimal[0].bound
    every_rank = range(task.network.graph.num_compute)
    shallow = shallow_packing(task, "a shallow tree a rank", every_rank, bound)
    # Little data goes up and down a single tree from the middle of the network.
    centre = min(shallow.trees, key=_by_depth)
    rank = task.npus.index(centre.tree.root)
    return [*optimal, shallow, shallow_packing(task, "one shallow tree", [rank], bound)]


def _by_depth(placed_tree: PlacedTree) -> tuple[int, int, int]:
    """Least depth first, then least depth of all nodes together."""
    tree = placed_tree.tree
    return tree.depth, int(tree.depths.sum()), tree.root


def _fewest(task: PackingTask) -> PlacedPacking:
    """Fewest trees at the strength of a network of duplex links."""
    network = task.network
    graph = network.graph
    grown = all_reduce_packing(graph, seeds=task.seeds, first_seed=task.seed)
    unit = graph.unit / grown.scale
    # In this unit the strength is a whole number.
    scaled = replace(graph, capacity=graph.capacity * grown.scale, unit=unit)
    total = grown.strength.value.numerator
    found = fewest_all_reduce_trees(scaled, total, grown.trees, task.budget)
    return PlacedPacking(
        method="fewest trees",
        trees=placed(network, found.trees, direct(scaled), scaled),
        unit=unit,
        bound=partition_bound(network, grown.strength),
        at_least=found.lower_bound,
        reason=found.reason,
    )


def _switched(task: PackingTask) -> list[PlacedPacking]:
    """Trees past the switches, of every rank and of any, and the plan of several machines."""
    packings = [_split(task, SwitchSpread.NOWHERE), _split(task, SwitchSpread.EVERYWHERE)]
    bound = packings[0].bound
    # Mostly the fastest in large data: what is far behind it is not simulated.
    packings = [_scattered_and_gathered(task, bound), *packings]
    return [*packings, *machine_packings(task, bound)]


def _scattered_and_gathered(task: PackingTask, bound: RateBound) -> PlacedPacking:
    """A reduce-scatter up the trees of an all-gather, and the all-gather down again.

    Both take of every link what the other one takes of the link back: each has half of it.
    """
    gathered = every_rank_packing(task, task.network, SwitchSpread.NOWHERE)
    return replace(
        gathered,
        method="up and down trees of every rank",
        unit=gathered.unit / 2,
        bound=bound,
        at_least=1,
        reason="a packing has a tree",
        reduces_first=True,
    )


def _split(task: PackingTask, spread: SwitchSpread) -> PlacedPacking:
    """Trees in the network whose switches are split off in one way."""
    network = task.network
    found = all_reduce_packing(
        network.graph,
        spread=spread,
        seeds=task.orders_of_flat_trees,
        first_seed=task.seed,
    )
    return PlacedPacking(
        method="trees through forwarders",
        trees=placed(network, found.trees, found.network, network.graph),
        unit=network.graph.unit / found.scale,
        bound=partition_bound(network, found.strength),
    )
