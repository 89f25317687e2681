"""All-gather and reduce-scatter: trees from every rank at the optimal rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from collhub_packing.growth import pack_rooted_trees
from collhub_packing.rates import all_gather_rate

from collhub_blink.network import transposed
from collhub_blink.packing import Bound, Packing, shallow_tree, unit_that_fits
from collhub_blink.task import Task
from hub_core.collectives import CollectiveKind

__all__ = ["spread_packings"]


def spread_packings(task: Task) -> list[Packing]:
    """Packings for an all-gather, or with all links turned round a reduce-scatter; and one shallow tree a rank."""
    graph = task.network.graph if task.collective.kind is CollectiveKind.ALL_GATHER else transposed(task.network.graph)
    rate = all_gather_rate(graph)
    ranks = graph.num_compute
    bound = Bound("ingress-cut", rate.value * graph.unit * ranks, task.network.named(rate.cut))
    scaled = replace(graph, capacity=graph.capacity * rate.value.denominator, unit=graph.unit / rate.value.denominator)
    sent = np.full(ranks, rate.value.numerator, np.int64)
    trees = pack_rooted_trees(scaled, sent, seeds=task.seeds, first_seed=task.seed)
    shallow = [shallow_tree(graph, root) for root in range(ranks)]
    return [
        Packing("trees of every rank", tuple(trees), scaled.unit, bound, ranks, "every rank has a tree"),
        Packing("a shallow tree a rank", tuple(shallow), unit_that_fits(graph, shallow), bound, ranks, "every rank has a tree"),
    ]
