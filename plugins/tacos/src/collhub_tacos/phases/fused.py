"""All-reduce on trees, on which the broadcast of a chunk follows its reduction without waiting for other chunks.

Large sizes: many trees, which carry as much as trees can, the network's strength (Nash-Williams, Tutte 1961). Small sizes:
one tree of least depth, rooted in the middle of the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from collhub_packing.graph import CapacityGraph
from collhub_packing.orientation import all_reduce_trees
from collhub_packing.pipelining import Pipeline, Pipelining
from collhub_packing.pipelining_counts import best_chunks
from collhub_packing.rates import Strength, strength
from collhub_packing.trees import Tree

from collhub_tacos.networks.link_network import LinkNetwork
from collhub_tacos.phases.central import central_tree
from collhub_tacos.phases.forms import Progress, SynthesisCandidate
from collhub_tacos.phases.reversal import is_duplex
from collhub_tacos.setting import Setting
from hub_core.algorithm import JsonValue
from hub_core.diagnostics import InputError
from hub_core.topology import Occupancy, Topology
from hub_core.transfers import algorithm_of
from hub_core.verification import verify

_MOST_MESSAGES = 1 << 19
_TRIAL_MESSAGES = 1 << 15
_LEAST_S = 20e-9
_MOST_SEEDS = 8
_NODES_FOR_ALL_SEEDS = 256
_MOST_NODES = 1024


def unsuitability(network: LinkNetwork) -> str | None:
    """Why no all-reduce on trees is made here, None where it is: a link must carry a tree both ways, at one rate."""
    if network.num_nodes > network.num_npus:
        return "the network has switches"
    if not is_duplex(network, network.link_times(1 << 20, Occupancy.SERIALIZATION)):
        return "the network has links that are one-way or differ by direction"
    return None


def is_promising(setting: Setting) -> bool:
    """Whether trees can carry more than a reduce-scatter and then an all-gather, by the weakest NPU; not so on tori.

    False as well where the data has less than a byte per chunk, or where packing trees takes minutes.
    """
    graph = CapacityGraph.of(setting.network.topology)
    if graph.num_compute > _MOST_NODES:
        return False
    rate = strength(graph).value
    weakest = int(np.bincount(graph.destination, graph.capacity, graph.num_nodes).min())
    is_faster = 2 * (graph.num_compute - 1) * rate > graph.num_compute * weakest
    return is_faster and setting.collective_bytes >= rate.numerator


def fused(setting: Setting, progress: Progress) -> SynthesisCandidate:
    """All-reduce at the rate of the network's strength: the fastest over random packings and then over chunk counts.

    `setting.pieces` chunks per rank, where stated, are met as nearly as the weights of the trees allow. Raises
    `InputError` for a network with an `unsuitability` or without connection, and for sizes below a byte per chunk.
    """
    return _fastest("fused", setting, _packings(setting, progress))


def latency(setting: Setting, progress: Progress) -> SynthesisCandidate:
    """All-reduce up and down one tree of about least depth: the fastest over chunk counts. Raises as `fused`."""
    return _fastest("latency", setting, _central(setting, progress))


@dataclass(frozen=True, slots=True, eq=False)
class _PipelinedTrees:
    """Trees, the schedules that can be made on them, and what is to be said of them."""

    trees: Sequence[Tree]
    pipelining: Pipelining
    details: Mapping[str, JsonValue]

    @classmethod
    def of(
        cls, trees: Sequence[Tree], setting: Setting, details: Mapping[str, JsonValue]
    ) -> _PipelinedTrees:
        topology, members = setting.network.topology, setting.members
        pipelining = Pipelining.of(
            topology,
            trees,
            setting.collective,
            setting.collective_bytes,
            setting.occupancy,
            members,
        )
        depth = max(tree.depth for tree in trees)
        return cls(trees, pipelining, {**details, "trees": len(trees), "depth": depth})

    @property
    def weight(self) -> int:
        """Chunks of the whole, where a tree of weight 1 has one."""
        return sum(tree.weight for tree in self.trees)

    def schedule(self, repeats: int) -> Pipeline:
        """With `repeats` chunks for every unit of weight."""
        return self.pipelining.schedule([repeats * tree.weight for tree in self.trees])

    def most_repeats(self, messages: int) -> int:
        """How often so many messages, and the least size of one, allow to repeat; at least once."""
        each = sum(tree.weight * int(np.count_nonzero(tree.parent >= 0)) for tree in self.trees)
        smallest = _smallest_chunk(self.pipelining.topology)
        return max(
            1,
            min(
                messages // (2 * each), self.pipelining.collective_bytes // (self.weight * smallest)
            ),
        )


def _smallest_chunk(topology: Topology) -> int:
    """Bytes of a chunk that takes a link for its latency, or as long as simulators resolve well.

    Smaller ones would gain little, and with more than two on their way on a link simulators do not keep their order.
    """
    shortest = np.maximum(topology.latency_s, _LEAST_S)
    return math.ceil(float((topology.bandwidth_bytes_per_s * shortest).max()))


class _FastestPipeline:
    """Schedules that were made; the fastest is kept."""

    def __init__(self) -> None:
        self.best: tuple[_PipelinedTrees, int, Pipeline] | None = None

    def time_ps(self, packing: _PipelinedTrees, repeats: int) -> int:
        """Make one more."""
        pipeline = packing.schedule(repeats)
        if self.best is None or pipeline.time_ps < self.best[2].time_ps:
            self.best = packing, repeats, pipeline
        return pipeline.time_ps


def _fastest(
    form: str, setting: Setting, packings: Iterator[_PipelinedTrees]
) -> SynthesisCandidate:
    """Try all packings with few chunks, the best one with more. Ctrl-C ends the search where there is a result."""
    if reason := unsuitability(setting.network):
        raise InputError(
            f"no all-reduce on trees: {reason}",
            cure="choose the method two-phase",
            code="not-duplex",
        )
    search = _FastestPipeline()
    try:
        for packing in packings:
            search.time_ps(
                packing, _stated(setting, packing) or packing.most_repeats(_TRIAL_MESSAGES)
            )
        assert search.best is not None
        found = _with_best_count(search, *search.best) if setting.pieces is None else search.best
    except KeyboardInterrupt:
        if search.best is None:
            raise
        return _candidate(form, setting, *search.best, is_interrupted=True)
    return _candidate(form, setting, *found, is_interrupted=False)


def _with_best_count(
    search: _FastestPipeline, packing: _PipelinedTrees, repeats: int, pipeline: Pipeline
) -> tuple[_PipelinedTrees, int, Pipeline]:
    count = best_chunks(
        lambda repeats: search.time_ps(packing, repeats), packing.most_repeats(_MOST_MESSAGES)
    )
    return packing, count, pipeline if count == repeats else packing.schedule(count)


def _stated(setting: Setting, packing: _PipelinedTrees) -> int | None:
    """Repeats for about the stated number of chunks per rank."""
    if setting.pieces is None:
        return None
    return max(1, round(setting.pieces * setting.collective.num_ranks / packing.weight))


def _candidate(
    form: str,
    setting: Setting,
    packing: _PipelinedTrees,
    repeats: int,
    pipeline: Pipeline,
    *,
    is_interrupted: bool,
) -> SynthesisCandidate:
    return SynthesisCandidate(
        form,
        repeats * packing.weight,
        pipeline.collective,
        pipeline.chunks,
        len(pipeline.transfers),
        pipeline.time_ps,
        lambda nodes: pipeline.transfers if nodes is None else pipeline.transfers.touching(nodes),
        lambda progress: _verify(pipeline, setting),
        packing.details,
        is_interrupted,
    )


def _verify(pipeline: Pipeline, setting: Setting) -> bool:
    """True; raises `InputError` where the whole is not right."""
    members, num_npus = setting.members.tolist(), setting.network.num_npus
    report = verify(
        algorithm_of(
            pipeline.collective,
            pipeline.chunks,
            pipeline.transfers,
            npus=members,
            num_npus=num_npus,
        )
    )
    if not report.ok:
        raise InputError(f"invalid schedule: {report.diagnostics[0]}", code="invalid-schedule")
    return True


def _packings(setting: Setting, progress: Progress) -> Iterator[_PipelinedTrees]:
    """Trees of the network's strength, seed by seed."""
    graph = CapacityGraph.of(setting.network.topology)
    seeds = setting.seeds or max(
        1, min(_MOST_SEEDS, _MOST_SEEDS * _NODES_FOR_ALL_SEEDS // graph.num_nodes)
    )
    for place in range(seeds):
        progress(place / (seeds + 1), "packing trees")
        seed = setting.seed + place
        found, trees = all_reduce_trees(graph, seeds=1, first_seed=seed)
        yield _PipelinedTrees.of(trees, setting, {"seed": seed, **_rate(found, graph)})
    progress(seeds / (seeds + 1), "choosing the number of chunks")


def _central(setting: Setting, progress: Progress) -> Iterator[_PipelinedTrees]:
    progress(0.0, "choosing the number of chunks")
    times = setting.network.link_times(setting.collective_bytes, setting.occupancy)
    yield _PipelinedTrees.of([central_tree(setting.network, times, setting.members)], setting, {})


def _rate(found: Strength, graph: CapacityGraph) -> dict[str, JsonValue]:
    """The strength, and the partition of the NPUs that no trees can beat."""
    is_finest = len(found.blocks) == graph.num_nodes
    blocks: JsonValue = "every NPU alone" if is_finest else [list(block) for block in found.blocks]
    return {
        "strength": str(found.value),
        "rate_bytes_per_s": float(found.value * graph.unit),
        "partition": blocks,
    }
