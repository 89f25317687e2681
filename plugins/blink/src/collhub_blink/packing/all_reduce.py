"""All-reduce: trees that reduce upwards and broadcast downwards at the same time, without a barrier."""

from __future__ import annotations

from dataclasses import replace

from collhub_packing import AllReducePacking, SwitchSpread, all_reduce_packing, direct

from collhub_blink.fewest.all_reduce import fewest_all_reduce_trees
from collhub_blink.packing.directed_all_reduce import directed_packing
from collhub_blink.packing.packings import PlacedPacking, RateBound
from collhub_blink.packing.placing import placed
from collhub_blink.packing.shallow import shallow_packing, three_phase_packing
from collhub_blink.packing.task import PackingTask


def all_reduce_packings(task: PackingTask) -> list[PlacedPacking]:
    """Packings at the optimal rate; for small sizes one tree, and one tree a rank, of least depth."""
    if not task.network.is_duplex:
        return [directed_packing(task)]
    optimal = [_fewest(task)] if task.network.is_direct else _switched(task)
    bound = optimal[0].bound
    shallow = shallow_packing(
        task, "a shallow tree a rank", range(task.network.graph.num_compute), bound
    )
    centre = min(
        shallow.trees,
        key=lambda placed: (placed.tree.depth, int(placed.tree.depths().sum()), placed.tree.root),
    )
    rank = task.npus.index(centre.tree.root)
    return [*optimal, shallow, shallow_packing(task, "one shallow tree", [rank], bound)]


def _fewest(task: PackingTask) -> PlacedPacking:
    """Fewest trees at the strength of a network of duplex links."""
    network = task.network
    grown = all_reduce_packing(network.graph, seeds=task.seeds, first_seed=task.seed)
    unit = network.graph.unit / grown.scale
    scaled = replace(network.graph, capacity=network.graph.capacity * grown.scale, unit=unit)
    found = fewest_all_reduce_trees(
        scaled, grown.strength.value.numerator, grown.trees, task.budget
    )
    return PlacedPacking(
        "fewest trees",
        placed(network, found.trees, direct(scaled), scaled),
        unit,
        _bound(task, grown),
        found.lower_bound,
        found.reason,
    )


def _switched(task: PackingTask) -> list[PlacedPacking]:
    """Trees past the switches, which are split off in one way or another; and the three-phase plan of several machines."""
    network = task.network
    packings = []
    for spread in (SwitchSpread.NOWHERE, SwitchSpread.EVERYWHERE):
        found = all_reduce_packing(
            network.graph, spread=spread, seeds=task.seeds, first_seed=task.seed
        )
        trees = placed(network, found.trees, found.network, network.graph)
        packings.append(
            PlacedPacking(
                "trees through forwarders",
                trees,
                network.graph.unit / found.scale,
                _bound(task, found),
            )
        )
    plan = three_phase_packing(task, packings[0].bound)
    return [*packings, plan] if plan is not None else packings


def _bound(task: PackingTask, found: AllReducePacking) -> RateBound:
    rate = found.strength.value * task.network.graph.unit
    return RateBound("partition", rate, blocks=tuple(map(task.network.named, found.strength.sides)))
