"""Synthesis: pack trees, choose the packing and its chunks by the time, and hand over the algorithm with its proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from collhub_packing.pipelining import Pipelining
from collhub_packing.trees import Tree

from collhub_blink.all_reduce import all_reduce_packings
from collhub_blink.certificate import certificate_of, lower_bound_ns
from collhub_blink.chunking import Chunked, best_chunks, chunk_counts
from collhub_blink.multi_root import spread_packings
from collhub_blink.packing import Packing
from collhub_blink.single_root import rooted_packings
from collhub_blink.task import Task
from hub_core.algorithm import Algorithm, JsonValue, Provenance
from hub_core.collectives import CollectiveKind
from hub_core.diagnostics import InputError
from hub_core.plugins.contract import Options, SynthesisRequest, SynthesisResult
from hub_core.transfers import algorithm_of

__all__ = ["synthesize"]

_NAME = "collhub-blink"

_PACKERS: Mapping[CollectiveKind, Callable[[Task], list[Packing]]] = {
    CollectiveKind.BROADCAST: rooted_packings,
    CollectiveKind.REDUCE: rooted_packings,
    CollectiveKind.ALL_REDUCE: all_reduce_packings,
    CollectiveKind.ALL_GATHER: spread_packings,
    CollectiveKind.REDUCE_SCATTER: spread_packings,
}


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A packing and its fastest schedule."""

    packing: Packing
    chunked: Chunked


def synthesize(request: SynthesisRequest, options: Options) -> SynthesisResult:
    """The fastest algorithm on trees that was found for a request; see `plugin.BLINK` for the options.

    Raises `UsageError` for options that do not fit, and `InputError` for collectives that do not run on trees, ranks
    that cannot be reached, and sizes below a byte a chunk.
    """
    task = Task.of(request, options)
    packings = _PACKERS[task.collective.kind](task)
    best = _best(task, [packing for packing in packings if task.trees in ("auto", packing.method)] or packings)
    time_ns = -(-best.chunked.pipeline.time_ps // 1000)
    bounds = {"rate": lower_bound_ns(task, best.packing.bound)}
    statistics = _statistics(task, packings, best)
    algorithm = _algorithm(task, best, request.wanted, options, statistics)
    return SynthesisResult(algorithm, time_ns, bounds, statistics, is_partial=request.wanted is not None)


def _best(task: Task, packings: list[Packing]) -> _Made:
    """The packing with the fastest schedule; the first of equals."""
    best: _Made | None = None
    for packing in packings:
        if best is not None and task.collective_bytes * 10**12 / packing.rate >= best.chunked.pipeline.time_ps:
            continue
        found = _chunked(task, packing)
        if found is not None and (best is None or found.pipeline.time_ps < best.chunked.pipeline.time_ps):
            best = _Made(packing, found)
    if best is None:
        message = f"{task.collective_bytes} bytes are too few to be shared out among the trees"
        raise InputError(message, cure="choose a larger size, or fewer chunks", code="size-too-small")
    return best


def _chunked(task: Task, packing: Packing) -> Chunked | None:
    weights = [tree.weight for tree in packing.trees]
    trees = [_placed(task, tree) for tree in packing.trees]
    pipelining = Pipelining.of(task.topology, trees, task.collective, task.collective_bytes, task.occupancy, list(task.npus))
    if task.chunks is None:
        return best_chunks(pipelining, weights)
    return Chunked(task.chunks, pipelining.schedule(chunk_counts(weights, task.chunks)))


def _placed(task: Task, tree: Tree) -> Tree:
    """A tree over ranks as one over the nodes of the topology."""
    nodes = task.network.nodes
    parent = np.full(task.topology.num_nodes, -1, np.int64)
    hanging = np.flatnonzero(tree.parent >= 0)
    parent[nodes[hanging]] = nodes[tree.parent[hanging]]
    return Tree(int(nodes[tree.root]), tree.weight, parent, np.full(len(parent), -1, np.int64))


def _algorithm(
    task: Task, best: _Made, wanted: tuple[int, ...] | None, options: Options, statistics: Mapping[str, JsonValue]
) -> Algorithm:
    pipeline = best.chunked.pipeline
    given = {name: str(value) for name, value in options.items()}
    return algorithm_of(
        pipeline.collective,
        pipeline.chunks,
        pipeline.transfers,
        npus=task.npus,
        num_npus=task.topology.num_npus,
        wanted=wanted,
        provenance=Provenance(_NAME, version(_NAME), task.topology.name, "", given),
        collective_bytes=task.collective_bytes,
        extensions={_NAME: {**statistics, "certificate": certificate_of(task, best.packing)}},
    )


def _statistics(task: Task, packings: list[Packing], best: _Made) -> dict[str, JsonValue]:
    packing = best.packing
    return {
        "method": packing.method,
        "trees": len(packing.trees),
        "trees proved": packing.status,
        "depth": packing.depth,
        "chunks": best.chunked.chunks,
        "rate GB/s": float(packing.rate) / 1e9,
        "bound GB/s": float(packing.bound.rate) / 1e9,
    }
